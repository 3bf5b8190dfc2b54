"""Settings with which one method is another, to the bit (property 8.1 of docs/methods/conventions.md)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.methods import (
    APFL,
    CFL,
    CFLGP,
    DCPFL,
    FLHC,
    FLIS,
    FLUX,
    IFCA,
    PACFL,
    AdaCFL,
    Ditto,
    EMGroups,
    FedALA,
    FedAMP,
    FedAvg,
    FedBN,
    FedCPS,
    FedDist,
    FedEM,
    FedGroup,
    FedPer,
    FedProx,
    FedRC,
    FedSoft,
    FedTSDP,
    FeSEM,
    KNNPer,
    LayerCFL,
    LGFedAvg,
    LocalOnly,
    Method,
    PFedMe,
    RobustTKM,
    StoCFL,
)
from tests.federated import TRAINING, planted, train
from tests.survival import SIZES

MOMENTUM = TRAINING.updated(momentum=0.5, lr_decay=0.9, epochs=2)
PLAIN = TRAINING.updated(epochs=2)
ALIKE, BY_SAMPLES = FedAvg(weights="uniform"), FedAvg()
FREE: dict[str, Any] = {"personal_layers": "all", "lambda_0": 0.0}
"""FedCPS with neither shared layers nor a pull."""
BOTH: tuple[float, ...] = (1.0, 0.5)
FULL = (1.0,)
"""Methods that begin with a round of everybody."""

Case = tuple[str, Method[Any], Method[Any], tuple[float, ...]]
SAME: list[Case] = [
    ("ifca", IFCA(clusters=1), ALIKE, BOTH),
    ("ifca-by-samples", IFCA(clusters=1, weights="samples"), BY_SAMPLES, BOTH),
    ("fesem", FeSEM(clusters=1, mu=0.0, warm_up=0), ALIKE, FULL),
    ("fesem-by-samples", FeSEM(clusters=1, mu=0.0, warm_up=0, weights="samples"), BY_SAMPLES, FULL),
    ("fedprox", FedProx(mu=0.0), BY_SAMPLES, BOTH),
    ("feddist", FedDist(weights="samples", kappa=1.0), BY_SAMPLES, BOTH),
    ("robust-tkm", RobustTKM(clusters=1, trim=0.0, kmeans_trim=0.0, local_epochs=2), ALIKE, FULL),
    ("lg-fedavg-begins", LGFedAvg(layers=1), BY_SAMPLES, BOTH),
    ("lg-fedavg-shares-all", LGFedAvg(layers=2, pretrain=0), ALIKE, BOTH),
    ("fedbn-without-norms", FedBN(), ALIKE, BOTH),
    ("fedala", FedALA(eta=0.0), BY_SAMPLES, BOTH),
    ("knn-per", KNNPer(), BY_SAMPLES, BOTH),
    ("apfl", APFL(), BY_SAMPLES, BOTH),
    ("apfl-fixed", APFL(alpha=0.0, adaptive=False), BY_SAMPLES, BOTH),
    ("pfedme", PFedMe(lam=10.0, personal_steps=1), ALIKE, BOTH),
    ("ditto", Ditto(lam=0.5), BY_SAMPLES, BOTH),
    ("cfl", CFL(eps1=0.0, t_min=1), ALIKE, BOTH),
    ("cfl-by-samples", CFL(eps1=0.0, t_min=1, weights="samples"), BY_SAMPLES, BOTH),
    ("adacfl", AdaCFL(eps1=0.0, t_min=1), BY_SAMPLES, BOTH),
    ("layercfl", LayerCFL(eps1_frac=0.0, t_min=1, ratio=0.0), BY_SAMPLES, BOTH),
    ("layercfl-alike", LayerCFL(eps1=0.0, t_min=1, ratio=0.0, weights="uniform"), ALIKE, BOTH),
    ("cfl-gp", CFLGP(clusters=1), ALIKE, BOTH),
    ("fedgroup", FedGroup(clusters=1), BY_SAMPLES, BOTH),
    ("fedgroup-pulled", FedGroup(clusters=1, mu=0.1), FedProx(mu=0.1), BOTH),
    ("fedem", FedEM(clusters=1), BY_SAMPLES, BOTH),
    ("fedrc", FedRC(clusters=1), BY_SAMPLES, BOTH),
    ("em-groups", EMGroups(clusters=1), BY_SAMPLES, BOTH),
    ("flhc-begins", FLHC(after=3), BY_SAMPLES, BOTH),
    ("flhc", FLHC(after=1, threshold=1e9), BY_SAMPLES, FULL),
    ("flux-begins", FLUX(after=3), BY_SAMPLES, BOTH),
    ("flux", FLUX(after=1, eps=1e9), BY_SAMPLES, BOTH),
    ("pacfl", PACFL(threshold=90.0), BY_SAMPLES, BOTH),
    ("stocfl", StoCFL(threshold=-1.0, mu=0.0), ALIKE, BOTH),
    ("fedcps", FedCPS(1, **FREE, init="redraw"), ALIKE, BOTH),
    ("fedcps-by-samples", FedCPS(1, **FREE, weights="samples", init="redraw"), BY_SAMPLES, BOTH),
    ("fedcps-shares", FedCPS(1, 1, lambda_0=0.0, identity_samples=3, init="redraw"), ALIKE, BOTH),
    ("fedcps-ifca-redrawn", FedCPS(4, **FREE, init="redraw"), IFCA(clusters=4), BOTH),
    (
        "fedcps-ifca-by-samples",
        FedCPS(2, **FREE, weights="samples", init="plain"),
        IFCA(clusters=2, weights="samples", init="plain"),
        BOTH,
    ),
    (
        "fedcps-ifca-kmeans",
        FedCPS(4, **FREE, init="kmeans", warm_up=0, window=99),
        IFCA(clusters=4, init="kmeans"),
        BOTH,
    ),
    ("fedcps-ifca-fixed", FedCPS(4, 2, lambda_mode="fixed", lambda_0=0.0, init="redraw"), IFCA(clusters=4), BOTH),
]
"""The method, what it is, and the shares of the clients that may take part in a round."""

ALONE: list[tuple[str, Method[Any], tuple[float, ...]]] = [
    ("fesem", FeSEM(clusters=20, mu=0.0, warm_up=0), FULL),
    ("fedper", FedPer(private=2), BOTH),
    ("ditto", Ditto(lam=0.0), BOTH),
    ("apfl", APFL(alpha=1.0, adaptive=False), FULL),
    ("fedamp", FedAMP(lam=0.0), BOTH),
    ("fedsoft", FedSoft(lam=0.0, init="plain"), BOTH),
    ("flis", FLIS(mode="hc", join="threshold", threshold=1.0), FULL),
    ("fedtsdp", FedTSDP(shared=0.0, eps2="inf"), FULL),
    ("dcpfl", DCPFL(t_start=0, dynamic=False, cut=0.0), BOTH),
]
"""The method, and the shares of the clients that may take part in a round."""

every_engine = pytest.mark.parametrize("engine", ["sequential", "batched"])


def model_of(state: Any) -> Tensor:
    """The models `[K, P]` that a state has for all clients."""
    found = (getattr(state, name, None) for name in ("models", "centres", "model"))
    return next(models for models in found if isinstance(models, Tensor))


def training_of(method: Method[Any]) -> Any:
    """Momentum, but for methods whose steps are plain SGD of a rate that does not fall."""
    return PLAIN if method.needs.plain_sgd else MOMENTUM


@pytest.mark.medium
@pytest.mark.each_once
@every_engine
@pytest.mark.parametrize(
    ("ours", "theirs", "participation"),
    [pytest.param(a, b, p, id=f"{name}-{p}") for name, a, b, shares in SAME for p in shares],
)
def test_cross_8_1_is_another_method(
    ours: Method[Any], theirs: Method[Any], participation: float, engine: str
) -> None:
    """The same models after every round, and where it serves them to all the same accuracy."""
    if ours.needs.plain_sgd:  # a client's own kind of steps is taken one client after another
        engine = "sequential"
    how: dict[str, Any] = {"training": training_of(ours), "engine": engine, "participation": participation}
    run, other = (train(method, planted("feature", sizes=SIZES), 3, **how) for method in (ours, theirs))
    for one, its in zip(run.states[1:], other.states[1:], strict=True):
        assert torch.equal(model_of(one), model_of(its))
    assert not torch.equal(model_of(other.state), model_of(other.states[1]))
    if not run.method.assignment(run.state, run.server).own and not isinstance(ours, KNNPer):
        assert torch.equal(run.served(), other.served())


@pytest.mark.medium
@pytest.mark.each_once
@every_engine
@pytest.mark.parametrize(
    ("method", "participation"),
    [pytest.param(method, p, id=f"{name}-{p}") for name, method, shares in ALONE for p in shares],
)
def test_cross_8_1_trains_alone(method: Method[Any], participation: float, engine: str) -> None:
    """Every client is served what it trains by itself."""
    how: dict[str, Any] = {"training": training_of(method), "engine": engine, "participation": participation}
    federation = planted("label" if isinstance(method, FedTSDP) else "feature", 2, sizes=SIZES)
    run, alone = (train(m, federation, 3, **how) for m in (method, LocalOnly()))
    if not isinstance(method, APFL):  # its clients keep what they are served in two parts
        assert torch.equal(run.served(), alone.served())
    assert run.accuracy().tolist() == alone.accuracy().tolist()
