"""Trained models put to use: `coterie predict` and `coterie export`, and the samples that they are given."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_digits

import coterie
from coterie.clients.data.read.columns import Named
from coterie.clients.data.read.datasets import load
from coterie.clients.data.read.preparation import Column, Preparation
from coterie.errors import BadInput
from coterie.models.networks import build, channels_first
from coterie.models.origin import initialise
from coterie.runs.folder.run_folder import RunFolder
from coterie.shipping.model.predict import Samples, load_samples, predict
from coterie.shipping.model.predicted import Predicted
from coterie.shipping.model.served import trained_model
from coterie.shipping.model.trained import About, Trained, read_model, write_model
from tests.commandline import Terminal

DIGITS = About("mlp", {"hidden": (16,)}, (8, 8, 1), 10, data="digits")
PETS = About("mlp", {"hidden": (8,)}, (5,), 3, ("cat", "dog", "eel"))


def some(about: About, seed: int = 3) -> Trained:
    network, layout = build(about.network, about.settings, about.features, about.classes, seed)
    return Trained(initialise(network, layout, seed), layout, about)


def refusal(data: Path, about: About) -> str:
    with pytest.raises(BadInput) as refused:
        load_samples(str(data), about)
    (sentence,) = refused.value.problems
    return sentence


# ---- samples


def test_raw_pixels_are_prepared_as_for_training(tmp_path: Path) -> None:
    images = load_digits().images
    whole = load("digits").inputs
    np.savez(tmp_path / "raw.npz", image=images[:50].astype(np.uint8))
    raw = load_samples(str(tmp_path / "raw.npz"), DIGITS)
    assert np.array_equal(raw.inputs.numpy(), whole[:50])
    assert raw.labels is None
    assert "pixels" in " ".join(raw.notes)
    np.savez(tmp_path / "floats.npz", x=whole[:50, :, :, 0])
    ready = load_samples(str(tmp_path / "floats.npz"), DIGITS)
    assert torch.equal(ready.inputs, raw.inputs)
    assert "features" in " ".join(ready.notes)
    named = load_samples("digits", DIGITS)
    assert np.array_equal(named.inputs.numpy(), whole)
    assert named.labels is not None
    assert np.array_equal(named.labels, load_digits().target)


def test_pixels_of_data_of_ones_own_are_scaled_as_for_training(tmp_path: Path) -> None:
    about = About("mlp", {}, (8, 8, 1), 10)
    image = (np.arange(3 * 64) % 256).astype(np.uint8).reshape(3, 8, 8)
    np.savez(tmp_path / "a.npz", image=image)
    found = load_samples(str(tmp_path / "a.npz"), about)
    assert np.array_equal(found.inputs.numpy(), (image / np.float32(255))[..., None].astype(np.float32))
    assert any("8-bit" in note for note in found.notes)


def test_labels_are_matched_by_name_and_may_be_missing(tmp_path: Path) -> None:
    x = np.arange(20.0).reshape(4, 5)
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["eel", "cat", "eel", "dog"]))
    found = load_samples(str(tmp_path / "a.npz"), PETS)
    assert found.labels is not None
    assert found.labels.tolist() == [2, 0, 2, 1]
    table = pl.DataFrame({f"f{i}": x[:, i] for i in range(5)})
    table.write_parquet(tmp_path / "b.parquet")
    unlabelled = load_samples(str(tmp_path / "b.parquet"), PETS)
    assert unlabelled.labels is None
    assert torch.equal(unlabelled.inputs, found.inputs)
    table.with_columns(label=pl.Series([0, 2, 1, 1])).write_parquet(tmp_path / "c.parquet")
    assert re.search(r"c\.parquet.* row 0 is 0; .*cat, dog, eel", refusal(tmp_path / "c.parquet", PETS))
    numbered = load_samples(str(tmp_path / "c.parquet"), About("mlp", {}, (5,), 3))
    assert numbered.labels is not None
    assert numbered.labels.tolist() == [0, 2, 1, 1]


def test_a_folder_is_read_whole(tmp_path: Path) -> None:
    for number in range(2):
        np.savez(
            tmp_path / f"client-{number}.npz", features=np.full((2, 5), number), label=np.array(["dog", "cat"])
        )
    found = load_samples(str(tmp_path), PETS)
    assert found.inputs[:, 0].tolist() == [0, 0, 1, 1]
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0, 1, 0]
    np.savez(tmp_path / "client-2.npz", features=np.zeros((2, 5)))
    assert "labels" in refusal(tmp_path, PETS)


def test_samples_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for arrays, about, said in (
        ({"x": np.zeros((3, 64))}, DIGITS, "64; .*8x8x1"),
        ({"x": np.zeros((3, 4))}, PETS, "4; .*5"),
        ({"x": np.full((3, 5), np.nan)}, PETS, "row 0, column 0 .*nan"),
        ({"x": np.zeros((0, 5))}, PETS, r"\(0, 5\)"),
        ({"x": np.zeros((3, 5)), "y": np.zeros(2)}, PETS, "features .*3, label .*2"),
        ({"y": np.zeros(2)}, PETS, "no features"),
    ):
        np.savez(path, **arrays)
        assert re.search(f"a.npz.*{said}", refusal(path, about))
    assert "b.npz" in refusal(tmp_path / "b.npz", PETS)


# ---- predictions


def test_predictions_are_the_networks_own() -> None:
    model = some(DIGITS)
    inputs = torch.from_numpy(load("digits").inputs)
    found = predict(model, Samples(inputs, None))
    with torch.inference_mode():
        expected = model.network()(channels_first(inputs)).softmax(1)
    assert isinstance(found, Predicted)
    assert np.allclose(found.probabilities, expected.numpy(), atol=1e-6)
    assert np.allclose(found.probabilities.sum(1), 1, atol=1e-5)
    assert np.array_equal(found.classes, expected.argmax(1).numpy())
    assert found.correct is None


def test_the_tables_say_what_was_predicted(tmp_path: Path) -> None:
    probabilities = np.array([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.75, 0.25, 0]], np.float32)
    found = Predicted(PETS, probabilities, labels=np.array([0, 2, 2]))
    assert found.correct == 1
    assert found.by_class().rows() == [("cat", 2, 0.625, 1, 1), ("dog", 1, 0.75, 0, 0), ("eel", 0, None, 2, 0)]
    table = found.table()
    assert table.columns == ["row", "predicted", "label", "probability_cat", "probability_dog", "probability_eel"]
    assert table.rows()[1] == (1, "dog", "eel", 0.125, 0.75, 0.125)
    for name in ("a.csv", "a.parquet"):
        found.write(tmp_path / name)
        content = (tmp_path / name).read_bytes()
        found.write(tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    assert pl.read_csv(tmp_path / "a.csv").rows() == pl.read_parquet(tmp_path / "a.parquet").rows() == table.rows()
    numbered = Predicted(About("mlp", {}, (5,), 3), probabilities, labels=None)
    assert numbered.table()["predicted"].to_list() == [0, 1, 0]
    assert numbered.by_class().rows() == [("0", 2, 0.625, None, None), ("1", 1, 0.75, None, None)]
    with pytest.raises(BadInput, match=r"a\.txt'.*\.parquet.*\.csv"):
        found.write(tmp_path / "a.txt")


def test_a_class_that_is_called_like_a_formula_is_quoted_in_a_csv(tmp_path: Path) -> None:
    names = ("=cmd|' /C calc'!A0", "@SUM(A1)", "-5")
    found = Predicted(About("mlp", {}, (5,), 3, names), np.eye(3, dtype=np.float32), labels=None)
    for ending in ("csv", "parquet"):
        found.write(tmp_path / f"a.{ending}")
    quoted = pl.read_csv(tmp_path / "a.csv", infer_schema=False)["predicted"].to_list()
    assert quoted == [f"'{names[0]}", f"'{names[1]}", "-5"]
    assert pl.read_parquet(tmp_path / "a.parquet")["predicted"].to_list() == list(names)


def test_outputs_without_end_are_refused() -> None:
    inputs = torch.zeros(3, 5)
    inputs[1] = 1e38
    model = some(PETS)
    model.vector.mul_(100)
    with pytest.raises(BadInput, match="row 1"):
        predict(model, Samples(inputs, None))


# ---- the command line


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs `grouped`, of two groups and more, and `one`, of a single one."""
    folder = tmp_path_factory.mktemp("finished")
    for name, method in (("grouped", "ifca"), ("one", "fedavg")):
        coterie.run(
            coterie.Experiment(
                method=method,
                data={"clients": 8},
                run={"rounds": 2, "workers": 1, "folder": str(folder), "name": name},
            )
        )
    return folder


@pytest.fixture
def terminal(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(finished)
    digits = load_digits()
    np.savez("labelled.npz", image=digits.images[:100].astype(np.uint8), label=digits.target[:100])
    np.savez("raw.npz", image=digits.images[:100].astype(np.uint8))
    return Terminal(capsys)


@pytest.mark.medium
def test_predict_says_how_a_run_does(terminal: Terminal) -> None:
    code, out, err = terminal("predict", "one", "--data", "labelled.npz", "--out", "p.parquet")
    assert (code, err) == (0, "")
    assert re.search(r"group 0 \(8 clients\) .*one.* round 2.* mlp.* 8x8x1.* 10 classes", out)
    table = pl.read_parquet("p.parquet")
    right = int((table["predicted"] == table["label"]).sum())
    assert f"accuracy {right / 100:.1%}: {right} of 100 " in out
    assert "p.parquet" in out
    assert table.height == 100
    assert table.select(pl.sum_horizontal(pl.col("^probability_.*$"))).to_series().to_list() == pytest.approx(
        [1] * 100
    )
    first = Path("p.parquet").read_bytes()
    terminal("predict", "one", "--data", "labelled.npz", "--out", "p.parquet")
    assert Path("p.parquet").read_bytes() == first


def test_predict_needs_no_labels(terminal: Terminal) -> None:
    code, out, _ = terminal("predict", "grouped", "--data", "raw.npz", "--client", "3", "--out", "p.csv")
    assert code == 0
    assert re.match("client 'client 3' .*grouped.* round 2", out)
    assert "accuracy" not in out
    table = pl.read_csv("p.csv")
    assert table.columns == ["row", "model", "predicted", *(f"probability_{k}" for k in range(10))]


def test_an_exported_model_predicts_the_same(terminal: Terminal, finished: Path) -> None:
    assert terminal("export", "grouped", "--group", "1", "--to", "m.safetensors")[0] == 0
    model, _ = trained_model(RunFolder(finished / "grouped"), group=1)
    assert torch.equal(read_model(Path("m.safetensors")).vector, model.vector)
    from_run = terminal("predict", "grouped", "--group", "1", "--data", "labelled.npz", "--out", "a.csv").out
    from_file = terminal("predict", "m.safetensors", "--data", "labelled.npz", "--out", "b.csv").out
    assert from_file == from_run.replace("a.csv", "b.csv")
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()
    Path("state").mkdir()
    write_model(Path("state/model.safetensors"), model.vector, model.layout, model.about)
    assert terminal("predict", "state", "--data", "labelled.npz", "--out", "a.csv").out == from_run


def test_a_model_file_knows_what_the_label_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usual names are features then, and may be several."""
    known = Preparation((Column("a"), Column("label"), Column("y")), named=Named(label="ill"))
    model = some(About("mlp", {"hidden": (4,)}, (3,), 2, preparation=known))
    write_model(tmp_path / "m.safetensors", model.vector, model.layout, model.about)
    pl.DataFrame({"a": [0.5, 1.5], "label": [3, 4], "y": [5, 6], "ill": [0, 1]}).write_csv(tmp_path / "new.csv")
    monkeypatch.chdir(tmp_path)
    code, out, err = Terminal(capsys)("predict", "m.safetensors", "--data", "new.csv")
    assert (code, err) == (0, "")
    assert " of 2 " in out


def test_a_run_is_left_as_it_is(terminal: Terminal, finished: Path) -> None:
    before = {path: path.read_bytes() for path in (finished / "grouped").rglob("*") if path.is_file()}
    terminal("predict", "grouped", "--data", "raw.npz", "--client", "3")
    terminal("export", "grouped", "--group", "0", "--to", "m.safetensors")
    assert {path: path.read_bytes() for path in (finished / "grouped").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("predict grouped --data raw.npz", ["grouped .*--group"]),
        ("predict grouped --data raw.npz --group 77", ["group 77 .*grouped; .* 0, 1"]),
        ("predict grouped --data raw.npz --client 8", ["client '8' .* 0 to 7"]),
        ("predict grouped --data no.npz --client 1", [r"data = 'no\.npz'.*\.csv"]),
        ("predict empty --data raw.npz", ["'empty'.*experiment.toml"]),
        ("predict nobody --data raw.npz", ["'nobody'"]),
        ("predict m.safetensors --data raw.npz", [r"'m\.safetensors'"]),
        ("predict raw.npz --data raw.npz", [r"'raw\.npz'"]),
        ("predict raw.npz --data raw.npz --group 1", [r"'raw\.npz'.*--client.*--group"]),
        (
            "predict grouped --data no.npz --client 1 --group x --out there/p.txt",
            [
                *("--client and --group", "--group 'x'", r"data = 'no\.npz'"),
                *(r"--out 'there/p\.txt' .*\.parquet or \.csv", r"--out 'there/p\.txt'.*'there'"),
            ],
        ),
        (
            "export grouped --group 1 --to there/m.npz",
            [r"--to 'there/m\.npz' .*\.safetensors, \.onnx or \.pt", r"--to 'there/m\.npz'.*'there'"],
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence_each(terminal: Terminal, words: str, said: list[str]) -> None:
    Path("empty").mkdir()
    there = sorted(Path().iterdir())
    code, out, err = terminal(*words.split())
    assert (code, out) == (2, "")
    lines = err.splitlines()
    for line, expected in zip(lines, said, strict=True):
        assert re.match(f"coterie: .*{expected}", line), line
    assert sorted(Path().iterdir()) == there


@pytest.mark.medium
def test_help_brings_no_torch() -> None:
    code = (
        "import sys; from coterie.cli.app import main; main(['predict', '--help']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "coterie predict " in done.stdout
