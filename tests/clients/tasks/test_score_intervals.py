"""How sure metrics are: against their definitions, and against what they ought to hold in repeated draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.clients.tasks.measures import MEASURES
from coterie.clients.tasks.score_intervals import DRAWS, Z, bound_metric
from coterie.randomness import stream


def test_the_variance_of_a_binary_auroc_is_that_of_delong() -> None:
    rng = stream(0, "scores")
    yes, no = rng.normal(1, 1, 14).round(1), rng.normal(0, 1, 23).round(1)
    pairs = (yes[:, None] > no) + 0.5 * (yes[:, None] == no)
    area = pairs.mean()
    error = np.sqrt(pairs.mean(1).var(ddof=1) / 14 + pairs.mean(0).var(ddof=1) / 23)
    middle, half = np.log(area / (1 - area)), Z * error / (area * (1 - area))
    wanted = [1 / (1 + np.exp(-end)) for end in (middle - half, middle + half)]
    scores, targets = np.concatenate([yes, no]), np.repeat([1, 0], [14, 23])
    assert bound_metric("auroc", targets, scores, targets, rng) == pytest.approx(wanted)
    # Two columns say the same twice.
    both = np.stack([-scores, scores], 1)
    assert bound_metric("auroc", targets, both, targets, rng) == pytest.approx(wanted)


def test_what_is_not_defined_has_no_interval() -> None:
    rng, ones = stream(0, "none"), np.ones(5, np.int64)
    scores = np.linspace(0, 1, 5)
    assert np.isnan(bound_metric("auroc", ones, scores, ones, rng)).all()
    assert np.isnan(bound_metric("rmse", scores[:1], scores[:1], scores[:1], rng)).all()
    assert np.isnan(bound_metric("r2", scores, scores, 0 * scores, rng)).all()
    assert np.isnan(bound_metric("average_precision", ones, scores, ones, rng)).all()
    assert np.isnan(bound_metric("perplexity", -ones[:, None], np.zeros((5, 1, 3)), -ones[:, None], rng)).all()
    assert np.isnan(bound_metric("unknown", scores, scores, scores, rng)).all()
    assert np.isnan(bound_metric("f1", ones, scores, -ones, rng)).all()


def test_a_perfect_order_of_few_samples_is_not_sure() -> None:
    low, high = bound_metric("auroc", np.zeros(8), np.arange(8.0), np.arange(8) // 4, stream(0, "perfect"))
    assert high == 1
    assert low == pytest.approx(4 / (4 + Z**2))


def test_bootstraps_are_those_of_the_samples() -> None:
    rng = stream(3, "errors")
    off = rng.normal(0, 2, 400)
    low, high = bound_metric("rmse", off, off, np.zeros(400), rng)
    error = (off**2).std() / np.sqrt(400) / (2 * np.sqrt((off**2).mean()))
    root = np.sqrt((off**2).mean())
    assert (low, high) == pytest.approx((root - Z * error, root + Z * error), abs=0.25 * error)
    low, high = bound_metric("mae", off, off, np.zeros(400), rng)
    middle, error = np.abs(off).mean(), np.abs(off).std() / np.sqrt(400)
    assert (low, high) == pytest.approx((middle - Z * error, middle + Z * error), abs=0.25 * error)


def test_the_f1_of_a_bootstrap_is_that_of_drawn_samples() -> None:
    from sklearn.metrics import f1_score

    rng = stream(4, "classes")
    targets = rng.integers(0, 3, 120)
    predicted = np.where(rng.random(120) < 0.6, targets, rng.integers(0, 3, 120))
    found = bound_metric("f1", predicted, predicted, targets, rng)
    drawn = [
        f1_score(targets[some], predicted[some], average="macro")
        for some in rng.integers(0, 120, (DRAWS // 4, 120))
    ]
    assert found == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.03)


def test_what_is_all_right_is_not_sure() -> None:
    rng, targets = stream(0, "all right"), np.arange(20) % 3
    for metric in ("f1", "balanced_accuracy", "iou"):
        assert bound_metric(metric, targets, targets, targets, rng) == pytest.approx((20 / (20 + Z**2), 1))
        assert bound_metric(metric, targets + 1, targets, targets, rng)[0] < 0.1


@pytest.mark.medium
@pytest.mark.parametrize(
    "metric", ["average_precision", "r2", "balanced_accuracy", "iou", "accuracy", "perplexity"]
)
def test_intervals_hold_the_metric_and_what_it_would_be_of_endless_samples(metric: str) -> None:
    rng, takes, count = stream(6, metric), MEASURES[metric].takes, 60
    compute = MEASURES[metric].target

    def draw(samples: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Predictions, scores and targets of classes, numbers, images of 3 x 2 pixels, or texts of 5 tokens."""
        targets = rng.integers(0, 3, samples)
        if metric == "r2":
            values = rng.normal(size=(samples, 2))
            return torch.tensor(values + rng.normal(0, 0.6, values.shape)), torch.empty(0), torch.tensor(values)
        if metric == "average_precision":
            scores = torch.tensor(rng.normal(size=(samples, 3)) + 1.5 * np.eye(3)[targets])
            return scores.argmax(1), scores, torch.tensor(targets)
        shape = (samples, 5) if metric == "perplexity" else (samples, 3, 2)
        # What is hard of an image or a text is so at all of its places, so that they are no samples of their own.
        hard = rng.random((samples, *[1] * (len(shape) - 1)))
        targets = rng.integers(-1, 3, shape)
        predicted = np.where(rng.random(shape) < hard, targets, rng.integers(0, 3, shape))
        logits = 2 * hard[..., None] * np.eye(3)[targets] + rng.normal(size=(*shape, 3))
        return torch.tensor(np.maximum(predicted, 0)), torch.tensor(logits), torch.tensor(targets)

    def measure(drawn: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> float:
        return float(compute(drawn[1] if takes == "score" else drawn[0], drawn[2]))

    wanted, times, held = measure(draw(8_000)), 60, 0
    for _ in range(times):
        drawn = draw(count)
        predicted, scores, targets = (of.numpy() for of in drawn)
        low, high = bound_metric(metric, predicted, scores, targets, rng)
        assert low < measure(drawn) < high
        held += low <= wanted <= high
    assert held >= 0.75 * times  # 0.95 less 3 standard errors; a bootstrap of 60 samples is a little narrow
