"""Folders of images and saved datasets: layouts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.clients.data import load
from coterie.clients.data.read.datasets import default_split, find_problems
from coterie.errors import BadInput

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(0)


def write(path: Path, shape: tuple[int, ...] = (6, 5)) -> np.ndarray[Any, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def test_clients_and_classes_are_folders(tmp_path: Path) -> None:
    pixels = [
        write(tmp_path / client / label / f"{k}.png") for client in "ab" for label in ("cat", "dog") for k in (1, 2)
    ]
    data = load(str(tmp_path))
    assert data.inputs.shape == (8, 6, 5, 1)
    assert np.array_equal(data.inputs[..., 0], np.stack(pixels))
    assert data.labels.tolist() == [0, 0, 1, 1] * 2
    assert data.target_names == ("cat", "dog")
    assert data.user_names == ("a", "b")
    assert default_split(str(tmp_path)) == "by-user"


def test_folders_of_a_split_are_no_clients(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            write(tmp_path / split / label / "1.png", (6, 5, 3))
    data = load(str(tmp_path))
    assert data.inputs.shape == (4, 6, 5, 3)
    assert data.users is None
    assert data.given_split is not None
    assert data.given_split.tolist() == [2, 2, 0, 0]
    assert default_split(str(tmp_path)) == "iid"


def test_images_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        write(tmp_path / label / "1.png")
    assert load(str(tmp_path)).users is None
    write(tmp_path / "dog" / "2.png", (6, 6))
    with pytest.raises(BadInput, match=r"2\.png .*6 x 6.* 5 x 6"):
        load(str(tmp_path))
    (tmp_path / "dog" / "2.png").write_bytes(b"no image")
    with pytest.raises(BadInput, match=r"2\.png"):
        load(str(tmp_path))
    write(tmp_path / "a" / "dog" / "3.png")
    (sentence,) = find_problems(str(tmp_path))
    assert "a/dog/3.png" in sentence


def test_a_saved_dataset_is_read_with_its_splits(tmp_path: Path) -> None:
    library = pytest.importorskip("datasets")
    table = library.Dataset.from_dict(
        {"a": [1.0, 2, 3, 4], "t": ["u", "v"] * 2, "subject": ["s", "s", "r", "r"], "label": ["p", "q"] * 2}
    )
    table.save_to_disk(str(tmp_path / "one"))
    data = load(str(tmp_path / "one"))
    assert data.inputs.tolist() == [[1, 1, 0], [2, 0, 1], [3, 1, 0], [4, 0, 1]]
    assert data.user_names == ("r", "s")
    assert default_split(str(tmp_path / "one")) == "by-user"
    both = library.DatasetDict(train=table, test=table.select([0, 1]))
    both.save_to_disk(str(tmp_path / "two"))
    given_split = load(str(tmp_path / "two")).given_split
    assert given_split is not None
    assert given_split.tolist() == [0] * 4 + [2] * 2
    assert default_split(str(tmp_path / "two")) == "by-user"
