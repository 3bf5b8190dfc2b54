"""Losses of others' models on halves of a client's data: of the halves that are trained on, sample by sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from coterie.clients.data.federation import Federation
from coterie.clients.rules.half_data import HalfDirections
from coterie.clients.rules.half_losses import HalfLosses
from coterie.clients.rules.rule import Rule
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.randomness import stream
from coterie.runtime.local.runtime import EngineSpec, LocalRuntime
from tests.federated import TRAINING, planted, without_client


def ask(federation: Federation, rule: Rule, send: torch.Tensor | None = None) -> Replies:
    """What all clients answer who are sent the initial model, or all of `send`."""
    spec = EngineSpec("planted-perceptron", {}, federation.features, federation, TRAINING, 0, "sequential")
    everyone, runtime = np.arange(federation.n), LocalRuntime(spec, federation.samples, 0.0, 1, None)
    runtime.begin_round(1)
    same = {"model": Send.same(spec.build().initial, everyone)}
    sent = same if send is None else {"models": Send.all(send, everyone)}
    replies = runtime.answer(Exchange(everyone, rule, sent))
    assert isinstance(replies, Replies)
    return replies


def test_losses_are_those_of_the_halves_that_are_trained_on() -> None:
    """With the logits 0 but for the label of all samples of one half, only that half has a small loss."""
    federation = planted(clients=2, samples=40)
    labels, order = torch.zeros_like(federation.labels), stream(0, "halves", 0, 1).permutation(40)
    labels[torch.from_numpy(order[16:32])] = 1
    changed = replace(federation, labels=labels)
    spec = EngineSpec("planted-perceptron", {}, federation.features, changed, TRAINING, 0, "sequential")
    engine = spec.build()
    models = torch.zeros(2, engine.layout.size)
    bias = next(entry for entry in engine.layout.tensors[::-1] if entry.role == "bias")
    models[0, bias.start], models[1, bias.start + 1] = 9.0, 9.0
    losses = ask(changed, HalfLosses(16, 2), models).uploads["losses"]
    assert losses.shape == (2, 2, 2)
    assert (losses[0].diagonal() < 0.1).all()
    assert (losses[0].fliplr().diagonal() > 5).all()


def test_a_client_of_a_single_sample_tells_nothing() -> None:
    federation = without_client(planted(clients=2, samples=40), 1)
    size = ask(federation, HalfDirections(16)).uploads["first"].shape[1]
    assert (ask(federation, HalfLosses(16, 3), torch.zeros(3, size)).uploads["losses"][0] == 0).all()


def test_lengths_are_told_only_where_they_are_asked_for() -> None:
    federation = planted(clients=2, samples=40)
    one, other = ask(federation, HalfDirections(16)), ask(federation, HalfDirections(16, lengths=True))
    assert torch.equal(one.uploads["first"], other.uploads["first"])
    assert not one.numbers
    assert (other.numbers["length"] > 0).all()
