"""Models as files for other programs: what they compute there is what they compute here."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.errors import BadInput
from coterie.models.networks import NETWORKS, build, channels_first
from coterie.models.origin import initialise
from coterie.shipping.model.export import export, onnx_bytes
from coterie.shipping.model.trained import About, Trained, read_model

SMALL = {
    "mlp": About("mlp", {"hidden": (7, 5)}, (6,), 3),
    "har-cnn": About("har-cnn", {"channels": (4, 6), "hidden": (8,)}, (19, 3), 6),
    "gaussian-mlp": About("gaussian-mlp", {"hidden": (9,), "dim": 4}, (5, 5, 1), 3),
    "gaussian-cnn": About("gaussian-cnn", {"channels": (3, 4), "dim": 6}, (9, 11, 2), 4),
    "resnet18": About("resnet18", {"width": 2}, (12, 9, 3), 5),
    "vgg16": About("vgg16", {"batch_norm": True}, (28, 28, 1), 10),
}
"""Networks that take other samples than images of 16x13 with two channels, or are large in their defaults."""


def some(about: About) -> Trained:
    """A model with weights and running statistics that are not those of the start."""
    _, layout = build(about.network, about.settings, about.features, about.classes, 0)
    network, _ = build(about.network, about.settings, about.features, about.classes, 0)
    vector = initialise(network, layout, 1)
    rng = np.random.default_rng(5)
    for entry in layout.entries:
        values = entry.view(vector)
        if "running_var" in entry.name:
            values.copy_(torch.from_numpy(rng.uniform(0.5, 2, entry.shape)))
        elif values.dim() == 1:
            values.add_(torch.from_numpy(rng.normal(0, 0.1, entry.shape)))
    return Trained(vector, layout, about)


def in_torch(model: Trained, batch: Tensor) -> np.ndarray:
    with torch.inference_mode():
        found: np.ndarray = model.network()(channels_first(batch)).numpy()
    return found


@pytest.mark.slow
@pytest.mark.thinned(14)
@pytest.mark.parametrize(
    "name", [n for n in NETWORKS.names() if NETWORKS[n].target.__module__.startswith("coterie.")]
)
def test_every_network_runs_elsewhere(tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnxscript", reason="install coterie[onnx] to export networks")
    runtime = pytest.importorskip("onnxruntime", reason="install onnxruntime to run exported networks")
    model = some(SMALL.get(name, About(name, {}, (20, 17, 2), 4)))
    path = tmp_path / "model.onnx"
    export(model, path)
    elsewhere = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,), (made,) = elsewhere.get_inputs(), elsewhere.get_outputs()
    assert (given.name, given.shape) == ("input", ["batch", *model.about.features])
    assert (made.name, made.shape) == ("logits", ["batch", model.about.classes])
    for count in (1, 2, 7):
        batch = torch.randn(count, *model.about.features, generator=torch.Generator().manual_seed(count))
        (found,) = elsewhere.run(["logits"], {"input": batch.numpy()})
        expected = in_torch(model, batch)
        assert np.abs(expected).max() > 1e-3
        assert np.abs(found - expected).max() <= 1e-4 * max(1, np.abs(expected).max())
    about = json.loads(json.dumps(asdict(model.about)))
    assert about.pop("task") == {}  # plain classification goes without saying
    assert json.loads(elsewhere.get_modelmeta().custom_metadata_map["coterie"]) == about


@pytest.mark.slow
def test_an_exported_model_is_valid_and_says_nothing_of_this_machine() -> None:
    onnx = pytest.importorskip("onnx", reason="install coterie[onnx] to export networks")
    pytest.importorskip("onnxscript", reason="install coterie[onnx] to export networks")
    model = some(SMALL["mlp"])
    content = onnx_bytes(model)
    assert onnx_bytes(model) == content
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    assert str(Path(__file__).parents[3]).encode() not in content
    assert b".py" not in content


@dataclass(frozen=True, eq=False)
class Moody(Trained):
    """A model whose network asks its samples which way to go."""

    def network(self) -> nn.Module:
        class Turns(nn.Module):
            def forward(self, batch: Tensor) -> Tensor:
                return batch if float(batch.sum()) > 0 else -batch

        return Turns()


@pytest.mark.medium
def test_what_cannot_be_exported_says_so_in_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript", reason="install coterie[onnx] to export networks")
    model = some(SMALL["mlp"])
    moody = Moody(model.vector, model.layout, model.about)
    with pytest.raises(BadInput, match=r"mlp .*ONNX .*\.safetensors") as raised:
        export(moody, tmp_path / "model.onnx")
    assert "step 1" not in str(raised.value), "the cause is told, not how PyTorch goes about it"
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(BadInput) as refused:
        export(some(SMALL["mlp"]), tmp_path / "m.onnx")
    (sentence,) = refused.value.problems
    assert all(word in sentence for word in ("m.onnx'", "onnxscript", "coterie[onnx]"))
    assert list(tmp_path.iterdir()) == []


def test_safetensors_need_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = some(SMALL["resnet18"])
    export(model, tmp_path / "m.safetensors")
    assert torch.equal(read_model(tmp_path / "m.safetensors").vector, model.vector)


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"m\.npz'.*\.safetensors, \.onnx or \.pt"):
        export(some(SMALL["mlp"]), tmp_path / "m.npz")
