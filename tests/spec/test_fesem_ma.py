"""FeSEM-MA in real runs: properties 2.10.7 and 2.10.8, and decisions (docs/methods/fesem-ma.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.errors import BadInput
from coterie.grouping.affinity import squared_distances
from coterie.grouping.aggregate import group_means
from coterie.methods import Cohort, FeSEM, ServerView
from coterie.methods.client_rows import VersionedRows
from coterie.methods.fesem import FeSEMState, mean_distance
from coterie.methods.fesem_ma import FeSEMMA
from coterie.models.deep import BatchNorm2d
from coterie.models.layout import Layout
from coterie.models.networks import NETWORKS, build
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, Trained, grouped, planted, same, train, without_client


@NETWORKS.add("convolution-batch-norm")
def _normed(features: tuple[int, ...], classes: int) -> nn.Module:
    """A convolution with batch normalisation, and a dense layer on its 4x4 maps."""
    return nn.Sequential(
        nn.Conv2d(features[2], 4, 3, padding=1, bias=False),
        BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 12),
        nn.ReLU(),
        nn.Linear(12, classes),
    )


def reordered(model: Tensor, layout: Layout, rng: np.random.Generator) -> Tensor:
    """64-32-10 with its hidden units in another order: rows of the first layer, columns of the second."""
    order = torch.from_numpy(rng.permutation(32))
    first, bias, second, last = layout.tensors
    return torch.cat(
        [
            first.view(model)[order].flatten(),
            bias.view(model)[order],
            second.view(model)[:, order].flatten(),
            last.view(model),
        ]
    )


def shuffled(state: FeSEMState, layout: Layout, clients: NDArray[np.int64]) -> FeSEMState:
    """The state with the last models of some clients reordered, each in its own way."""
    rng = np.random.default_rng(0)
    models = state.last.clone()
    for client in clients:
        models[client] = reordered(models[client], layout, rng)
    return replace(state, models=VersionedRows(models))


def next_round(run: Trained, method: FeSEM, state: FeSEMState, present: NDArray[np.int64]) -> FeSEMState:
    number = len(run.states)
    run.runtime.begin_round(number)
    return drive(method.round(state, Cohort(number, present, run.server)), run.runtime.answer)


@pytest.mark.slow
def test_fesem_ma_2_10_7() -> None:
    """Hidden units of absent clients in any order: the same E-step and M-step, but for the order of units."""
    method = FeSEMMA(clusters=4)
    run = train(method, planted("feature"), 3, participation=0.5)
    layout, present = run.server.layout, np.arange(4)
    expected = next_round(run, method, run.state, present)
    others = np.arange(4, 20)
    other = shuffled(run.state, layout, others)
    assert not any(torch.equal(a, b) for a, b in zip(other.last[4:], run.state.last[4:], strict=True))
    found = next_round(run, method, other, present)
    # The first member of each group, which gives the centre its order, is among the present.
    assert found.groups[:4].tolist() == run.federation.true_groups[:4].tolist()  # type: ignore[index]
    assert found.groups.tolist() == expected.groups.tolist()
    assert torch.equal(found.centres, expected.centres)
    np.testing.assert_allclose(
        method.measure_distances(found.last, found.centres, run.server),
        method.measure_distances(expected.last, expected.centres, run.server),
        rtol=1e-12,
    )
    # FeSEM would make another centre of them, which is no model at all.
    plain = next_round(run, FeSEM(clusters=4), other, present)
    assert not torch.allclose(plain.centres, expected.centres, atol=0.05)


@pytest.mark.slow
def test_fesem_ma_2_10_7_of_a_centres_first_member() -> None:
    """Its order is the centre's: the centre is the same model with its units reordered."""
    method = FeSEMMA(clusters=2)
    run = train(method, planted("feature", 2), 2)
    everyone = run.server.everyone
    other = shuffled(run.state, run.server.layout, everyone)
    found = method.take_m_step(other, run.server, everyone)
    expected = method.take_m_step(run.state, run.server, everyone)
    assert not torch.allclose(found.centres, expected.centres, atol=0.05)
    away = method.measure_distances(found.centres, expected.centres, run.server)
    np.testing.assert_allclose(np.diag(away), 0.0, atol=1e-10)
    assert away[0, 1] > 1.0


@pytest.mark.medium
def test_fesem_ma_2_10_7_of_one_model() -> None:
    """Clients whose models are orders of one: distance 0 and no spread."""
    method = FeSEMMA(clusters=1)
    run = train(method, planted("feature", 2, clients=6), 1)
    alike = replace(run.state, models=VersionedRows(run.state.last[:1].repeat(6, 1)))
    state = method.take_m_step(shuffled(alike, run.server.layout, np.arange(6)), run.server, np.arange(6))
    assert method.measure_distances(state.last, state.centres, run.server).tolist() == [[0.0]] * 6
    assert run.method.affinity(state, run.server, np.arange(6)).matrix.max() < 1e-6  # type: ignore[union-attr]


@pytest.mark.medium
def test_fesem_ma_2_10_8() -> None:
    """Clients of one model get it back."""
    method = FeSEMMA(clusters=1)
    run = train(method, planted("iid", clients=6), 1)
    alike = replace(run.state, models=VersionedRows(run.state.last[:1].repeat(6, 1)))
    (centre,) = method.take_m_step(alike, run.server, np.arange(6)).centres
    assert torch.equal(centre, alike.last[0])


@pytest.mark.slow
def test_fesem_ma_is_fesem_where_units_correspond() -> None:
    """D4: clients restart from their centre, so that matchings are the identity, and so are the trajectories."""
    federation = planted("feature")
    matched, plain = (train(m, federation, 4) for m in (FeSEMMA(clusters=4), FeSEM(clusters=4)))
    for ours, theirs in zip(matched.states, plain.states, strict=True):
        assert same(ours, theirs)
    for of in ("before E", "after E", "after M"):
        assert matched.logged("objective", of) == plain.logged("objective", of)
    values = [[plain.logged("objective", of)[t] for of in ("before E", "after E", "after M")] for t in (1, 2, 3)]
    assert all(before >= after >= last > 0 for before, after, last in values)  # type: ignore[operator]


@pytest.mark.medium
def test_fesem_ma_one_centre() -> None:
    run = train(FeSEMMA(clusters=1), planted("feature"), 3, participation=0.5, client_dropout=0.3)
    assert run.groups()[run.state.known].tolist() == [0] * int(run.state.known.sum())
    assert torch.isfinite(run.state.centres).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "settings"), [("cnn", {"channels": "4,6", "hidden": "8"}), ("convolution-batch-norm", {})]
)
def test_fesem_ma_convolutions_and_batch_norm(network: str, settings: dict[str, str]) -> None:
    """Stale models in another order are found, buffers travel with their channels, and groups hold."""
    method = FeSEMMA(clusters=2)
    federation = planted("incongruent", 2, clients=10)
    training = TRAINING.updated(epochs=8)
    run = train(method, federation, 3, training=training, network=network, settings=settings)
    assert run.ari() == 1.0
    assert run.accuracy().mean() > 0.3  # chance is 0.1
    layout = run.server.layout
    rng = np.random.default_rng(1)
    models = run.state.last.clone()
    conv, *norm = (e for e in layout.entries if e.layer == 0)
    onward = next(e for e in layout.tensors if e.layer == 1)
    for model in models[2:]:
        order = torch.from_numpy(rng.permutation(conv.shape[0]))
        for entry in (conv, *norm):
            entry.view(model)[:] = entry.view(model)[order].clone()
        inputs = onward.view(model)
        split = inputs.reshape(len(inputs), conv.shape[0], -1)[:, order]
        inputs[:] = split.reshape(inputs.shape)
    other = replace(run.state, models=VersionedRows(models))
    np.testing.assert_allclose(
        method.measure_distances(models, run.state.centres, run.server),
        method.measure_distances(run.state.last, run.state.centres, run.server),
        rtol=1e-9,
    )
    expected = method.take_m_step(run.state, run.server, run.server.everyone)
    assert torch.equal(method.take_m_step(other, run.server, run.server.everyone).centres, expected.centres)
    assert not torch.equal(
        FeSEM(clusters=2).take_m_step(other, run.server, run.server.everyone).centres, expected.centres
    )


@pytest.mark.parametrize("samples", [1, 100])
def test_fesem_ma_one_client(samples: int) -> None:
    federation = without_client(planted("feature", clients=1), samples)
    run = train(FeSEMMA(clusters=3), federation, 3, network="convolution-batch-norm")
    assert run.groups().tolist() == [0]
    assert torch.equal(run.served(), run.state.last)


@pytest.mark.medium
def test_fesem_ma_who_missed_the_warm_up_starts_from_the_matched_mean_of_the_centres() -> None:
    """FeSEM's D11: the mean of two orders of one model would be no model; their matched mean is that model."""
    method = FeSEMMA(clusters=2)
    run = train(method, planted("feature", 2), 2)
    centre = run.state.centres[0]
    other = reordered(centre, run.server.layout, np.random.default_rng(0))
    known, groups = run.state.known.copy(), run.state.groups.copy()
    known[3], groups[3] = False, -1
    state = replace(run.state, centres=torch.stack([centre, other]), known=known, groups=groups)
    exchange = next(method.round(state, Cohort(3, np.array([2, 3]), run.server)))
    starts = exchange.send["model"]  # type: ignore[union-attr]
    assert exchange.clients.tolist() == [3]  # type: ignore[union-attr]
    assert torch.equal(starts.matrix[starts.rows[0]], centre)
    newcomer = next(method.newcomer(state, np.array([0]), run.server))
    assert torch.equal(newcomer.send["model"].matrix[0], centre)  # type: ignore[union-attr]


@pytest.mark.slow
def test_fesem_ma_clients_that_vanish_and_come_late() -> None:
    run = train(FeSEMMA(clusters=4), planted("feature", clients=40), 6, client_dropout=0.25)
    assert len(np.flatnonzero(~run.states[1].known))
    assert run.ari() == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["all", "last_kernel"])
def test_fesem_ma_logs_the_objective(signal: str) -> None:
    """The mean matched distance to the own centre; the E-step never makes it larger."""
    method = FeSEMMA(clusters=4, signal=signal)  # type: ignore[arg-type]
    run = train(method, planted("iid"), 4, participation=0.4, client_dropout=0.2)
    assert (run.states[2].known & ~run.states[1].known).any()  # who came late has left no centre
    for number, (earlier, state) in enumerate(zip(run.states, run.states[1:], strict=False)):
        before, after, last = (run.logged("objective", of)[number] for of in ("before E", "after E", "after M"))

        def objective(centres: Tensor, groups: NDArray[np.int64], state: FeSEMState = state) -> float:
            rows = np.flatnonzero(state.known)
            distances = method.measure_distances(state.last, centres, run.server)
            return float(distances[rows, groups[rows]].sum() / 20)

        np.testing.assert_allclose(last, objective(state.centres, state.groups))  # type: ignore[arg-type]
        if number == 0:
            assert before is after is None
            continue
        assert before is not None
        assert after is not None
        np.testing.assert_allclose(after, objective(earlier.centres, state.groups))
        left = np.where(earlier.known, earlier.groups, state.groups)
        np.testing.assert_allclose(before, objective(earlier.centres, left))
        assert before >= after > 0


def test_fesem_ma_refuses_shortcuts_before_anything_is_trained() -> None:
    network, layout = build("resnet18", {"width": 2}, (8, 8, 1), 10, 0)
    server = ServerView(np.array([5, 5]), layout, 0, lambda variant: layout.flatten(network))
    with pytest.raises(BadInput, match="stage2") as refused:
        FeSEMMA().start(server)
    assert len(refused.value.problems) == 1


@pytest.mark.slow
def test_fesem_ma_from_independent_starts_matches_units_in_the_warm_up() -> None:
    """D4: from one start matching is the identity, and FeSEM-MA is FeSEM; from independent ones it is not."""
    federation = planted("incongruent", 2)
    plain, common = (train(kind(clusters=2), federation, 3) for kind in (FeSEM, FeSEMMA))
    assert torch.equal(plain.state.centres, common.state.centres)
    run = train(FeSEMMA(clusters=2, start_models="independent"), federation, 1)
    (exchange, _), *_ = run.asked[0]
    assert len(torch.unique(exchange.send["model"].matrix, dim=0)) == 20
    state, layout = run.state, run.server.layout
    as_they_are = group_means(state.last, state.groups, state.centres)
    assert not torch.equal(state.centres, as_they_are)
    matched = mean_distance(
        FeSEMMA(clusters=2).measure_distances(state.last, state.centres, run.server), state.groups
    )
    plain_distances = squared_distances(layout.trainable.take(state.last), layout.trainable.take(as_they_are))
    assert matched < 0.9 * mean_distance(plain_distances, state.groups)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(12, 6, 3, 1)])
def test_fesem_ma_finds_planted_groups_by_its_defaults(sizes: tuple[int, ...]) -> None:
    """As FeSEM does, of which it has the warm-up."""
    for kind in ("feature", "incongruent"):
        run = train(FeSEMMA(clusters=len(sizes)), grouped(kind, sizes), 2, participation=0.3)
        assert run.ari() == 1.0
