"""FL+HC (docs/methods/flhc.md): FedAvg, one clustering of the updates, FedAvg in each cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score, pairwise_distances

from coterie.clients.rules import LocalUpdate
from coterie.grouping.aggregate import group_means
from coterie.methods import FLHC, FedAvg
from coterie.methods.exchange import Exchange, Replies, Send
from tests.federated import TRAINING, planted, train
from tests.survival import SIZES, local

MOMENTUM = TRAINING.updated(momentum=0.5, lr_decay=0.9)


@pytest.mark.medium
@pytest.mark.each_once
@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize(
    ("settings", "participation"), [({"after": 3}, 0.5), ({"after": 1, "threshold": 1e9}, 1.0)]
)
def test_flhc_7_3_of_one_cluster_is_fedavg(engine: str, settings: dict[str, Any], participation: float) -> None:
    """Before it clusters, and where all clients are one cluster and take part."""
    how: dict[str, Any] = {"training": MOMENTUM, "engine": engine, "participation": participation}
    federation = planted("feature", sizes=SIZES)
    ours, fedavg = train(FLHC(**settings), federation, 3, **how), train(FedAvg(), federation, 3, **how)
    for one, other in zip(ours.states, fedavg.states, strict=True):
        assert torch.equal(one.models, other.model)
    (warning,) = ours.method.final_warnings(ours.state, ours.server, 3)
    assert ("never clustered" in warning) == (settings["after"] == 3)


@pytest.mark.medium
@pytest.mark.parametrize("distance", ["l1", "l2", "cosine"])
@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
def test_flhc_7_3_clusters_as_agglomerative_clustering_does(distance: Any, linkage: Any) -> None:
    federation = planted("feature", 4, sizes=SIZES)
    fedavg = train(FedAvg(), federation, 2)
    updates = (fedavg.asked[1][0][1].models - fedavg.states[1].model).double().numpy()
    apart = pairwise_distances(updates, metric=distance)
    for quantile in (0.1, 0.3, 0.6):
        threshold = float(np.quantile(apart, quantile))
        theirs = AgglomerativeClustering(
            n_clusters=None, metric="precomputed", linkage=linkage, distance_threshold=threshold
        ).fit_predict(apart)
        method = FLHC(after=1, distance=distance, linkage=linkage, threshold=threshold)
        run = train(method, federation, 2)
        assert adjusted_rand_score(theirs, run.groups()) == 1.0


@pytest.mark.medium
@pytest.mark.parametrize("distance", ["l2", "cosine"])
@pytest.mark.parametrize(("kind", "groups"), [("feature", 2), ("feature", 4), ("label", 2), ("incongruent", 4)])
def test_flhc_7_3_finds_planted_groups(kind: str, groups: int, distance: Any) -> None:
    run = train(FLHC(after=1, distance=distance), planted(kind, groups), 2, participation=0.5)
    assert run.ari() == 1.0
    assert run.method.final_warnings(run.state, run.server, 2) == []


@pytest.mark.medium
def test_flhc_7_3_trains_each_cluster_by_fedavg() -> None:
    run = train(FLHC(after=1), planted("feature", 2, sizes=SIZES), 4, participation=0.6)
    models, groups, runtime = run.states[2].models, run.groups(), local(run)
    ((exchange, replies),) = run.asked[1]
    assert len(exchange.clients) == 20
    assert torch.equal(models, group_means(replies.models, groups, models, replies.samples))
    for number in (3, 4):
        runtime.begin_round(number)
        clients = run.asked[number - 1][-1][0].clients
        found = runtime.answer(Exchange(clients, LocalUpdate(), {"model": Send(models, groups[clients])}))
        assert isinstance(found, Replies)
        models = group_means(found.models, groups[clients], models, found.samples)
        assert torch.equal(run.states[number].models, models)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_flhc_7_3_bytes(participation: float) -> None:
    run = train(FLHC(after=1), planted("feature", 2, samples=40), 3, participation=participation)
    one, m = run.server.layout.size * 4, round(20 * participation)
    for number, clients in ((1, m), (2, 20), (3, m)):
        assert run.bytes("down", number) == run.bytes("up", number) == clients * one
