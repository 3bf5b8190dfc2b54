"""Named datasets: what the real files hold, and one sentence where they are missing or damaged."""

from __future__ import annotations

import gzip
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie.clients.data import DATASETS, Dataset, load
from coterie.clients.data.read.datasets import FILES, dataset, find_problems, has_users
from coterie.clients.data.read.preparation import scale_bytes
from coterie.errors import BadInput
from coterie.plugins import allow

SHAPES = {
    "digits": ((1797, 8, 8, 1), 10),
    "mnist": ((60000, 28, 28, 1), 10),
    "fashion-mnist": ((60000, 28, 28, 1), 10),
    "cifar10": ((50000, 32, 32, 3), 10),
    "cifar10-20k": ((20000, 32, 32, 3), 10),
    "uci-har": ((10299, 128, 9), 6),
    "mnist-writers": ((60000, 28, 28, 1), 10),
}


def test_all_are_covered_here() -> None:
    assert set(DATASETS.names()) == {*SHAPES, "shakespeare"}  # which has tests of its own


@dataset(users=True)
def two_people(public: bool) -> Dataset:
    inputs = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
    return Dataset("two people", inputs, np.arange(20) % 2, 2, np.arange(20) // 10, ("Ada", "Emmy"))


def test_a_dataset_without_a_name_is_named_by_its_path_and_listed_nowhere() -> None:
    path = "tests.clients.data.test_datasets:two_people"
    allow([path])
    assert load(path).user_names == ("Ada", "Emmy")
    assert has_users(path)
    assert path not in DATASETS.names()


def test_digits_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    digits = load("digits")
    assert digits.inputs.shape == (1797, 8, 8, 1)
    assert abs(digits.inputs.mean()) < 1e-3
    assert abs(digits.inputs.std() - 1) < 1e-3
    assert np.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert load("digits", public=True).public is None


@pytest.mark.medium
@pytest.mark.parametrize("name", ["cifar10-20k", "uci-har", "mnist-writers"])
def test_real_data(data_folder: Path, name: str) -> None:
    assert find_problems(name) == []
    data = load(name, public=name == "cifar10-20k")
    shape, classes = SHAPES[name]
    assert data.name == name
    assert data.inputs.shape == shape
    assert data.inputs.dtype == (np.float32 if name in ("digits", "uci-har") else np.uint8)
    assert data.labels.dtype == np.int64
    assert np.unique(data.labels).tolist() == list(range(classes)) == list(range(data.classes))
    channels = scale_bytes(data.inputs[::9], data.standard).reshape(-1, shape[-1])
    assert np.abs(channels.mean(axis=0, dtype=np.float64)).max() < 0.02
    assert np.abs(channels.std(axis=0, dtype=np.float64) - 1).max() < 0.04
    assert (data.users is not None) == has_users(name)
    assert (None if data.public is None else len(data.public)) == (4000 if name == "cifar10-20k" else None)


@pytest.mark.medium
def test_images_are_upright(data_folder: Path) -> None:
    # The first training image of MNIST is a five: a bar at the top right, an open left side below it.
    image = load("mnist").inputs[0, :, :, 0]
    assert load("mnist").labels[0] == 5
    ink = image > image.min()
    assert ink[5:9, 14:24].mean() > 0.7
    assert ink[14:18, 4:10].mean() < 0.1


def test_people_of_uci_har(data_folder: Path) -> None:
    data = load("uci-har")
    assert data.users is not None
    assert data.units is not None
    assert data.user_names == tuple(f"subject {i}" for i in range(1, 31))
    counts = np.bincount(data.users)
    assert (counts.min(), counts.max()) == (281, 409)
    assert np.bincount(data.labels).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    # Consecutive windows of a recording share half their steps: this is why recordings are kept together.
    segment = np.flatnonzero(data.units == data.units[0])
    shared = [np.array_equal(data.inputs[a][64:], data.inputs[b][:64]) for a in segment for b in segment if a != b]
    assert sum(shared) == len(segment) - 1


def test_writers_write_in_one_group_each(data_folder: Path) -> None:
    data = load("mnist-writers")
    assert data.users is not None
    assert data.user_names is not None
    assert data.user_groups is not None
    with np.load(data_folder / "mnist" / "mnist_writers.npz", allow_pickle=False) as raw:
        assert np.array_equal(data.user_groups[data.users], raw["train_hsf"])
        assert [data.user_names[u] for u in data.users[:50]] == [f"writer {w}" for w in raw["train_writer"][:50]]
    assert sorted(np.unique(data.user_groups, return_counts=True)[1]) == [250, 289]


@pytest.fixture
def without_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which coterie[hub] is not installed."""
    monkeypatch.setitem(sys.modules, "datasets", None)


@pytest.mark.usefixtures("without_hub")
@pytest.mark.parametrize("name", ["mnist", "uci-har"])
def test_files_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """Whoever names a folder that is none is told so, whether or not the data could be downloaded."""
    there, *absent = reversed(FILES[name])
    (tmp_path / there).parent.mkdir()
    (tmp_path / there).touch()
    places = {"": ["COTERIE_DATA", *FILES[name]], str(tmp_path): [f"COTERIE_DATA = {str(tmp_path)!r}", *absent]}
    for place, parts in (places | {str(tmp_path / "none"): [f"COTERIE_DATA = {str(tmp_path / 'none')!r}"]}).items():
        monkeypatch.setenv("COTERIE_DATA", place)
        (sentence,) = find_problems(name)
        assert all(part in sentence for part in parts)
        assert (there in sentence) == (place == "")
        assert ("coterie[hub]" in sentence) == (name == "mnist" and "none" not in place)
        with pytest.raises(BadInput) as caught:
            load(name)
        assert caught.value.problems == [sentence]
    assert find_problems("digits") == []


def _write_cifar10(folder: Path, file: str, index: list[int]) -> None:
    """Images whose every value is their place among the official ones."""
    (folder / "cifar10").mkdir(exist_ok=True)
    places = np.array(index)
    images = np.broadcast_to(places[:, None, None, None], (len(places), 32, 32, 3)).astype(np.uint8)
    np.savez(folder / "cifar10" / file, image=images, label=places % 10, index=places)


def test_cifar10_is_whole_where_both_files_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    _write_cifar10(tmp_path, "cifar10_train_20k.npz", [0, 2, 5])
    alone = load("cifar10")
    assert alone.labels.tolist() == [0, 2, 5]
    assert "20,000 of the 50,000" in alone.notes[0]
    _write_cifar10(tmp_path, "cifar10_train_other_30k.npz", [4, 1, 3])
    whole, subset = load("cifar10"), load("cifar10-20k")
    # In the original order, whichever file an image comes from.
    assert whole.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert whole.notes == subset.notes == ()
    assert np.array_equal(subset.inputs, whole.inputs[[0, 2, 5]])
    assert (subset.name, subset.labels.tolist()) == ("cifar10-20k", [0, 2, 5])


@pytest.mark.parametrize("damage", ["cut", "text", "header", "short"])
def test_damaged_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str) -> None:
    (tmp_path / "mnist").mkdir()
    images = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    images.write_bytes(gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 9, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(36)))
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    plain = bytes([0, 0, 8, 1, 0, 0, 0, 9]) + bytes(range(9))
    packed = gzip.compress(plain)
    path.write_bytes(
        {
            "cut": packed[: len(packed) // 2],
            "text": b"not found",
            "header": gzip.compress(b"\0\0\x09\x01" + plain[4:], 1),
            "short": gzip.compress(plain[:-1], 1),
        }[damage]
    )
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    with pytest.raises(BadInput, match=r"train-labels-idx1-ubyte\.gz"):
        load("mnist")
    path.write_bytes(packed)
    assert load("mnist").labels.tolist() == list(range(9))
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 8]) + bytes(8)))
    with pytest.raises(BadInput, match="9 images and 8 labels"):
        load("mnist")


def test_writers_of_other_images(data_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for half in ("images-idx3", "labels-idx1"):
        shutil.copy(data_folder / "mnist" / f"train-{half}-ubyte.gz", tmp_path / "mnist")
    path = tmp_path / "mnist" / "mnist_writers.npz"
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    zeros = np.zeros(60000, np.int64)
    np.savez(path, train_writer=zeros, train_label=zeros, train_hsf=zeros)
    with pytest.raises(BadInput, match="writers"):
        load("mnist-writers")
    np.savez(path, train_writer=zeros, train_label=zeros)
    with pytest.raises(BadInput, match="train_hsf"):
        load("mnist-writers")


def test_unknown_names() -> None:
    for unknown, known in (("minst", ("mnist",)), ("zzz", ("cifar10, cifar10-20k, digits",))):
        (sentence,) = find_problems(unknown)
        assert all(word in sentence for word in (f"'{unknown}'", *known))
    for name in ("hub:mnist", "hub:/name", "hub:a/b/c/d"):
        (sentence,) = find_problems(name)
        assert all(form in sentence for form in ("hub:owner/name,", "hub:owner/name/configuration"))
        with pytest.raises(BadInput, match="hub:owner/name"):
            load(name)


@pytest.mark.usefixtures("without_hub")
def test_hub_names_need_the_extra() -> None:
    for name in ("hub:owner/name", "hub:owner/name/part"):
        (sentence,) = find_problems(name)
        assert all(part in sentence for part in (f"'{name}'", "coterie[hub]"))
    with pytest.raises(BadInput, match=r"coterie\[hub\]"):
        load("hub:owner/name")
