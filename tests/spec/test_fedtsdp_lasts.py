"""FedTSDP where clients come and go: bytes, absence, newcomers, odd federations, kill and resume, bad settings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.data.federation import Federation, build
from coterie.clients.rules import Evaluate, LocalUpdate, Order, Train, Training
from coterie.errors import BadInput
from coterie.grouping.cluster import refine_groups
from coterie.grouping.divergence import js_divergences
from coterie.methods import METHODS, Assignment, Cohort, FedAvg, ServerView
from coterie.methods.exchange import Exchange, Ids, Log
from coterie.methods.fedtsdp import FedTSDP
from coterie.methods.method import serve
from coterie.runtime.local.runtime import LocalRuntime
from coterie.runtime.runtime import drive
from tests.federated import TRAINING, Trained, planted, train

SIZES = [40 + 3 * i for i in range(20)]
TWO = TRAINING.updated(epochs=2)
OFTEN = FedTSDP(h=0.0, psi=0.75, eps1=0.05, eps2=1.0, damp_only_if_changed=False)
"""Fires whenever three answer, splits, and gives up about a tensor a round."""


def predictions(run: Trained, round: int, models: Tensor) -> Tensor:
    """What models predict on the public batch of a round; that of newcomers is of round -1."""
    assert isinstance(run.runtime, LocalRuntime)
    assert run.federation.public is not None
    state = run.states[round - 1] if round > 0 else run.state
    rows = state.draw_batch(50, run.server, round)
    return run.runtime.engine.outputs(models, run.federation.public[torch.from_numpy(rows)])


@pytest.mark.medium
@pytest.mark.parametrize(("participation", "client_dropout"), [(1.0, 0.0), (0.4, 0.0), (0.6, 0.3)])
def test_fedtsdp_1_8_9(participation: float, client_dropout: float) -> None:
    """Up m P b; down the shared tensors of each, and once the others as an item of their own (property 8.5)."""
    run = train(OFTEN, planted("feature"), 6, participation=participation, client_dropout=client_dropout)
    layout, known, initials = run.server.layout, np.zeros(20, bool), 0
    for number in range(1, 7):
        ((exchange, replies),) = run.asked[number - 1]
        shared = sum(t.size for t in layout.tensors[: run.states[number - 1].count_tensors(layout)])
        starting = exchange.clients[~known[exchange.clients]]
        down = len(exchange.clients) * shared + len(starting) * (layout.size - shared)
        assert run.bytes("down", number) == 4 * down
        assert run.bytes("up", number) == 4 * len(replies) * layout.size
        rows = run.ledgers[number - 1]
        given = [(client, scalars) for client, way, what, scalars in rows if what == "initial"]
        assert given == [(c, layout.size - shared) for c in starting if shared < layout.size]
        initials += len(given)
        known[replies.clients] = True
        assert run.state.known[known].all()
    assert initials > 0 or participation == 1.0
    assert run.state.count_tensors(layout) < 2


def test_fedtsdp_d18() -> None:
    """Who is away at a regrouping joins the cluster of least mean JS to its last upload, or else the largest."""
    method = replace(OFTEN, psi=1.0)
    run = train(method, planted("label", 5, sizes=SIZES), 5, training=TWO, participation=0.5, client_dropout=0.1)
    last: dict[int, Tensor] = {}
    moved = 0
    for number in range(1, 6):
        ((_, replies),) = run.asked[number - 1]
        last |= dict(zip(replies.clients.tolist(), replies.models, strict=True))
        state, here = run.states[number], replies.clients
        assert np.array_equal(np.flatnonzero(state.known), sorted(last))
        assert torch.equal(state.uploads, torch.stack([last[c] for c in sorted(last)]))
        q = predictions(run, number, replies.models)
        clusters = state.groups[here]
        assert sorted(np.unique(clusters)) == list(range(len(state.models)))  # each has a member who was there
        sizes = np.bincount(state.groups[state.known])
        for client in np.setdiff1d(np.arange(20), here).tolist():
            if client in last:
                far = js_divergences(predictions(run, number, last[client][None]), q)[0]
                means = [far[clusters == k].mean() for k in range(len(sizes))]
                assert state.groups[client] == int(np.argmin(means))
                moved += state.groups[client] != run.states[number - 1].groups[client]
            else:
                assert sizes[state.groups[client]] == sizes.max()
        firsts = [np.flatnonzero(state.groups == k)[0] for k in range(len(sizes))]
        assert firsts == sorted(firsts)  # numbered by their smallest member
    assert moved > 0


def test_fedtsdp_who_is_away_keeps_its_cluster_while_nobody_regroups() -> None:
    run = train(FedTSDP(eps2="inf"), planted("label", 2), 1, training=TWO)
    still = FedTSDP(eps2="inf", h=1.0)
    run.runtime.begin_round(2)
    after = drive(still.round(run.state, Cohort(2, np.array([0, 3]), run.server)), run.runtime.answer)
    assert after.groups.tolist() == run.state.groups.tolist()
    assert not torch.equal(after.models, run.state.models)
    run.runtime.begin_round(3)  # only one cluster's members are there: the other's model stays
    last = drive(still.round(after, Cohort(3, np.array([2, 4]), run.server)), run.runtime.answer)
    assert torch.equal(last.models[1], after.models[1])
    assert not torch.equal(last.models[0], after.models[0])


def test_fedtsdp_evaluation_of_who_has_not_started() -> None:
    """The shared tensors over a client's own model; the whole model of its cluster where it has none."""
    run = train(OFTEN, planted("feature"), 3, participation=0.3)
    exchange = run.method.evaluation(run.state, run.server, run.server.everyone)
    shared = run.state.shared_part(run.server.layout)
    for client in range(20):
        item = exchange.send["model"].item(client)
        assert item is not None
        assert item.part == (shared if run.state.known[client] else run.server.layout.everything)
    assert 0 < run.state.known.sum() < 20
    assert len(run.accuracy()) == 20


def joined_by(run: Trained, clients: Ids, server: ServerView) -> Assignment:
    run.runtime.begin_round(9)
    return drive(run.method.newcomer(run.state, clients, server), run.runtime.answer)


def founded(method: FedTSDP, federation: Federation, **how: Any) -> tuple[Trained, ServerView]:
    """A run of the first twenty clients, and everybody."""
    run = train(method, federation, 0, training=TWO, **how)
    everybody, run.server = run.server, replace(run.server, samples=run.server.samples[:20])
    run.states[:] = [method.start(run.server)]
    return _continued(run, 3), everybody


def _continued(run: Trained, rounds: int, participation: float = 1.0) -> Trained:
    """The run with more rounds, with the cohorts that `train` draws."""
    for number in range(len(run.states), len(run.states) + rounds):
        rng = np.random.default_rng((0, number))
        clients = np.sort(rng.permutation(run.server.n)[: max(1, round(participation * run.server.n))])
        run.runtime.begin_round(number)
        run.states.append(
            drive(run.method.round(run.state, Cohort(number, clients, run.server)), run.runtime.answer)
        )
    return run


@pytest.mark.medium
def test_fedtsdp_newcomers() -> None:
    """One local update of the clusters' mean shared tensors over the initial private ones; then as D18."""
    federation = planted("label", 5, clients=25)
    run, everybody = founded(FedTSDP(psi=0.7, eps2="inf"), federation)
    state, new = run.state, np.array([20, 22, 23])
    part = state.shared_part(run.server.layout)
    assert 0 < part.size < run.server.layout.size
    joined = joined_by(run, new, everybody)
    assert joined.groups.tolist() == state.groups[new - 20].tolist()  # by what their labels mean, id mod 5
    assert torch.equal(joined.models, state.models)
    assert joined.part == part
    assert isinstance(run.runtime, LocalRuntime)
    start = part.copy(run.server.initial(0), state.models.mean(0))
    kept = run.runtime.states.kept["model"]
    for client in new:
        me = run.runtime.engine.client(Order(int(client), 9, LocalUpdate(), {}), {})
        (result,) = run.runtime.engine.answer([me], [Train(start)])
        assert torch.equal(kept[client], result.model)  # type: ignore[union-attr]  # a Train is answered by a Trained
    far = js_divergences(predictions(run, -1, kept[new]), predictions(run, -1, state.uploads))
    means = [[row[state.groups == k].mean() for k in range(5)] for row in far]
    assert joined.groups.tolist() == np.argmin(means, 1).tolist()
    sends = serve(joined, joined.served)
    replies = run.runtime.measure(Exchange(new, Evaluate(own=joined.own), sends))
    assert all(s.correct.sum() / s.actual.sum() > 0.9 for s in replies.report["score"])


@pytest.mark.slow
def test_fedtsdp_newcomers_before_any_regrouping_and_when_they_do_not_answer() -> None:
    federation, new = planted("label", 5, clients=25), np.arange(20, 25)
    for method in (FedTSDP(h=1.0, eps2=3.5), FedTSDP(h=1.0, eps2=3.5, shared=0.0)):
        run, everybody = founded(method, federation)
        assert joined_by(run, new, everybody).groups.tolist() == [0] * 5
    run, everybody = founded(FedTSDP(eps2="inf"), federation)
    assert isinstance(run.runtime, LocalRuntime)
    run.runtime.states.commit()
    found = joined_by(run, new, everybody).groups
    run.runtime.states.roll_back()
    run.runtime.client_dropout = 0.5
    some = joined_by(run, new, everybody).groups
    left = [client for client, _ in run.runtime.failures]
    assert 0 < len(left) < 5
    assert some.tolist() == [0 if c in left else found[c - 20] for c in new]
    run.runtime.client_dropout = 0.999999
    assert joined_by(run, new, everybody).groups.tolist() == [0] * 5


def test_fedtsdp_affinity() -> None:
    """The divergences of the last regrouping where all those asked for were there; nothing before one."""
    federation = planted("label", 2)
    run = train(FedTSDP(eps2="inf"), federation, 2, training=TWO)
    ((_, replies),) = run.asked[1]
    js = js_divergences(predictions(run, 2, replies.models))
    found = run.method.affinity(run.state, run.server, np.array([3, 4, 19]))
    assert found is not None
    assert "divergence" in found.name
    np.testing.assert_array_equal(found.matrix, js[np.ix_([3, 4, 19], [3, 4, 19])])
    assert run.method.affinity(run.states[0], run.server, run.server.everyone) is None
    part = train(OFTEN, federation, 2, participation=0.5)
    assert part.method.affinity(part.state, part.server, part.server.everyone) is None
    there = part.asked[1][0][1].clients
    assert part.method.affinity(part.state, part.server, there) is not None


@pytest.mark.slow
def test_fedtsdp_batch_norm_buffers_go_with_their_layer() -> None:
    """Averaged and sent with their layer's last tensor, and private once that is."""
    method = FedTSDP(h=0.0, psi=0.88, eps1="inf", eps2="inf", damp_only_if_changed=False)
    run = train(method, planted("feature", sizes=SIZES), 8, network="planted-batch-norm")
    layout = run.server.layout
    buffers = layout.where(lambda e: e.role == "buffer")
    norm = layout.where(lambda e: e.kind == "norm" and e.role == "bias")
    seen = set()
    for number in range(1, 9):
        before, after = run.states[number - 1], run.states[number]
        ((_, replies),) = run.asked[number - 1]
        part = before.shared_part(layout)
        crosses = (part & buffers).size
        assert crosses == (32 if (part & norm).size else 0)
        seen.add(crosses)
        if crosses:
            shares = torch.from_numpy(replies.samples / replies.samples.sum())
            means = shares @ buffers.take(replies.models).double()
            torch.testing.assert_close(buffers.take(after.models)[0], means.float(), atol=1e-6, rtol=1e-5)
        else:
            assert torch.equal(buffers.take(after.models), buffers.take(before.models))
    assert seen == {0, 32}


def test_fedtsdp_distances_do_not_see_buffers() -> None:
    """Clients whose inputs are larger have other running statistics; stage 2 looks at the weights alone."""
    federation = planted("feature", 4)
    inputs = federation.inputs.clone()
    for client in range(10):
        inputs[federation.bounds[client, 0] : federation.bounds[client, 3]] *= 4.0
    method = FedTSDP(h=0.0, stages="second", eps2=1.0)
    run = train(method, replace(federation, inputs=inputs), 1, network="planted-batch-norm")
    ((_, replies),) = run.asked[0]
    one = np.zeros(20, np.int64)
    seen, blurred = (
        refine_groups(one, part.take(replies.models), 1.0)
        for part in (run.server.layout.trainable, run.server.layout.everything)
    )
    assert run.groups().tolist() == seen.tolist() != blurred.tolist()


def test_fedtsdp_clients_with_the_same_data_are_one_cluster() -> None:
    """Property 8.6: equal but for the order of additions, nobody is split off."""
    one = planted("iid", clients=1)
    federation = replace(one, bounds=np.repeat(one.bounds, 8, 0), names=one.names * 8, true_groups=None)
    run = train(FedTSDP(h=0.0), federation, 3, training=TRAINING.updated(batch_size=100))
    assert run.groups().tolist() == [0] * 8
    assert not any(x is None or np.isnan(x) for x in run.logged("hopkins") + run.logged("js", "max"))


def test_fedtsdp_predictions_that_overflow_do_not_fire() -> None:
    """Finite weights whose logits are infinite: no statistic, no regrouping, and the run goes on."""
    run = train(OFTEN, planted("feature", clients=4), 1, training=Training(epochs=0))
    state = replace(run.state, models=run.state.models * 1e25, depth=2.0)
    run.runtime.begin_round(2)
    after = drive(run.method.round(state, Cohort(2, run.server.everyone, run.server)), run.runtime.answer)
    logged = {entry.name: entry.values for entry in run.runtime.logged if isinstance(entry, Log)}
    assert logged["fired"] == 0.0
    assert all(np.isnan(x) for x in (logged["hopkins"],) if isinstance(x, float))
    assert after.groups.tolist() == state.groups.tolist()


def test_fedtsdp_rounding_reaches_what_is_sent_and_served() -> None:
    """Two layers of four tensors, after one firing 3.92 of them: rounded up, nothing is private yet."""
    federation = planted("iid", clients=3, samples=20)
    down, up = (train(replace(OFTEN, psi=0.98, rounding=r), federation, 2) for r in ("floor", "ceil"))
    assert [run.logged("shared tensors") for run in (down, up)] == [[4, 3], [4, 4]]
    assert down.bytes("down", 2) < up.bytes("down", 2) == 3 * 4 * up.server.layout.size


@pytest.mark.medium
def test_fedtsdp_says_why_there_is_one_group() -> None:
    """Why there is one group: the statistic stayed low, or eps1 links all."""
    quiet = train(FedTSDP(), planted("iid"), 3, training=TWO)
    (remark,) = quiet.method.final_warnings(quiet.state, quiet.server, 3)
    highest = max(x for x in quiet.logged("hopkins") if x is not None)
    assert re.search(rf"method\.h = 0\.65 .*3 rounds; .*{highest:.3f}$", remark)
    linked = train(FedTSDP(h=0.0), planted("iid"), 1, training=TWO)
    (remark,) = linked.method.final_warnings(linked.state, linked.server, 1)
    assert "method.eps1 = 0.15" in remark
    apart = float(remark.split("below ")[1].split(" ")[0])
    for nearest, advises in ((0.019, True), (0.021, False)):
        state = replace(linked.state, divergences=linked.state.divergences * (nearest / apart))
        (remark,) = linked.method.final_warnings(state, linked.server, 1)
        assert f"below {nearest} " in remark
        assert ("training.epochs" in remark) == advises
    assert len(np.unique(train(FedTSDP(h=0.0, eps1=0.98 * apart), planted("iid"), 1, training=TWO).groups())) > 1
    found = train(FedTSDP(), planted("label", 2), 1, training=TWO)
    assert found.method.final_warnings(found.state, found.server, 1) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "clients", "seed"), [("permuted-labels(4)", 20, 0), ("rotated(2)", 20, 0), ("rotated(4)", 48, 1)]
)
def test_fedtsdp_finds_planted_groups_of_digits(split: str, clients: int, seed: int) -> None:
    """20 rounds of two steps, or of one where 48 clients share the images: by the defaults alone."""
    federation = build("digits", split, clients, seed, validation=0.0, test=0.2, public=200)
    how: dict[str, Any] = {"training": Training(batch_size=32, lr=0.05), "network": "mlp", "engine": "batched"}
    run, one = (train(method, federation, 20, **how) for method in (FedTSDP(), FedAvg()))
    assert run.ari() == 1.0
    assert run.accuracy().mean() > one.accuracy().mean() + (0.3 if split.startswith("permuted") else 0.02)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"eps1": "big"}, "eps1 = 'big' .* 0 .*inf"),
    ({"eps1": -0.1}, r"eps1 = -0\.1 .* 0 "),
    ({"eps1": True}, "eps1 = True "),
    ({"eps1": float("nan")}, "eps1 = nan "),
    ({"eps2": "relative:"}, "eps2 = 'relative:' "),
    ({"eps2": [3.5]}, r"eps2 = \[3\.5\] "),
    ({"rho": 1.0}, r"rho = 1\.0 .*less than 1 or 'literal'"),
    ({"rho": "letter"}, "rho = 'letter' .*literal"),
    ({"h": 1.5}, r"h = 1\.5 .* 1$"),
    ({"shared": -1.0}, r"shared = -1\.0 .* 0$"),
    ({"noise": "drop"}, "noise = 'drop' .*'singletons' or 'group'"),
]


@pytest.mark.parametrize(("settings", "said"), BAD, ids=[str(s) for s, _ in BAD])
def test_fedtsdp_refuses_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        METHODS["fedtsdp"].bind(settings)
    (problem,) = caught.value.problems
    assert re.match(said, problem)


def test_fedtsdp_refuses_all_at_once_and_more_layers_than_there_are() -> None:
    with pytest.raises(BadInput) as caught:
        METHODS["fedtsdp"].bind({"eps1": "x", "rho": 2.0, "psi": 0.0})
    assert [p.split(" ")[0] for p in caught.value.problems] == ["psi", "eps1", "rho"]
    with pytest.raises(BadInput, match=r"method\.shared = 3.* 2 layers"):
        train(FedTSDP(shared=3.0), planted("iid", clients=2), 1)
    assert METHODS["fedtsdp"].bind({"eps1": float("inf"), "eps2": 3})["eps1"] == "inf"
