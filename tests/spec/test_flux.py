"""FLUX (docs/methods/flux.md): FedAvg, one clustering by moments of features, FedAvg in each cluster."""

from __future__ import annotations

import torch
from torch.nn.functional import relu

from coterie.methods import FLUX
from tests.federated import planted, train


def test_flux_7_9_moments_are_those_of_the_features() -> None:
    """Along as many orthogonal directions as there are features, squares sum up as those of the features do."""
    federation = planted("label", 2, clients=6, samples=30)
    run = train(FLUX(after=1, deviations=True), federation, 2)
    tensors = {e.name: e for e in run.server.layout.tensors}
    weight, bias = (
        run.states[1].models[0, e.start : e.start + e.size].view(e.shape) for e in list(tensors.values())[:2]
    )
    inputs, labels = federation.slice(1, "train")
    features = relu(inputs.flatten(1) @ weight.T + bias).double()
    found = run.state.moments[1].double()
    for row, some in [(0, features), *((1 + k, features[labels == k]) for k in range(10))]:
        if len(some) < 2:
            assert not found[row].any()
            continue
        torch.testing.assert_close(found[row, 0].square().sum(), some.mean(0).square().sum(), rtol=1e-4, atol=1e-6)
        expected = some.var(0, correction=0).sum()
        torch.testing.assert_close(found[row, 1].square().sum(), expected, rtol=1e-4, atol=1e-6)
