"""FedCPS's initial heads are drawn anew until every cluster is chosen by 0.4 / K of the first cohort.

See docs/methods/fedcps.md, D6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.rules.proximal import PLU, ChooseIdentity
from coterie.methods.fedcps import FedCPS
from tests.federated import Trained, planted, train


def fewest(run: Trained) -> list[int]:
    """How many of the first cohort chose the least chosen cluster, draw by draw."""
    *probes, (update, _) = run.asked[0]
    assert isinstance(update.rule, PLU)
    assert all(type(exchange.rule) is ChooseIdentity for exchange, _ in probes)
    assert isinstance(run.method, FedCPS)
    clusters = run.method.clusters
    return [int(np.bincount(r.numbers["choice"].astype(int), minlength=clusters).min()) for _, r in probes]


@pytest.mark.slow
@pytest.mark.parametrize(("clusters", "wanted"), [(2, 4), (4, 2)])
def test_fedcps_3_5_redraw_share(clusters: int, wanted: int) -> None:
    """Of 20 clients 0.4 / K are 4, 2.67 and 2: one fewer is not enough, and who has that many is taken at once."""
    rejected, taken = set(), set()
    for kind in ("feature", "iid"):
        for seed in range(4):
            federation = planted(kind, 2 if clusters == 2 else 4, samples=40, seed=seed)
            *before, last = fewest(train(FedCPS(clusters, 1, init="redraw"), federation, 1, seed=seed))
            assert all(found < wanted for found in before)
            assert last >= wanted or len(before) == 99
            rejected |= set(before)
            taken |= {last}
    assert wanted - 1 in rejected
    assert wanted in taken


@pytest.mark.medium
def test_fedcps_3_5_redraws_are_independent_draws_over_one_base() -> None:
    """Each draw has K heads that no draw before it had, over the base of the common initial model."""
    run = train(FedCPS(3, 1, init="redraw"), planted("feature", seed=1), 1, seed=1)
    exchanges = [exchange for exchange, _ in run.asked[0]]
    assert len(exchanges) > 3
    layout, initial = run.server.layout, run.server.initial(0)
    head, base = layout.last_layers(1), layout.first_layers(1)
    for number, exchange in enumerate(exchanges[:-1]):
        assert torch.equal(_sent(exchange, "base"), base.take(initial))
        heads = _sent(exchange, "heads")
        assert torch.equal(heads, torch.stack([head.take(run.server.initial(3 * number + k)) for k in range(3)]))
    assert torch.equal(_sent(exchanges[-1], "heads"), heads)  # what is trained is the last draw


def _sent(exchange: Any, name: str) -> Any:
    """What the first client is sent under a name."""
    return exchange.send[name].item(0).values
