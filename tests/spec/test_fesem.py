"""FeSEM's properties 2.10.1 to 2.10.6, and its decisions (docs/methods/fesem.md)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.rules import LocalUpdate, Training
from coterie.grouping.aggregate import group_means
from coterie.methods import Cohort, FeSEM
from coterie.runtime.runtime import drive
from tests.federated import Trained, grouped, planted, train
from tests.spec.quadratic import QUADRATIC, middles, quadratics


def _objective(models: Tensor, centres: Tensor, groups: np.ndarray) -> float:
    chosen = centres.double()[torch.from_numpy(groups)]
    return float((models.double() - chosen).square().sum())


@pytest.mark.slow
@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_fesem_2_10_3(participation: float) -> None:
    """For fixed models neither step increases the distances, and the M-step is their exact minimiser."""
    run = train(FeSEM(clusters=4), planted("iid"), 6, participation=participation)
    for before, after in zip(run.states[1:], run.states[2:], strict=False):
        start = _objective(after.last, before.centres, before.groups)
        e_step = _objective(after.last, before.centres, after.groups)
        m_step = _objective(after.last, after.centres, after.groups)
        assert start >= e_step - 1e-9
        assert e_step > m_step
        for k in range(4):
            members = after.last[torch.from_numpy(after.groups == k)]
            if len(members):
                torch.testing.assert_close(after.centres[k], members.mean(0), atol=1e-6, rtol=0)
            nudged = after.centres.clone()
            nudged[k] += 1e-3
            assert _objective(after.last, nudged, after.groups) >= m_step


@pytest.mark.medium
def test_fesem_e_step_moves_whoever_is_nearer_to_another_centre() -> None:
    """Eq. 8 in a real round: after the centres are swapped, the absent stay with their models and change group."""
    federation = planted("feature", 2)
    run = train(FeSEM(clusters=2), federation, 2)
    swapped = dataclasses.replace(run.state, centres=run.state.centres.flip(0))
    present = np.array([0, 1])
    run.runtime.begin_round(3)
    after = drive(run.method.round(swapped, Cohort(3, present, run.server)), run.runtime.answer)
    absent = np.arange(2, 20)
    assert after.groups[absent].tolist() == (1 - run.state.groups[absent]).tolist()
    distances = (after.last[:, None].double() - swapped.centres.double()).square().sum(2)
    assert after.groups.tolist() == distances.argmin(1).tolist()
    assert after.moving == 1
    assert after.margin < 1


@pytest.mark.slow
def test_fesem_2_10_4() -> None:
    """An infinite pull: clients do not move, whether the step is explicit (pull times lr at 1) or implicit."""
    federation = planted("feature")
    training = Training(epochs=1, batch_size=20, lr=1e-3)

    def displacement(mu: float) -> float:
        run = train(FeSEM(clusters=2, mu=mu), federation, 2, training=training)
        centres = run.states[1].centres[torch.from_numpy(run.states[1].groups)]
        return float((run.state.last - centres).norm(dim=1).max())

    free, held, fixed = displacement(0.0), displacement(1000.0), displacement(1e6)
    one_step = displacement(0.0) / 5  # five batches an epoch
    assert held < 1.5 * one_step
    assert held < free / 3
    assert fixed < held / 500


@pytest.mark.slow
def test_fesem_2_10_5() -> None:
    """On quadratics a round ends in (a_i + mu_i W) / (1 + mu_i), W being the own centre and mu_i from Eq. 7."""
    federation = quadratics([30, 60, 90, 45])
    training = Training(epochs=200, batch_size=90, lr=0.2)
    run = train(FeSEM(clusters=2, mu=0.5, warm_up=0), federation, 2, network=QUADRATIC, training=training)
    samples, before = federation.samples, run.states[1]
    mu = 0.5 * samples.mean() / samples
    pull, centres = torch.from_numpy(mu)[:, None], before.centres[torch.from_numpy(before.groups)].double()
    expected = (middles(federation).double() + pull * centres) / (1 + pull)
    torch.testing.assert_close(run.state.last.double(), expected, atol=1e-4, rtol=0)
    assert len(np.unique(before.groups)) == 2
    assert (before.last - middles(federation)).abs().max() < 1e-4  # the warm-up has no pull


@pytest.mark.medium
def test_fesem_pull_is_scaled_by_samples() -> None:
    """mu_i = mu * mean samples / own samples is what the clients are told (Eq. 7)."""
    federation = planted("feature", sizes=[40 + 3 * i for i in range(20)])
    run = train(FeSEM(clusters=4, mu=0.2), federation, 2)
    (exchange, _), *_ = run.asked[1]
    expected = 0.2 * federation.samples.mean() / federation.samples
    np.testing.assert_allclose(exchange.settings["mu"], expected)


def _stale(run: Trained) -> None:
    for before, after, exchanged in zip(run.states[1:], run.states[2:], run.asked[1:], strict=False):
        away = np.setdiff1d(np.arange(run.server.n), exchanged[0][1].clients)
        assert torch.equal(after.last[away], before.last[away])
        means = group_means(after.last, after.groups, before.centres)
        assert torch.equal(after.centres, means)


@pytest.mark.slow
def test_fesem_absent_clients_keep_their_last_model() -> None:
    """docs/methods/fesem.md, D9: stale models stay in the E-step and in the M-step."""
    _stale(train(FeSEM(clusters=4), planted("feature"), 5, participation=0.3))


@pytest.mark.slow
def test_fesem_members_participants() -> None:
    """The option leaves the absent out of the M-step."""
    run = train(FeSEM(clusters=2, members="participants"), planted("feature", 2), 2, participation=0.3)
    present = run.asked[1][0][1].clients
    groups = np.full(20, -1)
    groups[present] = run.state.groups[present]
    assert torch.equal(run.state.centres, group_means(run.state.last, groups, run.states[1].centres))


@pytest.mark.slow
def test_fesem_last_kernel_sees_only_the_output_layer() -> None:
    """The released code's signal: distances between output kernels, whatever the other weights are."""
    run = train(FeSEM(clusters=2, signal="last_kernel"), planted("incongruent", 2), 2)
    assert run.ari() == 1.0
    kernel = run.server.layout.output_kernel
    assert kernel.size == 320
    far = run.state.centres + 100.0  # every other weight says: the other centre
    centres = kernel.copy(far, run.state.centres)
    models = run.state.last.clone()
    models[run.state.groups == 0] += 100.0
    kernel.copy(models, run.state.last)
    near = FeSEM(clusters=2, signal="last_kernel").assign_nearest(models, centres, run.server)
    assert near.tolist() == run.state.groups.tolist()
    swapped = kernel.copy(models.clone(), run.state.centres[torch.from_numpy(1 - run.state.groups)])
    near = FeSEM(clusters=2, signal="last_kernel").assign_nearest(swapped, centres, run.server)
    assert near.tolist() == (1 - run.state.groups).tolist()


@pytest.mark.slow
def test_fesem_who_missed_the_warm_up_starts_from_the_mean_of_the_centres() -> None:
    """D11, and D3: started from any one centre, such a client would never leave it. It trains as in the warm-up."""
    for seed in range(3):
        run = train(FeSEM(clusters=4), planted("feature", clients=40, seed=seed), 6, client_dropout=0.25, seed=seed)
        missed = np.flatnonzero(~run.states[1].known)
        assert len(missed)
        (exchange, _), (others, _) = run.asked[1]
        assert exchange.rule == LocalUpdate(20)
        assert exchange.clients.tolist() == missed.tolist()
        assert not np.isin(missed, others.clients).any()
        starts = exchange.send["model"]
        expected = run.states[1].centres.mean(0)
        for place in range(len(missed)):
            item = starts.item(place)
            assert item is not None
            assert torch.equal(item.values, expected)
        assert run.ari() == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "momentum"), [("batched", 0.9)])
def test_fesem_the_pull_is_stable_for_tiny_clients(engine: str, momentum: float) -> None:
    """Eq. 7: 17 clients of 800 samples and 3 of 12 have pulls of 0.85 mu and 57 mu; no mu ruins the centres."""
    federation = planted("iid", sizes=[800] * 17 + [12] * 3)
    training = Training(epochs=3, batch_size=50, lr=0.1 * (1 - momentum), momentum=momentum)
    for mu in (1.0, 100.0):
        run = train(FeSEM(clusters=1, mu=mu, warm_up=2), federation, 3, training=training, engine=engine)
        assert run.accuracy().mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sizes", "participation"),
    [("feature", (12, 6, 3, 1), 0.3), ("incongruent", (5, 5, 5, 5), 1.0), ("feature", (10, 10), 1.0)],
)
def test_fesem_finds_planted_groups_by_its_defaults(
    kind: str, sizes: tuple[int, ...], participation: float
) -> None:
    """One local epoch of five steps tells nobody apart; 20 do, and K-means++ finds groups of one and of twelve."""
    federation = grouped(kind, sizes)
    run = train(FeSEM(clusters=len(sizes)), federation, 3, participation=participation)
    assert run.ari() == 1.0


@pytest.mark.slow
def test_fesem_says_that_no_e_step_moved_anybody() -> None:
    """D3: groups that rest from the first round on are not told from converged ones without the margin."""
    run = train(FeSEM(clusters=2), planted("feature", 2), 4)
    assert [s.moving for s in run.states] == [0] * 5
    margins = run.logged("margin")
    assert margins[0] is None
    assert run.state.margin == min(m for m in margins if m is not None) > 1
    (remark,) = run.method.final_warnings(run.state, run.server, 4)
    assert "3 E-steps" in remark
    assert f"{run.state.margin:.3g} times" in remark
    assert run.method.final_warnings(dataclasses.replace(run.state, moving=1), run.server, 4) == []
    assert run.method.final_warnings(run.states[1], run.server, 1) == []  # there was no E-step yet
