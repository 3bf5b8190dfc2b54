"""A network starts from weights of a file, whose last layer may be of another number of classes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.errors import BadInput
from coterie.models.layout import Layout
from coterie.models.origin import Origin, load_start


def build() -> tuple[nn.Module, Layout]:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return network, Layout.of(network)


@pytest.mark.parametrize("left_out", [(), ("2.weight", "2.bias"), ("2.bias",)])
def test_all_but_the_head_comes_from_the_file(left_out: tuple[str, ...]) -> None:
    (network, layout), (other, _) = build(), build()
    weights = {name: values.clone() for name, values in other.state_dict().items() if name not in left_out}
    before = {name: values.clone() for name, values in network.state_dict().items()}
    kept = load_start(network, layout, Origin(start="start.pt", weights=weights))
    assert bool(kept) == bool(left_out)
    for name, values in network.state_dict().items():
        assert torch.equal(values, before[name] if name in left_out else weights[name])


@pytest.mark.parametrize("lacks", [("0.weight",), ("0.bias", "2.weight", "2.bias")])
def test_a_file_that_lacks_more_is_refused(lacks: tuple[str, ...]) -> None:
    network, layout = build()
    weights = {name: values for name, values in build()[0].state_dict().items() if name not in lacks}
    with pytest.raises(BadInput, match=lacks[0]):
        load_start(network, layout, Origin(start="start.pt", weights=weights))
