"""How many groups, by training with each number for a few rounds: on validation samples, the best, and what is as
good."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import coterie
from coterie.errors import BadInput
from coterie.studies.choose_k import choose, plan
from tests.commandline import Terminal


def experiment(method: str = "fesem") -> coterie.Experiment:
    return coterie.Experiment(
        data={"name": "digits", "split": "permuted-labels(3)", "clients": 12},
        method={"name": method},
        network={"name": "mlp", "hidden": [16]},
        training={"epochs": 2},
        run={"rounds": 50, "seed": 7},
    )


def test_all_numbers_meet_the_same_clients_on_validation_samples() -> None:
    comparison = plan(experiment(), 12, most=3, seeds=2, rounds=4)
    cells = comparison.cells()
    assert [(cell.method, cell.seed) for cell in cells] == [
        (f"K = {k}", seed) for k in (1, 2, 3) for seed in (0, 1)
    ]
    first = {cell.experiment.updated({"method.clusters": 1, "run.seed": 0}).to_toml() for cell in cells}
    assert len(first) == 1
    (one, *_) = (cell.experiment for cell in cells)
    assert (one.run.rounds, one.evaluation.on, one.run.participation) == (4, "validation", 1.0)
    assert plan(experiment(), 400).cells()[0].experiment.run.participation == 0.25
    with pytest.raises(BadInput, match="clusters"):
        plan(experiment("fedavg"), 12).check()


def test_the_best_is_chosen_and_what_cannot_be_told_from_it_is_said() -> None:
    comparison = plan(experiment(), 12, most=4, seeds=3)
    scores = {1: [0.2, 0.3, 0.1], 2: [0.7, 0.8, 0.9], 3: [0.72, 0.79, 0.92], 4: [0.72, 0.79, 0.92]}
    rows = [
        {"method": f"K = {k}", "seed": seed, "macro_accuracy": value}
        for k, values in scores.items()
        for seed, value in enumerate(values)
    ]
    best, tried = choose(comparison, pl.DataFrame(rows), falls=False)
    assert best == 3  # the smaller one of equals
    assert [one.is_alike for one in tried] == [False, True, True, True]
    assert [round(one.mean, 3) for one in tried] == [0.2, 0.8, 0.81, 0.81]
    assert choose(comparison, pl.DataFrame(rows), falls=True)[0] == 1


@pytest.mark.slow
def test_planted_groups_are_counted(terminal: Terminal) -> None:
    Path("asked.toml").write_text(experiment().to_toml(), "utf-8")
    words = ("choose-k", "asked.toml", "--most", "4", "--seeds", "2", "--jobs", "1")
    done = terminal(*words)
    assert done.code == 0, done.err
    assert "choose  method.clusters = 3" in done.out
    # Nothing is run twice, and the answer is the same.
    cells = sorted(Path("choices").iterdir())
    again = terminal(*words)
    assert "run 1/8" not in again.out
    assert again.out.splitlines()[-2:] == done.out.splitlines()[-2:]
    assert sorted(Path("choices").iterdir()) == cells
