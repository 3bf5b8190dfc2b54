"""The `datasets` and `flwr-datasets` libraries, where they are installed; nothing is downloaded."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.clients.data import Dataset, build, check_split, load
from coterie.clients.data.read import hub
from coterie.clients.data.read.columns import Columns
from coterie.clients.data.read.datasets import FILES, check_and_convert, download
from coterie.clients.data.read.normalisation import STANDARDS
from coterie.errors import BadInput
from coterie.studies.compare.cells import run_cells
from coterie.studies.compare.spec import Comparison


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("datasets", reason="needs the datasets library: install coterie[hub]")


@pytest.fixture(scope="module")
def flower() -> Any:
    return pytest.importorskip("flwr_datasets", reason="needs the flwr-datasets library: install coterie[hub]")


def read(table: Any) -> Dataset:
    return check_and_convert("x", hub.read_hub_columns(table, "x"))


def images(shape: tuple[int, ...]) -> tuple[np.ndarray, list[Any]]:
    """Pixels, and the images that they are."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, which decodes the images of hub datasets")
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return pixels, [image.fromarray(each) for each in pixels]


def test_images_of_a_hub_table(library: Any) -> None:
    pixels, held = images((6, 8, 8))
    data = read(library.Dataset.from_dict({"img": held, "label": [0, 1, 2] * 2}))
    assert np.array_equal(data.inputs[..., 0], pixels)
    assert data.labels.tolist() == [0, 1, 2] * 2


def test_a_benchmark_prepares_images_and_users(library: Any) -> None:
    """LEAF's CelebA: all splits, images of 84 x 84, nobody with fewer than five."""
    held = {"image": images((5, 8, 6, 3))[1], "celeb_id": [3, 1, 3, 1, 2], "Smiling": [0, 1, 1, 0, 1]}
    data = read(hub.prepare_celeba(library.Dataset.from_dict(held), "x", size=4, least=2))
    assert data.inputs.shape == (4, 4, 4, 3)
    assert data.labels.tolist() == [0, 1, 1, 0]
    assert data.user_names == ("celeb_id 1", "celeb_id 3")


def test_columns_of_a_hub_table(library: Any) -> None:
    table = {"a": [1.0, 2, 3], "b": [4, 5, 6], "t": ["u", "v", "w"], "y": ["p", "q", "p"], "user": ["m", "n", "m"]}
    data = read(library.Dataset.from_dict(table))
    assert data.inputs.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert data.labels.tolist() == [0, 1, 0]
    assert data.user_names == ("m", "n")
    assert ": t (" in data.notes[0]
    with pytest.raises(BadInput, match=r"x .*features.*columns"):
        read(library.Dataset.from_dict({"t": ["u", "v"], "y": [0, 1]}))
    femnist = read(library.Dataset.from_dict({"x": [[1.0], [2.0]], "character": [0, 1], "writer_id": ["m", "n"]}))
    assert femnist.user_names == ("m", "n")
    coarse = {"x": [[1.0], [2.0]], "fine_label": [1, 0], "coarse_label": [0, 0]}
    assert read(library.Dataset.from_dict(coarse)).labels.tolist() == [1, 0]


def test_a_dataset_of_the_hub_becomes_a_federation(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its name to the clients' samples, with a dataset on disk in the place of the download."""
    classes = library.ClassLabel(names=["a", "b"])
    features = library.Features({"x": library.Sequence(library.Value("float32"), 3), "label": classes})
    rows = np.arange(120, dtype=np.float32).reshape(40, 3)
    saved = library.Dataset.from_dict({"x": rows, "label": [0, 1] * 20}, features=features)
    saved.save_to_disk(tmp_path / "somebody" / "numbers" / "train")
    asked: list[tuple[str, ...]] = []

    def from_disk(name: str, *configuration: str, split: str) -> Any:
        asked.append((name, *configuration))
        return library.load_from_disk(tmp_path / name / split)

    monkeypatch.setattr(hub, "is_reachable", lambda endpoint: True)
    monkeypatch.setattr(library, "load_dataset", from_disk)
    federation = build("hub:somebody/numbers", "iid", 4, 0)
    assert (federation.n, federation.classes, federation.features) == (4, 2, (3,))
    assert len(load("hub:somebody/numbers/configuration").labels) == 40
    assert asked == [("somebody/numbers",), ("somebody/numbers", "configuration")]
    with pytest.raises(BadInput, match=r"'hub:somebody/else' .*connection"):
        load("hub:somebody/else")


@pytest.fixture
def out_of_reach(library: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine from which no connection can be made, with nothing in the library's cache."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError

    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(library.config, "HF_MODULES_CACHE", str(tmp_path))


@pytest.mark.usefixtures("out_of_reach")
@pytest.mark.parametrize("get", [load, download])
def test_images_that_cannot_be_downloaded(
    get: Any, library: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    with pytest.raises(BadInput) as caught:
        get("mnist")
    (problem,) = caught.value.problems
    for part in (
        "'mnist'",
        f"({library.config.HF_ENDPOINT} ",
        f"COTERIE_DATA = {str(tmp_path)!r}",
        *FILES["mnist"],
    ):
        assert part in problem
    # The library neither tries again nor says so, and is as it was.
    assert not caplog.records
    assert not library.config.HF_HUB_OFFLINE


@pytest.mark.usefixtures("out_of_reach")
def test_cells_are_not_begun_without_their_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    tables = {"methods": ["fedavg", "local-only"], "seeds": 2, "experiment": {"data": {"name": "mnist"}}}
    with pytest.raises(BadInput, match=r"^data = 'mnist' .* COTERIE_DATA .*$"):
        run_cells(Comparison.from_tables(tables).cells(), tmp_path / "cells")
    assert not (tmp_path / "cells").exists()


@pytest.mark.parametrize("name", ["hub:uoft-cs/cifar100", "hub:ufldl-stanford/svhn/cropped_digits"])
def test_hub_images_whose_means_are_known_are_standardised_and_public_ones_are_test_images(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CIFAR-10's are, so that FedTSDP's data sets differ in nothing but their images."""
    pixels = {
        part: np.random.default_rng(k).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
        for k, part in enumerate(("train", "test"))
    }
    monkeypatch.setattr(hub, "is_installed", lambda: True)
    monkeypatch.setattr(
        hub, "fetch", lambda repository, split="train", **_: Columns(repository, pixels[split], np.arange(40) % 10)
    )
    federation = build(name, "iid", 4, 0, public=30, min_samples=2)
    standard = STANDARDS[name]
    whole, test = (standard.samples(pixels[part]) for part in ("train", "test"))
    assert federation.bounds[:, [0, 3]].tolist() == [[0, 10], [10, 20], [20, 30], [30, 40]]  # none is set aside
    assert (
        np.sort(federation.to_numbers(federation.inputs).numpy().ravel()).tolist()
        == np.sort(whole.ravel()).tolist()
    )
    assert federation.public is not None
    assert all((image == test).all((1, 2, 3)).sum() == 1 for image in federation.public.numpy())
    assert federation.notes == ()


@pytest.mark.slow
def test_flower_partitioners(flower: Any) -> None:
    pathological = 'flwr:PathologicalPartitioner(partition_by="label", num_classes_per_partition=3) + rotated(2)'
    one, again, other = (build("digits", pathological, 10, seed) for seed in (0, 0, 1))
    held = [len(np.unique(np.concatenate([one.slice(i, s)[1] for s in ("train", "test")]))) for i in range(10)]
    assert set(held) == {3}
    assert one.true_groups is not None
    assert one.true_groups.tolist() == [0, 1] * 5
    assert np.array_equal(one.labels, again.labels)
    assert not np.array_equal(one.labels, other.labels)


@pytest.mark.medium
def test_flower_partitioner_by_real_users(flower: Any, data_folder: Any) -> None:
    federation = build("uci-har", 'flwr:NaturalIdPartitioner(partition_by="client")', None, 0)
    assert federation.n == 30
    users = load("uci-har").users
    assert users is not None
    assert sorted(np.diff(federation.bounds[:, [0, 3]])[:, 0]) == sorted(np.bincount(users))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("flwr:IidPartitoner", "'IidPartitoner'.* IidPartitioner"),
        ("flwr:DirichletPartitioner(alfa=0.3, partition_by='label')", r"'alpha'\).* num_partitions, "),
        ("flwr:IidPartitioner(alfa=0.3)", r"'alfa'\).* num_partitions"),
    ],
)
def test_wrong_flower_partitioners(flower: Any, text: str, says: str) -> None:
    (problem,) = check_split(text)
    assert re.search(says, problem)


@pytest.mark.parametrize(
    "text", ["flwr:DirichletPartitioner(partition_by='lable', alpha=0.3)", "flwr:VerticalEvenPartitioner()"]
)
def test_what_a_flower_partitioner_refuses(flower: Any, text: str) -> None:
    with pytest.raises(BadInput, match=r"^split = 'flwr:\w+' failed: [^\n]+$"):
        build("digits", text, 10, 0)
