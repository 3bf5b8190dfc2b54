"""Ids of tokens beside their mask, as tokenizers make them: read alike from every format, and used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from torch.utils.data import Dataset

import coterie
from coterie.clients.data import load
from coterie.clients.tasks import TASKS
from coterie.errors import BadInput

RNG = np.random.default_rng(0)
MASK = (np.arange(4) < RNG.integers(1, 5, 90)[:, None]).astype(np.int64)
LABEL = RNG.integers(0, 3, 90)
IDS = np.where(MASK == 1, LABEL[:, None], RNG.integers(0, 3, (90, 4)))  # what does not count is noise
CLIENT = np.repeat(["a", "b", "c"], 30)
NEXT = np.where(MASK == 1, LABEL[:, None], -1)  # a target at every place, as of a language model
TABLE: dict[str, Any] = {"input_ids": IDS, "attention_mask": MASK, "label": LABEL, "client": CLIENT}


def frame(labels: np.ndarray[Any, Any]) -> pl.DataFrame:
    """A table with a list, or one number, in each of its columns."""
    return pl.DataFrame({name: values.tolist() for name, values in {**TABLE, "label": labels}.items()})


class Tokens(Dataset[Any]):
    """Items that name their parts, and among them their target."""

    def __init__(self, rows: slice, labels: np.ndarray[Any, Any]) -> None:
        self.rows = np.arange(90)[rows]
        self.labels = labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        row = self.rows[place]
        return {"input_ids": IDS[row], "attention_mask": MASK[row], "labels": self.labels[row]}


def save_npz(folder: Path, labels: np.ndarray[Any, Any]) -> str:
    table: dict[str, Any] = {**TABLE, "label": labels}
    np.savez(folder / "tokens.npz", **table)
    return str(folder / "tokens.npz")


def save_arrays(folder: Path, labels: np.ndarray[Any, Any]) -> str:
    (folder / "arrays").mkdir()
    for name, values in {**TABLE, "label": labels}.items():
        np.save(folder / "arrays" / f"{name}.npy", values)
    return str(folder / "arrays")


def save_parquet(folder: Path, labels: np.ndarray[Any, Any]) -> str:
    frame(labels).write_parquet(folder / "tokens.parquet")
    return str(folder / "tokens.parquet")


def save_dataset(folder: Path, labels: np.ndarray[Any, Any]) -> str:
    datasets = pytest.importorskip("datasets")
    types = frame(labels).with_columns(token_type_ids=pl.col("attention_mask") * 0)
    datasets.Dataset.from_polars(types).save_to_disk(str(folder / "saved"))
    return str(folder / "saved")


def give(folder: Path, labels: np.ndarray[Any, Any]) -> str:
    parts = {"input_ids": IDS, "attention_mask": MASK}
    data = {n: ({k: v[n == CLIENT] for k, v in parts.items()}, labels[n == CLIENT]) for n in "abc"}
    return coterie.Experiment(data=data).data.name


def give_items(folder: Path, labels: np.ndarray[Any, Any]) -> str:
    data = {name: Tokens(slice(30 * i, 30 * i + 30), labels) for i, name in enumerate("abc")}
    return coterie.Experiment(data=data).data.name


@pytest.mark.parametrize(
    "save",
    [save_npz, save_arrays, save_parquet, pytest.param(save_dataset, marks=pytest.mark.medium), give, give_items],
)
@pytest.mark.parametrize(("task", "labels"), [("classification", LABEL), ("language", NEXT)])
def test_both_are_the_inputs_in_every_form(
    save: Callable[[Path, np.ndarray[Any, Any]], str], task: str, labels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    dataset = load(save(tmp_path, labels), task=TASKS[task].target())
    assert dataset.inputs.dtype == np.int64
    np.testing.assert_array_equal(dataset.inputs, np.stack([IDS, MASK], 1))
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.user_names == ("a", "b", "c")


@pytest.mark.medium
def test_a_network_that_asks_for_both_gets_both(tmp_path: Path) -> None:
    experiment = coterie.Experiment(
        data={"name": save_npz(tmp_path, LABEL), "validation": 0.0},
        network={"name": "tests.own_networks:Language", "output": "logits"},
        method="fedavg",
        training={"epochs": 30, "lr": 0.5},
        run={"rounds": 2, "workers": 1, "folder": str(tmp_path / "runs"), "name": "masked"},
    )
    # Every token that counts says the class; one in two or so of all tokens says a wrong one.
    assert coterie.run(experiment).summary["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (MASK[:, :3], r"attention_mask .*\(90, 3\).* input_ids \(90, 4\)"),
        (MASK * 2, "attention_mask .*1 where a token counts"),
    ],
)
def test_a_mask_that_is_none_is_refused(mask: np.ndarray[Any, Any], says: str, tmp_path: Path) -> None:
    altered: dict[str, Any] = {**TABLE, "attention_mask": mask}
    np.savez(tmp_path / "tokens.npz", **altered)
    with pytest.raises(BadInput, match=says):
        load(str(tmp_path / "tokens.npz"))


def test_other_named_inputs_are_refused() -> None:
    with pytest.raises(BadInput, match=r"'x'.*'input_ids'.*'attention_mask'"):
        coterie.Experiment(data={"a": ({"x": IDS}, LABEL)})
