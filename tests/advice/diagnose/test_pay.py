"""Who gains by a model for each group: what is known of planted federations comes out, and is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.advice.diagnose.advice import suggest
from coterie.advice.diagnose.diagnose import diagnose
from coterie.advice.diagnose.pay import Pay, choose_kind, weigh
from coterie.clients.tasks import TASKS
from coterie.methods.cross_fit import CrossFit, choose_passes, place_by_other_half
from coterie.runs.schema.experiment import Experiment

UNASKED = "--no-gains"


def experiment(split: str, clients: int, **sections: Any) -> Experiment:
    return Experiment(
        data={"name": "digits", "split": split, "clients": clients},
        method="fedavg",
        run={"workers": 1, "seed": 1},
        **sections,
    )


def found(split: str, clients: int = 12, **sections: Any) -> Pay:
    pay = diagnose(experiment(split, clients, **sections), starts=2).pay
    assert pay is not None
    return pay


SIX = ("global", "tuned", "personal", "local", "group", "group-tuned")


def moments(scores: list[list[float]], samples: int = 100, options: tuple[str, ...] = SIX) -> CrossFit:
    """Of clients with these mean accuracies for each option, the same in each of four folds."""
    means = np.array(scores)
    one = np.zeros((len(means), 1 + means.shape[1], 1 + means.shape[1]))
    one[:, 0, 0], one[:, 0, 1:] = samples // 4, means
    one[:, 1:, 1:] = means.mean() * (1 - means.mean()) * (0.5 + 0.5 * np.eye(means.shape[1]))
    return CrossFit(np.arange(len(means)), options[: means.shape[1]], np.stack([one] * 4), 10, 5)


@pytest.mark.slow
def test_rotated_groups_pay_for_everybody_on_average() -> None:
    pay = found("rotated(2)")
    assert pay.best == "group"
    assert pay.chosen.is_above
    assert [group.clients for group in pay.groups] == [6, 6]
    assert all(group.gain.is_above for group in pay.groups)
    assert len(pay.gaining) >= 4
    assert not pay.losing
    assert "Yes" in pay.sentences()[0]


@pytest.mark.slow
def test_one_population_is_told_that_one_model_is_best() -> None:
    pay = found("iid")
    assert pay.best == "global"
    assert [option.name for option in pay.options] == ["global", "tuned", "personal", "local", "constants"]
    assert "Yes" not in pay.sentences()[0]


@pytest.mark.slow
def test_a_fifth_of_the_clients_does_not_turn_what_pays() -> None:
    pay = found("rotated(2)", 20, attack={"kind": "label-flip", "share": 0.2})
    assert pay.best == "group"
    assert pay.chosen.is_above


@pytest.mark.slow
def test_models_that_are_no_better_than_a_guess_are_said_to_be() -> None:
    asked = experiment("iid", 8, training={"lr": 1e-6})
    found = diagnose(asked, starts=1)
    assert all(part in found.unlearnt for part in ("class in 10.", "--set standardise=global", "--set lr"))
    assert found.pay is None
    assert [found.unlearnt in sentence for sentence in found.sentences()] == [True, False]
    assert suggest(found, asked) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "lr", "diverges"),
    [
        ({"name": "regression", "target_scale": "none"}, 1e-6, False),
        ({"name": "regression", "target_scale": "none"}, 1e6, True),
        ({"name": "regression"}, 1e-6, False),
    ],
)
def test_a_regression_without_learning_says_what_to_scale(
    tmp_path: Path, task: dict[str, Any], lr: float, diverges: bool
) -> None:
    rng = np.random.default_rng(0)
    rows = [(f"site {i % 8}", *rng.normal(size=3)) for i in range(640)]
    lines = ["site,a,b,y", *(f"{site},{a:.3f},{b:.3f},{50 + 20 * a + b + c:.3f}" for site, a, b, c in rows)]
    (tmp_path / "sites.csv").write_text("\n".join(lines))
    data = {"name": str(tmp_path / "sites.csv"), "client": "site", "label": "y"}
    asked = Experiment(data=data, method="fedavg", task=task, training={"lr": lr})
    unlearnt = diagnose(asked, starts=1).unlearnt
    assert ("diverged" in unlearnt) == diverges
    assert ("--set task.target_scale=global" in unlearnt) == ("target_scale" in task)


@pytest.mark.slow
def test_where_one_class_is_common_accuracies_do_not_say_that_nothing_was_learnt(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["site,a,y", *(f"site {i % 8},{rng.normal():.3f},{int(i % 10 == 0)}" for i in range(640))]
    (tmp_path / "sites.csv").write_text("\n".join(lines))
    data = {"name": str(tmp_path / "sites.csv"), "client": "site", "label": "y"}
    found = diagnose(Experiment(data=data, method="fedavg", training={"lr": 1e-6}), starts=1)
    assert found.unlearnt == ""
    assert found.pay is not None


def test_a_group_is_told_by_the_half_that_is_not_scored() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(16, 6)) + np.repeat(np.array([[3, 0], [0, 3]] * 4), 2, 0) @ rng.normal(size=(2, 6))
    labels = np.arange(8) % 2
    np.testing.assert_array_equal(place_by_other_half((rows @ rows.T)[None], labels), [labels, labels])
    stranger = rows.copy()
    stranger[0] = rows[2]  # the first half of client 0 is as client 1's
    moved = place_by_other_half((stranger @ stranger.T)[None], labels)
    assert moved[0, 0] == 0, "scores on its first half must not know of that half"
    assert moved[1, 0] == 1


def test_clients_gain_lose_or_cannot_tell() -> None:
    scores = [[0.5, 0.5, 0.5, 0.4, 0.95, 0.9]] * 5 + [
        [0.9, 0.8, 0.8, 0.7, 0.3, 0.3],
        [0.6, 0.6, 0.6, 0.6, 0.62, 0.6],
    ]
    names = np.array([f"site {i}" for i in range(7)], dtype=object)
    pay = weigh(moments(scores), "accuracy", names, np.array([0] * 5 + [1, 1]))
    assert pay is not None
    assert (pay.best, pay.weighed) == ("group", "group")
    assert [client.client for client in pay.losing] == ["site 5"]
    said = pay.sentences()
    gaining, losing, unsure = said[2].split(";")
    assert "(site 0, site 1, site 2, site 3, site 4)" in gaining
    assert ("(site 5)" in losing, "(site 6)" in unsure) == (True, True)
    assert "0: +45.0 points (+45.0 to +45.0), 1:" in said[1]
    assert json.loads(json.dumps(pay.tables()))["losing"] == ["site 5"]


def test_what_is_chosen_by_other_folds_gains_nothing_where_all_are_alike() -> None:
    fit = moments([[4.0] * 4, [1.0] * 4, [2.25] * 4])
    fit.moments[0, :, 0, 1:] *= 4  # a fold on which all are twice as far off
    pay = weigh(fit, "rmse", np.array(["a", "b", "c"], dtype=object), np.zeros(3, np.int64))
    assert pay is not None
    assert pay.chosen.value == pytest.approx(0, abs=1e-12)


def test_an_error_that_falls_is_a_gain() -> None:
    fit = moments([[4.0, 2.25, 4.0, 4.0], [4.0, 1.0, 4.0, 9.0], [4.0, 1.44, 4.0, 4.0]])
    pay = weigh(fit, "rmse", np.array(["a", "b", "c"], dtype=object), np.zeros(3, np.int64))
    assert pay is not None
    assert pay.best == "tuned"
    assert pay.score("tuned") == pytest.approx((1.5 + 1.0 + 1.2) / 3)
    assert pay.options[1].gain.value == pytest.approx(2 - 3.7 / 3)
    assert all(part in pay.sentences()[0] for part in ("Yes", "fine-tuned", "RMSE of 1.233", " 2 ", "+0.767 ("))


def test_who_sent_nothing_sound_is_named_and_not_scored() -> None:
    fit = moments([[0.5, 0.6, 0.6, 0.6]] * 3)
    fit.moments[:, 1] = 0.0
    names = np.array(["a", "b", "c"], dtype=object)
    pay = weigh(fit, "accuracy", names, np.zeros(3, np.int64))
    assert pay is not None
    assert [client.client for client in pay.clients] == ["a", "c"]
    assert ": b" in pay.sentences()[1]
    fit.moments[:] = 0.0
    assert weigh(fit, "accuracy", names, np.zeros(3, np.int64)) is None


def test_a_round_makes_enough_steps_of_the_median_client() -> None:
    samples = np.array([10, 64, 10_000])
    assert choose_passes(samples, 32, 1) == 5  # 2 minibatches: 10 steps, for more than 5 passes take too long
    assert choose_passes(samples, 8, 1) == 3
    assert choose_passes(samples, 1, 1) == 1
    assert choose_passes(samples, 1, 4) == 4


@pytest.mark.parametrize(
    ("task", "kind"),
    [("classification", "accuracy"), ("binary", "accuracy"), ("regression", "rmse"), ("multilabel", "loss")],
)
def test_a_task_is_scored_by_what_its_first_metric_is_a_mean_of(task: str, kind: str) -> None:
    assert choose_kind(TASKS[task].target()) == kind


@pytest.mark.medium
def test_without_gains_a_note_says_that_learning_was_not_asked() -> None:
    assert UNASKED in " ".join(diagnose(experiment("iid", 8), starts=1, gains=False).notes)
