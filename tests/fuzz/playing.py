"""Plays a case under limits of time and memory, and says what went wrong."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TextIO

from coterie.cli.app import main
from coterie.errors import BadInput
from tests.fuzz.case import Case, Step

SECONDS = 20
"""A step that computes for longer is a finding; the slowest takes a few seconds."""

WAIT_SECONDS = 120
"""So is one that takes so long in all, though others may keep the machine busy."""

MEMORY_MB = 600
"""So is one that takes so much more memory than there was in use."""

ROOM_MB = 6000
"""Memory that a case may ask for; without a bound, a machine without free memory would stand still."""

MOST_LINES, MOST_SIGNS = 40, 10_000
"""Lines of an error, and its characters."""

CODES = (0, 1, 2, 3)

_SPOKEN = ("coterie: ", "note: ")
"""How lines on standard error begin."""

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that do not print: they move the cursor, colour a terminal or turn the direction of a text."""


class TookTooLong(BaseException):
    """A step ran out of time. No `except Exception` stops it."""


def play(case: Case) -> str | None:
    """Return what is wrong with the end of a case, with a traceback where there is one; None if nothing is."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            if case.with_run:
                shutil.copytree(finished_run(), folder / "runs" / "first")
            for path, content in case.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
            os.chdir(folder)
            for step in case.steps:
                if isinstance(step, tuple):
                    step = tuple(word.replace("\x00", "") for word in step)  # no system lets a word hold one
                if (wrong := _play_step(step, folder)) is not None:
                    return wrong
        finally:
            os.chdir(here)
    return None


@cache
def finished_run() -> Path:
    """Make a tiny run and return its folder; it stays until the process ends."""
    home = tempfile.TemporaryDirectory(prefix="fuzz-")
    _KEPT.append(home)
    folder = Path(home.name)
    words = ["run", "fedavg", "--clients", "3", "--rounds", "1", "--set", "data.samples_per_client=20"]
    words += ["--workers", "1", "--folder", str(folder), "--name", "first", "--quiet"]
    with _captured():
        code = main(words)
    assert code == 0
    return folder / "first"


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _play_step(step: Step, folder: Path) -> str | None:
    code = 0
    reset_peak()
    before = resident_mb()
    with _captured() as (out, err):
        try:
            with _time_limit(), _memory_limit(), warnings.catch_warnings():
                warnings.simplefilter("error")
                if isinstance(step, tuple):
                    code = main(step)
                else:
                    step(folder)
        except BadInput as error:
            if isinstance(step, tuple):
                return f"main raised BadInput\n{traceback.format_exc()}"
            print(*error.problems, sep="\n", file=sys.stderr)
        except TookTooLong:
            return f"took too long\n{traceback.format_exc()}"
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is a finding
            return f"raised {type(error).__name__}\n{traceback.format_exc()}"
    used = peak_mb() - before
    if used > MEMORY_MB:
        return f"took {used:,.0f} MB of memory"
    return _find_fault(code, _read(out), _read(err), isinstance(step, tuple))


def _find_fault(code: int, out: str, err: str, command: bool) -> str | None:
    """Return what is wrong with how a step ended, by its exit code and what it said."""
    if code not in CODES:
        return f"ended with code {code}\n{err}"
    if "Traceback (most recent call last)" in out + err:
        return f"printed a traceback\n{err}"
    if hidden := _HIDDEN.search(out + err):
        return f"printed the character {hidden[0]!r}\n{(out + err)[max(0, hidden.start() - 300) :][:600]!r}"
    lines = err.splitlines()
    if len(lines) > MOST_LINES or len(err) > MOST_SIGNS:
        return f"said {len(lines)} lines of {len(err):,} characters\n{err[:2000]}"
    if command and (strange := [line for line in lines if not line.startswith(_SPOKEN)]):
        return f"said what is no sentence of its own: {strange[0]!r}\n{err}"
    if code == 2 and not lines:
        return "refused and did not say why"
    return None


# ---- streams as a terminal in UTF-8 has them


@contextmanager
def _captured() -> Iterator[tuple[TextIO, TextIO]]:
    """Take what is written to the standard streams; characters that cannot be encoded raise, as they would."""
    former = sys.stdout, sys.stderr
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", newline="\n")
    sys.stdout, sys.stderr = out, err
    try:
        yield out, err
    finally:
        sys.stdout, sys.stderr = former


def _read(stream: TextIO) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


# ---- time and memory


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLong

    limits = ((signal.SIGALRM, signal.ITIMER_REAL, WAIT_SECONDS), (signal.SIGPROF, signal.ITIMER_PROF, SECONDS))
    former = [signal.signal(number, stop) for number, _, _ in limits]
    for _, timer, seconds in limits:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(limits, former, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


@contextmanager
def _memory_limit() -> Iterator[None]:
    """Refuse to hand out much more memory than there is in use; Linux alone keeps to it."""
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + ROOM_MB * 1_000_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def reset_peak() -> None:
    """Begin to measure the peak of memory anew."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """Return the peak of memory in use since `reset_peak`; 0 where the system does not say it."""
    return _status_mb("VmHWM")


def resident_mb() -> float:
    """Return the memory in use; 0 where the system does not say it."""
    return _status_mb("VmRSS")


def _status_mb(key: str) -> float:
    if sys.platform != "linux":
        return 0.0
    found = re.search(rf"^{key}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 0.0 if found is None else int(found[1]) / 1000
