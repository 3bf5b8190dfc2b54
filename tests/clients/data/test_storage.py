"""Samples that are mapped from a file are those that lie in memory: the same bits, whatever they are read from."""

from __future__ import annotations

import io
import zipfile
from copy import copy
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.data import build
from coterie.clients.data.federation import Federation
from coterie.clients.data.read import storage
from coterie.clients.data.read.files import read_columns
from coterie.clients.data.read.storage import memory_limit
from coterie.errors import BadInput

RNG = np.random.default_rng(0)


@pytest.fixture(params=["stored", "compressed", "folder", "arrays"])
def bytes_of_images(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    pixels, rest = RNG.integers(0, 256, (120, 6, 5, 3), np.uint8), beside(120)
    data = tmp_path / "data"
    data.mkdir()
    if request.param == "folder":
        for client in range(4):
            own = rest["client"] == client
            np.savez(data / f"{client}.npz", image=pixels[own], label=rest["label"][own])
    elif request.param == "arrays":
        for name, values in {"image": pixels, **rest}.items():
            np.save(data / f"{name}.npy", values)
    else:
        save = np.savez if request.param == "stored" else np.savez_compressed
        save(data / "all.npz", image=pixels, **rest)
    return str(data)


def beside(count: int) -> dict[str, Any]:
    return {"label": np.arange(count) % 3, "client": np.arange(count) * 4 // count}


def held(data: str, split: str = "by-user", **settings: Any) -> Federation:
    return build(data, split, None if split == "by-user" else 4, 0, **settings)


def mapped(data: str, split: str = "by-user", **settings: Any) -> Federation:
    with memory_limit(0):
        found = held(data, split, **settings)
    assert found.file is not None
    return found


def test_what_is_read_is_mapped(bytes_of_images: str) -> None:
    with memory_limit(0):
        assert storage.is_mapped(np.asarray(read_columns(Path(bytes_of_images)).features))
    assert not storage.is_mapped(np.asarray(read_columns(Path(bytes_of_images)).features))


def test_mapped_bytes_are_those_in_memory(bytes_of_images: str) -> None:
    one, other = held(bytes_of_images), mapped(bytes_of_images)
    assert one.inputs.dtype == other.inputs.dtype == torch.uint8
    assert torch.equal(one.inputs, other.inputs)
    assert one.fingerprint == other.fingerprint
    assert one.notes == other.notes


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (np.int16, {}),
        (np.float32, {"standardise": "global"}),
        (np.float64, {"standardise": "client", "public": 7}),
        (np.float32, {"missing": "mean"}),
        (np.float32, {"missing": "zero"}),
    ],
)
def test_mapped_numbers_are_those_in_memory(tmp_path: Path, kind: type, settings: dict[str, object]) -> None:
    values: Any = RNG.normal(0, 100, (120, 5, 5, 3)).astype(kind)
    if "missing" in settings and kind is not np.int16:
        values[3, 1] = np.nan
    np.savez(tmp_path / "data.npz", x=values, **beside(120))
    one, other = (load(str(tmp_path / "data.npz"), "by-user", **settings) for load in (held, mapped))
    assert torch.equal(one.inputs, other.inputs)
    assert one.fingerprint == other.fingerprint
    again = held(str(tmp_path / "data.npz"), "iid + rotated(4)", **settings)
    assert torch.equal(again.inputs, mapped(str(tmp_path / "data.npz"), "iid + rotated(4)", **settings).inputs)
    assert np.array_equal(np.load(tmp_path / "data.npz")["x"], values, equal_nan=kind is not np.int16)


def test_another_process_opens_the_file_and_gets_no_copy(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((1200, 100), np.float32), **beside(1200))
    found = mapped(str(tmp_path / "data.npz"))
    sent = bytes(ForkingPickler.dumps(found))
    assert len(sent) < found.inputs.nbytes / 4
    other = copy(found)  # by the state that travels
    found.inputs[5, 7] = 3.5
    assert other.inputs[5, 7] == 3.5  # one memory
    assert torch.equal(other.labels, found.labels)


def test_a_file_ends_with_its_last_view() -> None:
    with memory_limit(0):
        values = storage.allocate((10, 4), np.float32)
    file, view = storage.file_of(values), values[2:4].reshape(-1)
    assert file is not None
    assert Path(file.path).exists()
    del values
    view[:] = 1
    assert Path(file.path).exists()
    del view
    assert not Path(file.path).exists()
    with pytest.raises(BadInput, match=r"one machine.*scale\.data_mb"):
        file.open()


def test_no_room_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_limit(0), pytest.raises(BadInput, match=r" GB .*TMPDIR"):
        storage.allocate((1 << 50,), np.uint8)
    monkeypatch.setattr(storage, "folder", lambda: tmp_path / "absent")
    with memory_limit(0), pytest.raises(BadInput, match="absent"):
        storage.allocate((8,), np.uint8)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_archive_is_refused(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "data.npz"
    save(path, x=RNG.integers(0, 256, (400, 64), np.uint8), **beside(400))
    whole = bytearray(path.read_bytes())
    altered = whole.copy()
    altered[9000] ^= 1
    for content in (altered, whole[:-9000], whole[:9000]):
        path.write_bytes(content)
        with memory_limit(0), pytest.raises(BadInput, match="damaged"):
            read_columns(path, labelled=False)
    stream = io.BytesIO()
    np.save(stream, np.zeros((400, 64), np.float32))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", stream.getvalue()[:-4])
    with memory_limit(0), pytest.raises(BadInput, match="damaged"):
        read_columns(path, labelled=False)
