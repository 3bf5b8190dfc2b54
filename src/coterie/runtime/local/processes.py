"""Starts worker processes, wherever Python runs, and ends them."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from coterie.clients.rules.objective import OBJECTIVES
from coterie.clients.rules.rule import RULES
from coterie.clients.tasks import MEASURES, TASKS
from coterie.models.networks import NETWORKS
from coterie.plugins import current_folder_last
from coterie.runtime.local.worker import serve
from coterie.runtime.signals import ignore_interrupts
from coterie.runtime.tasks import TaskRunner

WORKER, CELL = "coterie worker", "coterie cell"
"""Names of processes that may read their parent's script again."""
UNGUARDED = 70
"""Exit code of one that reached a run while it read that script."""
GUARD = (
    "a script must call coterie under if __name__ == '__main__':, because the processes of its runs import it again"
)


def refuse_unguarded() -> None:
    """End a process of ours that reaches a run while it reads its parent's script; the parent says why."""
    process = multiprocessing.current_process()
    if process.name in (WORKER, CELL) and getattr(process, "_inheriting", False):
        raise SystemExit(UNGUARDED)


def start(forks: bool, equip: Callable[[], TaskRunner]) -> tuple[BaseProcess, Connection]:
    """Start a worker process; return it, and this end of the pipe to it.

    Args:
        forks: as a copy of this process; otherwise it starts from nothing.
        equip: what it gets its engine from.
    """
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(equip, theirs, os.getpid()), daemon=True, name=WORKER)
    with _start_allowed(forks), current_folder_last(), nullcontext() if forks else ignore_interrupts():
        process.start()
    theirs.close()
    return process, ours


def end(process: BaseProcess, pipe: Connection) -> None:
    """End a worker at once."""
    process.kill()
    process.join()
    pipe.close()


@contextmanager
def _start_allowed(forks: bool) -> Iterator[None]:
    """Start processes also from a process that may have none by its own rules, or from a main without a guard.

    Workers end with their parent, whatever it is, so a daemonic one may have them. A spawned worker does not run
    the parent's main module again, unless a rule, an objective, a network, a task or a metric is from there. A
    forked one has that module as it is: without its file, `inspect.getmodule` would fail in the worker.
    """
    process = multiprocessing.process.current_process()
    config: dict[str, Any] = process._config  # type: ignore[attr-defined]  # there is no public way to allow children
    daemonic, config["daemon"] = config.get("daemon"), False
    main = vars(sys.modules["__main__"])
    names = () if forks or _is_needed("__main__") else ("__file__", "__spec__")
    hidden: dict[str, Any] = {name: main[name] for name in names if name in main}
    main.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        main.update(hidden)
        config["daemon"] = daemonic


def _is_needed(module: str) -> bool:
    """Whether any rule, objective, network, task or metric is from a module."""
    catalogs = (RULES, OBJECTIVES, NETWORKS, TASKS, MEASURES)
    kinds: list[Any] = [kind.target for some in catalogs for kind in some.entries.values()]
    return any(kind.__module__ == module for kind in kinds)
