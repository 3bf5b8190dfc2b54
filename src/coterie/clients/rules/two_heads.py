"""FedRoD at the client: a head for all classes alike, and one of its own beside it (docs/methods/fedrod.md)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from coterie.clients.rules.client import Client
from coterie.clients.rules.evaluate import Evaluate
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import Extras, LocalModel, Loss, Objective, objective
from coterie.clients.rules.requests import Inspect, Request, Train, Trained
from coterie.clients.rules.rule import Answer, Order, Rule, Work, rule
from coterie.errors import BadInput
from coterie.models.layout import Entry, Layout, Part


@objective("two-heads")
@dataclass(frozen=True)
class TwoHeads(Objective):
    """The balanced softmax of the generic head (Ren et al., 2020), and the loss of both heads together.

    With logits g and features z that is `CE(g + log n, y) + CE(g + h(z), y)`, n `[C]` being the client's samples
    of each class, whose logarithm is the extra `log_counts`. The trained extra `head` is h, a weight `[C, d]` and
    where there is one a bias `[C]`, flat; to all else the second term is a constant. It is reported.
    """

    def loss(self, model: LocalModel, batch: Batch, extras: Extras) -> Loss:
        logits, features = model.with_features(batch.inputs)
        count = logits.shape[1] * features.shape[1]
        weight, bias = extras["head"][:count].view(logits.shape[1], -1), extras["head"][count:]
        personal = linear(features.detach(), weight, bias if len(bias) else None)
        both = batch.loss(logits.detach() + personal)
        return Loss(batch.loss(logits + extras["log_counts"]) + both, both)


@rule("two-heads-update")
@dataclass(frozen=True)
class TwoHeadsUpdate(Rule):
    """Train the received `model` with its generic head and send it; keep the client's own `head` beside it."""

    uploads, client_state = ("model",), ("head",)

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        return {"head": (find_head(layout).size,)}

    def run(self, client: Client, order: Order) -> Work:
        """One local update of both."""
        counts: Tensor = yield Inspect(partial(_count_classes, classes=output_shape(client.layout)[0]))
        trained: Trained = yield Train(
            order.items["model"].values,
            objective=TwoHeads(),
            extras={"log_counts": counts.log()},
            trained_extras={"head": client.state.get("head", find_head(client.layout).take(client.initial()))},
        )
        report = {"train_loss": trained.loss}
        return Answer({"model": trained.model}, client_state={"head": trained.extras["head"]}, report=report)


@rule("evaluate-two-heads")
@dataclass(frozen=True)
class EvaluateTwoHeads(Evaluate):
    """Score the received `model` with the kept `head` added to its own: their logits add up.

    A client that keeps none yet is scored with what it received.
    """

    def _model(self, client: Client, order: Order) -> Generator[Request, Any, tuple[Tensor, int | None]]:
        yield from ()
        model, part = order.items["model"].values, find_head(client.layout)
        if "head" not in client.state:
            return model, None
        return part.put(model.clone(), part.take(model) + client.state["head"]), None


@rule("evaluate-head")
@dataclass(frozen=True)
class EvaluateHead(Evaluate):
    """Score the body of the received `model` under the received `head`."""

    def _model(self, client: Client, order: Order) -> Generator[Request, Any, tuple[Tensor, int | None]]:
        yield from ()
        body = order.items["model"].onto(client.initial())
        return find_head(client.layout).put(body, order.items["head"].values), None


def find_head(layout: Layout) -> Part:
    """Return the weight and bias of the dense layer that gives the outputs.

    Raises:
        BadInput: it is no dense layer.
    """
    last = _last_weight(layout)
    if last.kind != "dense" or len(last.shape) != 2:
        raise BadInput(f"this method needs a network that ends in a dense layer; this one ends in {last.module}")
    return layout.where(lambda e: e.module == last.module)


def output_shape(layout: Layout) -> tuple[int, int]:
    """Return of how many outputs C the head is, and of how many features d."""
    outputs, features = _last_weight(layout).shape
    return outputs, features


def _last_weight(layout: Layout) -> Entry:
    return [e for e in layout.tensors if e.role == "weight"][-1]


def _count_classes(batch: Batch, model: LocalModel | None, classes: int) -> Tensor:
    return torch.bincount(batch.labels, minlength=classes).float()
