"""Odd inputs of all kinds end in a result or a sentence; and what the fuzzer would call a finding is one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from coterie.errors import BadInput
from tests.fuzz import playing
from tests.fuzz.campaign import KINDS, Finding, list_cases, make_case, play_apart, play_here
from tests.fuzz.case import Case, Step

SEED = 0

pytestmark = pytest.mark.skipif(os.name != "posix", reason="time is limited by a signal of POSIX")


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_some_odd_inputs_of_each_kind_end_as_they_should(kind: str) -> None:
    assert [found for found in play_here(SEED, list_cases(10, kind)) if found is not None] == []


@pytest.mark.slow
def test_many_odd_inputs_end_as_they_should() -> None:
    assert [found for found in play_apart(SEED, list_cases(120)) if found is not None] == []


@pytest.mark.medium
def test_a_table_that_stops_its_reader_is_refused() -> None:
    """polars panics over it, which is no `Exception`."""
    assert [found for found in play_here(1, [("file", 2012)]) if found is not None] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_depends_on_seed_kind_and_number_alone(kind: str) -> None:
    first, again, other = (make_case(seed, kind, 3).describe() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_kinds_take_turns() -> None:
    assert list_cases(9)[-2:] == [("table", 0), ("experiment", 1)]
    assert list_cases(2, "file") == [("file", 0), ("file", 1)]


# ---- what is a finding


def fail(folder: Path) -> None:
    raise KeyError("x")


def hang(folder: Path) -> None:
    time.sleep(60)


def compute(folder: Path) -> None:
    while True:
        pass


def take_memory(folder: Path) -> None:
    assert len(b"x" * 300_000_000)  # written to, for memory that nobody touches is not taken


def clear_the_screen(folder: Path) -> None:
    print("\x1b[2J")


def print_a_traceback(folder: Path) -> None:
    print("Traceback (most recent call last)", file=sys.stderr)


def refuse(folder: Path) -> None:
    raise BadInput("a sentence")


def refuse_at_length(folder: Path) -> None:
    raise BadInput("a sentence" * 2000)


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        (fail, "raised KeyError"),
        (hang, "took too long"),
        (compute, "took too long"),
        (clear_the_screen, r"printed the character '\x1b'"),
        (print_a_traceback, "printed a traceback"),
        (refuse, None),
        (refuse_at_length, "said 1 lines of 20,001 characters"),
        (("list", "methods"), None),
        (("nothing",), None),
    ],
)
def test_what_a_finding_is(step: Step, wrong: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if step in (hang, compute):
        monkeypatch.setattr(playing, "WAIT_SECONDS" if step is hang else "SECONDS", 0.2)
    said = playing.play(Case((step,)))
    assert (None if said is None else said.partition("\n")[0]) == wrong


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory was in use")
def test_much_memory_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "MEMORY_MB", 20)
    assert str(playing.play(Case((take_memory,)))).endswith("MB of memory")


def test_files_lie_where_the_steps_are_carried_out() -> None:
    def look(folder: Path) -> None:
        if Path("a/b.txt").read_bytes() != b"text" or Path.cwd().resolve() != folder.resolve():
            raise BadInput("it is not there")
        raise FileNotFoundError

    assert str(playing.play(Case((look,), {"a/b.txt": b"text"}))).startswith("raised FileNotFoundError")


@pytest.mark.slow
def test_a_process_that_ends_is_a_finding_and_the_next_goes_on_behind_it() -> None:
    first, between, last = play_apart(SEED, [("no kind", 0), ("split", 0), ("no kind", 1)])
    assert between is None
    assert isinstance(first, Finding)
    assert isinstance(last, Finding)
    assert (first.number, last.number) == (0, 1)
    assert "ended the process with code 1" in first.wrong
    assert "KeyError: 'no kind'" in first.wrong
