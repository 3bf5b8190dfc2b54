"""The benchmarks: what they compute from times, that each runs, and that the page is that of its numbers."""

from __future__ import annotations

import json
import logging
import os
import re
import runpy
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import (
    answers,
    attacks,
    diagnose,
    diagnose_signals,
    diagnose_truth,
    document,
    gpu,
    planted,
)
from benchmarks.document_bars import faster
from benchmarks.document_sections import SECTIONS
from coterie.clients.rules import half_data
from coterie.methods import METHODS, Method

ROOT = Path(__file__).parents[1]
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
COMMANDS = sorted({c for page in PAGES for c in re.findall(r"-m benchmarks\.([^`\n]+)", page.read_text("utf-8"))})
"""Every benchmark that a page names, with its options."""


def page_of(folder: Path) -> str:
    """Return the page on speed with the numbers of a folder."""
    return document.page(document.PAGE.read_text("utf-8"), folder)


def test_the_committed_page_is_that_of_the_committed_numbers() -> None:
    text = document.PAGE.read_text("utf-8")
    assert text == page_of(document.KEPT) == gpu.page(text, gpu.read_rows(gpu.KEPT))


def test_the_readme_has_the_speeds_of_the_committed_numbers() -> None:
    text, rows = (
        (ROOT / "README.md").read_text("utf-8"),
        json.loads((document.KEPT / "peers.json").read_text("utf-8")),
    )
    for line, workload in (("| 50 of 333 CIFAR-10", "W1"), ("| 100 Fashion-MNIST", "W2")):
        said = re.search(rf"^{re.escape(line)}.*?\| ([\d.]+) times[^|]*\| ([\d.]+) times", text, re.MULTILINE)
        assert said is not None
        kept = [faster(workload, 0.0, best=best)(rows["rows"]) for best in (False, True)]
        assert [float(number) for number in said.groups()] == [
            round(one.middle, 1) for one in kept if one is not None
        ]


def test_the_page_on_answers_is_that_of_the_kept_rows() -> None:
    page, rows = answers.PAGE.read_text("utf-8"), answers.read_rows(answers.KEPT, answers.SEED)
    assert rows
    assert answers.page(page, rows, answers.read_counts(answers.COUNTED)) == page


def test_the_page_on_hostile_clients_is_that_of_the_kept_cells() -> None:
    page, rows = attacks.PAGE.read_text("utf-8"), json.loads(attacks.KEPT.read_text("utf-8"))["rows"]
    assert attacks.render(page, rows) == page
    assert {cell.place for cell in attacks.cells(list(attacks.METHODS))} == set(rows)


@pytest.fixture
def process_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a benchmark changes in its process."""
    monkeypatch.setenv("COTERIE_DATA", "")
    monkeypatch.setattr(half_data, "SKETCH_ABOVE", half_data.SKETCH_ABOVE)
    usable, on_end = os.sched_getaffinity(0), signal.getsignal(signal.SIGTERM)
    yield
    os.sched_setaffinity(0, usable)
    signal.signal(signal.SIGTERM, on_end)
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import of package:RuntimeWarning")
@pytest.mark.usefixtures("process_restored")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_docs_runs_and_keeps_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *words = shlex.split(command)
    section = name in {one.name for one in SECTIONS}
    json_words = ["--json", str(tmp_path / f"{name}.json")] if section else []
    before = {path: path.stat().st_mtime_ns for path in (ROOT / "docs").rglob("*.*")}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [name, *words, *json_words, "--smoke"])
    code: object = None
    try:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    assert not code
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "docs").rglob("*.*")} == before
    if section:  # the page has a place for every number
        text = page_of(tmp_path)
        assert f"Measured by `python -m benchmarks.{name}" in text


def test_the_committed_page_of_planted_groups_is_that_of_the_committed_rows() -> None:
    assert planted.PAGE.exists() == planted.KEPT.exists()
    if planted.PAGE.exists():
        written = planted.PAGE.read_text("utf-8")
        assert written == planted.page(written, planted.Kept(planted.KEPT).rows)


def test_the_committed_calibration_of_diagnoses_is_that_of_the_committed_rows() -> None:
    page, rows = diagnose.PAGE.read_text("utf-8"), json.loads(diagnose.KEPT.read_text("utf-8"))["rows"]
    assert page == diagnose.written(page, rows)


def test_the_committed_signals_of_diagnoses_are_those_of_the_committed_rows() -> None:
    page = diagnose_signals.PAGE.read_text("utf-8")
    rows = json.loads(diagnose_signals.KEPT.read_text("utf-8"))["rows"]
    assert page == diagnose_signals.written(page, rows)
    level = diagnose_signals.of_case(diagnose_signals.LEVEL, rows)
    assert len(level) == 200
    assert all(sum(row[name] <= 0.05 for row in level) <= 14 for name in diagnose_signals.SIGNALS)  # 5 % and 2


def test_the_committed_truth_of_diagnoses_is_that_of_the_committed_rows() -> None:
    page, rows = diagnose_truth.PAGE.read_text("utf-8"), json.loads(diagnose_truth.KEPT.read_text("utf-8"))["rows"]
    assert page == diagnose_truth.written(page, rows)
    assert sum(case.place in rows for case in diagnose_truth.CASES) >= 12


def test_every_method_that_searches_for_groups_is_on_the_page_of_planted_groups() -> None:
    """Who says why no groups came about, or takes a number of them."""
    warning = {entry.name for entry in METHODS if entry.target.final_warnings is not Method.final_warnings}  # type: ignore[attr-defined]
    numbered = {entry.name for entry in METHODS if "clusters" in entry.schema.model_fields}
    assert (warning | numbered) - {"grouped-layers"} <= set(planted.METHODS)  # there it is K-means of one round
    assert set(planted.TOLD) <= numbered


def test_a_method_runs_as_its_page_advises() -> None:
    case = planted.cases(["digits"])[0]
    by_default, advised = (planted.Cell("ifca", case, 1, which).experiment() for which in (False, True))
    assert by_default.updated(planted.ADVICE["ifca"]) == advised != by_default


@pytest.mark.parametrize("method", planted.ADVICE)
def test_the_page_of_a_method_says_what_to_set(method: str) -> None:
    said = (ROOT / "docs" / "methods" / f"{method}.md").read_text("utf-8")
    (section,) = re.findall(r"(?ms)^## Planted groups\n(.*?)^## ", said)
    assert all(setting in " ".join(section.split()) for setting in planted.advice(method))
