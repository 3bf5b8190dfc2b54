"""`coterie auto`: the simplest candidate within one standard error of the best, by validation samples alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import coterie
from coterie.clients.data.federation import Federation
from coterie.errors import BadInput
from coterie.report.comparison.auto import CHOSEN, describe
from coterie.report.comparison.compare import compare
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.setup import load_federation
from coterie.studies.auto import CANDIDATES, Candidate, bring_to_one_scale, choose, count_trials, plan, select
from tests.commandline import Terminal

SMALL = ("--network", "mlp", "--set", "network.hidden=[16]")
QUICK: dict[str, Any] = {
    "data": {"clients": 8, "split": "rotated(2)"},
    "network": {"name": "mlp", "hidden": [16]},
    "method": "fesem",
}


def quick(**more: Any) -> Experiment:
    return Experiment(**{**QUICK, "run": {"rounds": 4}, **more})


def test_only_learning_rates_vary_and_only_validation_samples_score() -> None:
    comparison, left_out = plan(quick())
    assert not left_out
    assert count_trials(comparison) > 1
    cells = comparison.cells()
    assert {cell.experiment.evaluation.on for cell in cells} == {"validation"}
    assert {cell.method for cell in cells} == {candidate.label for candidate in CANDIDATES}
    assert all(cell.experiment.data.validation > 0 for cell in cells)


def test_no_seed_sees_a_test_sample_and_each_validates_on_others() -> None:
    comparison, _ = plan(quick(run={"rounds": 4, "seed": 5}))
    seen = {cell.experiment.run.seed: load_federation(prepare(cell.experiment)) for cell in comparison.cells()}
    assert sorted(seen) == [5, 6, 7]
    first = load_federation(prepare(quick(run={"rounds": 4, "seed": 5}).updated({"data.validation": 0.0})))

    def samples(federation: Federation, split: Literal["validation", "test"]) -> list[bytes]:
        return [federation.slice(client, split)[0].numpy().tobytes() for client in range(federation.n)]

    assert all(samples(federation, "test") == samples(first, "test") for federation in seen.values())
    assert samples(seen[5], "validation") != samples(seen[6], "validation") != samples(seen[7], "validation")


@pytest.mark.parametrize("data", [{"name": "remote"}, {"name": "digits", "validation": 0.0}])
def test_what_cannot_be_scored_here_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="coterie auto"):
        plan(quick(data=data))


def test_a_candidate_that_is_not_possible_is_left_out() -> None:
    comparison, left_out = plan(quick(privacy={"unit": "client", "epsilon": 10.0}))
    assert "ditto" not in comparison.rows or "halves" not in comparison.rows
    assert left_out


@pytest.mark.slow
def test_planted_groups_are_chosen_written_and_run(terminal: Terminal) -> None:
    words = ["auto", "digits", "--split", "rotated(2)", "--clients", "8", "--rounds", "4", "--seeds", "2"]
    first = terminal(*words, *SMALL, "--only", "fedavg,halves,cfl", "--name", "search", "--no-run")
    assert first.code == 0, first.err
    path = Path("comparisons") / "search" / CHOSEN
    chosen = Experiment.from_toml(path)
    assert chosen.method.name in ("halves", "cfl")
    assert chosen.data.validation == 0
    assert f"lr = {chosen.training.lr:g}" in first.out
    assert (path.parent / "report.html").exists()
    finished = {folder.name for folder in (path.parent / "cells").iterdir()}
    again = terminal(
        *words, *SMALL, "--only", "fedavg,halves,cfl", "--name", "search"
    )  # runs what was chosen, nothing else
    assert again.code == 0, again.err
    assert {folder.name for folder in (path.parent / "cells").iterdir()} == finished
    (run,) = [folder for folder in Path("runs").iterdir() if folder.is_dir()]
    assert coterie.RunFolder(run).experiment()["method"]["name"] == chosen.method.name


@pytest.mark.slow
def test_a_candidate_that_diverged_for_all_is_not_chosen(tmp_path: Path, forked_cells: None) -> None:
    tables: Any = {"method": {"name": "fedavg"}, "network": {"name": "linear"}, "training": {"lr": 1e4}}
    wild = Candidate("wild", "one model, by far too large steps", tables, ())
    candidates = (*select(["fedavg"]), wild)
    asked = quick()
    comparison, _ = plan(asked, candidates=candidates, seeds=1)
    compared = compare(comparison, folder=tmp_path, jobs=1, tune=count_trials(comparison, candidates))
    assert any(label.startswith("wild") for label in compared.diverged)
    choice = choose(compared, asked, candidates=candidates)
    assert [one.candidate.label for one in choice.scored] == ["fedavg"]
    assert any("wild" in sentence for sentence in choice.left_out)


@pytest.mark.slow
def test_on_one_population_the_simplest_is_chosen(terminal: Terminal) -> None:
    words = ["auto", "digits", "--split", "iid", "--clients", "6", "--rounds", "3", "--seeds", "1", "--no-run"]
    assert terminal(*words, *SMALL, "--only", "linear,fedavg,halves,ditto").code == 0
    (path,) = Path("comparisons").glob(f"*/{CHOSEN}")
    chosen = Experiment.from_toml(path)
    assert chosen.method.name in ("fedavg", "lbfgs")  # one model for all
    assert chosen.evaluation.adapt is None
    (scores,) = [line for line in path.read_text("utf-8").splitlines() if line.startswith("# scores")]
    assert "ditto" in scores
    assert "halves" not in scores  # one group is FedAvg


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["rare", "number"])
def test_a_choice_that_is_not_above_a_constant_answer_has_learnt_nothing(
    tmp_path: Path, outcome: str, forked_cells: None
) -> None:
    rng = np.random.default_rng(0)
    noise = rng.random((240, 2)) > 0.25 if outcome == "rare" else rng.normal(size=(240, 2))
    lines = [f"{row % 6},{x:.3f},{float(y):.3f}" for row, (x, y) in enumerate(noise * 1.0)]
    (tmp_path / "noise.csv").write_text("\n".join(["client,x,label", *lines]) + "\n")
    asked = Experiment(
        data=str(tmp_path / "noise.csv"),
        task="regression" if outcome == "number" else "classification",
        network="linear",
        method="fedavg",
        run={"rounds": 2, "workers": 1},
    )
    choice = coterie.auto(asked, only=["fedavg"], seeds=1, folder=tmp_path / "search", jobs=1)
    assert choice.constant is not None
    assert abs(choice.constant.value - (0.75 if outcome == "rare" else 1.0)) < 0.2
    assert not choice.constant.is_beaten
    assert any(choice.constant.name in line for line in describe(choice))


def test_inputs_of_unequal_scale_are_brought_to_one_unless_the_experiment_says_otherwise(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2)) * [1.0, 1e5]
    lines = [f"{row % 6},{a:.3f},{b:.1f},{int(a > 0)}" for row, (a, b) in enumerate(x)]
    (tmp_path / "units.csv").write_text("\n".join(["client,x,income,label", *lines]) + "\n")
    asked = Experiment(data=str(tmp_path / "units.csv"), network="linear", method="fedavg")
    scaled, notes = bring_to_one_scale(asked)
    assert scaled.data.standardise == "global"
    assert any("income" in note and "data.standardise" in note for note in notes)
    for kept in (asked.updated({"data.standardise": "none"}), quick()):
        assert bring_to_one_scale(kept)[0] == kept


def test_a_candidate_that_there_is_not_is_refused(terminal: Terminal) -> None:
    refused = terminal("auto", "digits", "--only", "halvs")
    assert refused.code == 2
    assert "halves" in refused.err
    assert not Path("comparisons").exists()


@pytest.mark.slow
def test_what_is_to_be_known_of_the_data_is_said_before_the_search(terminal: Terminal) -> None:
    rows = [f"{row % 4},{row % 7},{1e5 * (row % 5)},{row % 2}" for row in range(160)]
    Path("wards.csv").write_text("\n".join(["client,age,income,label", *rows]), "utf-8")
    ended = terminal("auto", "wards.csv", "--only", "linear", "--rounds", "1", "--seeds", "1", "--no-run")
    assert ended.code == 0, ended.err
    assert "standardise" in ended.out.partition("tuning")[0]
    assert ended.out.count("standardise") == 1
