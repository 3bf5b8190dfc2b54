"""Runs the cells of a comparison in processes of their own, several at once, and goes on where it was stopped.

A process is kept for many cells, and for several calls where the caller keeps it. It ends when the pipe to its
parent closes, so that nothing outlives a parent that is killed; a process that dies is replaced, and its cell
resumed once.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import shutil
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Literal, cast

from coterie.errors import BadInput
from coterie.plugins import consent, current_folder_last, give
from coterie.runs.folder.lock import lock_folder
from coterie.runs.folder.metrics import RunMetric
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from coterie.runtime.local.processes import CELL, GUARD, UNGUARDED
from coterie.runtime.signals import defer_signals, ignore_interrupts
from coterie.studies.compare.folder import find_finished
from coterie.studies.compare.spec import Cell, key_of

if TYPE_CHECKING:
    from coterie.runs.events import Observer, Result, Round

STARTS = 3
"""Times in a row that a process may end before it is ready."""

QUIET_SECONDS = 1.0
"""After so long a silence the observer may show that time passes."""
_KILLED = -9
"""Exit code of a process that the system ended at once (SIGKILL)."""


@dataclass(frozen=True)
class CellOutcome:
    """What became of a cell."""

    status: Literal["finished", "failed", "interrupted"]
    sentence: str = ""
    """Why it failed."""


class Watcher:
    """Watches cells being run; this one does nothing. Called in the parent process."""

    def later(self, rounds: int | None) -> None:
        """Before `started`: about how many rounds follow these cells; None where they are no stage of many."""

    def started(self, todo: Sequence[Cell], done: int) -> None:
        """Before the first cell: each that is to be run, and how many are finished already."""

    def begun(self, cell: Cell) -> None:
        """A process takes a cell up, perhaps again."""

    def round(self, cell: Cell, number: int, value: float | None, metric: RunMetric) -> None:
        """A cell has finished a round, with this value of its first metric (mean over clients), where evaluated."""

    def note(self, cell: Cell, text: str) -> None:
        """A remark that needs no answer."""

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        """A cell is finished, or has failed."""

    def waiting(self) -> None:
        """Nothing was heard for `QUIET_SECONDS`."""

    def phase(self, text: str) -> None:
        """Before what takes time behind the last cell; `text` says what it is."""


def run_cells(
    cells: Sequence[Cell],
    pool: Path,
    jobs: int | None = None,
    observer: Watcher | None = None,
    kept: list[CellProcess] | None = None,
) -> dict[str, CellOutcome]:
    """Run every cell that is not finished yet, each in the run folder `pool/KEY`.

    A cell that fails keeps none of the others from running. Ctrl-C, or whatever else raises KeyboardInterrupt here,
    ends the processes; cells that are not finished are then `interrupted`, and a later call goes on with them.

    Args:
        cells: in the order in which they are begun; those with the same key are run once.
        pool: where the run folders are; several comparisons may share it.
        jobs: cells at a time; None for one a core. Fewer cells than that get several worker processes each, unless
            their experiments set run.workers.
        observer: is told how the cells get on.
        kept: processes of earlier calls, which go on with these cells and are left for later ones; None for none.

    Returns:
        What became of each cell, by key.

    Raises:
        BadInput: another process runs cells in the pool, processes cannot be started, or data cannot be downloaded.
    """
    from coterie.clients.data.read.datasets import download
    from coterie.runtime.threads import cores

    each = dict[str, Cell]()
    for cell in cells:
        each.setdefault(cell.key, cell)
    ordered = list(each.values())
    done = find_finished(ordered, pool)
    outcomes = {key: CellOutcome("finished") for key in done}
    watcher = observer or Watcher()
    todo = [cell for cell in ordered if cell.key not in done]
    for data in dict.fromkeys(cell.experiment.data.name for cell in todo):
        download(data)  # once, and what fails is said once
    watcher.started(todo, len(done))
    if todo:
        busy = f"another process runs cells in {str(pool)!r}; wait for it, or stop it first"
        with lock_folder(pool, busy), keep_processes() if kept is None else nullcontext(kept) as processes:
            runner = _Runner(todo, pool.resolve(), jobs or cores(), watcher, outcomes, processes)
            try:
                runner.run()
            except KeyboardInterrupt:
                pass
            finally:
                runner.close()
    return {cell.key: outcomes.get(cell.key, CellOutcome("interrupted")) for cell in ordered}


@dataclass(frozen=True)
class _Order:
    """A cell as it travels to a process."""

    cell: Cell
    pool: Path
    workers: int
    modules: tuple[str, ...]
    """What must be imported for the experiment's method and network to be known."""
    consent: frozenset[str]
    """What was given to the process that compares."""
    network: Any = None
    """The network, where it was given in Python."""


@dataclass(eq=False)
class CellProcess:
    """A process that runs cells, one after the other."""

    process: BaseProcess
    pipe: Connection
    ready: bool = False
    cell: Cell | None = None

    def end(self) -> None:
        """End it, whatever it is doing."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextmanager
def keep_processes() -> Iterator[list[CellProcess]]:
    """Give a list in which several calls of `run_cells` keep their processes, which end with the context."""
    kept: list[CellProcess] = []
    try:
        yield kept
    finally:
        end_processes(kept)


def end_processes(kept: list[CellProcess]) -> None:
    """End processes that were kept."""
    with defer_signals():
        while kept:
            kept.pop().end()


class _Runner:
    """The parent's side: hands cells to processes and hears of them."""

    def __init__(
        self,
        todo: Sequence[Cell],
        pool: Path,
        jobs: int,
        watcher: Watcher,
        outcomes: dict[str, CellOutcome],
        kept: list[CellProcess],
    ) -> None:
        self._queue, self._pool, self._jobs = deque(todo), pool, jobs
        self._watcher, self._outcomes = watcher, outcomes
        self._kept, self._processes = kept, list[CellProcess]()
        self._died: set[str] = set()
        self._failed_starts = 0

    def run(self) -> None:
        for _ in range(min(self._jobs, len(self._queue))):
            self._start()
        while self._queue or any(p.cell for p in self._processes):
            for process in list(self._processes):
                if process.cell is None and self._queue:
                    self._hand_over(process, self._queue.popleft())
                elif process.cell is None:
                    self._release(process)
            by_pipe = {p.pipe: p for p in self._processes}
            speaking = wait(list(by_pipe), QUIET_SECONDS)
            if not speaking:
                self._watcher.waiting()
            for pipe in speaking:
                self._heard(by_pipe[cast(Connection, pipe)])

    def close(self) -> None:
        """End every process that is busy, and release the others."""
        with defer_signals():
            for process in list(self._processes):
                self._release(process) if process.cell is None else self._end(process)

    def _start(self) -> None:
        context: Any = multiprocessing.get_context("spawn")
        # An interruption between the start and the list would leave a process that nobody ends.
        with defer_signals():
            if self._kept:
                self._processes.append(self._kept.pop())
                return
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, str(Path.cwd())), name=CELL)
            with current_folder_last(), ignore_interrupts():
                process.start()
            theirs.close()
            self._processes.append(CellProcess(process, ours))

    def _release(self, process: CellProcess) -> None:
        """Leave an idle process to a later call."""
        with defer_signals():
            self._processes.remove(process)
            self._kept.append(process)

    def _end(self, process: CellProcess) -> None:
        self._processes.remove(process)
        process.end()

    def _hand_over(self, process: CellProcess, cell: Cell) -> None:
        process.cell = cell
        left = 1 + len(self._queue) + sum(p.cell is not None and p is not process for p in self._processes)
        workers = cell.experiment.run.workers or max(1, self._jobs // left)
        modules, given = _modules(cell.experiment), _network_given(cell.experiment)
        order = _Order(cell, self._pool, workers, modules, consent(), given)
        self._watcher.begun(cell)
        try:
            process.pipe.send(order)
        except OSError:
            process.process.kill()  # it died; the next look at the pipe says so

    def _heard(self, process: CellProcess) -> None:
        try:
            heard = process.pipe.recv()
        except (EOFError, OSError):  # also in the middle of a message
            heard = None
        if heard is None:
            self._replace_dead(process)
            return
        kind, *what = heard
        if kind == "ready":
            process.ready, self._failed_starts = True, 0
            return
        assert process.cell is not None
        if kind == "round":
            self._watcher.round(process.cell, *what)
        elif kind == "note":
            self._watcher.note(process.cell, *what)
        else:
            cell, process.cell = process.cell, None
            self._ended(cell, CellOutcome(kind, *what))

    def _replace_dead(self, process: CellProcess) -> None:
        """Replace a process that died; its cell is resumed once."""
        self._end(process)
        cell, code = process.cell, process.process.exitcode
        if code == UNGUARDED and not process.ready:
            raise BadInput(GUARD)
        if not process.ready:
            self._failed_starts += 1
            if self._failed_starts == STARTS:
                raise BadInput(
                    f"jobs = {self._jobs} is not possible: a process ended {STARTS} times before it was ready "
                    f"({_describe_end(code)}); free memory, or if this is a script, put its code under if __name__ "
                    "== '__main__':"
                )
        if cell is not None and process.ready and cell.key in self._died:
            fewer = "; fewer runs at a time (jobs) need less" if code == _KILLED and self._jobs > 1 else ""
            why = f"its process died twice, the last time {_describe_end(code)}{fewer}"
            self._ended(cell, CellOutcome("failed", why))
            if not self._queue:
                return
        elif cell is not None:
            self._queue.appendleft(cell)
            if process.ready:
                self._died.add(cell.key)
        self._start()

    def _ended(self, cell: Cell, outcome: CellOutcome) -> None:
        self._outcomes[cell.key] = outcome
        self._watcher.ended(cell, outcome)


def _describe_end(code: int | None) -> str:
    if code == _KILLED:
        return "by signal 9, which the system sends when memory runs out"
    return f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"


def _network_given(experiment: Experiment) -> Any:
    """The module, class or function that was given in Python for the network; None for one that has a path."""
    from coterie.models.factory import GIVEN
    from coterie.models.networks import NETWORKS

    name = experiment.network.name
    return getattr(NETWORKS[name].target, "target", None) if name.startswith(GIVEN) else None


def _modules(experiment: Experiment) -> tuple[str, ...]:
    """The modules that define the method, the network and the task; a script's own are known in every process."""
    from coterie.runs.schema.names import catalog

    names = {"method": experiment.method.name, "network": experiment.network.name, "task": experiment.task.name}
    found = [catalog(kind)[name].target.__module__ for kind, name in names.items() if name in catalog(kind)]
    return tuple(name for name in found if name != "__main__")


def _serve(pipe: Connection, place: str) -> None:
    """A process's life: run cells until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(place)
    orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, orders), daemon=True).start()
    from coterie.runs import loop
    from coterie.runtime.threads import one_thread

    pipe.send(("ready",))
    with one_thread(blas=True):
        while True:
            order = orders.get()
            try:
                _run_cell(order, loop, _PipeObserver(pipe, order.cell.until))
            except BadInput as error:
                pipe.send(("failed", "; ".join(error.problems)))
            except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a cell does, the others go on
                *_, last = extract_tb(error.__traceback__)
                pipe.send(("failed", f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"))
            else:
                pipe.send(("finished",))


def _listen(pipe: Connection, orders: queue.SimpleQueue[_Order]) -> None:
    """Queue orders, also while a cell runs; end this process at once when the parent is gone."""
    while True:
        try:
            orders.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(1)


def _run_cell(order: _Order, loop: Any, teller: Observer) -> None:
    """Run a cell, or go on with it.

    Raises:
        BadInput: the cell cannot run, or its folder holds another run.
    """
    give(order.consent)
    for module in order.modules:
        import_module(module)
    experiment, key = order.cell.experiment, order.cell.key
    if order.network is not None:
        from coterie.models.networks import NETWORKS

        NETWORKS.add_own(experiment.network.name, order.network)
    folder = RunFolder(order.pool / key)
    if folder.path.exists() and not (folder.path / "experiment.toml").exists():
        shutil.rmtree(folder.path)  # killed before anything was written; its name would be taken
    if not folder.path.exists():
        own = {"run.folder": str(order.pool), "run.name": key, "run.workers": order.workers}
        loop.run(experiment.updated(own), observers=[teller])
        return
    kept = Experiment.from_toml(folder.experiment_text() + "\n")
    if key_of(kept) != key:
        raise BadInput(f"{str(folder.path)!r} holds another experiment than its name says; remove it")
    folder.write_experiment(kept.updated({"run.workers": order.workers}).to_toml())
    loop.resume(folder, observers=[teller])


class _PipeObserver:
    """Tells the parent how a cell gets on, and stops it after the round that it is to reach."""

    def __init__(self, pipe: Connection, until: int | None = None) -> None:
        self._pipe, self._until = pipe, until

    def started(self, experiment: Experiment, description_lines: Sequence[str]) -> None:
        pass

    def round(self, round: Round) -> None:
        measured = round.measured
        self._pipe.send(("round", round.number, round.metrics.get(measured.headline), measured.deciding))
        if self._until is not None and self._until <= round.number < round.planned:
            raise KeyboardInterrupt  # the run saves its state and ends, as after Ctrl-C

    def note(self, text: str) -> None:
        self._pipe.send(("note", text))

    def finished(self, result: Result) -> None:
        pass
