"""Images that stay bytes until a minibatch is made give the bits of numbers that are stored; volumes; tokens."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coterie
from coterie.clients.data import build, load
from coterie.clients.data.agree.own import Holding
from coterie.clients.engine import minibatches
from coterie.clients.rules.minibatch import to_numbers
from coterie.clients.tasks import Language
from coterie.errors import BadInput


@pytest.fixture
def images(tmp_path: Path) -> tuple[str, str]:
    """The same images of an odd size: as bytes, and as the numbers that these become."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (124, 5, 5, 3), np.uint8)
    beside: dict[str, Any] = {"label": np.arange(124) % 3, "client": np.arange(124) // 31}
    paths = str(tmp_path / "bytes.npz"), str(tmp_path / "numbers.npz")
    for path, values in zip(paths, (pixels, pixels.astype(np.float32) / 255), strict=True):
        np.savez(path, image=values, **beside)
    return paths


@pytest.mark.parametrize("split", ["by-user", "iid + rotated(4)"])
def test_bytes_stay_bytes_and_become_the_same_numbers(images: tuple[str, str], split: str) -> None:
    kept, numbers = (build(data, split, 4, 0, public=9) for data in images)
    assert (kept.inputs.dtype, numbers.inputs.dtype) == (torch.uint8, torch.float32)
    assert 4 * kept.inputs.nbytes == numbers.inputs.nbytes
    assert kept.fingerprint == numbers.fingerprint
    assert kept.public is not None
    assert numbers.public is not None
    assert torch.equal(kept.public, numbers.public)
    for client in range(4):
        for which in ("train", "validation", "test"):
            one, other = (found.slice(client, which)[0] for found in (kept, numbers))
            made = to_numbers(one)
            assert torch.equal(made, other)
            assert (made.data_ptr() - other.data_ptr()) % 64 == 0
        assert torch.equal(Holding.of(kept, client).parts[0][0], Holding.of(numbers, client).parts[0][0])


def test_what_is_made_of_bytes_is_made_once_and_only_of_the_federations_own(images: tuple[str, str]) -> None:
    kept, numbers = (build(data, "by-user", 4, 0) for data in images)
    stored, wanted = (found.slice(2, "train")[0] for found in (kept, numbers))
    assert kept.to_numbers(stored) is kept.to_numbers(kept.slice(2, "train")[0])
    assert torch.equal(kept.to_numbers(stored), wanted)
    minibatch = stored.clone()
    assert torch.equal(kept.to_numbers(minibatch), wanted)
    assert not kept.to_numbers(minibatch.zero_()).any()  # the same memory holds other samples now
    other = deepcopy(kept)  # as a process gets it that starts from nothing
    assert torch.equal(other.to_numbers(other.slice(1, "test")[0]), numbers.slice(1, "test")[0])


@pytest.mark.medium
@pytest.mark.parametrize(
    ("engine", "network", "at_once"),
    [("sequential", "tests.own_networks:small", 0), ("batched", "mlp", 1 << 26)],
)
def test_a_run_on_bytes_is_the_same_run(
    images: tuple[str, str],
    network: str,
    engine: str,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Also where samples are prepared minibatch by minibatch, as those of large clients are."""
    wanted = coterie.Experiment(
        method={"name": "ifca", "clusters": 2}, network=network, training={"batch_size": 6, "epochs": 2}
    ).updated({"run.rounds": 2, "run.workers": 1, "run.engine": engine})
    found: list[Any] = []
    for data in reversed(images):
        result = coterie.run(wanted.updated({"data.name": data, "run.folder": str(tmp_path / Path(data).stem)}))
        found.append([result.rounds[name].to_list() for name in ("loss", "train_loss", "macro_accuracy")])
        monkeypatch.setattr(minibatches, "PREPARED_BYTES", at_once)
    assert found[0] == found[1]


@pytest.mark.medium
def test_marked_images_are_numbers_whoever_looks_at_them(images: tuple[str, str], tmp_path: Path) -> None:
    found = []
    for number, data in enumerate(images):
        run = {"rounds": 2, "workers": 1, "folder": str(tmp_path / str(number))}
        attack = {"share": 0.25, "kind": "backdoor"}
        result = coterie.run(coterie.Experiment(method="fedavg", data=data, attack=attack, run=run))
        found.append(coterie.RunFolder(result.folder).log()["value"].to_list())
    # The mark is the brightest of what it is put on, which is white in all but the smallest of images.
    assert found[0] == pytest.approx(found[1], abs=0.1)


def test_volumes_are_scaled_and_divided(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (40, 3, 4, 5, 1), np.uint8)
    np.savez(tmp_path / "volumes.npz", x=values, y=np.arange(40) % 2)
    federation = build(str(tmp_path / "volumes.npz"), "iid", 2, 0)
    assert federation.features == (3, 4, 5, 1)
    assert federation.to_numbers(federation.inputs).max() == values.max() / 255


def test_tokens_stay_whole_numbers(tmp_path: Path) -> None:
    texts = np.random.default_rng(0).integers(0, 9, (40, 6))
    np.savez(tmp_path / "texts.npz", x=texts[:, :-1], y=texts[:, 1:])
    federation = build(str(tmp_path / "texts.npz"), "iid", 2, 0, task=Language())
    assert federation.inputs.dtype == federation.labels.dtype == torch.int64
    assert np.array_equal(load(str(tmp_path / "texts.npz"), task=Language()).inputs, texts[:, :-1])
    np.savez(tmp_path / "texts.npz", x=texts[:, :-1] - 0.5, y=texts[:, 1:])
    with pytest.raises(BadInput, match=r"tokens.* 0 "):
        load(str(tmp_path / "texts.npz"), task=Language())
