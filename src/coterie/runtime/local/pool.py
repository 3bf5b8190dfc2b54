"""Persistent worker processes over shared memory: ids and small things travel, models do not.

What a question carries is written once into memory that all processes map; a worker writes the vectors of its
answers into such memory too, where the method finds them. Where a worker dies or exceeds its time, all
are started anew and what they had in hand is asked again, so that one bad client costs nobody else the round.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from torch import Tensor

from coterie.clients.engine.engine import Engine
from coterie.clients.rules.rule import Order
from coterie.errors import BadInput
from coterie.methods.exchange import Outputs
from coterie.runtime.dispatch import Dispatcher, Job, Setback
from coterie.runtime.local.processes import GUARD, UNGUARDED, end, start
from coterie.runtime.local.shared_batch import (
    LARGE_MATRIX_BYTES,
    Question,
    QuestionWriter,
    Slot,
    SumSlots,
    copy_small,
)
from coterie.runtime.local.worker import READY
from coterie.runtime.rows import Rows, StoredAnswer
from coterie.runtime.runtime import Failure
from coterie.runtime.shared_memory import Arena
from coterie.runtime.signals import defer_signals
from coterie.runtime.states import ClientStates
from coterie.runtime.tasks import TaskRunner

MAX_FAILED_STARTS = 3
"""How often in succession a worker may end before it is ready."""
START_SECONDS = 60.0
"""In this time a worker must be ready, or in that which its clients may take if that is longer."""
TOLD_SECONDS = 2.0
"""In this time whoever wants to know how many tasks are done is told again."""
MAX_WAITING_BYTES = 1 << 14
"""Largest message that may wait in the pipe of a worker that is still busy."""
MESSAGE_SHARE = 0.5
"""Most of a worker's share of what is left that several jobs of one message may be."""
MAX_MESSAGE_TASKS = 128
"""Most tasks of one message that holds several jobs."""
FORKS = sys.platform == "linux"
"""Forked workers have the federation and the engine as they are. Others start from nothing; PyTorch then moves the
federation to memory that all of them map."""
RESTARTED = "all are started anew, and their unfinished work is repeated"
"""What is said of the workers where one of them died."""
_DIED = Setback("its worker process died", "process")

Reply = list[list[Any]] | Setback
"""What came of each job of a message, or why nothing did."""


class _Message(NamedTuple):
    """What a worker was handed at a time."""

    jobs: list[Job]
    slot: Slot


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    deadline: float | None
    """When it must be ready, then when the message that it works at must be done."""
    ready: bool = False
    question: bytes | None = None
    """The last that it was sent."""
    messages: deque[_Message] = field(default_factory=deque)
    """The message it works at, and one that waits."""


class Pool:
    """Worker processes, each with an engine of its own.

    Args:
        runner: what a forked worker works with; it shares the parent's pages until it writes to them.
        build: makes the same engine where there is no fork.
        workers: number of processes.
        timeout: seconds that a client may take, from when a worker that is ready takes it up; None for no limit.
        arena: the memory that is shared.
    """

    def __init__(
        self, runner: TaskRunner, build: Callable[[], Engine], workers: int, timeout: float | None, arena: Arena
    ) -> None:
        self.notes: list[str] = []
        """One sentence for each time that a worker died."""
        self._equip = (lambda: runner) if FORKS else partial(_build_runner, build)
        engine = runner.engine
        self._writer = QuestionWriter(arena, engine.layout, engine.distribution_size, runner.sketcher.width)
        self._count = workers
        self._timeout = timeout
        self._failed_starts = 0
        self._is_open = True
        self._slots: SumSlots | None = None
        """Of the question that is worked at."""
        self._on_answers: Callable[[int, int], object] | None = None
        self._asked = 0
        """How many tasks the question that is worked at has."""
        self._workers: list[_Worker] = []
        weakref.finalize(self, _end_all, self._workers, os.getpid())  # also of a pool that was never finished
        self._start()

    def close(self) -> None:
        """End the workers, and give back the memory."""
        self._is_open = False
        _end_all(self._workers, os.getpid())
        self._writer.close()

    def distribute(
        self,
        orders: Sequence[Order],
        states: ClientStates,
        chunks: Sequence[Sequence[int]],
        weights: Sequence[int],
        keep: bool,
        on_answers: Callable[[int, int], object] | None = None,
    ) -> tuple[list[StoredAnswer | Failure], Rows[Tensor]]:
        """Have every order answered, and what is kept put into `states`, if `keep` says so.

        Args:
            orders: of one exchange, at least one.
            states: what the clients have kept.
            chunks: the numbers of the orders that are carried out together.
            weights: the chunks' sizes: the largest goes first.
            keep: whether what the answers keep is kept.
            on_answers: see `Runtime.on_answers`.

        Raises:
            BadInput: there is no room for what the orders carry, or workers end before they are ready.
        """
        room = self._writer.make_room(orders, states) if keep else {}
        try:
            tasks, question, rows, slots = self._writer.write_orders(orders, states, room, keep, self._count)
            jobs = [Job([tasks[i] for i in c], weight) for c, weight in zip(chunks, weights, strict=True)]
            outcomes: list[StoredAnswer | Failure] = [Failure("was not asked")] * len(orders)
            for job, reply in self._ask(question, jobs, slots, on_answers):
                each = [Failure(reply.reason)] * len(job.tasks) if isinstance(reply, Setback) else reply
                for task, outcome in zip(job.tasks, each, strict=True):
                    outcomes[task.row] = outcome
            for order, outcome in zip(orders, outcomes, strict=True):
                if isinstance(outcome, StoredAnswer) and outcome.client_state:
                    places = outcome.client_state.items()
                    new = {name: None if place is None else room[name].pop(outcome.row) for name, place in places}
                    states.update(order.client, new, own=states.shared)
            return outcomes, replace(copy_small(rows), sums={} if slots is None else slots.total)
        finally:
            for name, left in room.items() if states.shared else ():
                states.release(name, left.values())

    def outputs(self, ask: Outputs, ranges: Sequence[tuple[int, int]]) -> Tensor:
        """Compute softmax outputs `[n, samples, classes]`, the models divided into `ranges`.

        Raises:
            BadInput: there is no room, or workers end before they are ready.
            RuntimeError: the outputs cannot be computed.
        """
        question, outputs = self._writer.write_models(ask)
        for _, reply in self._ask(question, [Job([some], some[1] - some[0]) for some in ranges]):
            if isinstance(reply, Setback):
                raise RuntimeError(f"the outputs of models cannot be computed: {reply.reason}")
        return outputs if outputs.nbytes >= LARGE_MATRIX_BYTES else outputs.clone()

    def _ask(
        self,
        question: Question,
        jobs: Sequence[Job],
        slots: SumSlots | None = None,
        on_answers: Callable[[int, int], object] | None = None,
    ) -> list[tuple[Job, list[Any] | Setback]]:
        """Have all jobs done: each, or each of the parts it was split into, and what came of it, or why nothing."""
        if not self._is_open:
            raise RuntimeError("the worker processes have ended; a runtime that is closed cannot be asked")
        most = MAX_MESSAGE_TASKS if self._timeout is None else 0
        self._failed_starts = 0
        try:
            if not self._workers:
                self._start()
            self._slots = slots
            self._on_answers, self._asked = on_answers, sum(len(job.tasks) for job in jobs)
            return self._work_off(bytes(ForkingPickler.dumps(question)), Dispatcher(jobs, MESSAGE_SHARE, most))
        except BaseException:
            # What busy workers still have to say would be taken for answers to the next question.
            _end_all(self._workers, os.getpid())
            raise
        finally:
            self._slots = self._on_answers = None

    def _work_off(self, question: bytes, queue: Dispatcher) -> list[tuple[Job, list[Any] | Setback]]:
        done: list[tuple[Job, list[Any] | Setback]] = []
        while queue or any(worker.messages for worker in self._workers):
            for worker in self._workers:
                while self._wants_more(worker, queue) and self._hand_over(worker, queue, question):
                    pass
            if self._slots is not None:
                self._slots.add_up()
            for worker in self._wait():
                if worker.ready:
                    jobs, slot = worker.messages.popleft()
                    reply, is_sound = self._receive(worker)
                    if self._slots is not None:
                        self._slots.give_back(slot, is_done=not isinstance(reply, Setback))
                    if isinstance(reply, Setback):
                        done += [(job, reply) for job in queue.retry(jobs, reply)]
                    else:
                        done += zip(jobs, reply, strict=True)
                    worker.deadline = self._deadline(worker)
                else:
                    is_sound = self._greet(worker)
                if not is_sound:
                    self._start_anew(queue)
                    break
            if self._on_answers is not None:
                self._on_answers(sum(len(job.tasks) for job, _ in done), self._asked)
        if self._slots is not None:
            self._slots.add_up()
        return done

    def _wants_more(self, worker: _Worker, queue: Dispatcher) -> bool:
        """Whether a worker shall be handed more: if it has nothing, or so that it will not have to wait."""
        if not queue or not worker.ready or (self._slots is not None and not self._slots.has_room()):
            return False
        return not worker.messages or (len(worker.messages) == 1 and len(queue) >= 2 * len(self._workers))

    def _hand_over(self, worker: _Worker, queue: Dispatcher, question: bytes) -> bool:
        """Hand a worker the next jobs; False where the message is too long to wait behind another."""
        jobs = queue.take(len(self._workers))
        known = worker.question == question
        # In one message: each wakes the worker, and a core may be taken from another for it.
        slot = {} if self._slots is None else self._slots.take()
        message = ForkingPickler.dumps((None if known else question, [job.tasks for job in jobs], slot))
        if worker.messages and len(message) > MAX_WAITING_BYTES:
            self._put_back(_Message(jobs, slot), queue)
            return False
        worker.messages.append(_Message(jobs, slot))
        worker.question = question
        if len(worker.messages) == 1:
            worker.deadline = self._deadline(worker)
        try:
            worker.pipe.send_bytes(message)
        except OSError:
            worker.process.kill()  # it died, or does not read; the next look at the pipe says so
        return True

    def _deadline(self, worker: _Worker) -> float | None:
        """When the message that a worker now works at must be done."""
        if self._timeout is None or not worker.messages:
            return None
        return time.monotonic() + self._timeout * sum(len(job.tasks) for job in worker.messages[0].jobs)

    def _wait(self) -> list[_Worker]:
        """Wait for workers, busy or starting, that have something to say, have died or are late; who they are."""
        busy = [w for w in self._workers if w.messages or not w.ready]
        deadlines = [w.deadline for w in busy if w.deadline is not None]
        patience = [max(0.0, deadline - time.monotonic()) for deadline in deadlines]
        patience += [] if self._on_answers is None else [TOLD_SECONDS]
        speaking = wait([w.pipe for w in busy], min(patience, default=None))
        now = time.monotonic()
        return [w for w in busy if w.pipe in speaking or (w.deadline is not None and now >= w.deadline)]

    def _receive(self, worker: _Worker) -> tuple[Reply, bool]:
        """What came of the message that a worker was busy with, and whether its process can go on."""
        try:
            if not worker.pipe.poll():
                return Setback(f"took longer than {self._timeout:g} s"), False
            reply = worker.pipe.recv()
        except (EOFError, OSError):  # also in the middle of a message
            self.notes.append(f"a worker process died; {RESTARTED}")
            return _DIED, False
        except Exception as error:  # noqa: BLE001  # a message is built again by code of whatever it holds
            return Setback(f"its answer cannot be read ({type(error).__name__}: {error})"), True
        return Setback(reply) if isinstance(reply, str) else list(reply), True

    def _greet(self, worker: _Worker) -> bool:
        """Hear whether a worker has its engine: only then is it handed anything, and its clients' time begins.

        Raises:
            BadInput: workers have ended too often before they were ready.
        """
        reason = _DIED.reason
        with suppress(EOFError, OSError):
            reason = worker.pipe.recv() if worker.pipe.poll() else "it took too long"
        if reason == READY:
            worker.ready, worker.deadline = True, None
            if all(other.ready for other in self._workers):
                self._failed_starts = 0
            return True
        worker.process.join(1)
        if worker.process.exitcode == UNGUARDED:
            raise BadInput(GUARD)
        self._failed_starts += 1
        if self._failed_starts == MAX_FAILED_STARTS:
            raise BadInput(
                f"run.workers = {self._count} is not possible: a worker ended {MAX_FAILED_STARTS} times before it "
                f"was ready ({reason}); free memory, or set run.workers = 1 and no run.client_timeout"
            )
        return False

    def _start(self) -> None:
        seconds = max(START_SECONDS, self._timeout or 0.0)
        with defer_signals():  # no worker is started that is not in the list
            for _ in range(self._count):
                self._workers.append(_Worker(*start(FORKS, self._equip), time.monotonic() + seconds))

    def _start_anew(self, queue: Dispatcher) -> None:
        """Start all workers anew; what they had in hand is queued again."""
        for worker in self._workers:
            for message in reversed(worker.messages):
                self._put_back(message, queue)
        _end_all(self._workers, os.getpid())
        self._start()

    def _put_back(self, message: _Message, queue: Dispatcher) -> None:
        queue.put_back(message.jobs)
        if self._slots is not None:
            self._slots.give_back(message.slot, is_done=False)


def _end_all(workers: list[_Worker], owner: int) -> None:
    """End the workers that the process `owner` has started; nothing happens in another one, which was forked."""
    while workers and os.getpid() == owner:
        with defer_signals():
            worker = workers.pop()
            end(worker.process, worker.pipe)


def _build_runner(build: Callable[[], Engine]) -> TaskRunner:
    return TaskRunner.of(build())
