"""Many cases one after the other.

Case `i` under a seed depends on nothing but the two: it can be played again alone.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator, Sequence
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


def play_cases(
    seed: int, cases: Sequence[tuple[str, int]], tell: Callable[[str], object] = lambda text: None
) -> Iterator[Finding]:
    """Play cases, each after `tell` has heard which; yield what was found."""
    for kind, number in cases:
        tell(f"--seed {seed} --only {kind} --case {number}")
        # What holds the interpreter for so long that no alarm reaches it ends the process.
        faulthandler.dump_traceback_later(2 * WAIT_SECONDS, exit=True)
        if (wrong := play(make_case(seed, kind, number))) is not None:
            yield Finding(kind, number, wrong)
    faulthandler.cancel_dump_traceback_later()
