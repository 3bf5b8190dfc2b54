"""What every method has to pass (docs/methods/conventions.md); the rest is in test_cross_courses and _survival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from coterie.clients.data.federation import Federation
from coterie.grouping.affinity import cosines, scaled_l1
from coterie.grouping.cluster import bipartition, cut_dendrogram, dendrogram, kmeans
from coterie.grouping.labels import relabel
from coterie.methods import (
    APFL,
    CFL,
    CFLGP,
    DCPFL,
    FLHC,
    FLIS,
    FLUX,
    IFCA,
    LBFGS,
    PACFL,
    AdaCFL,
    ClusterFL,
    Ditto,
    EMGroups,
    FedALA,
    FedAMP,
    FedAvg,
    FedBABU,
    FedBN,
    FedCPS,
    FedCR,
    FedDANE,
    FedDist,
    FedEM,
    FedGroup,
    FedPAC,
    FedPer,
    FedProx,
    FedRC,
    FedRep,
    FedRoD,
    FedSGD,
    FedSoft,
    FedSR,
    FedTSDP,
    FeSEM,
    FeSEMMA,
    GroupedLayers,
    Halves,
    KNNPer,
    LayerCFL,
    LGFedAvg,
    LocalOnly,
    Method,
    PartialPooling,
    PerFedAvg,
    PFedMe,
    PooledGroups,
    RobustTKM,
    Scaffold,
    StoCFL,
)
from tests.federated import TRAINING, planted, same, train

METHODS: dict[str, Method[Any]] = {
    "fedavg": FedAvg(),
    "fedsgd": FedSGD(),
    "lbfgs": LBFGS(),
    "fedprox": FedProx(),
    "feddane": FedDANE(mu=0.1, cohorts="independent"),
    "feddist": FedDist(),
    "ditto": Ditto(),
    "partial-pooling": PartialPooling(passes=1),
    "fedper": FedPer(),
    "fedrep": FedRep(head_epochs=1),
    "lg-fedavg": LGFedAvg(layers=1, pretrain=1),
    "fedbabu": FedBABU(),
    "local-only": LocalOnly(),
    "ifca": IFCA(clusters=3),
    "ifca-kmeans": IFCA(clusters=3, init="kmeans", weights="samples"),
    "fesem": FeSEM(clusters=3),
    "fesem-options": FeSEM(clusters=3, weights="samples", members="participants", signal="last_kernel"),
    "fesem-update-aware": FeSEM(clusters=3, e_step="update_aware"),
    "fesem-ma": FeSEMMA(clusters=3),
    "fedcps": FedCPS(personal_layers=1, init="redraw"),
    "fedcps-options": FedCPS(init="kmeans", window=1, weights="samples"),
    "fedtsdp": FedTSDP(h=0.5),
    "fedtsdp-options": FedTSDP(h=0.0, psi=0.5, eps1=0.05, eps2=1.0, rho="literal"),
    "layercfl": LayerCFL(t_min=2, eps1_frac=2.0, ratio=0.1),
    "cfl": CFL(t_min=1, eps1_frac=2.0, ratio=0.1, gamma_max=0.1, persist_opt=True),
    "adacfl": AdaCFL(t_min=1, eps1_frac=2.0, ratio=0.1),
    "dcpfl": DCPFL(t_start=2, window=1, t_obv=1, threshold=1.0, alpha=2, trial_loss="train"),
    "dcpfl-one-cut": DCPFL(t_start=1, dynamic=False, cut=0.7),
    "flis": FLIS(),
    "flis-hc": FLIS(mode="hc"),
    "clusterfl": ClusterFL(local_epochs=1, every=2, rho=8e-3),
    "per-fedavg": PerFedAvg(),
    "per-fedavg-hf": PerFedAvg(order="hf"),
    "scaffold": Scaffold(),
    "fedbn": FedBN(),
    "pfedme": PFedMe(),
    "apfl": APFL(),
    "fedamp": FedAMP(),
    "fedala": FedALA(),
    "fedrod": FedRoD(),
    "knn-per": KNNPer(neighbours=3),
    "fedpac": FedPAC(),
    "fedcr": FedCR(samples=3, head_epochs=1),
    "fedsr": FedSR(fine_tune=1),
    "robust-tkm": RobustTKM(clusters=3, local_epochs=2),
    "halves": Halves(alpha=0.2, starts=2, differing="alone"),
    "stocfl": StoCFL(first_epochs=2),
    "fedsoft": FedSoft(clusters=2),
    "fedrc": FedRC(clusters=2),
    "flhc": FLHC(after=1),
    "flux": FLUX(after=1, directions=8),
    "cfl-gp": CFLGP(clusters=2),
    "fedgroup": FedGroup(clusters=2, pool=2),
    "fedem": FedEM(clusters=2),
    "pooled-groups": PooledGroups(passes=1, starts=2),
    "em-groups": EMGroups(clusters=2),
    "pacfl": PACFL(vectors=2),
    "grouped-layers": GroupedLayers(clusters=3, after=2, private="last:1"),
    "grouped-layers-common": GroupedLayers(clusters=3, after=1, common="first:1"),
}

DRAWING = {"em-groups"} | {name for name, method in METHODS.items() if method.needs.gaussian}
"""Methods whose clients draw at random more than the order of samples."""
ALONE = ("local-only",)
"""Methods in which everybody is a group."""

SIZES = [40 + 3 * i for i in range(20)]
FEW = 8
"""Clients, where what is compared does not depend on how many there are."""
IN_PROCESSES = (
    *("apfl", "fedala", "knn-per"),
    *("fedavg", "fedrep", "ifca-kmeans", "fedcps", "fesem-update-aware", "fedtsdp-options", "dcpfl"),
    *("pacfl", "fedrc", "fedsoft", "stocfl", "flux"),
)
"""Methods whose clients keep, choose, tell or train differently; all others run the same rules."""
every_method = pytest.mark.parametrize("name", METHODS)


@pytest.mark.medium
@pytest.mark.thinned(2)
@every_method
def test_cross_8_2_and_8_9(name: str) -> None:
    """Neither the order in which clients are listed, and their data lie in memory, nor messages as bytes change a
    bit; bytes have the same ledger; and another seed gives other bits."""
    federation = planted("feature", clients=FEW, sizes=SIZES[:FEW])
    settings: dict[str, Any] = {"participation": 0.75, "client_dropout": 0.1}
    local = train(METHODS[name], federation, 3, **settings)
    known = local.groups() >= 0
    shuffled = train(METHODS[name], _relaid(federation), 3, shuffled=True, **settings)
    remote = train(METHODS[name], federation, 3, remote=True, **settings)
    for ours, *others in zip(local.states, shuffled.states, remote.states, strict=True):
        assert all(same(ours, theirs) for theirs in others)
    assert torch.equal(local.served()[known], shuffled.served()[known])
    assert local.ledgers == remote.ledgers
    assert local.accuracy().tolist() == remote.accuracy().tolist()
    other = train(METHODS[name], federation, 3, seed=1, **settings)
    assert not torch.equal(local.served()[known], other.served()[known])


def _relaid(federation: Federation) -> Federation:
    """The same clients under the same ids, their samples stored in another order."""
    order = np.random.default_rng(5).permutation(federation.n)
    rows, bounds, start = [], np.zeros_like(federation.bounds), 0
    for client in order:
        first, last = federation.bounds[client, 0], federation.bounds[client, 3]
        rows.append(np.arange(first, last))
        bounds[client] = federation.bounds[client] - first + start
        start += last - first
    picked = torch.from_numpy(np.concatenate(rows))
    return replace(federation, inputs=federation.inputs[picked], labels=federation.labels[picked], bounds=bounds)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [2, 4])
def test_cross_8_3(groups: int) -> None:
    """After one common local round, K-means on weights and complete-linkage cosine cut at K find the planted
    rotations; after 5 epochs so does UPGMA on D, but for the odd draw of the data with four groups."""
    by_upgma = []
    for seed in range(2):
        federation = planted("feature", groups, seed=seed)
        truth = federation.true_groups
        run = train(FedAvg(), federation, 1, seed=seed)
        ((_, replies),) = run.asked[0]
        labels = kmeans(replies.models, groups, 20, np.random.default_rng(seed))
        assert adjusted_rand_score(truth, labels) == 1.0
        tree = dendrogram(1 - cosines(replies.models - run.states[0].model), "complete")
        assert adjusted_rand_score(truth, cut_dendrogram(tree, tree[-groups, 2])) == 1.0
        run = train(FedAvg(), federation, 1, seed=seed, training=TRAINING.updated(epochs=5))
        ((_, replies),) = run.asked[0]
        tree = dendrogram(scaled_l1(replies.models))
        by_upgma.append(adjusted_rand_score(truth, cut_dendrogram(tree, tree[-groups, 2])))
    assert by_upgma.count(1.0) >= 1


@pytest.mark.slow
def test_cross_8_4() -> None:
    """IID clients: what K-means finds has nothing to do with any labelling of the clients."""
    federation = planted("iid")
    found = [
        adjusted_rand_score(np.arange(20) % 4, train(FeSEM(clusters=4), federation, 1, seed=s).groups())
        for s in range(4)
    ]
    assert abs(np.mean(found)) < 0.15


@pytest.mark.medium
@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", [name for name in METHODS if name not in DRAWING])
def test_cross_8_6(name: str) -> None:
    """Clients with the same data and the same batches stay the same to the bit, and nobody splits them.

    With a single sample each, the order of samples, which each client draws for itself, makes no difference. (The
    noise of Gaussian features does, and drawing a group: each client draws its own.)
    """
    one = planted("iid", clients=1)
    bounds = np.repeat(one.bounds, 8, 0)
    bounds[:, 1] = bounds[:, 0] + 1
    federation = replace(one, bounds=bounds, names=one.names * 8, true_groups=None)
    run = train(METHODS[name], federation, 4)
    for exchanged in run.asked:
        for _, replies in exchanged:
            for rows in replies.uploads.values():
                assert torch.equal(rows.nan_to_num(7.0), rows[:1].nan_to_num(7.0).expand_as(rows))
    if name not in ALONE:
        assert len(np.unique(run.groups())) == 1
    served = run.served()
    assert torch.isfinite(served).all()
    assert torch.equal(served, served[:1].expand_as(served))
    for values in (log.values for logs in run.logs for log in logs):
        assert not np.isnan(list(values.values()) if isinstance(values, Mapping) else values).any()


def test_cross_8_6_identical_uploads_are_one_group() -> None:
    """Equal models, to the bit: one group for every clusterer, no NaN in any affinity."""
    models = torch.linspace(-1, 1, 50).repeat(6, 1)
    assert kmeans(models, 3, 20, np.random.default_rng(0)).tolist() == [0] * 6
    assert np.isfinite(scaled_l1(models)).all()
    assert np.allclose(cosines(models), 1.0)
    tree = dendrogram(scaled_l1(models))
    assert cut_dendrogram(tree, 0.0).tolist() == [0] * 6


def test_cross_8_7_constant_tensors_and_zero_updates() -> None:
    constant = torch.ones(3, 10)
    assert scaled_l1(constant).tolist() == [[0.0] * 3] * 3
    assert cosines(torch.zeros(3, 10)).tolist() == [[0.0] * 3] * 3
    assert bipartition(np.zeros((3, 3))).max() == 1
    assert relabel(np.array([5, 5, 2, 9])).tolist() == [0, 0, 1, 2]


@pytest.mark.slow
@pytest.mark.each_once
@pytest.mark.parametrize("name", IN_PROCESSES)
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_cross_8_9_in_processes(name: str, engine: str) -> None:
    """Same seed, same bits: with two workers, and with clients that vanish."""
    federation = planted("feature", clients=FEW, sizes=SIZES[:FEW])
    settings: dict[str, Any] = {"engine": engine, "participation": 0.75, "client_dropout": 0.1}
    first, workers = (train(METHODS[name], federation, 2, workers=count, **settings) for count in (1, 2))
    assert all(same(a, b) for a, b in zip(first.states, workers.states, strict=True))
    assert first.ledgers == workers.ledgers
    known = first.groups() >= 0
    assert torch.equal(first.served()[known], workers.served()[known])
