"""Many cases one after the other, in a process that may die of one of them.

Case `i` under a seed depends on nothing but the two: it can be played again alone.
"""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.fuzz.case import Case
from tests.fuzz.commands import make_command
from tests.fuzz.experiments import make_experiment
from tests.fuzz.files import make_file
from tests.fuzz.messages import make_message
from tests.fuzz.playing import WAIT_SECONDS, play
from tests.fuzz.states import make_state, make_table
from tests.fuzz.texts import make_method, make_split

KINDS: dict[str, Callable[[Random], Case]] = {
    "experiment": make_experiment,
    "split": make_split,
    "method": make_method,
    "command": make_command,
    "file": make_file,
    "message": make_message,
    "state": make_state,
    "table": make_table,
}

ROOT = Path(__file__).parents[2]


class Finding(NamedTuple):
    """A case that did not end as it should."""

    kind: str
    number: int
    wrong: str


def list_cases(cases: int, only: str | None = None) -> list[tuple[str, int]]:
    """Return kind and number of the first cases: the kinds in turn, or one alone."""
    kinds = list(KINDS) if only is None else [only]
    return [(kinds[number % len(kinds)], number // len(kinds)) for number in range(cases)]


def make_case(seed: int, kind: str, number: int) -> Case:
    """Return a case; the same for the same seed, kind and number."""
    return KINDS[kind](Random(f"{seed} {kind} {number}"))


def play_here(seed: int, cases: Sequence[tuple[str, int]]) -> Iterator[Finding | None]:
    """Play cases in this process; yield for each what was found."""
    for kind, number in cases:
        wrong = play(make_case(seed, kind, number))
        yield None if wrong is None else Finding(kind, number, wrong)


def play_apart(seed: int, cases: Sequence[tuple[str, int]]) -> Iterator[Finding | None]:
    """Play cases in a process of their own; one that ends it is a finding, and another goes on behind it."""
    left = list(cases)
    while left:
        done = 0
        words = [sys.executable, "-m", "tests.fuzz", "--play", "--seed", str(seed)]
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                words, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            ) as worker,
        ):
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(json.dumps(left))
            worker.stdin.close()
            for line in worker.stdout:
                found = json.loads(line)
                yield None if found is None else Finding(*found)
                done += 1
            code = worker.wait()
            errors.seek(0)
            if done < len(left):
                yield Finding(*left[done], f"ended the process with code {code}\n{errors.read()[-6000:]}")
        left = left[done + 1 :]


def answer_worker(seed: int) -> None:
    """Play the cases that are listed on standard input, and write what was found to standard output."""
    cases = [(kind, number) for kind, number in json.load(sys.stdin)]
    out = sys.stdout
    for case in cases:
        # What holds the interpreter for so long that no alarm reaches it ends the process.
        faulthandler.dump_traceback_later(2 * WAIT_SECONDS, exit=True)
        (found,) = play_here(seed, [case])
        print(json.dumps(found), file=out, flush=True)
