"""The command line in processes of their own that start in milliseconds, so that a test can kill many of them.

A process that has imported everything, and done nothing yet, is forked for each call.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_SERVER = """
import gc, json, os, signal, sys
import coterie.cli.app, coterie.report.run_page, coterie.runs.loop
import sklearn.cluster, sklearn.datasets, sklearn.metrics

gc.freeze()  # each process that is forked would scan it
for line in sys.stdin:
    asked = json.loads(line)
    if "words" in asked:
        pid = os.fork()
        if not pid:
            sys.stdin.close()
            os.dup2(os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
            os.dup2(1, 2)
            os.chdir(asked["folder"])
            try:
                # As in a terminal: whoever started the tests in the background left the signal ignored.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                code = coterie.cli.app.main(asked["words"])
            except KeyboardInterrupt:  # before the command began
                code = 130
            sys.stdout.flush()
            os._exit(code)
        print(pid, flush=True)
    else:
        print(os.waitstatus_to_exitcode(os.waitpid(asked["pid"], 0)[1]), flush=True)
"""


def serve_or_spawn(method: str | None = None) -> Any:
    """Return what `multiprocessing.get_context` does, but a server of forks in the place of spawning.

    A process that is spawned imports everything again, for seconds. One that is forked off this one may wait for
    ever: the threads of polars do not go with it.
    """
    if method != "spawn" or sys.platform != "linux":
        return _GET_CONTEXT(method)
    context = _GET_CONTEXT("forkserver")
    context.set_forkserver_preload(["coterie.runs.loop", "sklearn.cluster", "sklearn.datasets", "sklearn.metrics"])
    return context


_GET_CONTEXT = multiprocessing.get_context


class Call:
    """One call of the command line that goes on in the background."""

    def __init__(self, processes: Processes, pid: int, out: Path) -> None:
        self.pid = pid
        self._processes = processes
        self._out = out

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code, or minus the signal that ended it."""
        return self._processes.ask({"pid": self.pid})

    @property
    def printed(self) -> str:
        """What it has printed by now, on both streams."""
        return self._out.read_text("utf-8") if self._out.exists() else ""


class Processes:
    """Starts calls of the command line in `folder`; used as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls = 0
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(30)
        self._server.stdout.close()

    def start(self, *words: str) -> Call:
        """Begin a call."""
        self._calls += 1
        out = self.folder / f"printed-{self._calls}.txt"
        return Call(self, self.ask({"words": words, "out": str(out), "folder": str(self.folder)}), out)

    def ask(self, question: dict[str, Any]) -> int:
        """Ask the process that forks; for `Call`."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())
