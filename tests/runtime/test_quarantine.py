"""Who fails round after round sits out rounds, twice as many each time, and comes back by one sound answer."""

from __future__ import annotations

import re
from collections.abc import Container

import pytest

from coterie.runtime.quarantine import Quarantine


def play(
    quarantine: Quarantine, first: int, last: int, failing: Container[int]
) -> tuple[list[int], dict[int, str]]:
    """Ask client 7 in rounds that it may fail; the rounds in which it was asked, and what was said after which."""
    asked: list[int] = []
    said: dict[int, str] = {}
    for number in range(first, last + 1):
        quarantine.begin_round(number)
        if quarantine.reason(7) is None:
            asked.append(number)
            if number in failing:
                quarantine.note_failure(7, "took longer than 9 s")
            else:
                quarantine.note_answer(7)
        if (change := quarantine.commit().get(7)) is not None:
            said[number] = f"7 {change}"
    return asked, said


def test_a_pause_is_twice_as_long_as_the_one_before() -> None:
    quarantine = Quarantine(3)
    asked, said = play(quarantine, 1, 30, range(2, 20))
    assert asked == [1, 2, 3, 4, 8, 15, 28, 29, 30]
    assert {number: re.findall(r"\d+", text) for number, text in said.items()} == {
        4: ["7", "3", "8", "9"],
        8: ["7", "4", "15", "9"],
        15: ["7", "5", "28", "9"],
        28: ["7"],
    }
    assert play(quarantine, 31, 40, range(31, 35))[0] == [31, 32, 33, 37, 38, 39, 40], "the past is forgotten"


@pytest.mark.parametrize(("after", "failing"), [(3, {1, 2, 4, 5, 7, 8}), (None, range(50))])
def test_failures_that_are_not_in_a_row_or_have_no_limit_cost_nothing(
    after: int | None, failing: Container[int]
) -> None:
    assert play(Quarantine(after), 1, 20, failing) == (list(range(1, 21)), {})


def test_a_round_that_is_not_committed_does_not_count() -> None:
    quarantine = Quarantine(1)
    quarantine.begin_round(1)
    quarantine.note_failure(7, "gave no answer")
    assert play(quarantine, 1, 3, range(0)) == ([1, 2, 3], {})


def test_an_answer_does_not_make_up_for_a_failure_in_the_same_round() -> None:
    quarantine = Quarantine(1)
    quarantine.begin_round(1)
    quarantine.note_answer(7)
    quarantine.note_failure(7, "sent no model")
    quarantine.note_failure(7, "left earlier in the round")
    assert "round 3: sent no model" in quarantine.commit()[7]
    quarantine.begin_round(2)
    assert "round 2: sent no model" in str(quarantine.reason(7))
    assert quarantine.reason(6) is None


@pytest.mark.parametrize("stopped", range(1, 30))
def test_it_goes_on_from_a_checkpoint(stopped: int) -> None:
    failing = range(2, 20)
    first, other = Quarantine(3), Quarantine(3)
    play(first, 1, stopped, failing)
    other.restore(first.to_checkpoint().get("quarantine", {}))
    assert play(other, stopped + 1, 40, failing) == play(first, stopped + 1, 40, failing)


def test_where_nobody_has_failed_a_checkpoint_holds_nothing() -> None:
    quarantine = Quarantine(3)
    play(quarantine, 1, 4, range(0))
    assert quarantine.to_checkpoint() == {}
