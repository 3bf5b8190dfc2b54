"""`coterie predict` and `coterie export` of models that learnt something else than one class of many."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray

from coterie.errors import BadInput
from coterie.models.networks import build, channels_first
from coterie.models.origin import initialise
from coterie.shipping.model.trained import About, Trained, read_model, write_model
from tests.commandline import Terminal

N = 48
BASE = ["-q", "--workers", "1", "--rounds", "1", "--set", "network.name=mlp", "--set", "network.hidden=[4]"]


def write_samples(task: str) -> NDArray[Any]:
    """Write `a.npz`: four clients with the targets of a task."""
    x = np.random.default_rng(4).normal(size=(N, 5)).astype(np.float32)
    y: NDArray[Any] = {
        "regression": x[:, 0] * 3,
        "forecasting": x[:, :2],
        "binary": np.where(x[:, 0] > 0, "sick", "healthy"),
        "multilabel": (x[:, :3] > 0).astype(np.int64),
    }[task]
    np.savez("a.npz", x=x, y=y, client=np.repeat(["a", "b", "c", "d"], N // 4))
    np.savez("unlabelled.npz", x=x)
    return y


def train(terminal: Terminal, task: str, method: str = "fedavg") -> NDArray[Any]:
    y = write_samples(task)
    done = terminal("run", method, "--data", "a.npz", "--name", "r", "--set", f"task.name={task}", *BASE)
    assert done[0] == 0, done
    return y


@pytest.mark.medium
def test_a_regression_is_predicted_and_exported(terminal: Terminal) -> None:
    y = train(terminal, "regression")
    code, out, err = terminal("predict", "r", "--data", "a.npz", "--group", "0", "--out", "p.csv")
    assert (code, err) == (0, "")
    assert "regression of 1 output" in out
    assert "accuracy" not in out
    table = pl.read_csv("p.csv")
    assert table.columns == ["row", "client", "model", "predicted", "label"]
    assert np.allclose(table["label"], y)
    rmse = float(np.sqrt(np.mean((table["predicted"].to_numpy() - y) ** 2)))
    (line,) = [line for line in out.splitlines() if "RMSE" in line]
    assert f"{rmse:.4f}" in line
    assert "lower" in line
    assert "higher" in next(line for line in out.splitlines() if "R²" in line)
    assert terminal("export", "r", "--group", "0", "--to", "m.safetensors")[0] == 0
    model = read_model(Path("m.safetensors"))
    assert model.about.task["name"] == "regression"
    with torch.inference_mode():
        x = torch.from_numpy(np.load("a.npz")["x"])
        outputs = model.about.build_task().in_own_units(model.network()(channels_first(x)))
    expected = outputs.squeeze(1).numpy()
    assert np.allclose(table["predicted"], expected, atol=1e-5)
    code, out, _ = terminal("predict", "m.safetensors", "--data", "unlabelled.npz", "--out", "q.npz")
    assert code == 0
    assert "RMSE" not in out
    with np.load("q.npz") as held:
        assert held.files == ["model", "predicted"]
        assert np.allclose(held["predicted"][:, 0], expected, atol=1e-5)
    np.savez("wrong.npz", x=np.zeros((3, 5)), y=np.zeros((3, 2)))
    refused = terminal("predict", "m.safetensors", "--data", "wrong.npz")
    assert re.match(r"2 coterie: wrong\.npz: .*2 targets; .* 1", f"{refused.code} {refused.err}")


@pytest.mark.medium
def test_each_sample_of_a_regression_gets_its_clients_model(terminal: Terminal) -> None:
    y = train(terminal, "regression", "local-only")
    code, out, err = terminal("predict", "r", "--data", "a.npz", "--out", "p.parquet")
    assert (code, err) == (0, "")
    assert "models of 4 clients" in out
    whole = pl.read_parquet("p.parquet")
    assert np.allclose(whole["label"], y)
    terminal("predict", "r", "--data", "a.npz", "--client", "c", "--out", "c.parquet")
    own = slice(N // 2, 3 * N // 4)
    c = pl.read_parquet("c.parquet")["predicted"]
    assert np.allclose(whole["predicted"][own], c[own])
    assert not np.allclose(whole["predicted"], c)


@pytest.mark.medium
def test_two_classes_are_predicted_with_their_probability(terminal: Terminal) -> None:
    y = train(terminal, "binary")
    code, out, err = terminal("predict", "r", "--data", "a.npz", "--group", "0", "--out", "p.parquet")
    assert (code, err) == (0, "")
    table = pl.read_parquet("p.parquet")
    assert table.columns == [
        "row",
        "client",
        "model",
        "predicted",
        "label",
        "probability_healthy",
        "probability_sick",
    ]
    assert table["label"].to_list() == y.tolist()
    assert terminal("export", "r", "--group", "0", "--to", "m.safetensors")[0] == 0
    with torch.inference_mode():
        logits = read_model(Path("m.safetensors")).network()(torch.from_numpy(np.load("a.npz")["x"]))
    assert np.allclose(table["probability_sick"], logits.squeeze(1).sigmoid().numpy(), atol=1e-6)
    assert ((table["probability_sick"] > 0.5) == (table["predicted"] == "sick")).all()
    right = int((table["predicted"] == table["label"]).sum()) / N
    assert f"{right:.4f}" in next(line for line in out.splitlines() if "accuracy" in line)
    assert "AUROC" in out
    from_file = terminal("predict", "m.safetensors", "--data", "a.npz", "--out", "q.npz").out
    # The file does not know what data the run was trained on.
    told = [line for line in out.splitlines() if not line.startswith("note: run r ")]
    assert from_file.splitlines() == [line.replace("p.parquet", "q.npz") for line in told]
    with np.load("q.npz") as held:
        assert held["predicted"].tolist() == table["predicted"].to_list()
        assert held["probability"].shape == (N, 2)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("task", "columns", "metric"),
    [
        (
            "multilabel",
            [f"{what}_{k}" for what in ("predicted", "label", "probability") for k in range(3)],
            "AUROC",
        ),
        ("forecasting", [f"{what}_{k}" for what in ("predicted", "label") for k in range(2)], "MAE"),
    ],
)
def test_several_outputs_have_a_column_each(task: str, columns: list[str], metric: str, terminal: Terminal) -> None:
    y = train(terminal, task)
    code, out, err = terminal("predict", "r", "--data", "a.npz", "--group", "0", "--out", "p.csv")
    assert (code, err) == (0, "")
    assert metric in out
    table = pl.read_csv("p.csv")
    assert table.columns == ["row", "client", "model", *columns]
    assert np.allclose(table.select("^label_.*$").to_numpy(), y)
    if task == "multilabel":
        likely = table.select("^probability_.*$").to_numpy() > 0.5
        assert np.array_equal(likely, table.select("^predicted_.*$").to_numpy() == 1)


# ---- files of models


def make_model(about: About) -> Trained:
    network, layout = build(about.network, about.settings, about.features, about.classes, 0)
    return Trained(initialise(network, layout, 0), layout, about)


def write(about: About, path: str = "m.safetensors") -> Trained:
    model = make_model(about)
    write_model(Path(path), model.vector, model.layout, about)
    return model


def metadata(path: str) -> dict[str, Any]:
    """What the head of a .safetensors file says of the model."""
    content = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    found: dict[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
    return found


def test_a_file_that_says_no_task_is_of_classification(terminal: Terminal) -> None:
    write(About("mlp", {"hidden": (4,)}, (5,), 2, ("healthy", "sick")))
    assert "task" not in metadata("m.safetensors"), "as files were before there were tasks"
    assert read_model(Path("m.safetensors")).about.build_task().name == "classification"
    write_samples("binary")
    code, out, _ = terminal("predict", "m.safetensors", "--data", "a.npz", "--out", "p.csv")
    assert code == 0
    assert f" of {N} " in out
    assert "2 classes" in out


OWN_TASK = """
from dataclasses import dataclass
from coterie.clients.tasks import Regression

@dataclass(frozen=True)
class Doubled(Regression):
    factor: float = 2.0

    def predict(self, outputs):
        return self.factor * outputs.flatten(1)
"""

OWN_NETWORK = """
from torch import nn

def next_token(features, classes, *, width: int = 4):
    return nn.Sequential(nn.Embedding(classes, width), nn.Linear(width, classes))
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from coterie.clients.tasks import TASKS

    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "doubled_task.py").write_text(OWN_TASK + OWN_NETWORK, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    before = dict(TASKS.entries)
    yield "doubled_task"
    TASKS.entries.clear()
    TASKS.entries.update(before)


def test_a_file_names_a_task_by_path_only_where_it_is_trusted(terminal: Terminal, own_module: str) -> None:
    about = About("mlp", {"hidden": (4,)}, (5,), 1, task={"name": f"{own_module}:Doubled", "factor": 3.0})
    model = write(about)
    write_samples("regression")
    code, out, err = terminal("predict", "m.safetensors", "--data", "a.npz")
    assert (code, out) == (2, "")
    predict = "predict m.safetensors --data a.npz"
    assert f"coterie {predict} --allow {own_module}:Doubled" in err
    assert terminal(*predict.split(), "--import", own_module).code == 2
    code, out, err = terminal(*predict.split(), "--allow", f"{own_module}:Doubled", "--out", "p.csv")
    assert (code, err) == (0, "")
    with torch.inference_mode():
        plain = model.network()(torch.from_numpy(np.load("a.npz")["x"])).squeeze(1).numpy()
    assert np.allclose(pl.read_csv("p.csv")["predicted"], 3 * plain, atol=1e-5)


@pytest.mark.parametrize(
    ("task", "labels", "said"),
    [
        ({"name": "regression", "metrics": ["accuracy"]}, None, "task.metrics = 'accuracy'"),
        ({"name": "binary"}, ("a", "b", "c"), "damaged"),
    ],
)
def test_a_file_with_another_task_is_refused(
    task: dict[str, Any], labels: tuple[str, ...] | None, said: str, terminal: Terminal
) -> None:
    write(About("mlp", {"hidden": (4,)}, (5,), 1, labels, task=task))
    with pytest.raises(BadInput, match=r"model 'm\.safetensors'") as refused:
        read_model(Path("m.safetensors"))
    assert said in refused.value.problems[0]
    write_samples("regression")
    code, _, err = terminal("predict", "m.safetensors", "--data", "a.npz")
    assert code == 2
    assert len(err.splitlines()) == 1


def test_predictions_that_are_arrays_are_written_as_arrays(terminal: Terminal, own_module: str) -> None:
    write(About(f"{own_module}:next_token", {}, (6,), 12, task={"name": "language"}))
    predict = ("predict", "m.safetensors", "--allow", f"{own_module}:next_token", "--data", "text.npz")
    tokens = np.random.default_rng(0).integers(0, 12, (7, 7))
    np.savez("text.npz", tokens=tokens[:, :6], y=tokens[:, 1:])
    code, _, err = terminal(*predict, "--out", "p.csv")
    assert code == 2
    assert re.match(r"coterie: --out 'p\.csv' .*language .* 6; .*\.npz", err)
    code, out, err = terminal(*predict, "--out", "p.npz")
    assert (code, err) == (0, "")
    assert "7 predictions" in out
    assert "perplexity" in out
    with np.load("p.npz") as held:
        assert held["predicted"].shape == (7, 6)
        assert np.array_equal(held["label"], tokens[:, 1:])
    np.savez("text.npz", tokens=tokens[:, :6] + 5)
    code, _, err = terminal(*predict)
    assert code == 2
    assert re.match(r"coterie: text\.npz: .*token 16; .* 12", err), err
