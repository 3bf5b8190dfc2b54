"""A worker process: it maps the parent's memory, has an engine of its own, and does the jobs that it is handed.

A message holds the tasks of some jobs, each a few numbers a client. With the first message of a question comes what
belongs to the question as a whole (see `Question`).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler

from coterie.runtime.local.shared_batch import MappedPieces, Question
from coterie.runtime.tasks import TaskRunner
from coterie.runtime.threads import one_thread

READY = "ready"
"""What a worker says when it has its engine."""
PARENT_CHECK_SECONDS = 0.5
"""How often a worker looks whether its parent is still there."""


def serve(equip: Callable[[], TaskRunner], pipe: Connection, parent: int) -> None:
    """Live as a worker: get an engine, then do jobs until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pieces = MappedPieces()
    threading.Thread(target=_end_with, args=(parent, pieces), daemon=True).start()
    with one_thread(blas=True):
        _work(equip, pipe, pieces)


def _work(equip: Callable[[], TaskRunner], pipe: Connection, pieces: MappedPieces) -> None:
    try:
        runner = equip()
    except Exception as error:  # noqa: BLE001  # the parent says it
        pipe.send(_described(error))
        return
    _yield_to_parent()
    gc.freeze()  # objects so far stay to the end; scanning them again and again takes longer than many a client
    pipe.send(READY)
    question: Question | str = "there is no question yet"
    while True:
        try:
            fresh, jobs, slot = pipe.recv()
        except (EOFError, OSError):
            return
        if fresh is not None:
            try:
                question = ForkingPickler.loads(fresh)
            except Exception as error:  # noqa: BLE001  # this process may not know its rule
                question = _described(error)
            else:
                assert isinstance(question, Question)
                pieces.update(question.paths)
        try:
            pipe.send(
                question
                if isinstance(question, str)
                else [question.work(runner, pieces, job, slot) for job in jobs]
            )
        except BaseException as error:  # noqa: BLE001  # whatever a rule does or answers, the round goes on
            pipe.send(_described(error))


def _yield_to_parent() -> None:
    """Do not take the parent's core when it wakes this process: it may have others to wake. Linux knows how."""
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _end_with(parent: int, pieces: MappedPieces) -> None:
    """End this process once its parent is gone, whatever it is doing, and the files that nobody will remove."""
    process = multiprocessing.parent_process()  # Windows keeps the number of a parent that has gone
    while os.getppid() == parent and (process is None or process.is_alive()):
        time.sleep(PARENT_CHECK_SECONDS)
    pieces.remove_files()
    os._exit(1)
