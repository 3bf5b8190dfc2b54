"""FedAvg, IFCA and HypCluster, and local-only (6.2, 6.11 and 6.20 of the pages in docs/methods/)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.clients.rules import ChooseThenTrain, Order, Score, Train
from coterie.grouping.aggregate import group_means
from coterie.methods import IFCA, FedAvg, LocalOnly
from coterie.models.origin import initialise
from coterie.runtime.runtime import drive
from tests.federated import planted, train
from tests.survival import SIZES, asked, local


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_fedavg_6_2(weights: str) -> None:
    """W = sum_i (n_i / sum n) w_i, over who took part."""
    run = train(FedAvg(weights=weights), planted("feature", sizes=SIZES), 2, participation=0.5)  # type: ignore[arg-type]
    for number in (1, 2):
        before, after = run.states[number - 1].model, run.states[number].model
        ((_, replies),) = run.asked[number - 1]
        share = replies.samples / replies.samples.sum() if weights == "samples" else np.full(10, 0.1)
        models = [asked(run, int(c), number, Train(before[0])).model for c in replies.clients]
        expected = sum(float(p) * m.double() for p, m in zip(share, models, strict=True))
        torch.testing.assert_close(after[0], torch.as_tensor(expected).float(), atol=1e-6, rtol=0)


def test_ifca_6_11_choice_is_the_smallest_loss() -> None:
    """Every client trains the model with the smallest loss on its own training data."""
    run = train(IFCA(clusters=3, init="plain"), planted("feature"), 2)
    engine = local(run).engine
    before = run.states[1].models
    ((_, replies),) = run.asked[1]
    for client in range(20):
        me = engine.client(Order(client, 2, ChooseThenTrain(), {}), {})
        losses = [engine.answer([me], [Score(m, "train")])[0].loss for m in before]  # type: ignore[union-attr]
        assert replies.numbers["choice"][client] == int(np.argmin(losses))
    groups = replies.numbers["choice"].astype(np.int64)
    assert torch.equal(run.state.models, group_means(replies.models, groups, before))


def test_ifca_6_11_hypcluster_weighs_by_samples() -> None:
    federation = planted("feature", sizes=SIZES)
    run = train(IFCA(clusters=2, weights="samples", init="plain"), federation, 1)
    ((_, replies),) = run.asked[0]
    groups = replies.numbers["choice"].astype(np.int64)
    expected = group_means(replies.models, groups, run.states[0].models, federation.samples)
    assert torch.equal(run.state.models, expected)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_ifca_6_11_bytes(participation: float) -> None:
    """A redraw sends K models to the cohort and gets a number back."""
    run = train(IFCA(clusters=3, init="redraw"), planted("feature"), 1, participation=participation)
    size, m, redraws = run.server.layout.size, round(20 * participation), len(run.asked[0]) - 1
    assert redraws >= 1
    assert run.bytes("down", 1) == (1 + redraws) * m * 3 * size * 4
    assert run.bytes("up", 1) == m * (size * 4 + 4) + redraws * m * 4


@pytest.mark.medium
def test_ifca_6_11_redraws_until_every_model_is_picked() -> None:
    for seed in range(4):
        run = train(IFCA(clusters=4), planted("feature", seed=seed), 1, seed=seed)
        *probes, (_, last) = run.asked[0]
        shares = [np.bincount(r.numbers["choice"].astype(int), minlength=4).min() / 20 for _, r in probes]
        assert shares[-1] >= 0.1 or len(probes) == 100  # 0.4 / K, as for four models in the authors' code
        assert all(share < 0.1 for share in shares[:-1])
        assert len(last) == 20


@pytest.mark.slow
@pytest.mark.parametrize(("clusters", "wanted"), [(2, 0.35), (5, 0.08)])
def test_ifca_6_11_shares(clusters: int, wanted: float) -> None:
    for seed in range(4):
        run = train(IFCA(clusters=clusters), planted("feature", seed=seed), 1, seed=seed)
        *probes, _ = run.asked[0]
        shares = [np.bincount(r.numbers["choice"].astype(int), minlength=clusters).min() / 20 for _, r in probes]
        assert shares[-1] >= wanted or len(probes) == 100
        assert all(share < wanted for share in shares[:-1])


def test_ifca_a_client_that_never_took_part_chooses_at_its_evaluation() -> None:
    run = train(IFCA(clusters=4, init="kmeans"), planted("feature"), 4)
    unknown = replace(run.state, groups=np.where(np.arange(20) < 6, -1, run.state.groups))
    everyone = run.server.everyone
    replies = run.runtime.measure(run.method.evaluation(unknown, run.server, everyone))
    assert replies.report["choice"][:6] == run.state.groups[:6].tolist()
    assert replies.report["choice"][6:] == [None] * 14


def test_local_only_6_20_at_partial_participation_only_the_cohort_trains() -> None:
    """A client has trained in the rounds in which it took part, as with FedAvg, and for as long."""
    run = train(LocalOnly(), planted("feature"), 3, participation=0.3)
    engine = local(run).engine
    rounds_of: dict[int, list[int]] = {client: [] for client in range(20)}
    for number, exchanged in enumerate(run.asked, 1):
        for _, replies in exchanged:
            for client in replies.clients.tolist():
                rounds_of[client].append(number)
    assert [len(replies) for exchanged in run.asked for _, replies in exchanged] == [6, 6, 6]
    assert all(not rows for rows in run.ledgers)
    served = run.served()
    for client, numbers in rounds_of.items():
        model = initialise(engine.network, engine.layout, 0)
        for number in numbers:
            model = asked(run, client, number, Train(model)).model
        assert torch.equal(served[client], model)


def test_local_only_newcomers_start_from_the_initial_model() -> None:
    run = train(LocalOnly(), planted("feature"), 1)
    joined = drive(run.method.newcomer(run.state, np.array([0, 1]), run.server), run.runtime.answer)
    assert joined.groups.tolist() == [-1, -1]
    assert torch.equal(joined.models[joined.served[1]], run.server.initial(0))


def test_ifca_says_that_one_model_suits_everybody() -> None:
    run = train(IFCA(clusters=2, init="plain"), planted("iid", clients=6), 3)
    chosen = set(run.groups().tolist())
    said = run.method.final_warnings(run.state, run.server, 3)
    assert bool(said) == (len(chosen) == 1)
    alone = replace(run.state, groups=np.zeros(6, np.int64))
    (sentence,) = run.method.final_warnings(alone, run.server, 3)
    assert all(word in sentence for word in ("2 models", "method.init = "))
    few = replace(run.state, groups=np.array([0, -1, -1, -1, -1, -1]))
    assert run.method.final_warnings(few, run.server, 3) == []  # one client says nothing of the others
