"""Lengths of updates arrive with the answers, the same on every runtime: what crossed, less what was sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from coterie.clients.rules import Answer, Client, Order, Rule, Work, rule
from coterie.methods.exchange import Exchange, Send
from coterie.models.layout import Part
from coterie.runtime.runtime import Runtime
from tests.runtime.kinds import ask, runtimes

EVERYONE = np.arange(4)
MOVES = (0.0, 0.5, 1e-3, 3e37)
"""What each client adds to every number; the length of the last one's update is beyond float32."""


@rule("test-move")
@dataclass(frozen=True)
class Move(Rule):
    """Send a model that lies apart from all ones by the client's own move, and a gradient of twos."""

    uploads = ("model", "gradient")
    chooses: bool = False

    def run(self, client: Client, order: Order) -> Work:
        yield from ()
        size = client.layout.size
        vectors = {"model": torch.full((size,), 1.0 + MOVES[client.id]), "gradient": torch.full((size,), 2.0)}
        return Answer(vectors, {"choice": 1.0} if self.chooses else {}, {})


each = runtimes("alone", "workers", "loopback", clients=4)


def measure(runtime: Runtime, exchange: Exchange, number: int | None = None) -> list[list[float]]:
    """The lengths of models and of gradients, of each by the square root of its size."""
    replies = ask(runtime, exchange, number)
    root = np.sqrt(runtime.layout.size)
    return [(replies.update_lengths[name] / root).tolist() for name in ("model", "gradient")]


def test_an_update_is_what_is_sent_less_what_was_received(runtime: Runtime) -> None:
    ones = torch.ones(1, runtime.layout.size)
    models, gradients = measure(runtime, Exchange(EVERYONE, Move(), {"model": Send.same(ones[0], EVERYONE)}), 1)
    assert models == pytest.approx([*MOVES[:3], np.inf], rel=1e-3)
    assert gradients == pytest.approx([2.0] * 4)
    several = torch.cat([7 * ones, ones])
    for how in (Move(chooses=True), Move()):  # the one that is chosen, or else the nearest
        models, _ = measure(runtime, Exchange(EVERYONE, how, {"models": Send.all(several, EVERYONE)}))
        assert models == pytest.approx([*MOVES[:3], np.inf], rel=1e-3)


def test_what_was_sent_earlier_in_the_round_counts_and_what_does_not_cross_does_not(runtime: Runtime) -> None:
    """What was never sent began as nothing."""
    size = runtime.layout.size
    lower, upper = Part.of([(0, size // 2)]), Part.of([(size // 2, size)])
    ones = torch.ones(size)
    down = {"model": Send.same(ones, EVERYONE, lower)}
    root = np.sqrt([lower.size / size, upper.size / size])
    (found, _) = measure(runtime, Exchange(EVERYONE, Move(), down, upload_part={"model": lower}), 1)
    assert found[:3] == pytest.approx(list(root[0] * np.array(MOVES[:3])), rel=1e-3)
    (found, _) = measure(runtime, Exchange(EVERYONE, Move(), upload_part={"model": lower}))
    assert found[:3] == pytest.approx(list(root[0] * np.array(MOVES[:3])), rel=1e-3)
    (found, _) = measure(runtime, Exchange(EVERYONE, Move(), upload_part={"model": upper}))
    assert found[:3] == pytest.approx(list(root[1] * (1 + np.array(MOVES[:3]))), rel=1e-3)
    (found, _) = measure(runtime, Exchange(EVERYONE, Move()), 2)
    assert found[:3] == pytest.approx(list(1 + np.array(MOVES[:3])), rel=1e-3)
