"""DC-PFL under partial participation, losses of clients, kills, and degenerate federations; its traffic."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from coterie.errors import BadInput
from coterie.grouping.aggregate import group_means
from coterie.methods import METHODS, dcpfl
from coterie.methods.dcpfl import DCPFL, DCPFLState
from coterie.runtime.local.runtime import LocalRuntime
from tests.federated import TRAINING, Trained, planted, same, train
from tests.spec.test_dcpfl import FAST, ONE_CUT, TWICE, kept, step


def kept_names(run: Trained) -> set[str]:
    """What any client keeps."""
    assert isinstance(run.runtime, LocalRuntime)
    return {name for name, has in run.runtime.states.has.items() if has.any()}


def count_alone(state: DCPFLState, clients: range) -> int:
    """How many of some clients are a group of one, which exchanges its losses alone."""
    return int((np.bincount(state.groups) == 1)[state.groups[list(clients)]].sum())


@pytest.mark.slow
def test_dcpfl_bytes_with_everybody() -> None:
    """5.4: each way the due layers and 4 m; a trial 2 m P b down, m P b + 8 m up."""
    run = train(replace(FAST, t_start=5), planted("feature", 2), 9)
    layout, m = run.server.layout, 20
    high = [4 * layout.of_layers(np.flatnonzero(s.periods[0] == 1).tolist()).size for s in run.states]
    whole = 4 * layout.size
    trials = [i + 1 for i, loss in enumerate(run.logged("trial", "now")) if loss is not None]
    assert trials[0] == 7
    for number in range(1, 7):
        assert (run.bytes("down", number), run.bytes("up", number)) == (m * whole, m * (whole + 4))
    shared = m - count_alone(run.states[7], range(m))
    assert (run.bytes("down", 7), run.bytes("up", 7)) == (2 * m * whole, 8 * m + shared * whole)
    assert 0 < high[5] < whole
    calm = train(replace(ONE_CUT, cut=1.0), planted("feature", 2), 9)
    high = [4 * layout.of_layers(np.flatnonzero(s.periods[0] == 1).tolist()).size for s in calm.states]
    for number in range(3, 10):  # 2, 5 and 8 are full; what is averaged in one round is sent in the next
        up = whole if number in (5, 8) else high[number - 1]
        down = whole if number in (3, 6, 9) else high[number - 2]
        assert (calm.bytes("down", number), calm.bytes("up", number)) == (m * down, m * (up + 4))
    assert {what for _, _, what, _ in calm.ledgers[0]} == {"initial", "loss", "model"}
    assert {what for _, _, what, _ in calm.ledgers[4]} == {"loss", "model"}


@pytest.mark.medium
def test_dcpfl_bytes_of_a_trial_with_some() -> None:
    """The trial's closed form holds for whoever takes part in it, first-timers among them."""
    run = train(FAST, planted("feature", 2), 0, training=TWICE)
    number = 1
    while run.state.finer is None:
        step(run, number, range(15))
        number += 1
    step(run, number, range(10, 18))
    assert run.logged("accepted")[-1] is not None
    whole = 4 * run.server.layout.size
    shared = 8 - count_alone(run.states[-1], range(10, 18))
    assert (run.bytes("down", number), run.bytes("up", number)) == (2 * 8 * whole, 8 * 8 + shared * whole)
    items = {(client, what) for client, way, what, _ in run.ledgers[-1] if way == "down"}
    assert {client for client, what in items if what == "initial"} == {15, 16, 17}


@pytest.mark.medium
@pytest.mark.parametrize("participation", [0.3, 0.7])
def test_dcpfl_bytes_and_debts_with_some(participation: float) -> None:
    """Who was away is sent, at its next participation, every layer averaged in its group since; and no other."""
    run = train(replace(ONE_CUT, cut=0.7), planted("feature", 2), 14, participation=participation)
    layout = run.server.layout
    sizes = np.array([layout.of_layers([i]).size for i in range(2)])
    received, averaged = np.full((20, 2), -1), np.zeros((20, 2), int)  # in which round, for each client and layer
    late = 0
    for number, (before, after) in enumerate(pairwise(run.states), 1):
        clients = run.asked[number - 1][0][0].clients
        missed = averaged[clients] > received[clients]
        late += int((number - 1 - received[clients])[missed].max(initial=0) > 3)
        assert run.bytes("down", number) == 4 * (missed @ sizes).sum()
        received[clients] = number - 1
        lone = np.bincount(before.groups)[before.groups] == 1
        full = before.tree is None or number - before.last_full >= 3
        due = (full | (before.periods[before.groups] == 1)) & ~lone[:, None]
        assert run.bytes("up", number) == 4 * (due[clients] @ sizes).sum() + 4 * len(clients)
        moved = np.isin(before.groups, before.groups[clients])
        averaged[due & moved[:, None]] = number
        # The one cut: all are sent everything, but a group of one what it uploaded itself.
        if before.tree is None and after.tree is not None:
            averaged[:] = number
            lone = np.bincount(after.groups)[after.groups] == 1
            received[lone & np.isin(np.arange(20), clients)] = number
            averaged[~np.isin(after.groups, after.groups[clients]) & ~lone] = number
    assert late > 0
    measured = int(np.ceil(2 / participation))  # rounds until clients were there twice on average
    assert run.state.last_full in (14 - (14 - measured) % 3, 14 - (14 - measured - 1) % 3)


@pytest.mark.medium
def test_dcpfl_late_client_has_the_group_s_layers_again() -> None:
    """A client away at a full synchronisation is sent what it missed, and keeps its own layers otherwise."""
    run = train(replace(ONE_CUT, cut=1.0), planted("feature", 2), 4)
    others, layout = [i for i in range(20) if i != 3], run.server.layout
    own = kept(run)[3].clone()
    step(run, 5, others)  # a full one
    step(run, 6, others)
    rows = np.flatnonzero(run.state.periods[0] > 1)
    step(run, 7)
    item = run.asked[-1][0][0].send["model"].item(3)
    assert item is not None
    assert item.part == layout.everything
    assert torch.equal(item.values, run.states[-2].models[0])
    other = run.asked[-1][0][0].send["model"].item(4)
    assert other is not None
    assert other.part == layout.everything - layout.of_layers(rows.tolist())
    assert not torch.equal(own, item.values)


@pytest.mark.slow
def test_dcpfl_dropout_and_whoever_misses_the_verdict() -> None:
    """Means are over who reported; a branch whose verdict was missed is forgotten at the next participation."""
    run = train(FAST, planted("feature", 2), 6, training=TWICE)
    assert run.state.finer is not None
    step(run, 7, missing=[3, 4])
    reported = run.asked[-1][0][1]
    assert run.logged("trial", "now")[-1] == float(reported.numbers["now"].mean())
    assert run.logged("accepted")[-1] == 1.0
    assert isinstance(run.runtime, LocalRuntime)
    assert run.runtime.states.has["finer"].nonzero().flatten().tolist() == [3, 4]
    step(run, 8)
    assert kept_names(run) == {"model"}
    item = run.asked[-1][0][0].send["model"].item(3)
    assert item is not None
    assert item.part == run.server.layout.everything
    lossy = train(FAST, planted("feature", 2), 12, training=TWICE, client_dropout=0.3)
    for number, exchanged in enumerate(lossy.asked):
        loss = lossy.logged("loss")[number]
        first = exchanged[0][1]
        assert 0 < len(first) < 20
        assert loss is None or loss == float(first.numbers["loss"].mean())
    assert any(loss is not None for loss in lossy.logged("trial", "now"))
    assert len(np.unique(lossy.groups())) > 1


@pytest.mark.medium
def test_dcpfl_a_trial_that_nobody_reports_is_put_off() -> None:
    run = train(FAST, planted("feature", 2), 6, training=TWICE)
    run.runtime.client_dropout = 0.999999
    step(run, 7)
    assert same(run.states[-1], run.states[-2])
    run.runtime.client_dropout = 0.0
    step(run, 8)
    assert run.logged("accepted") == [None] * 7 + [1.0]


def test_dcpfl_clients_that_never_met_are_apart_as_by_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    """D2, with all thirds, and with those alone that met most others: 0 met all, 1 and 2 the same three."""
    initial = train(FAST, planted("iid", clients=5), 0).state
    found = np.array([[0, 4, 5, 6, 9], [4, 0, 1, 2, 0], [5, 1, 0, 3, 0], [6, 2, 3, 0, 8], [9, 0, 0, 8, 0]], float)
    met = (found > 0) | np.eye(5, dtype=bool)
    state = replace(initial, distances=2 * found, together=2 * met.astype(np.int64))
    by_third = found.copy()
    by_third[[1, 2], 4] = by_third[4, [1, 2]] = 8  # by way of 3
    assert np.array_equal(state.mean_distances, by_third)
    monkeypatch.setattr(dcpfl, "MOST_THIRDS", 1)
    by_third[[1, 2], 4] = by_third[4, [1, 2]] = 9  # by way of 0
    assert np.array_equal(state.mean_distances, by_third)


def test_dcpfl_equal_models_are_never_split() -> None:
    """8.6: clients whose data are one sample over and over have equal models, to the bit, and stay together."""
    one = planted("iid", clients=1)
    inputs, labels = one.inputs[:1].repeat(120, 1, 1, 1), one.labels[:1].repeat(120)
    federation = replace(one, inputs=inputs, labels=labels, bounds=np.repeat(one.bounds, 6, 0), names=one.names * 6)
    run = train(FAST, federation, 12)
    assert not run.state.mean_distances.any()
    assert any(run.logged("rapid decrease ended"))
    assert run.logged("trial", "now") == [None] * 12
    assert run.groups().tolist() == [0] * 6


@pytest.mark.slow
def test_dcpfl_batch_norm() -> None:
    """Buffers are averaged and sent with their layer, and are no part of any distance."""
    method = replace(ONE_CUT, cut=1.0)
    run = train(method, planted("feature", 2), 8, network="planted-batch-norm")
    layout, (buffer, *_) = run.server.layout, run.server.layout.buffers
    assert len(layout.layers) == 2
    assert buffer.layer == 0
    (_, _), (_, replies) = run.asked[1]
    means = group_means(replies.models, np.zeros(20, np.int64), run.states[1].models, replies.samples)
    assert torch.equal(run.states[2].models, means)
    assert not torch.equal(buffer.view(means[0]), buffer.view(run.states[1].models[0]))
    total = np.zeros((20, 20))
    for asked in run.asked[:2]:
        models = asked[1][1].models.clone()
        buffer.views(models)[:] = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
        total += method.measure_distances(models, layout)
    np.testing.assert_allclose(run.state.mean_distances, total / 2, atol=1e-12)
    for number in (6, 7, 8):  # 5 and 8 are full ones, 6 and 7 are not
        due = run.states[number - 1].periods[0] == 1
        size = layout.size if number == 8 else layout.of_layers(np.flatnonzero(due).tolist()).size
        assert run.bytes("up", number) == 20 * 4 * (size + 1)
    split = train(FAST, planted("feature", 2), 12, network="planted-batch-norm", training=TWICE)
    assert any(split.logged("accepted"))
    assert split.accuracy().mean() > 0.9


def test_dcpfl_settings_are_checked() -> None:
    """Bad input gets one sentence each, with the key, the value and what would be right."""
    with pytest.raises(BadInput) as raised:
        DCPFL(t_start=0, cut=0.5)
    cut, start = raised.value.problems
    assert re.match(r"cut = 0\.5 .*dynamic = true; .*dynamic = false$", cut)
    assert start.startswith("t_start = 0 ")
    with pytest.raises(BadInput, match="t_start = 0"):
        DCPFL(t_start=0, dynamic=False)
    with pytest.raises(BadInput) as raised:
        METHODS["dcpfl"].bind({"alpha": 0, "retry": "never", "windw": 3}, "method")
    assert len(raised.value.problems) == 3
    assert METHODS["dcpfl"].target(**METHODS["dcpfl"].bind({})) == DCPFL()
    assert DCPFL(dynamic=False).fixed_cut == 0.8


@pytest.mark.medium
def test_dcpfl_groups_of_one() -> None:
    """They exchange nothing but their losses."""
    method = replace(ONE_CUT, cut=0.0)
    run = train(method, planted("feature", 2), 6, training=TRAINING)
    assert run.groups().tolist() == list(range(20))
    for number in range(3, 7):
        assert (run.bytes("down", number), run.bytes("up", number)) == (0, 20 * 4)
    uploads = run.asked[1][1][1].models
    assert torch.equal(run.states[2].models, uploads)
