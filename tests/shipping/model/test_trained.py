"""The file of a trained model: what is written comes back, and nothing else is taken for it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from coterie.errors import BadInput
from coterie.models.networks import build, channels_first
from coterie.models.origin import initialise
from coterie.runtime.tensor_file import Stacked, digest
from coterie.shipping.model.trained import FORMAT, About, Trained, read_model, write_model

WIDE = 'width of "é"'
ABOUT = About(
    "cnn", {"channels": (4,), "hidden": (8,)}, (8, 8, 1), 3, ("cat", "dog", WIDE), "", "client 7", "0.1.0"
)


def some(about: About = ABOUT, seed: int = 3) -> Trained:
    network, layout = build(about.network, about.settings, about.features, about.classes, seed)
    return Trained(initialise(network, layout, seed), layout, about)


def written(path: Path, trained: Trained) -> Path:
    write_model(path, trained.vector, trained.layout, trained.about)
    return path


@pytest.mark.parametrize(
    "about",
    [
        ABOUT,
        About("resnet18", {"width": 2}, (8, 8, 3), 4),
        About("har-cnn", {}, (16, 9), 6, data="uci-har"),
        About("gaussian-mlp", {"dim": 5}, (7,), 2),
    ],
    ids=lambda about: about.network,
)
def test_a_model_comes_back_as_it_was(tmp_path: Path, about: About) -> None:
    given = some(about)
    found = read_model(written(tmp_path / "m.safetensors", given))
    assert found.about == replace(about, settings={k: _listed(v) for k, v in about.settings.items()})
    assert torch.equal(found.vector, given.vector)
    assert found.layout == given.layout
    batch = channels_first(torch.randn(3, *about.features))
    given_network, _ = build(about.network, about.settings, about.features, about.classes, 0)
    given.layout.bind(given_network, given.vector)
    assert torch.equal(found.network()(batch), given_network.eval()(batch))
    assert not found.network().training


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def test_pytorch_alone_can_read_it(tmp_path: Path) -> None:
    about = About("resnet18", {"width": 2}, (8, 8, 3), 4)
    given = some(about)
    path = written(tmp_path / "m.safetensors", given)
    network, _ = build("resnet18", {"width": 2}, (8, 8, 3), 4, seed=99)
    assert set(load_file(path)) == set(network.state_dict())
    network.load_state_dict(load_file(path), strict=False)  # PyTorch adds a step counter that ours does not have
    batch = channels_first(torch.randn(2, 8, 8, 3))
    assert torch.equal(network.eval()(batch), given.network()(batch))
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["about"])["network"] == "resnet18"


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    first = written(tmp_path / "a.safetensors", some()).read_bytes()
    assert written(tmp_path / "b.safetensors", some()).read_bytes() == first
    again = read_model(tmp_path / "a.safetensors")
    assert written(tmp_path / "c.safetensors", again).read_bytes() == first
    assert written(tmp_path / "d.safetensors", some(seed=4)).read_bytes() != first
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{letter}.safetensors" for letter in "abcd"]


def test_a_network_of_its_own(tmp_path: Path) -> None:
    given = some()
    with torch.no_grad():
        next(given.network().parameters()).zero_()
    assert torch.equal(given.vector, some().vector)


def test_only_a_model_of_the_layout_is_written(tmp_path: Path) -> None:
    given = some()
    for wrong in (given.vector[:-1], given.vector.double()):
        with pytest.raises(ValueError, match=r"float32 \(\d+,\)"):
            write_model(tmp_path / "m.safetensors", wrong, given.layout, given.about)
    assert list(tmp_path.iterdir()) == []


def test_every_altered_byte_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "m.safetensors", some())
    whole = path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 60).astype(int).tolist():
        content = bytearray(whole)
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises(BadInput) as refused:
            read_model(path)
        assert len(refused.value.problems) == 1, place
    for length in (0, 5, 200, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(BadInput, match="damaged"):
            read_model(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(BadInput, match="coterie export"):
        read_model(path)
    path.write_bytes(b"PK\x03\x04 something else altogether")
    with pytest.raises(BadInput, match="no safetensors"):
        read_model(path)
    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(BadInput, match=r"no format; .*'coterie-model/1'"):
        read_model(path)
    save_file({"w": torch.zeros(2)}, path, {"format": "coterie-checkpoint/1"})
    with pytest.raises(BadInput, match="'coterie-checkpoint/1'"):
        read_model(path)
    given = some()
    vast = 10**9
    for about, said in (
        (replace(ABOUT, network="cmn"), "'cmn' .*cnn"),
        (replace(ABOUT, settings={"hidden": (9,)}), "other tensors .*cnn"),
        (replace(ABOUT, settings={"channels": (4,), "hidden": (vast,) * 3}), "other tensors"),
        (replace(ABOUT, features=(vast, 8, 1)), "other tensors .*cnn"),
        (replace(ABOUT, features=(vast**4, 8, 1)), "cnn, .*10+x8x1, 3 classes"),
        (replace(ABOUT, features=(8,)), "cnn .*flat vectors"),
    ):
        written(path, replace(given, about=about))
        with pytest.raises(BadInput, match=said):
            read_model(path)


WRONG: list[dict[str, Any]] = [
    {"network": 5},
    {"settings": [1]},
    {"features": ["a"]},
    {"features": []},
    {"features": [8, 8, 1, 1, 1]},
    {"features": [8, 0, 1]},
    {"features": 8},
    {"classes": "x"},
    {"classes": 1},
    {"classes": True},
    {"labels": ["cat"]},
    {"labels": [1, 2, 3]},
    {"whose": None},
    {"more": 1},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_no_writer_says_of_a_model_is_damage(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = written(tmp_path / "m.safetensors", some())
    tensors = load_file(path)
    text = json.dumps(asdict(ABOUT) | wrong)
    found = digest(text, {name: Stacked.of(values) for name, values in tensors.items()})
    save_file(tensors, path, {"format": FORMAT, "about": text, "digest": found})
    with pytest.raises(BadInput, match="damaged"):
        read_model(path)


def test_nothing_is_built_before_the_digest_is_seen(tmp_path: Path) -> None:
    path = written(tmp_path / "m.safetensors", some())
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, metadata | {"about": json.dumps(asdict(replace(ABOUT, network="cmn")))})
    with pytest.raises(BadInput, match="digest"):
        read_model(path)


def test_a_model_predicts_where_there_is_no_room_to_train_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = some(About("mlp", {"hidden": (10_000,)}, (2,), 2))
    monkeypatch.setattr("coterie.room.available_bytes", lambda: 3 * given.vector.nbytes)
    with pytest.raises(BadInput, match="memory"):
        build("mlp", {"hidden": (10_000,)}, (2,), 2, 0)
    assert given.network()(torch.zeros(1, 2)).shape == (1, 2)
    monkeypatch.setattr("coterie.room.available_bytes", lambda: given.vector.nbytes)
    with pytest.raises(BadInput, match="memory"):
        given.network()
