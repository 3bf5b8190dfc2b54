"""The checks before a commit, on every system: `python -m tests.check quick`.

`make quick`, `make test` and `make test-all` call it, and so does `.github/workflows/test.yml`, where there may be
no make. `--tests` leaves format, lint and types out, for an environment without extras, whose tests are skipped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

LANES = {"quick": "not medium and not slow", "test": "not slow", "all": ""}
"""Which tests a lane has, by their marks; empty for every one."""

OTHER_SYSTEMS = ("win32", "darwin")
"""What stands behind `sys.platform` for these is type-checked in the lane `all`."""


def commands(lane: str, only_tests: bool = False) -> list[list[list[str]]]:
    """Return what a lane does, in order: the words behind `python -m` of commands that run side by side."""
    found = [] if only_tests else [[["ruff", "format", "--check", "."]], [["ruff", "check", "."]], [["mypy"]]]
    if lane == "all" and not only_tests:
        found[-1] += [["mypy", "--platform", s, "--cache-dir", f".mypy_cache/{s}", "src"] for s in OTHER_SYSTEMS]
    tests = ["pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--durations=25"]
    return [*found, [[*tests, *(["-m", LANES[lane]] if LANES[lane] else [])]]]


def main() -> int:
    """Run a lane's commands until one fails; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.check", description=__doc__)
    parser.add_argument("lane", choices=LANES)
    parser.add_argument("--tests", action="store_true", help="no format, lint and types")
    asked = parser.parse_args()
    for together in commands(asked.lane, asked.tests):
        for words in together:
            print("$ python -m", " ".join(words), flush=True)
        running = [subprocess.Popen([sys.executable, "-m", *words]) for words in together]
        if failed := [code for process in running if (code := process.wait())]:
            return failed[0]
    return 0


if __name__ == "__main__":
    sys.exit(main())
