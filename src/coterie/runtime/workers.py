"""Persistent worker processes over shared memory: ids and small things travel, models do not.

Models and client states are written once into an arena that all processes map; a worker writes its answers'
vectors into the arena too. A worker that dies or exceeds its time is replaced, and the clients it worked for
are asked again one by one, so that one bad client costs nobody else the round.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.clients.rule import Answer, Order
from coterie.engine.engine import Engine, one_thread
from coterie.models.layout import Layout
from coterie.runtime.runtime import Failure, carried_out

_DIED = "its worker process died"
_FORKS = sys.platform == "linux"
"""Forked workers share the federation's memory as it is; where there is no fork they get a copy each."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies in the arena."""

    offset: int
    shape: tuple[int, ...]

    def view(self, arena: Tensor) -> Tensor:
        size = torch.Size(self.shape).numel()
        return arena[self.offset : self.offset + size].view(self.shape)


@dataclass(frozen=True, eq=False)
class _Task:
    """One order as it travels: its tensors are places in the arena."""

    order: Order
    items: dict[str, _Place]
    state: dict[str, _Place]
    out: dict[str, _Place]


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    chunk: list[int] = field(default_factory=list)
    deadline: float | None = None


class Pool:
    """Worker processes, each with an engine of its own."""

    def __init__(
        self, build: Callable[[], Engine], layout: Layout, workers: int, timeout: float | None = None
    ) -> None:
        self._forks = _FORKS
        self._context: Any = multiprocessing.get_context("fork" if self._forks else "spawn")
        self._build = build
        self._layout = layout
        self._timeout = timeout
        self._arena = torch.empty(0)
        self._file: Path | None = None
        self._workers = [self._start() for _ in range(workers)]

    def close(self) -> None:
        for worker in self._workers:
            _end(worker)
        self._workers.clear()
        self._arena = torch.empty(0)
        self._forget_file()

    def carry_out(
        self,
        orders: Sequence[Order],
        states: Sequence[Mapping[str, Tensor]],
        chunks: Sequence[list[int]],
        weights: Sequence[int],
    ) -> list[Answer | Failure]:
        """Have every order answered. `weights` are the chunks' sizes: the largest goes first."""
        if not self._workers:
            raise RuntimeError("the worker processes have ended; a runtime that is closed cannot be asked")
        tasks = self._lay_out(orders, states)
        found: list[Answer | Failure] = [Failure("was not asked")] * len(orders)
        first = sorted(range(len(chunks)), key=lambda c: -weights[c])
        queue = deque(list(chunks[c]) for c in first)
        tried: set[int] = set()
        while queue or any(w.chunk for w in self._workers):
            for worker in self._workers:
                if queue and not worker.chunk:
                    self._hand_over(worker, queue.popleft(), tasks)
            for worker, reply in self._replies():
                chunk, worker.chunk = worker.chunk, []
                if isinstance(reply, list):
                    for i, answer in zip(chunk, reply, strict=True):
                        found[i] = self._unpacked(tasks[i], answer)
                elif len(chunk) > 1:
                    queue.extend([i] for i in chunk)
                elif reply == _DIED and chunk[0] not in tried:
                    tried.add(chunk[0])  # a worker may die of something else than its client: once more
                    queue.append(chunk)
                else:
                    found[chunk[0]] = Failure(reply)
        return found

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        # A forked worker has the arena mapped already; another kind of process finds it by the file's name.
        arena = self._arena if self._forks else (self._file, len(self._arena))
        process = self._context.Process(
            target=_serve, args=(self._build, theirs, os.getpid(), arena), daemon=True, name="coterie worker"
        )
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _hand_over(self, worker: _Worker, chunk: list[int], tasks: list[_Task]) -> None:
        worker.chunk = chunk
        worker.deadline = None if self._timeout is None else time.monotonic() + self._timeout * len(chunk)
        # If it died meanwhile, the next look at the pipe says so.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send([tasks[i] for i in chunk])

    def _replies(self) -> list[tuple[_Worker, list[Answer | Failure] | str]]:
        """Wait until a busy worker has something to say, has died, or is late."""
        busy = [w for w in self._workers if w.chunk]
        deadlines = [w.deadline for w in busy if w.deadline is not None]
        patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        ready = set(wait([w.pipe for w in busy], patience))
        found: list[tuple[_Worker, list[Answer | Failure] | str]] = []
        for worker in busy:
            if worker.pipe in ready:
                try:
                    found.append((worker, worker.pipe.recv()))
                except (EOFError, OSError):  # also in the middle of a message
                    found.append((worker, _DIED))
                    self._replace(worker)
            elif worker.deadline is not None and time.monotonic() >= worker.deadline:
                found.append((worker, f"took longer than {self._timeout:g} s"))
                self._replace(worker)
        return found

    def _replace(self, worker: _Worker) -> None:
        _end(worker)
        fresh = self._start()
        worker.process, worker.pipe = fresh.process, fresh.pipe

    def _lay_out(self, orders: Sequence[Order], states: Sequence[Mapping[str, Tensor]]) -> list[_Task]:
        """Write what the orders carry into the arena, every distinct row once, and make room for the answers."""
        end = 0
        places: dict[object, _Place] = {}
        writes: list[tuple[_Place, Tensor]] = []

        def place(values: Tensor | None, shape: tuple[int, ...], key: object = None) -> _Place:
            nonlocal end
            if key is not None and key in places:
                return places[key]
            spot = _Place(end, shape)
            end += torch.Size(shape).numel()
            if values is not None:
                writes.append((spot, values))
            if key is not None:
                places[key] = spot
            return spot

        tasks = []
        for order, state in zip(orders, states, strict=True):
            items = {n: place(i.values, tuple(i.values.shape), i.key) for n, i in order.items.items()}
            kept = {n: place(v, tuple(v.shape)) for n, v in state.items()}
            rule = order.rule
            width = (self._layout.size,)
            out = {f"send/{n}": place(None, width) for n in rule.sends}
            out |= {f"keep/{n}": place(None, width) for n in rule.keeps}
            empty = {n: replace(i, values=torch.empty(0), key=None) for n, i in order.items.items()}
            tasks.append(_Task(replace(order, items=empty), items, kept, out))
        self._reserve(end)
        for spot, values in writes:
            spot.view(self._arena).copy_(values)
        return tasks

    def _reserve(self, scalars: int) -> None:
        """Make the arena large enough. Called while no worker is busy."""
        if scalars <= len(self._arena):
            return
        size = int(scalars * 1.25) + 1024
        directory = Path("/dev/shm")
        if not (directory.is_dir() and shutil.disk_usage(directory).free > 2 * 4 * size):
            directory = Path(tempfile.gettempdir())
        self._forget_file()
        handle, name = tempfile.mkstemp(prefix="coterie-", dir=directory)
        self._file = Path(name)
        os.truncate(handle, 4 * size)
        os.close(handle)
        self._arena = torch.from_file(name, shared=True, size=size)
        for worker in self._workers:
            try:
                worker.pipe.send((self._file, size))
                worker.pipe.recv()
            except (EOFError, OSError):
                self._replace(worker)
        if self._forks:
            self._forget_file()  # every process has it mapped: a kill leaves nothing behind

    def _forget_file(self) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None

    def _unpacked(self, task: _Task, answer: Answer | Failure) -> Answer | Failure:
        """The answer with the vectors its worker left in the arena."""
        if isinstance(answer, Failure):
            return answer
        send = {n: task.out[f"send/{n}"].view(self._arena) for n in answer.send}
        keep = {n: task.out[f"keep/{n}"].view(self._arena) for n in answer.keep}
        return replace(answer, send=send, keep=keep)


def _end(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()


def _serve(
    build: Callable[[], Engine], pipe: Connection, parent: int, arena: Tensor | tuple[Path | None, int]
) -> None:
    """A worker's life: build an engine, then answer lists of tasks until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    files: list[Path | None] = [None if isinstance(arena, Tensor) else arena[0]]
    threading.Thread(target=_end_with, args=(parent, files), daemon=True).start()
    one_thread()
    shared = arena if isinstance(arena, Tensor) else _mapped(*arena)
    engine = build()
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        if isinstance(message, tuple):
            files[0], shared = message[0], _mapped(*message)
            pipe.send("mapped")
            continue
        try:
            pipe.send(_answers(engine, message, shared))
        except Exception as error:  # noqa: BLE001  # whatever a client's rule does, the round goes on
            pipe.send(f"{type(error).__name__}: {error}")


def _end_with(parent: int, files: list[Path | None]) -> None:
    """End this process once its parent is gone, whatever it is doing, and the file that nobody will remove."""
    while os.getppid() == parent:
        time.sleep(0.5)
    if files[0] is not None:
        files[0].unlink(missing_ok=True)
    os._exit(1)


def _mapped(file: Path | None, scalars: int) -> Tensor:
    return torch.empty(0) if file is None else torch.from_file(str(file), shared=True, size=scalars)


def _answers(engine: Engine, tasks: list[_Task], arena: Tensor) -> list[Answer | Failure]:
    orders = [
        replace(t.order, items={n: replace(i, values=t.items[n].view(arena)) for n, i in t.order.items.items()})
        for t in tasks
    ]
    states = [{n: p.view(arena) for n, p in t.state.items()} for t in tasks]
    answers: list[Answer | Failure] = []
    for task, answer in zip(tasks, carried_out(engine, orders, states), strict=True):
        if isinstance(answer, Failure):
            answers.append(answer)
            continue
        for name, values in answer.send.items():
            task.out[f"send/{name}"].view(arena).copy_(values)
        for name, values in answer.keep.items():
            task.out[f"keep/{name}"].view(arena).copy_(values)
        gone = torch.empty(0)
        answers.append(
            replace(answer, send=dict.fromkeys(answer.send, gone), keep=dict.fromkeys(answer.keep, gone))
        )
    return answers
