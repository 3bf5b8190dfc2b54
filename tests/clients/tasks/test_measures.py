"""The metrics, against scikit-learn and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from coterie.clients.tasks import MEASURES, Binary, Classification, Language, Multilabel, Regression, Task
from coterie.clients.tasks.measures import compute_metrics, find_wrong_metrics, metrics_to_compute
from coterie.runs.folder.metrics import client_f1

RNG = np.random.default_rng(4)
LABELS = RNG.integers(0, 3, 40)
SCORES = RNG.random((40, 3))
PREDICTED = SCORES.argmax(1)


def measured(name: str, predictions: np.ndarray, targets: np.ndarray) -> float:
    return MEASURES[name].compute(torch.from_numpy(predictions), torch.from_numpy(targets))


def test_metrics_of_classes_are_those_of_scikit_learn() -> None:
    assert measured("accuracy", PREDICTED, LABELS) == pytest.approx(sklearn.accuracy_score(LABELS, PREDICTED))
    assert measured("balanced_accuracy", PREDICTED, LABELS) == pytest.approx(
        sklearn.balanced_accuracy_score(LABELS, PREDICTED)
    )
    assert measured("f1", PREDICTED, LABELS) == pytest.approx(sklearn.f1_score(LABELS, PREDICTED, average="macro"))
    assert measured("iou", PREDICTED, LABELS) == pytest.approx(
        sklearn.jaccard_score(LABELS, PREDICTED, average="macro")
    )


def test_scores_are_measured_one_class_against_the_others() -> None:
    areas = [sklearn.roc_auc_score(c == LABELS, SCORES[:, c]) for c in range(3)]
    assert measured("auroc", SCORES, LABELS) == pytest.approx(np.mean(areas), rel=1e-5)
    precision = [sklearn.average_precision_score(c == LABELS, SCORES[:, c]) for c in range(3)]
    assert measured("average_precision", SCORES, LABELS) == pytest.approx(np.mean(precision), rel=1e-5)
    two = LABELS % 2
    assert measured("auroc", SCORES[:, 0], two) == pytest.approx(sklearn.roc_auc_score(two, SCORES[:, 0]), rel=1e-5)


def test_a_class_that_a_client_lacks_is_no_zero() -> None:
    """A client with two of three classes: the third counts nowhere."""
    some = LABELS < 2
    assert measured("auroc", SCORES[some], LABELS[some]) == pytest.approx(
        np.mean([sklearn.roc_auc_score(LABELS[some] == c, SCORES[some, c]) for c in range(2)]), rel=1e-5
    )
    assert math.isnan(measured("auroc", SCORES, np.zeros(40, np.int64)))
    assert measured("balanced_accuracy", np.array([0, 2, 1]), np.array([0, 0, 1])) == pytest.approx(0.75)


def test_the_f1_of_outputs_is_that_of_counts() -> None:
    counts = [np.bincount(v, minlength=3) for v in (LABELS, PREDICTED, LABELS[LABELS == PREDICTED])]
    assert measured("f1", PREDICTED, LABELS) == pytest.approx(float(client_f1(*counts)), rel=1e-6)


def test_metrics_of_numbers_are_those_of_scikit_learn() -> None:
    true, found = RNG.normal(size=(30, 2)).astype(np.float32), RNG.normal(size=(30, 2)).astype(np.float32)
    assert measured("rmse", found, true) == pytest.approx(math.sqrt(((found - true) ** 2).mean()), rel=1e-5)
    assert measured("mae", found, true) == pytest.approx(sklearn.mean_absolute_error(true, found), rel=1e-5)
    assert measured("r2", found, true) == pytest.approx(sklearn.r2_score(true, found), rel=1e-4)
    assert math.isnan(measured("r2", found[:1], true[:1]))
    assert math.isnan(measured("r2", found, np.ones_like(true)))


def test_several_labels_are_measured_each_and_unknown_ones_nowhere() -> None:
    true = (RNG.random((30, 2)) > 0.5).astype(np.float32)
    scores = RNG.random((30, 2)).astype(np.float32)
    yes = (scores > 0.5).astype(np.float32)
    assert measured("f1", yes, true) == pytest.approx(sklearn.f1_score(true, yes, average="macro"), rel=1e-5)
    assert measured("auroc", scores, true) == pytest.approx(
        sklearn.roc_auc_score(true, scores, average="macro"), rel=1e-5
    )
    partly = true.copy()
    partly[:10, 0] = np.nan
    expected = (
        sklearn.roc_auc_score(true[10:, 0], scores[10:, 0]) + sklearn.roc_auc_score(true[:, 1], scores[:, 1])
    ) / 2
    assert measured("auroc", scores, partly) == pytest.approx(expected, rel=1e-5)
    assert measured("accuracy", yes, partly) == pytest.approx((yes == partly)[~np.isnan(partly)].mean())


def test_perplexity_is_over_all_known_tokens() -> None:
    logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(15).view(3, 5) % 7
    targets[0, 2:] = -1
    known = targets >= 0
    expected = torch.nn.functional.cross_entropy(logits[known], targets[known]).exp()
    found = compute_metrics(Language(), ("perplexity", "accuracy"), logits, targets)
    assert found["perplexity"] == pytest.approx(expected.item(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((logits.argmax(2) == targets)[known].float().mean().item())


def test_unlabelled_places_count_nowhere() -> None:
    targets = LABELS.copy()
    targets[:20] = -1
    assert measured("iou", PREDICTED, targets) == pytest.approx(
        sklearn.jaccard_score(LABELS[20:], PREDICTED[20:], average="macro")
    )


def test_what_counts_say_is_not_computed_twice() -> None:
    assert metrics_to_compute(Classification(), 10) == ()
    assert metrics_to_compute(Binary(), 2) == ("auroc", "average_precision")
    assert metrics_to_compute(Multilabel(), 0) == Multilabel.metrics


def test_metrics_that_mean_nothing_are_refused() -> None:
    assert find_wrong_metrics(Classification(), ["auroc", "f1"]) == []
    (wrong,) = find_wrong_metrics(Regression(), ["accuracy"])
    assert all(part in wrong for part in ("task.metrics = 'accuracy'", "regression", "rmse, mae, r2"))
    (strange,) = find_wrong_metrics(Regression(), ["rsme"])
    assert "rmse" in strange


def test_every_metric_of_every_task_is_known() -> None:
    from coterie.clients.tasks import TASKS

    for entry in TASKS:
        built: Task = entry.target()
        assert set(built.metrics) <= set(built.measurable) <= set(MEASURES.names())
