"""Processes that start in milliseconds, with everything imported: for guides, and to be killed or interrupted.

Each is forked off one that has imported everything and done nothing yet.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

LOG, SERVER = "GUIDE_OUTPUT", "GUIDE_SERVER"
"""Name, in the environment, the file to which a process that was forked prints, and the socket of who forks."""

IMPORTED = [
    *("torch", "coterie.cli.app", "coterie.runs.loop", "coterie.report.run_page", "coterie.report.comparison.page"),
    *("coterie.studies.compare.compare", "coterie.advice.diagnose.diagnose", "coterie.shipping.model.predict"),
    *("sklearn.cluster", "sklearn.datasets", "sklearn.metrics", "vl_convert"),
]
"""Modules that take seconds to import."""


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


class Process:
    """A function that is carried out in a process of its own, in the background.

    Args:
        what: the function, of a module.
        arguments: its arguments.
        folder: the current folder there.
        output: the file to which it prints; None for where this process does.
    """

    def __init__(self, what: Callable[..., None], *arguments: Any, folder: Path, output: Path | None) -> None:
        if SERVER not in os.environ:
            _start_server()
        self._out = output
        log = str(output) if output else os.environ.get(LOG, "/dev/stdout")
        sys.stdout.flush()
        place = socket.socket(socket.AF_UNIX)
        place.connect(os.environ[SERVER])
        self._server = Connection(place.detach())
        self._server.send((str(folder), {**os.environ, LOG: log}, log, what, arguments))
        self.pid: int = self._server.recv()

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def wait(self, seconds: float | None = None) -> int:
        """Return the exit code, or minus the signal that ended it; after so many seconds it is killed."""
        if not self._server.poll(seconds):
            self.send(signal.SIGKILL)
        code = int(self._server.recv())
        self._server.close()
        return code

    @property
    def printed(self) -> str:
        """What it has printed by now, on both streams."""
        return self._out.read_text("utf-8") if self._out and self._out.exists() else ""


def run_apart(what: Callable[..., None], *arguments: Any, output: Path | None, seconds: float | None = None) -> int:
    """Carry out a function in a process of its own, in the current folder, and return its exit code."""
    return Process(what, *arguments, folder=Path.cwd(), output=output).wait(seconds)


class Processes:
    """Starts calls of the command line in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls = 0

    def start(self, *words: str) -> Process:
        """Begin a call."""
        self._calls += 1
        return Process(call, words, folder=self.folder, output=self.folder / f"printed-{self._calls}.txt")


def _start_server() -> None:
    """Start the process of which all others are forked; it ends with this one."""
    folder = tempfile.mkdtemp()
    os.environ[SERVER] = f"{folder}/server"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [sys.executable, "-c", "import tests.processes; tests.processes.serve()"]
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert server.stdout is not None
    server.stdout.readline()
    atexit.register(server.kill)


def serve() -> None:
    """Fork a process for everybody who asks, until standard input ends."""
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # each process that is forked would scan it
    with socket.socket(socket.AF_UNIX) as place:
        place.bind(os.environ[SERVER])
        place.listen()
        print(flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while place in wait([place, sys.stdin.fileno()]):
            asking = place.accept()[0]
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                with Connection(asking.detach()) as client:
                    asked = client.recv()
                    if not (pid := os.fork()):
                        os._exit(_begin(*asked))
                    client.send(pid)
                    client.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os._exit(0)
            asking.close()


def _begin(
    folder: str, environment: dict[str, str], log: str, what: Callable[..., None], given: Sequence[Any]
) -> int:
    """Carry out what was asked for, in the place and with the output of who asks; return the exit code."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    place = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(place, stream)
    sys.path[:] = [path for path in sys.path if path]
    code = 0
    try:
        # As in a terminal: whoever started the tests in the background left the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        what(*given)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:  # before the command began
        code = 130
    except BaseException:  # noqa: BLE001  # whatever ends it, the process says so and ends
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def call(words: Sequence[str], *paths: str) -> None:
    """Carry out a command line, where modules are also looked for in some more folders."""
    from coterie.cli.app import main

    sys.path[:0] = paths
    sys.exit(main(words))


def run_script(path: str) -> None:
    """Carry out a script as `python -W error` does."""
    warnings.simplefilter("error")
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")
