"""Rules that train without a part of a client's samples, and score models on that part (`coterie diagnose`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from coterie.clients.rules.client import Client
from coterie.clients.rules.half_data import half_rows
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import LocalModel
from coterie.clients.rules.requests import Inspect, Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.models.layout import Layout, Part

FOLDS = 4
"""Parts of the two halves of a client's samples: two of each half."""

OPTIONS = ("global", "tuned", "personal", "local", "constants", "group", "group-tuned")
"""Models that a client can have; the last two where there are groups."""

PULL = 1.0
"""Strength of the pull of a personal model to the global one; Ditto's lam."""

Kind = Literal["accuracy", "rmse", "mae", "loss"]
"""What is scored of a sample: whether it was told right, its squared error, its absolute error, its loss."""


def fold_rows(client: Client, size: int, fold: int) -> NDArray[np.int64]:
    """Return which samples a fold holds, of those stored; ascending.

    Folds 0 and 1 are the first half of `HalfDirections`, folds 2 and 3 the second.
    """
    return np.sort(half_rows(client, size)[fold // 2][fold % 2 :: 2])


def _weights(client: Client, rows: NDArray[np.int64]) -> Tensor:
    """Return what samples weigh `[s]` in training without these rows: 1 on average."""
    left = client.samples - len(rows)
    weights = torch.full((client.samples,), client.samples / max(1, left))
    weights[torch.from_numpy(rows)] = 0.0
    return weights


def _constants(layout: Layout) -> Part:
    """Return the constants of the last layer; of a network without any, nothing."""
    last = len(layout.layers) - 1
    return layout.where(lambda entry: entry.layer == last and entry.role == "bias")


@rule("fold-update")
@dataclass(frozen=True)
class FoldUpdate(Rule):
    """Train the received `model` on the client's samples outside one fold, and send it."""

    size: Annotated[int, Field(ge=1, description="samples in a half")] = 32
    fold: Annotated[int, Field(ge=0, lt=FOLDS, description="which fold is left out")] = 0
    passes: Annotated[int, Field(ge=1, description="passes over the client's samples")] = 1
    number: Annotated[int, Field(ge=0, description="number of the update, to name its randomness")] = 0
    uploads = ("model",)

    def run(self, client: Client, order: Order) -> Work:
        """One local update without the fold."""
        trained: Trained = yield Train(
            order.items["model"].values,
            epochs=self.passes,
            weights=_weights(client, self._left_out(client)),
            purpose=f"fold {self.fold}, update {self.number}",
        )
        return Answer(uploads={"model": trained.model}, report={"train_loss": trained.loss})

    def _left_out(self, client: Client) -> NDArray[np.int64]:
        return fold_rows(client, self.size, self.fold)


@rule("half-update")
@dataclass(frozen=True)
class HalfUpdate(FoldUpdate):
    """Train the received `model` on the client's samples outside its first half (0) or its second, and send it."""

    def _left_out(self, client: Client) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = half_rows(client, self.size)[self.fold]
        return rows


@rule("fold-scores")
@dataclass(frozen=True)
class FoldScores(Rule):
    """Make all models that the client could have, without one fold, and score them on it.

    They are the received global `model`; a copy of it, fine-tuned; a personal model, pulled to it; a model that
    nobody else had a part in; the global one with constants of the last layer of the client's own; and, with
    `grouped`, the received model of its `group`, and a copy, fine-tuned. None of them is sent: the answer is their
    mean scores on the fold, and how these vary from sample to sample.
    """

    size: Annotated[int, Field(ge=1, description="samples in a half")] = 32
    fold: Annotated[int, Field(ge=0, lt=FOLDS, description="which fold is scored")] = 0
    passes: Annotated[int, Field(ge=1, description="passes of a model that is trained alone")] = 10
    tuning: Annotated[int, Field(ge=1, description="passes of fine-tuning")] = 5
    kind: Annotated[Kind, Field(description="what is scored of a sample")] = "accuracy"
    grouped: Annotated[bool, Field(description="whether there is a group's model")] = False
    uploads, writes = ("moments",), False

    def run(self, client: Client, order: Order) -> Work:
        """Answer with `moments` `[1 + M, 1 + M]`: the number of samples, beside it the means, below covariances."""
        rows = fold_rows(client, self.size, self.fold)
        moments = torch.zeros(self.shapes(client.layout)["moments"])
        if not len(rows):
            return Answer({"moments": moments})
        whole, weights = order.items["model"].values, _weights(client, rows)

        def train(start: Tensor, passes: int, what: str, pull: float = 0.0, part: Part | None = None) -> Train:
            purpose = f"fold {self.fold}, {what}"
            return Train(start, pull, part=part, epochs=passes, weights=weights, purpose=purpose)

        tuned: Trained = yield train(whole, self.tuning, "fine-tuning")
        personal: Trained = yield train(whole, self.passes, "personal", PULL)
        alone: Trained = yield train(client.initial(), self.passes, "alone")
        constants: Trained = yield train(whole, self.passes, "constants", part=_constants(client.layout))
        models = [whole, tuned.model, personal.model, alone.model, constants.model]
        if self.grouped:
            shared = order.items["group"].values
            own: Trained = yield train(shared, self.tuning, "fine-tuning of the group's")
            models += [shared, own.model]
        each = torch.empty(len(models), len(rows), dtype=torch.float64)
        for number, model in enumerate(models):
            each[number] = yield Inspect(RowScores(rows, self.kind), model=model)
        moments[0, 0] = len(rows)
        moments[0, 1:] = each.mean(1)
        centred = each - each.mean(1, keepdim=True)
        moments[1:, 1:] = centred @ centred.T / len(rows)
        return Answer({"moments": moments})

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        many = 1 + (len(OPTIONS) if self.grouped else len(OPTIONS) - 2)
        return {"moments": (many, many)}


@dataclass(frozen=True, eq=False)
class RowScores:
    """Scores a model on some rows of a client's samples."""

    rows: NDArray[np.int64]
    kind: Kind

    def __call__(self, batch: Batch, model: LocalModel | None) -> Tensor:
        """Return the score of each row `[h]`; more is better for the accuracy alone."""
        assert model is not None
        picked = torch.from_numpy(self.rows).to(batch.labels.device)
        targets, task = batch.labels.index_select(0, picked), batch.task
        outputs = model(batch.inputs.index_select(0, picked))
        if self.kind == "loss":
            return task.losses(outputs, targets)
        if self.kind == "accuracy":
            return (task.predict(outputs) == targets).float()
        apart = (task.predict(outputs) - targets).flatten(1).double()
        return (apart.square() if self.kind == "rmse" else apart.abs()).mean(1)
