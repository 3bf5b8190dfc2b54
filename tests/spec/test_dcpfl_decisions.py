"""When DC-PFL tries which finer grouping, and what it takes to win (docs/methods/dcpfl.md, 5.9.4, D3, D6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.clients.rules import Training
from coterie.grouping.rapid_decrease import cut_at
from tests.federated import Trained, planted, train
from tests.spec.quadratic import QUADRATIC, middles, quadratics
from tests.spec.test_dcpfl import FAST, PRINTED, TWICE, step


def rounds_of(run: Trained, name: str, of: str = "") -> list[int]:
    """In which rounds anything was logged under a name."""
    return [number for number, value in enumerate(run.logged(name, of), 1) if value is not None]


@pytest.mark.medium
@pytest.mark.parametrize("period", [5, 40])
def test_dcpfl_5_9_4(period: int) -> None:
    """D6: where the loss of a run is 2 e^(-(t-1)/T) + c, the decrease ends at 8, which is seen in round 11.

    Clients with quadratic losses and one step a round have just such a loss. c moves no derivative.
    """
    federation, seen = quadratics([50] * 6), 11
    training = Training(batch_size=50, lr=1 - float(np.exp(-1 / (2 * period))))
    run = train(replace(PRINTED, alpha=1), federation, 0, network=QUADRATIC, training=training)
    away = torch.randn(64, generator=torch.Generator().manual_seed(0))
    start = middles(federation).mean(0) + 2 * away / away.norm()  # half the squared distance is 2
    run.states[0] = replace(run.state, models=start[None])
    for number in range(1, seen + 2):
        step(run, number)
    losses = np.array(run.logged("loss")[:seen], float)
    expected = 2 * np.exp(-np.arange(seen) / period)
    np.testing.assert_allclose(losses - losses[0], expected - expected[0], atol=1e-4)
    assert rounds_of(run, "rapid decrease ended") == [seen]
    assert rounds_of(run, "trial", "now") == [seen + 1]


@pytest.mark.slow
@pytest.mark.parametrize(("lowered", "cuts"), [(0.5, [1.0, 0.5, 0.0]), (0.2, [1.0, 0.8, 0.6])])
def test_dcpfl_d3_step(lowered: float, cuts: list[float]) -> None:
    """Each candidate lies one step below the cut in use, and is that cut of the one dendrogram."""
    run = train(replace(FAST, step=lowered), planted("feature", 4), 14, training=TWICE)
    assert rounds_of(run, "accepted") == [7, 14]
    assert list(dict.fromkeys(run.logged("cut"))) == cuts
    for number, cut in zip((6, 13), cuts[1:], strict=True):
        proposed = run.states[number]
        assert proposed.finer_cut == cut
        assert proposed.finer_groups.tolist() == cut_at(run.state.tree, cut).tolist()
        assert run.states[number + 1].groups.tolist() == proposed.finer_groups.tolist()


@pytest.mark.slow
def test_dcpfl_5_4_a_trial_must_win() -> None:
    """Where both branches come to the same loss, to the bit, the groups stay as they are (5.4: strict)."""
    run = train(FAST, planted("feature", 2), 6, training=TWICE)
    proposed = run.state
    assert proposed.finer is not None
    rows = proposed.groups[np.unique(proposed.finer_groups, return_index=True)[1]]
    run.states.append(replace(proposed, finer=proposed.models[torch.from_numpy(rows)]))  # the groups' own models
    step(run, 7)
    now, finer = run.logged("trial", "now")[-1], run.logged("trial", "finer")[-1]
    assert now == finer
    assert run.logged("accepted")[-1] == 0.0
    assert run.state.groups.tolist() == proposed.groups.tolist()
    assert run.state.cut == proposed.cut
    assert run.state.next_trial == 7 + FAST.t_sp
    real = train(FAST, planted("feature", 2), 7, training=TWICE)  # its own candidate does win
    assert real.logged("accepted")[-1] == 1.0
