"""The losses, predictions and targets of the tasks, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from coterie.clients.rules import Batch
from coterie.clients.tasks import (
    TASKS,
    Binary,
    Classification,
    Language,
    Multilabel,
    Regression,
    Segmentation,
    Task,
)
from coterie.errors import BadInput

DRAWN = torch.Generator().manual_seed(5)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAWN)


def test_classification_is_the_cross_entropy_to_the_bit() -> None:
    logits, labels = normal(9, 4), torch.arange(9) % 4
    task = Classification()
    assert task.plain
    assert torch.equal(Batch(logits, labels).loss(logits), functional.cross_entropy(logits, labels))
    assert torch.equal(task.total_loss(logits, labels), functional.cross_entropy(logits, labels, reduction="sum"))


def test_weights_and_smoothing_are_those_of_pytorch() -> None:
    logits, labels = normal(9, 4), torch.arange(9) % 4
    weights = (0.5, 1.0, 2.0, 4.0)
    task = Classification(class_weights=weights, label_smoothing=0.1)
    expected = functional.cross_entropy(
        logits, labels, torch.tensor(weights), reduction="none", label_smoothing=0.1
    )
    assert not task.plain
    assert torch.equal(task.losses(logits, labels), expected)
    assert torch.allclose(task.mean_loss(logits, labels), expected.mean())


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.array([0] * 7 + [1] * 2 + [2])
    found = Classification(class_weights="balanced").with_metrics(("auroc",)).fit(labels, 3)
    assert found.class_weights == pytest.approx(
        compute_class_weight("balanced", classes=np.arange(3), y=labels).tolist()
    )
    assert list(found.metrics) == ["auroc"]


def test_a_class_that_nobody_has_weighs_one() -> None:
    found = Classification(class_weights="balanced").fit(np.array([0, 0, 2]), 3)
    assert found.class_weights == pytest.approx((0.75, 1.0, 1.5))


def test_binary_is_the_logistic_loss_of_one_logit() -> None:
    logits, labels = normal(8, 1), torch.arange(8) % 2
    expected = functional.binary_cross_entropy_with_logits(logits[:, 0], labels.float(), reduction="none")
    assert torch.equal(Binary().losses(logits, labels), expected)
    weighted = Binary(class_weights=(1.0, 3.0)).losses(logits, labels)
    assert torch.allclose(weighted, expected * torch.tensor([1.0, 3.0])[labels])
    assert torch.equal(Binary().predict(logits), (logits[:, 0] > 0).long())
    assert torch.allclose(Binary().distributions(logits).sum(1), torch.ones(8))


def test_a_label_that_is_not_known_counts_nowhere() -> None:
    logits = normal(3, 2)
    known = torch.tensor([[1.0, 0.0], [1.0, float("nan")], [float("nan")] * 2])
    losses = Multilabel().losses(logits, known)
    both = functional.binary_cross_entropy_with_logits(logits[0], known[0])
    one = functional.binary_cross_entropy_with_logits(logits[1, :1], known[1, :1])
    assert torch.allclose(losses, torch.stack([both, one, torch.zeros(())]))


@pytest.mark.parametrize(
    ("task", "loss"),
    [
        (Regression(), functional.mse_loss),
        (Regression("mae"), functional.l1_loss),
        (Regression("huber", 0.5), lambda a, b: functional.huber_loss(a, b, delta=0.5)),
    ],
)
def test_the_losses_of_a_regression_are_those_of_pytorch(task: Task, loss: Any) -> None:
    outputs, targets = normal(7, 3), normal(7, 3)
    assert torch.allclose(task.mean_loss(outputs, targets), loss(outputs, targets))
    assert torch.allclose(task.losses(outputs, targets)[2], loss(outputs[2], targets[2]))


def test_a_pixel_without_a_label_counts_nowhere() -> None:
    outputs, targets = normal(3, 2, 4, 4), torch.randint(0, 2, (3, 4, 4), generator=DRAWN)
    targets[0, 0], targets[1] = -1, -1
    losses = Segmentation().losses(outputs, targets)
    assert losses[0].item() == pytest.approx(
        functional.cross_entropy(outputs[:1], targets[:1], ignore_index=-1).item(), rel=1e-5
    )
    assert losses[1] == 0
    assert torch.allclose(losses[2], functional.cross_entropy(outputs[2:], targets[2:]))


def test_padding_is_no_target() -> None:
    outputs, targets = normal(2, 5, 6), torch.randint(0, 6, (2, 5), generator=DRAWN)
    targets[0, 3:] = -1
    losses = Language().losses(outputs, targets)
    assert torch.allclose(losses[0], functional.cross_entropy(outputs[0, :3], targets[0, :3]))
    read = Language(padding=0).read_targets(np.array([[1, 2, 0], [3, 0, 0]]), "here", [])
    assert read.values.tolist() == [[1, 2, -1], [3, -1, -1]]
    assert (read.outputs, read.classes) == (4, 0)


@pytest.mark.parametrize(
    ("task", "values", "says"),
    [
        (Binary(), np.array([0, 1, 2]), r"3 .*task\.name = 'binary' .*two"),
        (Classification((1.0,)), np.array([0, 1]), r"task\.class_weights .*1 .*2"),
        (Classification((-1.0, 1.0)), np.array([0, 1]), r"task\.class_weights .*0"),
        (Multilabel(), np.array([[0, 3]]), "label 1 .*row 0 .*3; .*0, 1, .*-1"),
        (Multilabel(), np.array([0, 1]), " 0 .* 1 "),
        (Regression(), np.array([1.0, np.nan]), "row 1 .*nan"),
        (Regression(), np.array(["a", "b"]), "number"),
        (Segmentation(), np.zeros((2, 3)), "pixel"),
        (Language(), np.array([[1, 1e300]]), " 0 .*-1 "),
        (Language(), np.array([[1, -2]]), " 0 .*-1 "),
    ],
)
def test_targets_of_another_kind_are_refused(task: Task, values: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        task.read_targets(values, "here", [])


def test_what_is_known_of_the_targets_is_held_to() -> None:
    for name, values, says in (
        ("regression", np.zeros((3, 2)), "2 .* 3"),
        ("language", np.array([[1, 5]]), "5.* 3"),
    ):
        with pytest.raises(BadInput, match=says):
            TASKS[name].target().read_targets(values, "here", [], 3)
    assert Language().read_targets(np.array([[1, 2]]), "here", [], 9).outputs == 9


@pytest.mark.parametrize("task", [Classification(class_weights="balanced"), Regression(target_scale="global")])
def test_what_nobody_has_computed_of_all_targets_is_no_silent_default(task: Task) -> None:
    with pytest.raises(ValueError, match="all clients"):
        task.losses(torch.zeros(2, 3), torch.zeros(2, 3) if task.numbers else torch.zeros(2, dtype=torch.int64))
