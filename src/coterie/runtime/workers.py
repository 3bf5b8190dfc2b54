"""Persistent worker processes over shared memory: ids and small things travel, models do not.

Models and client states are written once into an arena that all processes map; a worker writes its answers'
vectors into the arena too. A worker that dies, stops or exceeds its time is replaced, and the clients it worked
for are asked again one by one, so that one bad client costs nobody else the round.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
import sys
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
from coterie.engine.engine import Engine
from coterie.problems import BadInput
from coterie.runtime.arena import Place, make_file, mapped
from coterie.runtime.runtime import Failure, carried_out, shapes_of
from coterie.runtime.threads import one_thread

_DIED = "its worker process died"
_READY = "ready"
_STARTS = 3
"""How often in succession a worker may end before it is ready."""
_PATIENCE = 60.0
"""Seconds in which a worker must start, map memory, or take or finish a message, whatever its clients may take."""
_GONE = torch.empty(0)
"""Stands for a tensor that lies in the arena."""
_FORKS = sys.platform == "linux"
"""Forked workers share the federation's memory as it is; where there is no fork they get a copy each."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class _Task:
    """One order as it travels: its tensors are places in the arena."""

    order: Order
    items: dict[str, Place]
    state: dict[str, Place]
    out: dict[str, Place]


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    ready: bool = False
    chunk: list[int] = field(default_factory=list)
    deadline: float | None = None


class Pool:
    """Worker processes, each with an engine of its own.

    Args:
        engine: what a forked worker works with; it shares the parent's pages until it writes to them.
        build: makes the same engine where there is no fork.
        workers: number of processes.
        timeout: seconds that a client may take, from when a worker that is ready takes it up; None for no limit.
    """

    def __init__(self, engine: Engine, build: Callable[[], Engine], workers: int, timeout: float | None) -> None:
        self._forks = _FORKS
        self._context: Any = multiprocessing.get_context("fork" if self._forks else "spawn")
        self._build = (lambda: engine) if self._forks else build
        self._layout = engine.layout
        self._timeout = timeout
        self._patience = max(_PATIENCE, timeout or 0.0)
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
        """Have every order answered. `weights` are the chunks' sizes: the largest goes first.

        Raises:
            BadInput: there is no room for what the orders carry, or workers end before they are ready.
        """
        if not self._workers:
            raise RuntimeError("the worker processes have ended; a runtime that is closed cannot be asked")
        try:
            return self._carried_out(orders, states, chunks, weights)
        except BaseException:
            # What busy workers still have to say would be taken for answers to the next orders, and others may
            # not have mapped new memory yet.
            for worker in self._workers:
                worker.chunk = []
                self._replace(worker)
            raise

    def _carried_out(
        self,
        orders: Sequence[Order],
        states: Sequence[Mapping[str, Tensor]],
        chunks: Sequence[list[int]],
        weights: Sequence[int],
    ) -> list[Answer | Failure]:
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
        _limit(ours, self._patience)
        # A forked worker has the arena mapped already; another kind of process finds it by the file's name.
        arena = self._arena if self._forks else (self._file, len(self._arena))
        process = self._context.Process(
            target=_serve, args=(self._build, theirs, os.getpid(), arena), daemon=True, name="coterie worker"
        )
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _replace(self, worker: _Worker) -> None:
        fresh, old = self._start(), replace(worker)
        worker.process, worker.pipe, worker.ready = fresh.process, fresh.pipe, False
        _end(old)

    def _greet(self, worker: _Worker) -> None:
        """Wait until a worker has its engine: only then may its clients' time begin, and its memory change."""
        reason = _DIED
        for _ in range(_STARTS):
            if worker.ready:
                return
            try:
                reason = worker.pipe.recv()
            except (EOFError, OSError):
                reason = _DIED
            if reason == _READY:
                worker.ready = True
                return
            self._replace(worker)
        raise BadInput(
            f"run.workers = {len(self._workers)} is not possible: a worker ended {_STARTS} times before it was "
            f"ready ({reason}); free memory, or set run.workers = 1 and no run.client_timeout"
        )

    def _hand_over(self, worker: _Worker, chunk: list[int], tasks: list[_Task]) -> None:
        self._greet(worker)
        worker.chunk = chunk
        worker.deadline = None if self._timeout is None else time.monotonic() + self._timeout * len(chunk)
        try:
            worker.pipe.send([tasks[i] for i in chunk])
        except OSError:
            worker.process.kill()  # it died, or does not read; the next look at the pipe says so

    def _replies(self) -> list[tuple[_Worker, list[Answer | Failure] | str]]:
        """Wait until a busy worker has something to say, has died, or is late."""
        busy = [w for w in self._workers if w.chunk]
        deadlines = [w.deadline for w in busy if w.deadline is not None]
        patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        ready = set(wait([w.pipe for w in busy], patience))
        found: list[tuple[_Worker, list[Answer | Failure] | str]] = []
        for worker in busy:
            if worker.pipe in ready:
                found.append((worker, self._received(worker)))
            elif worker.deadline is not None and time.monotonic() >= worker.deadline:
                found.append((worker, f"took longer than {self._timeout:g} s"))
                self._replace(worker)
        return found

    def _received(self, worker: _Worker) -> list[Answer | Failure] | str:
        """A worker's message: answers, or why there are none."""
        try:
            found: list[Answer | Failure] | str = worker.pipe.recv()
        except (EOFError, OSError):  # also in the middle of a message
            self._replace(worker)
            return _DIED
        except Exception as error:  # noqa: BLE001  # a message is built again by code of whatever it holds
            return f"its answer cannot be read ({type(error).__name__}: {error})"
        return found

    def _lay_out(self, orders: Sequence[Order], states: Sequence[Mapping[str, Tensor]]) -> list[_Task]:
        """Write what the orders carry into the arena, every distinct row once, and make room for the answers."""
        end = 0
        places: dict[object, Place] = {}
        writes: list[tuple[Place, Tensor]] = []

        def place(values: Tensor | None, shape: tuple[int, ...], key: object = None) -> Place:
            nonlocal end
            if key is not None and key in places:
                return places[key]
            spot = Place(end, shape)
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
            rule, shapes = order.rule, shapes_of(order.rule, self._layout)
            out = {f"send/{n}": place(None, shapes[n]) for n in rule.sends}
            out |= {f"keep/{n}": place(None, shapes[n]) for n in rule.keeps}
            empty = {n: replace(i, values=_GONE, key=None) for n, i in order.items.items()}
            tasks.append(_Task(replace(order, items=empty), items, kept, out))
        self._reserve(end)
        for spot, values in writes:
            spot.view(self._arena).copy_(values)
        return tasks

    def _reserve(self, scalars: int) -> None:
        """Make the arena large enough. Called while no worker is busy."""
        if scalars <= len(self._arena):
            return
        for worker in self._workers:
            self._greet(worker)  # a worker on its way may still be looking for the old file
        size = int(scalars * 1.25) + 1024
        file = make_file(size)
        self._forget_file()
        self._file = file
        self._arena = mapped(file, size)
        for worker in self._workers:
            try:
                worker.pipe.send((file, size))
                worker.pipe.recv()
            except (EOFError, OSError):  # it died, or does not answer
                self._replace(worker)
                self._greet(worker)
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
        keep = {n: None if v is None else task.out[f"keep/{n}"].view(self._arena) for n, v in answer.keep.items()}
        return replace(answer, send=send, keep=keep)


def _end(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()


def _limit(pipe: Connection, seconds: float) -> None:
    """Let reading and writing fail when the other end keeps one waiting that long in the middle of it."""
    if os.name == "posix":
        with socket.socket(fileno=os.dup(pipe.fileno())) as end:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))


def _serve(
    build: Callable[[], Engine], pipe: Connection, parent: int, arena: Tensor | tuple[Path | None, int]
) -> None:
    """A worker's life: build an engine, then answer lists of tasks until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    files: list[Path | None] = [None if isinstance(arena, Tensor) else arena[0]]
    threading.Thread(target=_end_with, args=(parent, files), daemon=True).start()
    with one_thread(blas=True):
        _work(build, pipe, arena, files)


def _work(
    build: Callable[[], Engine],
    pipe: Connection,
    arena: Tensor | tuple[Path | None, int],
    files: list[Path | None],
) -> None:
    try:
        shared = arena if isinstance(arena, Tensor) else mapped(*arena)
        engine = build()
    except Exception as error:  # noqa: BLE001  # the parent says it
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send(_READY)
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return
        if isinstance(message, tuple):
            files[0], shared = message[0], mapped(*message)
            pipe.send("mapped")
            continue
        try:
            pipe.send(_answers(engine, message, shared))
        except BaseException as error:  # noqa: BLE001  # whatever a client's rule does, the round goes on
            pipe.send(f"{type(error).__name__}: {error}")


def _end_with(parent: int, files: list[Path | None]) -> None:
    """End this process once its parent is gone, whatever it is doing, and the file that nobody will remove."""
    while os.getppid() == parent:
        time.sleep(0.5)
    if files[0] is not None:
        files[0].unlink(missing_ok=True)
    os._exit(1)


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
        kept = {name: values for name, values in answer.keep.items() if values is not None}
        for name, values in kept.items():
            task.out[f"keep/{name}"].view(arena).copy_(values)
        stubs = {name: None if values is None else _GONE for name, values in answer.keep.items()}
        answers.append(replace(answer, send=dict.fromkeys(answer.send, _GONE), keep=stubs))
    return answers
