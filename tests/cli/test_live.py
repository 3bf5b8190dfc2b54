"""What is shown while a run goes on: a table on a terminal, lines without one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from coterie.cli.live import LiveTable, PlainLines, estimate_seconds_left, format_clock, format_sizes, watch_run
from coterie.report.numbers import decimals, volume
from coterie.runs.events import Round
from coterie.runs.schema.experiment import Experiment

EXPERIMENT = Experiment(method="fesem", data={"split": "rotated(4)"}, run={"name": "trial", "seed": 3})


def after(number: int, planned: int = 10, failures: Sequence[tuple[int, str]] = (), **metrics: Any) -> Round:
    measured = {"macro_accuracy": 0.875, "worst10": 0.5, "loss": 0.25, **metrics}
    return Round(
        number, planned, measured, [3, 2], 1_500_000 * number, 3_000_000 * number, 2.0 * number, list(failures)
    )


def console(terminal: bool) -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, force_terminal=terminal, width=120, highlight=False, soft_wrap=True), file


def test_one_line_a_round_without_a_terminal() -> None:
    where, file = console(terminal=False)
    with watch_run(console=where) as (lines,):
        assert isinstance(lines, PlainLines)
        lines.started(EXPERIMENT, ["five [clients]"])
        lines.round(after(1))
        lines.note("a [remark]")
        lines.round(after(2, failures=[(4, "timed out"), (1, "NaN")]))
    measured = "accuracy 87.5%  worst 10 % 50.0%  loss 0.250  groups 2 (3, 2)"
    assert re.match(r"trial: fesem .*digits, rotated\(4\), seed 3", file.getvalue())
    assert file.getvalue().splitlines()[1:] == [
        "  five [clients]",
        f"round  1/10  {measured}  1.50 MB up, 3.00 MB down so far  0:18 left",
        "note: a [remark]",
        f"round  2/10  {measured}  3.00 MB up, 6.00 MB down so far  0:16 left  "
        "left out 2: client 4 (timed out) and 1 more",
    ]


@pytest.mark.parametrize(("planned", "most"), [(1, 1), (100, 100), (101, 52), (5000, 102)])
def test_a_long_run_prints_about_a_hundred_lines(planned: int, most: int) -> None:
    where, file = console(terminal=False)
    lines = PlainLines(where)
    for number in range(1, planned + 1):
        lines.round(after(number, planned, failures=[(0, "lost")] if number == 2 else []))
    printed = file.getvalue().splitlines()
    assert len(printed) <= most
    assert printed[0].split()[1].startswith("1/")
    assert f"{planned}/{planned}" in printed[-1]
    assert sum("left out 1" in line for line in printed) == (planned > 1)


def test_a_metric_that_was_not_measured_is_not_shown() -> None:
    where, file = console(terminal=False)
    PlainLines(where).round(after(1, macro_accuracy=None, worst10=float("nan")))
    assert "accuracy" not in file.getvalue()
    assert "worst" not in file.getvalue()
    assert "loss 0.250" in file.getvalue()


def test_the_table_on_a_terminal_keeps_the_last_measurement() -> None:
    where, file = console(terminal=True)
    with watch_run(console=where) as (table,):
        assert isinstance(table, LiveTable)
        table.started(EXPERIMENT, ["five [clients]"])
        table.round(after(1, failures=[(4, "timed [out]")]))
        table.round(after(2, macro_accuracy=None))
    last = file.getvalue().rsplit("round 2/10", 1)[1]
    for shown in ("87.5%", "50.0%", "0.250", "2 (3, 2)", "3.00 MB up, 6.00 MB down", "0:16 left"):
        assert shown in last
    assert "round 1, client 4 (timed [out])" in last
    assert "five [clients]" in file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_on_a_terminal_fits_and_cuts_nothing(width: int) -> None:
    file = StringIO()
    name = "a-rather-long-name-of-a-run-with-many-settings-in-it-and-a-seed-at-the-end"
    where = Console(file=file, force_terminal=True, width=width, highlight=False, color_system=None)
    reason = "the answer of this client held values that are not finite, in the model and in the loss"
    with watch_run(console=where) as (table,):
        table.started(EXPERIMENT.updated({"run.name": name}), ["words " * 40])
        table.round(after(1, loss=2.8e34, failures=[(4, reason)]))
    printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert max(len(line) for line in printed.splitlines()) <= width
    assert "…" not in re.sub(r"round\s+…", "", printed)
    words = printed.split()
    assert {"2.8e+34", "87.5%", "0:18", *reason.split()[:-1]} <= set(words)
    assert words.count("words") == 40


def test_what_is_seldom_meant_is_said() -> None:
    idle = EXPERIMENT.updated({"training.lr": 0, "training.epochs": 0})
    for terminal in (False, True):
        where, file = console(terminal)
        with watch_run(console=where) as (observer,):
            observer.started(idle, [])
        assert all(f"training.{key} = 0" in file.getvalue() for key in ("lr", "epochs"))


def test_an_error_gives_the_terminal_back() -> None:
    where, file = console(terminal=True)

    def fail() -> None:
        with watch_run(console=where) as (table,):
            table.started(EXPERIMENT, [])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h") == 1


def test_what_is_said_already_is_not_said_again() -> None:
    for terminal in (False, True):
        where, file = console(terminal)
        with watch_run(console=where, described=False) as (observer,):
            observer.started(EXPERIMENT, ["five clients"])
        assert "trial" in file.getvalue()
        assert "five clients" not in file.getvalue()


def test_quiet_is_nobody() -> None:
    with watch_run(quiet=True) as observers:
        assert observers == []


def test_numbers_as_people_read_them() -> None:
    assert [volume(n) for n in (0, 40, 999, 999.6, 123_456, 999_700, 1_234_567, 99_960_000, 2.5e9, 1e12)] == [
        "0 B", "40 B", "999 B", "1.00 kB", "123 kB", "1.00 MB", "1.23 MB", "100 MB", "2.50 GB", "1000 GB"
    ]  # fmt: skip
    assert [decimals(x) for x in (-0.001, 0.125, 1.0, 99_999.0)] == ["0.00", "0.12", "1.00", "99999.00"]
    assert decimals(2.8e34, 3) == "2.8e+34"
    assert decimals(float("nan")) == "nan"
    assert [format_clock(s) for s in (0, 59.6, 61, 3600)] == ["0:00", "1:00", "1:01", "1:00:00"]
    assert format_sizes([5] * 8) == "8 (5, 5, 5, 5, 5, 5, 5, 5)"
    assert format_sizes([5] * 9) == "9 (5, 5, 5, 5, 5, 5, 5, 5, …)"
    assert format_sizes([4, 0, 0, 2, 1, 0]) == "3 (4, 2, 1)"
    assert estimate_seconds_left(after(4)) == 12.0
    assert estimate_seconds_left(after(10)) == 0.0
