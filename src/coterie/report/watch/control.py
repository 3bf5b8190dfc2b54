"""Stop a run as Ctrl-C does, and resume it in a process of its own."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from coterie.errors import BadInput
from coterie.plugins import ALLOW
from coterie.runs.folder.lock import find_writer
from coterie.runs.folder.run_folder import RunFolder

_NEW_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""On Windows, what a session of its own is elsewhere: Ctrl-C in this terminal does not reach it."""

LONGEST_SENTENCE = 400
"""Characters of what a resumed run printed last that are shown."""


def stop(run: RunFolder) -> None:
    """Interrupt the process that writes into a run folder. The run ends after its round and can be resumed.

    The process is the one that holds the folder's lock, and nobody else: a number in a file may be a stranger's.

    Raises:
        BadInput: no process of this machine runs it, or it is not to be stopped alone.
    """
    progress = run.progress()
    if progress is None or run.status != "running":
        raise BadInput(f"run {run.name} is not running")
    if progress.host != platform.node():
        raise BadInput(f"run {run.name} runs on {progress.host}; stop it there")
    _refuse_cell(run, "stop that with Ctrl-C where it runs")
    pid = find_writer(run.path)
    if pid is None or pid != progress.pid or pid == os.getpid():
        raise BadInput(
            f"run {run.name} is held by a process that cannot be identified; stop it with Ctrl-C where it runs"
        )
    try:
        os.kill(pid, signal.SIGINT)
    except OSError as error:  # it has just ended, or belongs to another user
        raise BadInput(
            f"run {run.name} cannot be stopped ({error.strerror}); stop it with Ctrl-C where it runs"
        ) from None


def _refuse_cell(run: RunFolder, instead: str) -> None:
    if (run.path.resolve().parent.parent / "comparison.toml").is_file():
        raise BadInput(f"run {run.name} is part of a comparison; {instead}")


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    printed: IO[bytes]


class Resumed:
    """The runs that were resumed from the page. They go on when the page's server ends.

    Args:
        allow: the modules and objects that the runs may have imported; the environment allows none.
    """

    def __init__(self, allow: Sequence[str] = ()) -> None:
        self._allow = [word for name in allow for word in ("--allow", name)]
        self._children: dict[str, _Child] = {}

    def resume(self, run: RunFolder) -> None:
        """Go on with a run, as `coterie resume` does.

        Raises:
            BadInput: it is running, or it has finished.
        """
        progress = run.progress()
        _refuse_cell(run, "the same coterie compare goes on with it")
        if run.status == "running" or self._lives(run.path.name):
            raise BadInput(f"run {run.name} is running already")
        if progress is not None and progress.state == "finished" and progress.round >= progress.rounds:
            raise BadInput(f"run {run.name} is finished")
        printed = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the child is of interest
        # -P: a module of the current folder does not stand for one of Python's own.
        command = [
            sys.executable,
            "-P",
            "-m",
            "coterie",
            "resume",
            str(run.path.resolve()),
            "--quiet",
            *self._allow,
        ]
        process = subprocess.Popen(
            command,
            env={key: value for key, value in os.environ.items() if key != ALLOW},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            creationflags=_NEW_GROUP,
        )
        self._forget(run.path.name)
        self._children[run.path.name] = _Child(process, printed)

    def said(self, name: str) -> str:
        """Return why a run that was resumed here ended with an error; empty where it did not."""
        child = self._children.get(name)
        if child is None or child.process.poll() in (None, 0, 130, -signal.SIGINT):
            return ""
        child.printed.seek(0)
        lines = child.printed.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:LONGEST_SENTENCE] if lines else f"it ended with code {child.process.returncode}"

    def is_starting(self, run: RunFolder) -> bool:
        """Whether a run was resumed here and has not written that it runs yet."""
        return self._lives(run.path.name) and run.status != "running"

    def close(self) -> None:
        """Let the runs go on alone."""
        for name in list(self._children):
            self._forget(name)

    def _lives(self, name: str) -> bool:
        child = self._children.get(name)
        return child is not None and child.process.poll() is None

    def _forget(self, name: str) -> None:
        child = self._children.pop(name, None)
        if child is not None:
            child.printed.close()
            child.process.returncode = child.process.poll() or 0  # it is nobody's business from now on
