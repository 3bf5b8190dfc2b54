"""A run from setup to close: play the rounds, evaluate, record and save them; go on after an interruption."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from torch import nn

from coterie.errors import BadInput
from coterie.runs.events import LoggedNotes, Observer, Result, Round, Status, make_observers
from coterie.runs.folder.lock import lock_run
from coterie.runs.folder.reading import RunResults
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.given import take_given
from coterie.runs.record import is_enough
from coterie.runs.schema.experiment import Experiment, Prepared, prepare
from coterie.runs.schema.sections import Data, make_name
from coterie.runs.session import Session
from coterie.runs.setup import Backend
from coterie.runtime.garbage import freeze_objects
from coterie.runtime.local.processes import refuse_unguarded
from coterie.runtime.signals import defer_signals

REGISTER = "register.json"
"""The file in a run's folder that says who its clients are, where these are real ones."""


def run(
    experiment: Experiment | Prepared, *, observers: Sequence[Observer] = (), backend: Backend | None = None
) -> Result:
    """Train, and keep everything in a fresh run folder.

    The clients are those of `backend`, whose runtime is closed with the run; without one they are simulated.

    Ctrl-C ends a run early with its state saved: the result's status is then `interrupted`, and `resume` goes
    on to the very result that an uninterrupted run gives.

    Without observers, what there is to note goes to the log `coterie`, on standard error.

    Raises:
        BadInput: the experiment cannot run; nothing has been written then.
    """
    refuse_unguarded()
    prepared = prepare(experiment)
    wanted = prepared.experiment.run
    observers = [*(observers or (LoggedNotes(),)), *make_observers(wanted.observers)]
    with closing(Session(prepared, backend, observers)) as session, freeze_objects():
        folder = RunFolder.create(wanted.folder, wanted.name or _make_name(session.experiment))
        try:
            with lock_run(folder):
                session.begin(folder)
                return _train_and_finish(session, folder)
        except Exception:
            if not session.done:  # there is nothing to resume, and the name is free again
                shutil.rmtree(folder.path, ignore_errors=True)
            raise


def resume(
    folder: RunFolder | Path | str,
    *,
    observers: Sequence[Observer] = (),
    backend: Backend | None = None,
    network: nn.Module | Callable[..., Any] | None = None,
    data: Any = None,
    allow: Iterable[str] = (),
) -> Result:
    """Go on with a run that was interrupted or killed, from its last sound checkpoint.

    A run that is finished stays as it is, and its result is given. `backend` is as for `run`. `network` is needed
    where the run's was given in Python: a module with the same tensors, which gets the weights of the run's. So are
    `data`, which must be the same. `allow` are the modules and `package.module:object` that the run's
    experiment.toml may have imported.

    Raises:
        BadInput: the folder holds no run, it is still running, its experiment.toml or its data have changed, no
            checkpoint is sound, a table is damaged or missing, or its clients are real ones and there is no
            `backend`.
    """
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    observers = observers or (LoggedNotes(),)
    folder.experiment()  # names the file if it is no TOML
    experiment = Experiment.from_toml(folder.experiment_text() + "\n", allow)
    said = {"label": experiment.data.label, "client": experiment.data.client}
    if data is not None and (name := Data(name=data, **said).name) != experiment.data.name:
        raise BadInput(
            f"data = {name!r} is not what run {folder.name} was trained on; give {experiment.data.name!r}"
        )
    with lock_run(folder):
        progress = folder.progress()
        folder.check_tables()
        if folder.status == "finished" and progress and _has_ended(folder, progress.rounds, experiment):
            for observer in observers:
                observer.note(f"run {folder.name} is finished; there is nothing left to do")
            return _read_result(folder, experiment, "finished", observers)
        take_given(folder, experiment.network.name, network)
        prepared = prepare(experiment)
        if backend is None and (folder.path / REGISTER).exists():
            words = f"resume='{folder.name}' runs='{folder.path.parent.resolve()}'"
            raise BadInput(
                f"run {folder.name} trains real clients, and each keeps its own state; go on with it through its "
                f'app: flwr run APP local --run-config "{words}"'
            )
        observers = [*observers, *make_observers(experiment.run.observers)]
        with closing(Session(prepared, backend, observers, folder.secret())) as session, freeze_objects():
            session.go_on(folder)
            return _train_and_finish(session, folder)


def rounds(experiment: Experiment, observers: Sequence[Observer] = ()) -> Iterator[Round]:
    """The loop itself: one `Round` after each round. Nothing is written, and clients held out are not evaluated.

    Raises:
        BadInput: the experiment cannot run.
    """
    refuse_unguarded()
    prepared = prepare(experiment)
    observers = [*(observers or (LoggedNotes(),)), *make_observers(experiment.run.observers)]
    with closing(Session(prepared, None, observers)) as session:
        yield from train(session)


def train(session: Session) -> Generator[Round]:
    """Play the rounds that are left, one event after each. Whatever stops it, the last whole round is on disk.

    Raises:
        BadInput: nobody answers any more.
    """
    session.announce()
    try:
        for number in session.remaining_rounds():
            result = session.play_round(number)  # the method asks, the clients answer
            session.evaluate_if_due(result)
            with defer_signals():  # a round is recorded whole or not at all
                metrics_row = session.record(result)
                session.save_checkpoint_if_due()
            yield session.notify(result, metrics_row)
            session.stop_if_nobody_answers(result)
        session.finish()
    finally:
        session.save_last_round()


def _train_and_finish(session: Session, folder: RunFolder) -> Result:
    """Play the rounds that are left and close the books; Ctrl-C leaves a run that can be resumed."""
    status: Status = "interrupted"
    try:
        session.write_into(folder)
        # Closed first, so that the last round is on disk when the run says that it has ended.
        with closing(train(session)) as events:
            for _ in events:
                pass
        with defer_signals():
            folder.compact()
            folder.forget_secret()
            status = "finished"
    except KeyboardInterrupt:
        pass
    finally:  # also where a method or an observer raised
        folder.flush()  # a status promises these rounds
        with suppress(BadInput):  # whoever reads the run is told
            folder.settle()
        folder.write_status(status, session.done, session.expected)
    return _read_result(folder, session.experiment, status, session.observers)


def _has_ended(folder: RunFolder, rounds: int, experiment: Experiment) -> bool:
    """Return whether a run that has finished `rounds` rounds has no more to play by its experiment."""
    if experiment.training.stop is not None:  # a finished run is one that found its end
        return True
    wanted = experiment.run.passes
    if wanted is None or rounds >= experiment.run.rounds:
        return rounds >= experiment.run.rounds
    return is_enough(folder.rounds()["passes"].fill_null(0).to_list(), wanted)


def _read_result(
    folder: RunFolder, experiment: Experiment, status: Status, observers: Sequence[Observer]
) -> Result:
    tables = folder.rounds(), folder.clients(), folder.ledger()
    result = Result(folder.path, experiment, *tables, summarise(folder), status, folder.metrics)
    for observer in observers:
        observer.finished(result)
    return result


def summarise(folder: RunFolder) -> dict[str, Any]:
    """Return the final metrics of the run in a folder, whatever has ended it; empty before its first round.

    Raises:
        BadInput: a file is damaged or missing.
    """
    run = RunResults(folder, folder.name)
    return run.summary if run.rounds.height else {}


def _make_name(experiment: Experiment) -> str:
    """Make a run's name of what is run: fesem-digits-rotated-4-s0."""
    data = Path(experiment.data.name).stem if "/" in experiment.data.name else experiment.data.name
    words = f"{experiment.method.name}-{data}-{experiment.data.split}".replace("_", "-")
    return make_name(words, f"-s{experiment.run.seed}")
