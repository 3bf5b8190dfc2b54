"""Which layers tell clients apart: found from halves, without anybody knowing the groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coterie.advice.diagnose.diagnose import diagnose
from coterie.advice.diagnose.single_layers import LayerSignal, say_layers
from coterie.grouping.halves import PairingTest

from .test_diagnose import experiment, some

CNN = {"name": "cnn"}
PERMUTED = "permuted-labels(2)"


@pytest.mark.slow
def test_layers_tell_clients_apart_by_more_or_less() -> None:
    found = diagnose(experiment(PERMUTED, network=CNN), gains=False, layers=True)
    layers = {layer.name: layer for layer in found.layers}
    assert [*layers] == ["conv1", "conv2", "fc1", "fc2", "all"]
    assert sum(layer.size for name, layer in layers.items() if name != "all") == layers["all"].size
    assert found.true_groups_ari == 1.0
    best = max((layer for layer in found.layers if layer.name != "all"), key=lambda layer: layer.contrast or -1.0)
    assert best.name.startswith("conv")
    assert best.test.p <= found.alpha
    assert (best.contrast or 0.0) > (layers["fc2"].contrast or 0.0)
    assert sum(f"layers={best.name}" in sentence for sentence in found.sentences()) == 1
    # It is asked for, and changes nothing else.
    without = diagnose(experiment(PERMUTED, network=CNN), gains=False)
    assert (without.layers, without.groups, without.structure) == ((), found.groups, found.structure)


@pytest.mark.medium
def test_of_one_population_no_layer_is_held_against_groups() -> None:
    found = diagnose(experiment("iid"), gains=False, layers=True, starts=1)
    assert not found.has_structure
    assert {layer.contrast for layer in found.layers} == {None}
    (said,) = say_layers(found.layers, found.alpha, found.draws)
    assert said in found.sentences()


def layer(name: str, p: float, contrast: float | None, own: float = 0.5) -> LayerSignal:
    return LayerSignal(name, 10, PairingTest(p, own, 1.0), contrast)


def test_layers_are_told_best_first() -> None:
    layers = (
        layer("conv1", 0.001, 0.1),
        layer("fc1", 0.01, 0.4),
        layer("fc2", 0.3, 0.5),
        layer("all", 0.001, 0.9),
    )
    (said,) = say_layers(layers, 0.05, 999)
    assert said.index("fc1 (") < said.index("conv1 (") < said.index("not fc2")
    assert " all (" not in said
    assert said in replace(some(), layers=layers).sentences()
    # Without groups the one in which own halves are nearest.
    (said,) = say_layers((layer("conv1", 0.01, None), layer("fc1", 0.01, None, own=0.1)), 0.05, 999)
    assert said.index("fc1 (") < said.index("conv1 (")
    (said,) = say_layers((layer("fc1", 0.5, None),), 0.05, 999)
    assert "fc1" not in said
    assert say_layers((), 0.05, 999) == ()
