"""Properties 8.8 and 8.10 of docs/methods/conventions.md: what only ever falls, and gradients of proximal terms."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from coterie.methods import CFL, DCPFL, Cohort, Ditto, FedCPS, FedProx, FedTSDP, FeSEM, FeSEMMA, LayerCFL, Method
from coterie.methods.exchange import Ask, Replies
from coterie.models.networks import channels_first
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, Trained, planted, train
from tests.spec.test_dcpfl import FAST, TWICE
from tests.splitting import DECAY, QUICK
from tests.survival import local

SIZES = [40 + 3 * i for i in range(20)]
both_engines = pytest.mark.parametrize("engine", ["sequential", "batched"])


def nested(run: Trained) -> list[NDArray[np.int64]]:
    """The groups after each round, each round's a refinement of those of the round before."""
    found = [run.method.assignment(state, run.server).groups for state in run.states]
    for before, after in pairwise(found):
        assert all(len(set(before[after == group])) == 1 for group in np.unique(after))
    return found


STARTING_CLOSE = [FeSEM(warm_up=0), FeSEM(4, signal="last_kernel", warm_up=0), FeSEMMA(3, sweeps=1, warm_up=0)]
"""Their centres lie near each other after one short round, so that clients go on moving."""


@pytest.mark.medium
@pytest.mark.parametrize(("participation", "method"), list(zip([1.0, 0.2, 0.2], STARTING_CLOSE, strict=True)))
def test_cross_8_8_fesem_objective(method: FeSEM, participation: float) -> None:
    """Neither E nor M adds to the distances, as they are logged; and where stale models are moved, E does take."""
    run = train(method, planted("iid", sizes=SIZES), 8, training=TWICE, participation=participation)
    ends = ("before E", "after E", "after M")
    start, after_e, after_m = (np.array(run.logged("objective", of)[1:], float) for of in ends)
    assert (start >= after_e).all()
    assert (after_e > after_m).all()
    assert (after_m > 0).all()
    if participation < 1:  # with everybody there, each client is nearest to the centre that it just left
        assert (start > after_e).any()


@pytest.mark.medium
@pytest.mark.parametrize("method", [CFL(**QUICK), LayerCFL(**QUICK), CFL(**QUICK, recursive=True)])
def test_cross_8_8_cfl_tree(method: LayerCFL) -> None:
    """A leaf's clients come from one leaf, in every round."""
    run = train(method, planted("incongruent", 4, clients=12), 12, training=DECAY, participation=0.9)
    groups = nested(run)
    assert len(np.unique(groups[0])) == 1
    assert len(np.unique(groups[-1])) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("participation", "method"), [(1.0, FAST), (0.7, DCPFL(t_start=2, window=2, t_obv=1, trial_loss="train"))]
)
def test_cross_8_8_dcpfl_cuts(method: DCPFL, participation: float) -> None:
    """The cut never rises, and groups are only ever split, when it falls."""
    run = train(method, planted("incongruent", 4), 24, training=TWICE, participation=participation)
    groups, cuts = nested(run), [state.cut for state in run.states]
    assert cuts == sorted(cuts, reverse=True)
    assert len(set(cuts)) >= 3
    for (before, after), (high, low) in zip(pairwise(groups), pairwise(cuts), strict=True):
        assert (len(np.unique(after)) > len(np.unique(before))) == (low < high)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"h": 0.0, "psi": 0.8}, {"h": 0.0, "psi": 0.8, "damp_only_if_changed": True}]
)
def test_cross_8_8_fedtsdp_depth(settings: dict[str, Any]) -> None:
    """The depth never grows, falls by psi at a firing alone, and downloads shrink with it."""
    method = FedTSDP(**{"eps2": 3.5, "damp_only_if_changed": False} | settings)
    run = train(method, planted("label", 2), 10, training=TWICE, participation=0.8)
    fired, depths = run.logged("fired"), [state.depth for state in run.states]
    for was, (before, after) in zip(fired, pairwise(depths), strict=True):
        possible = {before * method.psi} if was else {before}
        assert after in possible | ({before} if method.damp_only_if_changed else set())
    assert depths == sorted(depths, reverse=True)
    assert depths[-1] < depths[0]
    tensors = run.logged("shared tensors")
    assert tensors == sorted(tensors, key=float, reverse=True)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("init", ["kmeans", "redraw"])
def test_cross_8_8_fedcps_bytes(init: Any) -> None:
    """What a round costs never rises after the freeze, which makes it cheaper."""
    run = train(FedCPS(4, 1, init=init, window=2), planted("feature"), 14)
    frozen = run.logged("frozen")
    assert 1.0 in frozen
    since = frozen.index(1.0) + 1  # the round after which identities are frozen
    assert since < 12
    assert frozen[since:] == [1.0] * (14 - since)
    for way in ("down", "up"):
        bytes = [run.bytes(way, number) for number in range(since, 15)]
        assert bytes == sorted(bytes, reverse=True)
        assert (bytes[1] < bytes[0]) == (way == "down")


FULL = TRAINING.updated(batch_size=1000)
"""One minibatch of everything: an epoch is a step."""
STEP = 1e-5
"""Of a central difference."""


def moved(run: Trained, method: Method[Any], epochs: int, engine: str, name: str = "") -> tuple[Tensor, Replies]:
    """What clients keep as `name`, or else send, after one more round of everybody with so many steps `[n, P]`."""
    other = train(method, run.federation, 0, training=FULL.updated(epochs=epochs), engine=engine)
    states = local(run).states
    local(other).states.restore(states.kept, states.has)
    asked: list[Replies] = []

    def answer(ask: Ask) -> Replies | Tensor | None:
        reply = other.runtime.answer(ask)
        asked.extend([reply] if isinstance(reply, Replies) else [])
        return reply

    number = len(run.states)
    other.runtime.begin_round(number)
    drive(method.round(run.state, Cohort(number, run.server.everyone, run.server)), answer)
    (replies,) = asked
    return (local(other).states.kept[name] if name else replies.models), replies


def assert_gradient(run: Trained, before: Tensor, after: Tensor, anchors: Tensor, pulls: Any) -> None:
    """One step from each row of `before` is lr times the gradient of `F_i(w) + pull_i / 2 ||w - anchor_i||^2`.

    Held against central differences of that objective in float64, towards the anchor and in random directions.
    """
    layout, network = run.server.layout, local(run).engine.network
    rng = torch.Generator().manual_seed(0)
    for client in range(run.server.n):
        inputs, labels = run.federation.slice(client, "train")
        images, pull, anchor = channels_first(inputs).double(), float(pulls[client]), anchors[client].double()

        def objective(w: Tensor, pull: float) -> float:
            parameters = {entry.name: entry.view(w) for entry in layout.tensors}
            loss = cross_entropy(functional_call(network, parameters, (images,)), labels)  # noqa: B023
            return float(loss + pull / 2 * (w - anchor).square().sum())  # noqa: B023

        w = before[client].double()
        gradient, apart = (w - after[client].double()) / FULL.lr, w - anchor
        assert pull * float(apart.norm()) > 0.02  # there is a term to be seen
        for number, direction in enumerate((apart, *torch.randn(3, len(w), generator=rng).double())):
            d = direction / direction.norm()
            pulls_tried = (pull, 0.5 * pull, 0.0) if number == 0 else (pull,)
            slopes = [(objective(w + STEP * d, p) - objective(w - STEP * d, p)) / (2 * STEP) for p in pulls_tried]
            errors = np.abs(float(gradient @ d) - np.array(slopes))
            assert errors[0] < 1e-5
            assert (errors[1:] > 1e-3).all()  # half the pull, or none, is not what was done


@pytest.mark.each_once
@both_engines
@pytest.mark.parametrize("name", ["fedprox", "fesem"])
def test_cross_8_10_local_update(name: str, engine: str) -> None:
    """FedProx and FeSEM pull to what was received, FeSEM the more the fewer samples a client has (Eq. 7)."""
    federation = planted("feature", 2, clients=6, sizes=SIZES[:12:2])
    method: Method[Any] = FedProx(mu=3.0) if name == "fedprox" else FeSEM(2, mu=3.0)
    run = train(method, federation, 2, training=FULL)
    before, _ = moved(run, method, 1, engine)
    after, _ = moved(run, method, 2, engine)
    if name == "fedprox":
        assert_gradient(run, before, after, run.state.model.expand(6, -1), np.full(6, 3.0))
    else:
        pulls = 3.0 * federation.samples.mean() / federation.samples
        assert_gradient(run, before, after, run.state.centres[torch.from_numpy(run.state.groups)], pulls)


@pytest.mark.each_once
@both_engines
@pytest.mark.parametrize("lam", [0.5, 3.0])
def test_cross_8_10_ditto(lam: float, engine: str) -> None:
    """One step of the personal model, from where it was, pulled to the global one as it was received."""
    method = Ditto(lam=lam)
    run = train(method, planted("feature", 2, clients=6, sizes=SIZES[:12:2]), 3, training=FULL)
    before = local(run).states.kept["personal"].clone()
    after, _ = moved(run, method, 1, engine, "personal")
    assert_gradient(run, before, after, run.state.model.expand(6, -1), np.full(6, lam))


@pytest.mark.each_once
@both_engines
@pytest.mark.parametrize(
    "settings",
    [
        {"lambda_mode": "fixed", "lambda_0": 3.0},
        {"lambda_0": 1.0},  # by each client's own noise and samples
    ],
)
def test_cross_8_10_plu(settings: dict[str, Any], engine: str) -> None:
    """The proximal local update pulls to the model of the cluster, with the lambda that it reports."""
    method = FedCPS(2, 1, init="kmeans", window=99, **settings)
    run = train(method, planted("feature", 2, clients=6, sizes=SIZES[:12:2]), 2, training=FULL)
    before, _ = moved(run, method, 1, engine, "model")
    after, replies = moved(run, method, 2, engine, "model")
    thetas = run.state.models[torch.from_numpy(replies.numbers["choice"].astype(int))]
    assert_gradient(run, before, after, thetas, replies.report["lambda"])
    assert (len(set(replies.report["lambda"])) > 1) == (settings.get("lambda_mode") != "fixed")
