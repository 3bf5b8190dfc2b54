"""Data given in Python: every form, the digest that an experiment's file keeps, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import coterie
from coterie.clients.data import load
from coterie.clients.data.read import storage
from coterie.clients.data.read.given import fetch
from coterie.errors import BadInput

pd = pytest.importorskip("pandas")

RNG = np.random.default_rng(0)
LABEL = RNG.integers(0, 2, 60)
X = (RNG.normal(size=(60, 4)) + 2 * LABEL[:, None]).astype(np.float32)
CLIENT = np.repeat(["a", "b", "c"], 20)
FRAME = pl.DataFrame({**{f"x{i}": X[:, i] for i in range(4)}, "client": CLIENT, "label": LABEL})


class Own(Dataset[Any]):
    """A torch dataset of one's own."""

    def __init__(self, rows: slice) -> None:
        self.rows = np.arange(60)[rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(X[self.rows[place]]), int(LABEL[self.rows[place]])


PARTS = {name: slice(20 * i, 20 * i + 20) for i, name in enumerate("abc")}
FORMS: dict[str, Any] = {
    "arrays": {name: (X[rows], LABEL[rows]) for name, rows in PARTS.items()},
    "tensors": {name: (torch.from_numpy(X[rows]), torch.from_numpy(LABEL[rows])) for name, rows in PARTS.items()},
    "tensor datasets": {
        name: TensorDataset(torch.from_numpy(X[rows]), torch.from_numpy(LABEL[rows]))
        for name, rows in PARTS.items()
    },
    "datasets": {name: Own(rows) for name, rows in PARTS.items()},
    "frames": {name: FRAME[rows].drop("client") for name, rows in PARTS.items()},
    "polars": FRAME,
    "pandas": pd.DataFrame(FRAME.to_dict(as_series=False)),
    "settings": {"name": FRAME, "split": "by-user"},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_data(form: str) -> None:
    data = coterie.Experiment(data=FORMS[form]).data
    assert data.name.startswith("given-")
    found = load(data.name)
    assert np.array_equal(found.inputs, X)
    assert np.array_equal(found.labels, LABEL)
    assert found.user_names == ("a", "b", "c")
    assert found.users is not None
    assert found.users.tolist() == np.repeat([0, 1, 2], 20).tolist()


def test_a_hugging_face_dataset_is_data() -> None:
    library = pytest.importorskip("datasets")
    table = library.Dataset.from_dict(FRAME.to_dict(as_series=False))
    assert np.array_equal(load(coterie.Experiment(data=table).data.name).inputs, X)
    both = library.DatasetDict(train=table.select(range(40)), test=table.select(range(40, 60)))
    given_split = load(coterie.Experiment(data=both).data.name).given_split
    assert given_split is not None
    assert given_split.tolist() == [0] * 40 + [2] * 20


def test_text_and_gaps_of_a_pandas_frame() -> None:
    frame = pd.DataFrame({"a": [1.0, None] * 6, "t": ["u", None, "v"] * 4, "y": [0, 1] * 6})
    with pytest.raises(BadInput, match=r"column a .* row 1"):
        load(coterie.Experiment(data=frame).data.name)
    found = load(coterie.Experiment(data=frame).data.name, missing="zero")
    assert found.inputs.shape == (12, 3)


def test_tensors_of_images_are_channels_first() -> None:
    images = torch.rand(12, 3, 8, 8)
    found = load(coterie.Experiment(data=(images, torch.arange(12) % 2)).data.name)
    assert np.array_equal(found.inputs, images.permute(0, 2, 3, 1).numpy())
    assert found.users is None


def test_items_of_a_dataset_that_are_many_lie_in_a_file() -> None:
    with storage.memory_limit(0.0001):
        name = coterie.Experiment(data=Own(slice(None))).data.name
    held = fetch(name)
    assert isinstance(held.features, np.ndarray)
    assert storage.file_of(held.features) is not None
    np.testing.assert_array_equal(held.features, X)


def test_whole_numbers_among_the_items_make_no_others_whole() -> None:
    class Mixed(Own):
        def __getitem__(self, place: int) -> Any:
            return ([1, 2] if place < 30 else [0.5, 0.25]), int(LABEL[place])

    np.testing.assert_array_equal(
        load(coterie.Experiment(data=Mixed(slice(None))).data.name).inputs[30], [0.5, 0.25]
    )


@pytest.mark.medium
def test_a_run_is_gone_on_with_if_the_data_are_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.clients.data.read import given

    experiment = coterie.Experiment(
        data={"name": FORMS["datasets"], "validation": 0.0},
        method="fedavg",
        run={"rounds": 2, "workers": 1, "folder": str(tmp_path), "name": "first"},
    )
    assert coterie.Experiment.from_toml(experiment.to_toml()) == experiment
    result = coterie.run(experiment)
    assert result.clients["client"].n_unique() == 3
    text = (tmp_path / "first" / "experiment.toml").read_text()
    assert f'name = "{experiment.data.name}"' in text
    (tmp_path / "first" / "status.json").unlink(missing_ok=True)
    monkeypatch.setattr(given, "KEPT", {})
    with pytest.raises(BadInput, match="Python"):
        experiment.check()
    with pytest.raises(BadInput, match=r"'given-.*first.*'given-"):
        coterie.resume(tmp_path / "first", data=(X, LABEL))
    assert coterie.resume(tmp_path / "first", data=FORMS["datasets"]).status == "finished"
    experiment.check()


def test_data_that_were_changed_are_refused() -> None:
    inputs = X.copy()
    name = coterie.Experiment(data=(inputs, LABEL)).data.name
    inputs[0] = 7
    with pytest.raises(BadInput, match=r"changed.*again"):
        load(name)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"a": (X, LABEL[:5])}, "features.* 60, label.* 5, client.* 60 "),
        ({"a": FRAME}, "client 'a'.* client column"),
        ({"a": (X, LABEL), "b": (X[:, :2], LABEL)}, r"client 'b'.*features.*\(2,\)"),
        (FRAME.drop("label"), "label"),
        ({"a": Own(slice(0, 0))}, "pair"),
        (7, "data = 7 "),
    ],
)
def test_what_is_no_data_is_refused(data: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        coterie.Experiment(data=data)
