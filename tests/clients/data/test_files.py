"""A user's own files: what is accepted, what is said about what was changed, and what is refused."""

from __future__ import annotations

import re
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from coterie.clients.data import load
from coterie.clients.data.read.datasets import find_problems
from coterie.errors import BadInput

X = np.arange(24.0).reshape(8, 3)
Y = np.array([0, 1, 2, 0, 1, 2, 0, 1])


def npz(folder: Path, **arrays: Any) -> str:
    path = folder / "wards.npz"
    np.savez(path, **arrays)
    return str(path)


def refused(data: str) -> str:
    """The one sentence with which `load` refuses."""
    with pytest.raises(BadInput) as caught:
        load(data)
    assert len(caught.value.problems) == 1
    assert "\n" not in caught.value.problems[0]
    return caught.value.problems[0]


@pytest.mark.parametrize(("feature", "label"), [("features", "labels"), ("signal", "y"), ("X", "Label")])
def test_names_of_arrays(tmp_path: Path, feature: str, label: str) -> None:
    data = load(npz(tmp_path, **{feature: X, label: Y}))
    assert data.name == "wards"
    assert np.array_equal(data.inputs, X)
    assert data.inputs.dtype == np.float32
    assert np.array_equal(data.labels, Y)
    assert data.classes == 3
    assert data.users is None
    assert data.notes == ()


@pytest.mark.parametrize("key", ["client", "writer"])
def test_users(tmp_path: Path, key: str) -> None:
    data = load(npz(tmp_path, x=X, y=Y, **{key: [7, 7, 3, 3, 3, 9, 9, 9]}))
    assert data.users is not None
    assert data.users.tolist() == [1, 1, 0, 0, 0, 2, 2, 2]
    assert data.user_names == (f"{key} 3", f"{key} 7", f"{key} 9")


@pytest.mark.parametrize(
    ("labels", "numbers", "note"),
    [
        (["b", "a", "c", "b", "a", "c", "b", "a"], [1, 0, 2, 1, 0, 2, 1, 0], "a is 0, b is 1, c is 2"),
        (np.array([b"b", b"a"] * 4), [1, 0] * 4, "a is 0, b is 1"),
        (Y + 1, Y.tolist(), "1 is 0, 2 is 1, 3 is 2"),
        (Y * -5.0, (2 - Y).tolist(), "-10 is 0, -5 is 1, 0 is 2"),
        (np.arange(8) % 2 == 0, [1, 0] * 4, "False is 0, True is 1"),
    ],
)
def test_labels_are_numbered_in_sorted_order(tmp_path: Path, labels: Any, numbers: list[int], note: str) -> None:
    data = load(npz(tmp_path, x=X, y=labels))
    assert data.labels.tolist() == numbers
    assert [said.partition(": ")[2] for said in data.notes] == [note]


def test_images(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (8, 5, 5), dtype=np.uint8)
    data = load(npz(tmp_path, image=grey, label=Y))
    assert data.inputs.shape == (8, 5, 5, 1)
    assert np.array_equal(data.inputs[..., 0], grey)
    assert data.inputs.dtype == np.uint8
    assert len(data.notes) == 2
    assert load(npz(tmp_path, image=grey / 255, label=Y)).inputs.shape == (8, 5, 5, 1)
    assert load(npz(tmp_path, signal=grey / 255, label=Y)).inputs.shape == (8, 5, 5)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"y": Y}, r"features.* y\).*features, x, inputs"),
        ({"x": X}, r"label.* x\).*label, y, labels, target"),
        ({"x": X, "features": X, "y": Y}, "x .*features"),
        ({"x": X, "y": Y[:7]}, "features.* 8, label.* 7 "),
        ({"x": X, "y": Y, "user": Y[:, None]}, r"user.*\(8, 1\)"),
        ({"x": X, "y": np.stack([Y, Y], 1)}, r"task\.name.*'multilabel'.*'regression'"),
        ({"x": 3.0, "y": Y}, r"features.*\(\)"),
        ({"x": X[:0], "y": Y[:0]}, "samples"),
        ({"x": X[:, :0], "y": Y}, r"features.*\(8, 0\)"),
        ({"x": X * 1j, "y": Y}, "features.*complex128"),
        ({"x": X, "y": Y / 2}, r"label.* row 1 .*0\.5"),
        ({"x": X, "y": Y * 1e300}, r"label.* row 1 .*1e\+300"),
        ({"x": X, "y": Y * 1j}, "labels.*complex128"),
        ({"x": np.where(X == 13, np.nan, X), "y": Y}, "row 4, column 1 .*features.* nan; 1 "),
        ({"x": np.where(X >= 13, 1e300, X), "y": Y}, r"row 4, column 1 .*features.* 1e\+300"),
        ({"x": np.where(X == 5, np.inf, X)[..., None], "y": Y}, "row 1, column 2, 0 .*features.* inf"),
        ({"x": X, "y": Y, "user": np.where(Y == 2, np.nan, 1)}, "user.* row 2 .*nan"),
    ],
)  # fmt: skip
def test_unusable_arrays(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    path = npz(tmp_path, **arrays)
    assert re.search(f"{re.escape(path)}.*{says}", refused(path))


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and more", "npy", "cut", "flipped"])
def test_damaged_files(tmp_path: Path, content: bytes | str) -> None:
    path = Path(npz(tmp_path, x=X, y=Y))
    whole = path.read_bytes()
    if content == "npy":
        with path.open("wb") as file:
            np.save(file, X)
    elif content == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif content == "flipped":
        middle = whole.index(X.tobytes())
        path.write_bytes(whole[:middle] + b"\xff\xff" + whole[middle + 2 :])
    else:
        assert isinstance(content, bytes)
        path.write_bytes(content)
    assert re.search("wards.*damaged", refused(str(path)))
    path.rename(tmp_path / "wards.parquet")
    assert re.search("wards.parquet.*damaged", refused(str(tmp_path / "wards.parquet")))


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, allow_pickle=True, x=X, y=np.array([{}, []] * 4, dtype=object))
    assert "pickled objects" in refused(str(path))


def write_header(shape: str, kind: str = "<f4") -> bytes:
    """The beginning of a `.npy` file that says any shape."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def write_archive(folder: Path, method: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(folder / "wards.npz", "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return folder / "wards.npz"


@pytest.mark.each_once
@pytest.mark.parametrize(
    "shape",
    [
        *("(1000000000000,)", "(4294967296, 4294967296)", "(18446744073709551616,)", "(-5, -2)", "(11,)"),
        "(" * 100,
    ],
)
@pytest.mark.parametrize("ending", [".npz", ".npy"])
def test_a_header_that_lies_is_refused_before_memory_is_taken(tmp_path: Path, shape: str, ending: str) -> None:
    content, y = write_header(shape) + bytes(40), write_header("(10,)", "<i8") + bytes(80)
    if ending == ".npz":
        data = write_archive(tmp_path, x=content, y=y)
    else:
        data = tmp_path
        (tmp_path / "x.npy").write_bytes(content)
        (tmp_path / "y.npy").write_bytes(y)
    tracemalloc.start()
    sentence = refused(str(data))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "damaged" in sentence
    assert most < 10_000_000


def test_what_is_packed_a_thousand_times_is_not_unpacked(tmp_path: Path) -> None:
    x = write_header("(20000000, 4)", "|u1") + bytes(80_000_000)
    path = write_archive(tmp_path, zipfile.ZIP_DEFLATED, x=x, y=write_header("(10,)", "<i8") + bytes(80))
    assert " 80," in refused(str(path))
    assert find_problems(str(path)) == [refused(str(path))]


def test_arrays_by_columns_and_compressed_ones_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "wards.npz", x=np.asfortranarray(X), y=Y)
    data = load(str(tmp_path / "wards.npz"))
    assert np.array_equal(data.inputs, X)
    assert np.array_equal(data.labels, Y)


def test_whole_numbers_beyond_64_bits_are_read(tmp_path: Path) -> None:
    rows = [f"{i + 1}8446744073709551616,{i % 2}" for i in range(60)]
    (tmp_path / "wards.csv").write_text("\n".join(["a,label", *rows]))
    assert load(str(tmp_path / "wards.csv")).inputs.shape == (60, 1)


def test_parquet_with_numeric_columns(tmp_path: Path) -> None:
    path = tmp_path / "patients.parquet"
    table = {"age": [30, 40, 50, 60], "label": ["ill", "well"] * 2, "smoker": [True, False] * 2}
    pl.DataFrame({**table, "client": ["north", "south"] * 2, "remark": list("abcd")}).write_parquet(path)
    data = load(str(path))
    assert data.name == "patients"
    assert data.inputs.tolist() == [[30, 1], [40, 0], [50, 1], [60, 0]]
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert data.user_names == ("north", "south")
    assert ["remark (" in note for note in data.notes] == [True, False]
    assert "ill is 0, well is 1" in data.notes[1]


@pytest.mark.parametrize("kind", [pl.List(pl.Float64), pl.Array(pl.Float32, 3), pl.List(pl.Int16)])
def test_parquet_with_a_list_column(tmp_path: Path, kind: pl.DataType) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"y": Y, "age": Y, "x": X.tolist()}).with_columns(pl.col("x").cast(kind)).write_parquet(path)
    data = load(str(path))
    assert np.array_equal(data.inputs, X)
    (note,) = data.notes
    assert re.search("a.parquet.*: age$", note)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"x": [1.0, 2.0]}, r"label.* x\)"),
        ({"y": [0, 1], "t": ["a", "b"]}, "features.*numbers"),
        ({"y": [None, None], "x": [1.0, 2.0]}, "label"),
        ({"y": [0, 1], "x": [None, 2.0]}, "x .* row 0; 1 of 2"),
        ({"y": [0, 1], "x": [1.0, float("nan")]}, "x .* row 1; 1 of 2"),
        ({"y": [0, 1], "x": [[1.0], [1.0, 2.0]]}, "x.* lists"),
        ({"y": [0, 1], "x": [[1.0], None]}, "x.* lists"),
        ({"y": [0, 1], "x": [[1.0], [None]]}, "row 1, column 0 .*features.* nan"),
        ({"y": [0, 1], "x": [["a"], ["b"]]}, "x.* lists"),
        ({"y": [0, 1], "x": [[1], [2]], "z": [[1], [2]]}, r"\(x, z\)"),
        ({"y": [[0], [1]], "x": [1.0, 2.0]}, r"label.*\(2, 1\)"),
    ],
)
def test_unusable_tables(tmp_path: Path, table: dict[str, Any], says: str) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame(table).write_parquet(path)
    assert re.search(says, refused(str(path)))


def test_a_folder_of_clients(tmp_path: Path) -> None:
    for k, name in enumerate(("north", "east")):
        np.savez(tmp_path / f"{name}.npz", x=X + k, y=Y)
    pl.DataFrame({"label": [2, 1], "features": [[0.0] * 3, [1.0] * 3]}).write_parquet(tmp_path / "south.parquet")
    (tmp_path / "readme.txt").write_text("x")
    data = load(str(tmp_path))
    assert data.user_names == ("east", "north", "south")
    assert data.users is not None
    assert data.users.tolist() == [0] * 8 + [1] * 8 + [2] * 2
    assert np.array_equal(data.inputs[8:16], X)
    assert data.labels[16:].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": X[:, :2], "y": Y}, r"b\.npz.*features.*\(2,\)"),
        ({"x": X, "y": Y, "client": Y}, "b.npz .*client.*a.npz .*none"),
        ({"x": X, "y": Y[:3]}, r"b\.npz: features.* 8, label.* 3, client.* 8 "),
        ({"x": X, "y": Y.astype(str)}, r"b\.npz.*labels.*text"),
        ({"x": X.astype(str), "y": Y}, r"b\.npz.*features.*text"),
        ({"x": X, "y": np.stack([Y, Y], 1)}, r"b\.npz.*labels.*\(2,\)"),
    ],
)
def test_a_folder_whose_files_disagree(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez(tmp_path / "b.npz", **arrays)
    assert re.search(says, refused(str(tmp_path)))


def test_texts_of_files_may_be_of_different_lengths(tmp_path: Path) -> None:
    for name, other in (("farm", "horse"), ("zoo", "elephant")):
        np.savez(tmp_path / f"{name}.npz", x=X, y=np.where(Y[0] == Y, "cat", other))
    assert find_problems(str(tmp_path)) == []
    assert len(load(str(tmp_path)).inputs) == 2 * len(X)


def test_a_fault_of_all_files_of_a_folder_is_said_once(tmp_path: Path) -> None:
    for name in ("east", "north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=X)
    first, more = find_problems(str(tmp_path))
    assert "east.npz" in first
    assert "north.npz, south.npz" in more


def test_check_finds_it_without_loading(tmp_path: Path) -> None:
    assert find_problems(npz(tmp_path, x=X, y=Y)) == []
    np.savez(tmp_path / "b.npz", x=X)
    np.savez(tmp_path / "c.npz", y=Y)
    assert len(find_problems(str(tmp_path))) == 2
    (tmp_path / "a.xls").touch()
    (tmp_path / "empty").mkdir()
    for name, says in (
        ("no.npz", r"no\.npz.*\.csv.*\.npz.*\.parquet"),
        ("a.xls", r"'\.xls'.*\.csv.*\.npz.*\.parquet.*CSV"),
        ("empty", r"empty.*\.csv.*\.npz.*\.parquet.*images"),
    ):
        assert re.search(says, refused(str(tmp_path / name)))
        assert find_problems(str(tmp_path / name)) == [refused(str(tmp_path / name))]
