"""Which layers tell clients apart: selections, and the choice by updates (docs/methods/layercfl.md, D1, D2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score

from coterie.errors import BadInput
from coterie.grouping.affinity import cosines, pairwise_distances
from coterie.grouping.layers import (
    NO_STRUCTURE,
    LayerChoice,
    best_cut,
    candidates,
    compare_signals,
    decide_layer,
    distances,
    every_layer,
    record_look,
)
from coterie.models.layout import Layout, Part
from coterie.models.networks import build


def layout_of(name: str, features: tuple[int, ...] = (32, 32, 1), **settings: Any) -> Layout:
    return build(name, settings, features, 10, 0)[1]


CNN = layout_of("cnn", channels="4,8")
RESNET = layout_of("resnet18")


def test_presets_are_the_layers_that_the_paper_names() -> None:
    """D1: of VGG16 the fourth convolution, 128 to 128 channels, and the first dense layer."""
    vgg = layout_of("vgg16")
    parts, chosen = candidates(vgg, "feature_skew")
    part = list(parts.values())[chosen]
    assert part.size == 128 * 128 * 9 + 128 == 147_584
    weight, bias = (e for e in vgg.tensors if (Part.of([(e.start, e.stop)]) & part).size)
    assert (weight.kind, weight.shape, bias.role) == ("conv", (128, 128, 3, 3), "bias")
    assert weight.layer == 3
    parts, chosen = candidates(vgg, "label_skew")
    assert list(parts.values())[chosen].size == 512 * 512 + 512
    assert list(parts)[chosen] == vgg.layers[13]


def test_a_network_with_fewer_convolutions_offers_its_last() -> None:
    parts, chosen = candidates(CNN, "feature_skew")
    assert list(parts)[chosen] == "conv2"
    parts, chosen = candidates(CNN, "label_skew")
    assert list(parts)[chosen] == "fc1"


def test_every_layer_is_its_weights_and_biases() -> None:
    parts = every_layer(CNN)
    assert list(parts) == [*CNN.layers, "all"]
    assert sum(part.size for part in parts.values()) == 2 * CNN.size
    assert candidates(CNN, "auto") == (parts, -1)
    assert candidates(CNN, "all") == (parts, len(CNN.layers))


def test_norms_and_buffers_are_left_out() -> None:
    """D1: batch norm is excluded, scale and shift from a layer, running statistics from everything."""
    parts = every_layer(RESNET)
    norms = [e for e in RESNET.entries if e.kind == "norm"]
    assert any(e.role == "buffer" for e in norms)
    for name, part in parts.items():
        inside = [e for e in norms if (Part.of([(e.start, e.stop)]) & part).size]
        assert all(e.role != "buffer" for e in inside)
        assert bool(inside) == (name == "all")
    parts, chosen = candidates(RESNET, "conv")
    assert list(parts.values())[chosen] == RESNET.of_kind("conv")
    parts, chosen = candidates(RESNET, "norm")
    assert list(parts.values())[chosen] == RESNET.of_kind("norm") & RESNET.trainable


def test_a_selection_of_its_own_stands_before_everything() -> None:
    parts, chosen = candidates(CNN, "fc1,fc2")
    assert list(parts) == [*CNN.layers, "fc1,fc2", "all"]
    assert chosen == len(CNN.layers)
    assert parts["fc1,fc2"] == CNN.last_layers(2)
    for text in ("last:1", "fc2"):
        assert candidates(CNN, text) == (every_layer(CNN), len(CNN.layers) - 1)


def test_layers_that_the_network_does_not_have_are_refused() -> None:
    mlp = layout_of("mlp")
    with pytest.raises(BadInput, match=r"method\.layers = 'feature_skew'.* conv .*fc1, fc2"):
        candidates(mlp, "feature_skew")
    with pytest.raises(BadInput, match=r"layers = 'fc22'.* fc2\b"):
        candidates(mlp, "fc22")
    first = Layout.of(torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)))
    assert list(every_layer(first)) == ["1", "all"]
    with pytest.raises(BadInput, match="norms"):
        candidates(first, "0")


def some(seed: int, groups: np.ndarray, spread: float) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(2, 30))[groups] + spread * rng.normal(size=(len(groups), 30)))


def test_compared() -> None:
    signals = some(0, np.array([0, 1, 0, 1, 1]), 0.3)
    assert np.array_equal(compare_signals(signals, "cosine"), cosines(signals))
    assert np.array_equal(distances(cosines(signals), "cosine"), 1 - cosines(signals))
    exact = pairwise_distances(signals.numpy())
    np.testing.assert_allclose(compare_signals(signals, "l2"), exact, atol=1e-9)
    assert np.array_equal(distances(exact, "l2"), exact)


def silhouette(similarities: np.ndarray, groups: np.ndarray) -> float:
    apart = np.maximum(1 - similarities, 0) * (1 - np.eye(len(groups)))
    return float(silhouette_score(apart, groups, metric="precomputed"))


def undecided(parts: int, n: int) -> LayerChoice:
    return LayerChoice(-1, 0, np.zeros(parts), np.zeros(parts), np.zeros((parts, n), np.int64))


@pytest.mark.parametrize("sizes", [(5, 5), (5, 5, 5, 5), (12, 6, 3, 2)])
def test_the_best_cut_returns_the_groups_however_many(sizes: tuple[int, ...]) -> None:
    """D2: nobody needs to know the groups, nor how many there are, to know how clearly a layer tells them apart."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(len(sizes), 30))[truth] + 0.2 * rng.normal(size=(len(truth), 30))
    apart = 1 - cosines(torch.from_numpy(rows))
    for linkage in ("complete", "average"):
        groups, mean = best_cut(np.maximum(apart, 0) * (1 - np.eye(len(truth))), linkage)
        assert groups.tolist() == truth.tolist()
        assert mean > 0.5


def test_the_choice_is_by_silhouette_times_agreement() -> None:
    """D2: a layer must part the clients clearly, and the same way in every round."""
    truth, other = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 0, 1, 0, 1])
    clear, faint = cosines(some(1, truth, 0.05)), cosines(some(1, truth, 0.3))
    elsewhere = cosines(some(1, other, 0.0))
    choice = undecided(4, 6)
    for number in range(4):
        fickle = elsewhere if number % 2 else clear
        choice, found = record_look(choice, np.arange(6), [fickle, faint, clear, faint], "complete")
    assert choice.looks == 4
    np.testing.assert_allclose(
        found, [silhouette(elsewhere, other), *[silhouette(s, truth) for s in (faint, clear, faint)]]
    )
    np.testing.assert_allclose(choice.silhouettes[2], 4 * silhouette(clear, truth))
    assert choice.agreements[1:].tolist() == [3.0] * 3
    assert choice.silhouettes[0] > choice.silhouettes[2]  # clearer than any, but never twice the same
    assert choice.agreements[0] < 0.1
    assert decide_layer(choice).chosen == 2


def test_the_earliest_wins_a_tie_and_everything_where_nothing_parts_the_clients() -> None:
    similarities = cosines(some(2, np.array([0, 0, 1, 1]), 0.1))
    noise = cosines(torch.from_numpy(np.random.default_rng(0).normal(size=(4, 30))))
    choice = undecided(3, 4)
    for _ in range(2):
        choice, _ = record_look(choice, np.arange(4), [noise, similarities, similarities], "complete")
    assert choice.silhouettes[0] / 2 < NO_STRUCTURE
    assert decide_layer(choice).chosen == 1
    choice = undecided(3, 4)
    for _ in range(2):
        choice, _ = record_look(choice, np.arange(4), [noise] * 3, "complete")
    assert decide_layer(choice).chosen == 2
    assert decide_layer(undecided(3, 4)).chosen == 2  # nobody ever looked
    once, _ = record_look(undecided(3, 4), np.arange(4), [similarities] * 3, "complete")
    assert decide_layer(once).chosen == 2  # one look agrees with none


def test_who_is_never_looked_at_changes_no_choice() -> None:
    """A client that never answers has no similarity to anybody."""
    similarities = cosines(some(2, np.array([0, 0, 1, 1]), 0.1))
    noise = cosines(torch.from_numpy(np.random.default_rng(0).normal(size=(4, 30))))
    seen, all_seen = undecided(3, 5), undecided(3, 4)
    for _ in range(2):
        seen, _ = record_look(seen, np.array([0, 1, 3, 4]), [noise, similarities, similarities], "complete")
        all_seen, _ = record_look(all_seen, np.arange(4), [noise, similarities, similarities], "complete")
    assert decide_layer(seen).chosen == decide_layer(all_seen).chosen == 1
    assert seen.groupings[:, 2].tolist() == [-1] * 3
    assert seen.agreements.tolist() == all_seen.agreements.tolist()
