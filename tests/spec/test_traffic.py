"""The bytes of a round against closed forms (property 8.5 of docs/methods/conventions.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from coterie.methods import (
    APFL,
    CFL,
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
    FedCR,
    FedDANE,
    FedDist,
    FedEM,
    FedGroup,
    FedPAC,
    FedProx,
    FedRC,
    FedRoD,
    FedSGD,
    FedSoft,
    FedSR,
    FeSEM,
    FeSEMMA,
    Halves,
    KNNPer,
    LayerCFL,
    Method,
    PartialPooling,
    PerFedAvg,
    PFedMe,
    PooledGroups,
    RobustTKM,
    Scaffold,
    StoCFL,
)
from coterie.models.layout import Layout
from tests.federated import planted, train
from tests.splitting import QUICK

ALL, CLASSES, FEATURES = 20, 10, 16
"""Clients; classes of a sample; what enters the network's last layer."""


@dataclass(frozen=True)
class Round:
    """Of which the bytes are asked."""

    number: int
    m: int
    """Who takes part."""
    fresh: int
    """Those of them who do for the first time."""
    before: Any
    after: Any
    """States."""
    layout: Layout

    @property
    def one(self) -> int:
        """Bytes of a model."""
        return 4 * self.layout.size

    @property
    def signal(self) -> int:
        """Bytes of what is trained of it."""
        return 4 * self.layout.trainable.size

    @property
    def is_first(self) -> bool:
        return self.number == 1

    @property
    def shared(self) -> int:
        """Bytes of a model without its norms."""
        return 4 * (self.layout.size - self.layout.of_kind("norm").size)

    @property
    def body(self) -> int:
        """Bytes of a model without its last layer."""
        return 4 * (self.layout.size - self.layout.last_layers(1).size)

    @property
    def layers(self) -> int:
        return len(self.layout.layers)

    @property
    def tensors(self) -> int:
        return len(self.layout.tensors)


def both(scalars: float) -> tuple[float, float]:
    return scalars, scalars


Bytes = Callable[[Round], tuple[float, float]]


def tell_features(moments: int) -> Bytes:
    """FLUX: in the second round five directions of so many moments, of everybody's samples and of each class."""
    told = ALL * 4 * 5 * moments * (1 + CLASSES)
    return lambda r: ((r.m + ALL * (r.number == 2)) * r.one, r.m * r.one + told * (r.number == 2))


ONE: list[Method[Any]] = [
    *(FedAvg(), FedSGD(), FedProx(), FedDist(), PerFedAvg(), PerFedAvg(order="hf"), Ditto()),
    *(PFedMe(), APFL(), FedAMP(), FedALA(), FedRoD(), KNNPer(), FedSR(prior="own")),
    *(CFL(**QUICK), AdaCFL(**QUICK), LayerCFL(**QUICK, layers="last:1")),
]
"""A model each way."""
GAUSSIANS = 4 * 2 * CLASSES * 8
"""Bytes of a Gaussian of each class, of eight features."""
CASES: list[tuple[str, Method[Any], Bytes]] = [
    ("ifca", IFCA(clusters=3, init="plain"), lambda r: (r.m * 3 * r.one, r.m * (r.one + 4))),
    ("fesem", FeSEM(clusters=2), lambda r: both((ALL if r.is_first else r.m) * r.one)),
    (
        "fesem-update-aware",
        FeSEM(clusters=2, e_step="update_aware"),
        lambda r: both(ALL * r.one) if r.is_first else (r.m * 2 * r.one, r.m * (r.one + 8)),
    ),
    ("fesem-ma", FeSEMMA(clusters=2, warm_up=1), lambda r: both((ALL if r.is_first else r.m) * r.one)),
    ("robust-tkm", RobustTKM(local_epochs=1), lambda r: both((ALL if r.is_first else r.m) * r.one)),
    ("fedem", FedEM(clusters=3), lambda r: both(ALL * r.one if r.is_first else r.m * 3 * (r.one + 4))),
    (
        "fedem-plain",
        FedEM(clusters=3, init="plain"),
        lambda r: (r.m * 3 * r.one + (r.m - r.fresh) * 12, r.m * 3 * (r.one + 4)),
    ),
    (
        "fedrc",
        FedRC(clusters=3),
        lambda r: both(ALL * r.one if r.is_first else r.m * 3 * (r.one + 4 + 4 * CLASSES)),
    ),
    (
        "em-groups",
        EMGroups(clusters=3),
        lambda r: both(ALL * r.one) if r.is_first else (r.m * 3 * r.one, r.m * (r.one + 16)),
    ),
    (  # shares go down in the second round, in which they are not found anew
        "fedsoft",
        FedSoft(clusters=3),
        lambda r: (
            both(ALL * r.one) if r.is_first else (r.m * 3 * (r.one + 4 * (r.number % 2 == 0)), r.m * (r.one + 12))
        ),
    ),
    (
        "fedgroup",
        FedGroup(clusters=2, pool=4),
        lambda r: both((r.m + (r.after.groups >= 0).sum() - (r.before.groups >= 0).sum()) * r.one),
    ),
    ("stocfl", StoCFL(), lambda r: both((2 * r.m + r.fresh) * r.one)),
    ("flhc", FLHC(after=1), lambda r: both((ALL if r.number == 2 else r.m) * r.one)),
    ("flux", FLUX(after=1, directions=5), tell_features(1)),
    ("flux-deviations", FLUX(after=1, directions=5, deviations=True), tell_features(2)),
    ("pacfl", PACFL(vectors=2), lambda r: (r.m * r.one, r.m * r.one + ALL * CLASSES * 2 * 64 * 4 * r.is_first)),
    (
        "halves",
        Halves(starts=2),
        lambda r: ((r.m + 2 * ALL * r.is_first) * r.one, (r.m + 4 * ALL * r.is_first) * r.one),
    ),
    ("feddane", FedDANE(), lambda r: both(r.m * (r.one + r.signal))),
    (
        "feddane-independent",
        FedDANE(cohorts="independent"),
        lambda r: (r.m * (2 * r.one + r.signal), r.m * (r.one + r.signal)),
    ),
    ("scaffold", Scaffold(), lambda r: both(r.m * (r.one + r.signal))),
    (
        "fedpac",
        FedPAC(),
        lambda r: (
            r.m * (r.one + 4 * CLASSES * (FEATURES + 1) * (not r.is_first)),
            r.m * (r.one + 4 * (CLASSES * (2 * FEATURES + 1) + 1)),
        ),
    ),
    ("fedbn", FedBN(), lambda r: (r.m * r.shared + r.fresh * (r.one - r.shared), r.m * r.shared)),
    ("flis-dc", FLIS(mode="dc"), lambda r: (r.m * len(r.before.models) * r.one, r.m * r.one)),
    ("flis-hc", FLIS(mode="hc"), lambda r: both((r.m + ALL * r.is_first) * r.one)),
    (
        "partial-pooling",
        PartialPooling(passes=1),
        lambda r: (r.m * (r.one if r.is_first else 2 * r.one + 8 * r.layers), r.m * (r.one + 8 * r.layers)),
    ),
    (
        "pooled-groups",
        PooledGroups(passes=1, starts=2),
        lambda r: (
            (r.m + 2 * ALL) * r.one if r.is_first else r.m * (2 * r.one + 8 * r.tensors),
            r.m * (r.one + 8 * r.tensors) + 4 * ALL * r.one * r.is_first,
        ),
    ),
    *(
        (f"{type(method).__name__}-{place}", method, lambda r: both(r.m * r.one))
        for place, method in enumerate(ONE)
    ),
    (
        "fedcr",
        FedCR(samples=2),
        lambda r: (
            r.m * (r.body + GAUSSIANS) + r.fresh * (r.one - r.body),
            r.m * (r.body + GAUSSIANS),
        ),
    ),
    ("fedsr", FedSR(), lambda r: both(r.m * (r.one + GAUSSIANS + 4))),
]


@pytest.mark.medium
@pytest.mark.each_once
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(("method", "expected"), [pytest.param(m, f, id=name) for name, m, f in CASES])
def test_cross_8_5_bytes(method: Method[Any], expected: Bytes, participation: float) -> None:
    """Down and up, running statistics and all, in every round."""
    federation = planted("incongruent" if isinstance(method, CFL) else "feature", 2, samples=40)
    network = None if method.needs.gaussian else "planted-batch-norm"
    run = train(method, federation, 4, participation=participation, network=network)
    seen: set[int] = set()
    for number, (before, after) in enumerate(pairwise(run.states), 1):
        clients = set(np.random.default_rng((0, number)).permutation(ALL)[: round(ALL * participation)].tolist())
        of = Round(number, len(clients), len(clients - seen), before, after, run.server.layout)
        assert (run.bytes("down", number), run.bytes("up", number)) == expected(of)
        seen |= clients
