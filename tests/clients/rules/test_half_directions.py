"""Directions from halves of a client's data: they depend on what the samples are, not on how many there are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.data.federation import Federation
from coterie.clients.rules.half_data import HalfDirections
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from tests.federated import TRAINING, planted, without_client


def ask(
    federation: Federation, *rules: HalfDirections, network: str = "planted-perceptron", lr: float = 0.1
) -> list[Replies]:
    """What all clients answer in one round, to one rule after the other."""
    training = TRAINING.updated(lr=lr)
    spec = EngineSpec(network, {}, federation.features, federation, training, 0, "sequential")
    engine, everyone = spec.build(), np.arange(federation.n)
    runtime = LocalRuntime(spec, federation.samples, 0.0, 1, None)
    runtime.begin_round(1)
    send = {"model": Send.same(engine.initial, everyone)}
    found = [runtime.answer(Exchange(everyone, rule, send)) for rule in rules]
    assert all(isinstance(replies, Replies) for replies in found)
    return [replies for replies in found if isinstance(replies, Replies)]


def row(replies: Replies, client: int) -> Tensor:
    return torch.stack([replies.uploads[name][client] for name in ("first", "second")])


def test_directions_have_length_1_and_differ() -> None:
    (replies,) = ask(planted(clients=3, samples=40), HalfDirections(size=20))
    for client in range(3):
        directions = row(replies, client)
        torch.testing.assert_close(directions.norm(dim=1), torch.ones(2))
        assert 0 < float(directions[0] @ directions[1]) < 0.999


def test_more_samples_make_no_more_steps_nor_a_shorter_direction() -> None:
    """A client whose many samples are one and the same has the direction of a client with few of them."""
    federation = planted("iid", groups=1, clients=2, samples=40, test=4)
    inputs, labels = federation.inputs.clone(), federation.labels.clone()
    inputs[:], labels[:] = inputs[0], labels[0]
    same = replace(federation, inputs=inputs, labels=labels)
    few = replace(same, bounds=np.array([[0, 40, 40, 44], [44, 54, 54, 58]]))
    (replies,) = ask(few, HalfDirections(size=5))
    torch.testing.assert_close(row(replies, 0), row(replies, 1))
    assert replies.report["trained_samples"][0] == replies.report["trained_samples"][1]


def test_the_halves_of_a_round_are_the_same_from_every_start() -> None:
    """With one pass from one model over one minibatch, only the halves could tell two starts apart."""
    federation = planted(clients=2, samples=16)
    one, other = ask(federation, HalfDirections(8, 5, 0), HalfDirections(8, 5, 1))
    torch.testing.assert_close(row(one, 0), row(other, 0), rtol=0, atol=1e-5)


def test_the_samples_of_a_half_are_not_in_the_other() -> None:
    federation = planted(clients=1, samples=2)
    (replies,) = ask(federation, HalfDirections(size=1))
    first, second = row(replies, 0)
    assert float(first @ second) < 0.9


def test_a_client_with_fewer_samples_has_smaller_halves_and_one_with_a_single_sample_sends_nothing() -> None:
    (replies,) = ask(without_client(planted(clients=2, samples=40), 5), HalfDirections(size=20))
    torch.testing.assert_close(row(replies, 0).norm(dim=1), torch.ones(2))
    (replies,) = ask(without_client(planted(clients=2, samples=40), 1), HalfDirections(size=20))
    assert replies.clients.tolist() == [0, 1]
    assert row(replies, 0).isnan().all()


@pytest.mark.parametrize("lr", [1e3, 1e30])
def test_a_learning_rate_that_diverges_gives_a_direction_or_none(lr: float) -> None:
    (replies,) = ask(planted(clients=2, samples=20), HalfDirections(size=10), lr=lr)
    for client in range(2):
        lengths = row(replies, client).norm(dim=1)
        assert all(abs(length - 1) < 1e-5 or length == 0 for length in lengths.tolist())


def test_buffers_have_no_direction() -> None:
    federation = planted(clients=2, samples=20)
    (replies,) = ask(federation, HalfDirections(size=10), network="planted-batch-norm")
    layout = EngineSpec(
        "planted-batch-norm", {}, federation.features, federation, TRAINING, 0, "sequential"
    ).build()
    buffers = layout.layout.everything - layout.layout.trainable
    assert buffers.size > 0
    assert not buffers.take(row(replies, 0)).any()
