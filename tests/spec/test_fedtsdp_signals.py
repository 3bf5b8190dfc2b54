"""Properties 1.8.3 and 1.8.4 of docs/methods/fedtsdp.md: divergences in a run, and H where there is nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.grouping.trigger import hopkins
from coterie.methods.fedtsdp import FedTSDP
from tests.federated import planted, train
from tests.spec.test_fedtsdp import EASY, TWO, predictions, replied

WHOLE = FedTSDP(public_batch=1000, **EASY)
"""Fires in every round, and looks at the whole public set."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "groups"), [("feature", 4)])
def test_fedtsdp_1_8_3(kind: str, groups: int) -> None:
    """JS of a real round: symmetric, within ln 2, the same for a permuted batch and with every sample twice."""
    federation = planted(kind, groups)
    public = federation.public
    assert public is not None
    js = train(WHOLE, federation, 2, training=TWO).state.divergences
    assert js.shape == (20, 20)
    assert np.array_equal(js, js.T)
    assert not np.diag(js).any()
    assert (js[~np.eye(20, dtype=bool)] > 0).all()  # nobody's outputs are another's
    assert js.max() <= np.log(2)
    order = torch.randperm(len(public), generator=torch.Generator().manual_seed(0))
    for other in (public[order], public.repeat_interleave(2, 0), torch.cat([public, public])):
        found = train(WHOLE, replace(federation, public=other), 2, training=TWO).state.divergences
        np.testing.assert_allclose(found, js, rtol=1e-5, atol=1e-8)
    part = train(WHOLE, replace(federation, public=public[:100]), 2, training=TWO).state.divergences
    assert np.abs(part - js).max() > 1e-4  # other samples are another divergence


def test_fedtsdp_1_8_3_equal_outputs_diverge_by_0() -> None:
    """Two clients that hold the same single sample make the same model, and no others do."""
    federation = planted("feature", clients=6)
    bounds = federation.bounds.copy()
    bounds[0, 1] = bounds[0, 0] + 1
    bounds[1] = bounds[0]
    js = train(WHOLE, replace(federation, bounds=bounds), 1).state.divergences
    zero = np.eye(6, dtype=bool)
    zero[:2, :2] = True
    assert ((js == 0) == zero).all()


@pytest.mark.medium
def test_fedtsdp_1_8_3_disjoint_predictions_diverge_by_ln_2() -> None:
    """Clients that are sure of different classes, whatever they are shown: the bound is reached."""
    federation = planted("iid", clients=4)
    labels = federation.labels.clone()
    for client, (first, *_, last) in enumerate(federation.bounds):
        labels[first:last] = client
    sure = TWO.updated(epochs=40, lr=0.5)
    js = train(WHOLE, replace(federation, labels=labels), 1, training=sure).state.divergences
    np.testing.assert_allclose(js[~np.eye(4, dtype=bool)], np.log(2), atol=0.01)
    assert js.max() <= np.log(2)


def test_fedtsdp_1_8_4_uniform_points_in_a_box() -> None:
    """m = 20, d = 500, with the draws of a run's rounds: 0.489 on average, whatever the box."""
    run = train(FedTSDP(), planted("iid", clients=2), 0)
    rng = np.random.default_rng(0)
    sides = rng.uniform(0.1, 3.0, 500)
    found = [
        hopkins(rng.uniform(-sides, sides, (20, 500)), run.server.stream("hopkins", number))
        for number in range(1, 201)
    ]
    assert 0.47 <= np.mean(found) <= 0.51
    assert np.std(found) < 0.02


@pytest.mark.parametrize(
    ("sample", "clients", "drawn"), [(1.0, 20, 20), (0.1, 5, 2), (0.1, 20, 2), (0.1, 21, 3), (0.3, 20, 6)]
)
def test_fedtsdp_1_3_a_share_of_the_clients_is_compared(sample: float, clients: int, drawn: int) -> None:
    """max(2, ceil(sample m)) of the clients, and as many points of their box: H of a real round, made again."""
    run = train(FedTSDP(h=1.0, eps2=3.5, sample=sample), planted("feature", clients=clients), 1, training=TWO)
    points = predictions(run, 1, replied(run, 1).models).flatten(1).double().numpy()
    rng = run.server.stream("hopkins", 1)
    picked = rng.permutation(clients)[:drawn]
    uniform = rng.uniform(points.min(0), points.max(0), (drawn, points.shape[1]))
    own = sum(min(np.linalg.norm(points[i] - points[j]) for j in range(clients) if j != i) for i in picked)
    other = sum(np.linalg.norm(points - point, axis=1).min() for point in uniform)
    assert run.logged("hopkins") == [pytest.approx(other / (other + own))]


@pytest.mark.slow
def test_fedtsdp_d6_of_clients_without_structure_only_the_scatter_of_few_draws_fires() -> None:
    """The same points of ten rounds: two draws of twenty pass 0.65 now and then, all twenty never do."""
    run = train(FedTSDP(h=1.0, eps2=3.5), planted("iid"), 10, training=TWO.updated(lr=0.05))
    outputs = [predictions(run, number, replied(run, number).models) for number in range(1, 11)]
    rounds = [q.flatten(1).double().numpy() for q in outputs]
    fired = {
        sample: np.mean(
            [hopkins(p, np.random.default_rng(k), sample=sample) > 0.65 for p in rounds for k in range(20)]
        )
        for sample in (0.1, 1.0)
    }
    assert fired[0.1] > 0.02
    assert fired[1.0] == 0.0
