"""Runs whose training diverges do not end as if all were well."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.hooks.divergence import Divergence
from coterie.runs.schema.experiment import Experiment
from coterie.runs.schema.names import build_method

NAMES = ["ward a", "ward b", "ward c", "ward d", "ward e"]
EVERYBODY = np.ones(5, np.bool_)
TABLES = pl.DataFrame(
    schema={
        "round": pl.Int32,
        "client": pl.Int32,
        "loss": pl.Float64,
        "test_samples": pl.Int32,
        "took_part": pl.Boolean,
    }
)
FAILURES = pl.DataFrame(schema={"round": pl.Int32, "client": pl.Int32, "reason": pl.String})


def begin(classes: int = 10, method: str = "fedavg") -> Divergence:
    run: Any = SimpleNamespace(
        federation=SimpleNamespace(names=NAMES, classes=classes),
        experiment=Experiment(training={"lr": 0.5}),
        method=build_method(Experiment(method=method).method),
    )
    return Divergence(run)


def watch(*losses: list[float], classes: int = 10, tested: np.ndarray = EVERYBODY) -> Divergence:
    found = begin(classes)
    for number, loss in enumerate(losses, 1):
        found.note_evaluation(number, np.array(loss), tested, EVERYBODY)
    return found


def test_ordinary_training_is_no_divergence() -> None:
    assert watch([2.3] * 5, [0.1, 9.0, 0.4, 1.0, 20.0]).sentences() == []
    assert watch([900.0] * 5, [80_000.0] * 5, classes=0).sentences() == []  # errors may be large, in their unit


@pytest.mark.parametrize(("method", "key"), [("fedavg", "training.lr"), ("fedsgd", "method.lr"), ("lbfgs", "")])
def test_what_to_try_is_a_setting_that_the_method_heeds(method: str, key: str) -> None:
    found = begin(method=method)
    found.note_evaluation(1, np.full(5, float("nan")), EVERYBODY, EVERYBODY)
    (said,) = found.sentences()
    assert re.findall(r"\b\w+\.lr\b", said) == [key] * bool(key)


def test_who_has_no_numbers_since_when_and_what_to_try() -> None:
    nan = float("nan")
    (said,) = watch([2.0] * 5, [2.0, nan, 2.0, 2.0, 2.0], [2.0, nan, nan, nan, nan]).sentences()
    assert re.search(
        r"4 of 5 clients \(ward b, ward c, ward d and 1 more\).* round 2; .*training\.lr \(.*0\.5\)", said
    )


def test_who_recovers_or_has_no_test_samples_has_not_diverged() -> None:
    assert watch([float("nan"), 1, 1, 1, 1], [1.0] * 5).sentences() == []
    tested = np.array([False, True, True, True, True])
    assert watch([float("nan"), 1, 1, 1, 1], tested=tested).sentences() == []


@pytest.mark.parametrize(
    ("classes", "losses", "beside"),
    [
        (10, [1.0, 1e6], r"guessing, .*1e\+06"),
        (0, [1.0, 1e3], r"first evaluation, .*1e\+03"),
    ],
)
def test_a_loss_that_explodes(classes: int, losses: list[float], beside: str) -> None:
    (said,) = watch(*([loss, 1, 1, 1, 1] for loss in losses), classes=classes).sentences()
    assert re.search(rf"1 of 5 clients \(ward a\).* 100 times .*{beside}.* round 2;", said)


def test_whose_training_was_left_out() -> None:
    found = watch([1.0] * 5)
    found.note_failures(3, [(1, "sent a model with NaN or infinite values"), (2, "vanished")])
    found.note_failures(4, [(0, "sent mu = nan"), (1, "sent a model with NaN or infinite values")])
    (said,) = found.sentences()
    assert re.search(r"2 of 5 clients \(ward b, ward a\).*NaN.* round 3;", said)


def test_the_tables_tell_what_came_before_an_interruption() -> None:
    clients = pl.DataFrame(
        {
            "round": [1] * 5 + [2] * 5,
            "client": [*range(5)] * 2,
            "loss": [1.0, 1.0, 1.0, 1.0, float("nan")] + [float("nan")] * 2 + [1.0, float("nan"), float("nan")],
            "test_samples": [9, 9, 9, 9, 0] * 2,
            "took_part": [True] * 10,
        },
        schema=TABLES.schema,
    )
    failures = pl.DataFrame([(2, 3, "not evaluated: timed out")], FAILURES.schema, orient="row")
    found = begin()
    found.read_tables(clients, failures)
    (said,) = found.sentences()
    assert re.search(r"2 of 5 clients \(ward a, ward b\).* round 2", said)


def diverging(folder: Path, lr: float, rounds: int) -> list[str]:
    return [
        *("run", "fedavg", "--clients=4", f"--rounds={rounds}", "--workers=1", "--network=mlp"),
        *(f"--set=training.lr={lr}", "--set=samples_per_client=60", "--name=wild", f"--folder={folder}"),
    ]


@pytest.mark.medium  # It renders a page.
def test_the_log_the_page_show_and_the_last_lines_say_so(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, diverging(tmp_path, 30.0, 3))
    assert ran.exit_code == 3, "no model is of use"
    folder = RunFolder(tmp_path / "wild")
    (said,) = folder.divergences()
    assert re.search(r"4 of 4 clients \(client 0, .* and 1 more\).* round 1; .*training\.lr \(.*30\)", said)
    assert f"note: {said}" in ran.output
    assert f"\n{said.removeprefix('training ')}\n" in ran.output
    assert "4 of 4 clients" in (folder.path / "report.html").read_text(encoding="utf-8")
    shown = CliRunner().invoke(app, ["show", "wild", f"--folder={tmp_path}"])
    assert f"note: {said}" in shown.output


def test_who_has_diverged_for_all() -> None:
    tested, nobody = np.array([True, True, True, True, False]), ~EVERYBODY
    some = begin()
    assert not some.is_total
    some.note_evaluation(1, np.array([np.inf, np.nan, np.nan, np.inf, 1.0]), tested, nobody)
    assert some.is_total, "the last one has no test samples"
    some.note_evaluation(2, np.array([0.1, np.nan, np.nan, np.inf, 1.0]), tested, nobody)
    assert not some.is_total


@pytest.mark.parametrize("resumed", [False, True])
def test_who_was_left_out_once_and_answered_since_has_recovered(resumed: bool) -> None:
    reason, rounds = "sent a model with NaN or infinite values", range(1, 5)
    found = begin()
    clients = TABLES.vstack(
        pl.DataFrame(
            [(number, client, 1.0, 9, number > 1) for number in rounds for client in range(5)],
            TABLES.schema,
            orient="row",
        )
    )
    failures = [(1, client, reason) for client in range(5)]
    for number in rounds:
        if not resumed:
            found.note_evaluation(number, np.ones(5), EVERYBODY, EVERYBODY & (number > 1))
            found.note_failures(number, [(client, why) for when, client, why in failures if when == number])
            assert found.is_total == (number == 1)
    if resumed:
        found.read_tables(clients, pl.DataFrame(failures, FAILURES.schema, orient="row"))
    assert not found.is_total
    assert "round 1;" in found.sentences()[0], "it is still told"
    found.note_failures(5, [(client, reason) for client in range(5)])
    assert found.is_total
