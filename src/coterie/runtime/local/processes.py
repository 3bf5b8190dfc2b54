"""Starts worker processes, wherever Python runs, and ends them."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from coterie.catalogue import Catalog
from coterie.clients.rules.objective import OBJECTIVES
from coterie.clients.rules.rule import RULES
from coterie.clients.tasks import MEASURES, TASKS
from coterie.models.networks import NETWORKS
from coterie.plugins import current_folder_last
from coterie.runtime.local.worker import serve
from coterie.runtime.signals import ignore_interrupts
from coterie.runtime.tasks import TaskRunner

UNGUARDED = 70
"""Exit code of a process that reached a run while it read its parent's script."""
GUARD = (
    "a script that defines something of its own, such as a method, must call coterie under if __name__ == "
    "'__main__':, because the processes of its runs import it again"
)


def refuse_unguarded() -> None:
    """End a process that reaches a run while it reads its parent's script, which says what is wrong, once."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(UNGUARDED)


def start(forks: bool, equip: Callable[[], TaskRunner]) -> tuple[BaseProcess, Connection]:
    """Start a worker process; return it, and this end of the pipe to it.

    Args:
        forks: as a copy of this process; otherwise it starts from nothing.
        equip: what it gets its engine from.
    """
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(equip, theirs, os.getpid()), daemon=True, name="coterie worker")
    with _start_allowed(forks), current_folder_last(), nullcontext() if forks else ignore_interrupts():
        process.start()
    theirs.close()
    return process, ours


def end(process: BaseProcess, pipe: Connection) -> None:
    """End a worker at once."""
    process.kill()
    process.join()
    pipe.close()


def is_stopped(pid: int | None) -> bool:
    """Whether a process has been told to stop, as by SIGSTOP; not known outside Linux."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


@contextmanager
def _start_allowed(forks: bool) -> Iterator[None]:
    """Start processes also from a process that may have none by its own rules, or from a main without a guard.

    Workers end with their parent, whatever it is, so a daemonic one may have them. A forked one has the main module
    as it is: without its file, `inspect.getmodule` would fail in the worker.
    """
    process = multiprocessing.process.current_process()
    config: dict[str, Any] = process._config  # type: ignore[attr-defined]  # there is no public way to allow children
    daemonic, config["daemon"] = config.get("daemon"), False
    try:
        with nullcontext() if forks else hide_main((RULES, OBJECTIVES, NETWORKS, TASKS, MEASURES)):
            yield
    finally:
        config["daemon"] = daemonic


@contextmanager
def hide_main(catalogs: Iterable[Catalog]) -> Iterator[None]:
    """Spawn processes that do not run the main module again, unless something in the catalogues is from there."""
    main = vars(sys.modules["__main__"])
    kinds: list[Any] = [kind.target for some in catalogs for kind in some.entries.values()]
    is_needed = any(kind.__module__ == "__main__" for kind in kinds)
    hidden: dict[str, Any] = {
        name: main[name] for name in ("__file__", "__spec__") if name in main and not is_needed
    }
    main.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        main.update(hidden)
