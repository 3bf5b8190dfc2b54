"""Odd inputs of all kinds end in a result or a sentence; and what the fuzzer would call a finding is one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from coterie.errors import BadInput
from tests.fuzz import playing
from tests.fuzz.campaign import KINDS, list_cases, make_case, play_cases
from tests.fuzz.case import Case, Step

SEED = 0

pytestmark = pytest.mark.skipif(os.name != "posix", reason="time is limited by a signal of POSIX")


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_some_odd_inputs_of_each_kind_end_as_they_should(kind: str) -> None:
    assert list(play_cases(SEED, list_cases(10, kind))) == []


@pytest.mark.slow
def test_many_odd_inputs_end_as_they_should() -> None:
    assert list(play_cases(SEED, list_cases(120))) == []


@pytest.mark.medium
def test_a_table_that_stops_its_reader_is_refused() -> None:
    """polars panics over it, which is no `Exception`."""
    assert list(play_cases(1, [("file", 2012)])) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_depends_on_seed_kind_and_number_alone(kind: str) -> None:
    first, again, other = (make_case(seed, kind, 3).describe() for seed in (1, 1, 2))
    assert first == again
    assert first != other


# ---- what is a finding


def fail(folder: Path) -> None:
    raise KeyError("x")


def hang(folder: Path) -> None:
    time.sleep(60)


def clear_the_screen(folder: Path) -> None:
    print("\x1b[2J")


def print_a_traceback(folder: Path) -> None:
    print("Traceback (most recent call last)", file=sys.stderr)


def refuse(folder: Path) -> None:
    raise BadInput("a sentence")


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        (fail, "raised KeyError"),
        (hang, "took too long"),
        (clear_the_screen, r"printed the character '\x1b'"),
        (print_a_traceback, "printed a traceback"),
        (refuse, None),
        (("list", "methods"), None),
        (("nothing",), None),
    ],
)
def test_what_a_finding_is(step: Step, wrong: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "WAIT_SECONDS", 5.0 if step is not hang else 0.2)
    said = playing.play(Case((step,)))
    assert (None if said is None else said.partition("\n")[0]) == wrong
