"""`--smoke`, an option of every benchmark: say in seconds whether it still runs. It keeps nothing that it measures.

Data of the names that benchmarks use are made for it: small sets of byte images, as the real ones are stored.
"""

from __future__ import annotations

import atexit
import gzip
import os
import shutil
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from coterie.runs.schema.experiment import Experiment

ROOT = Path(__file__).resolve().parents[1]
IMAGES = 4_000
"""In each half of a made dataset."""
CLIENTS, SAMPLES, ROUNDS = 6, 40, 2
"""The most that an experiment has of each after `shrink`; samples are of each client."""

T = TypeVar("T")


class Arguments(ArgumentParser):
    """The command line of a benchmark.

    Args:
        name: of the benchmark's module.
        doc: what its help says.
        smoke: values of options that `--smoke` sets, whatever else is asked for.
        rows: where the benchmark keeps its rows unasked; `read` returns it as `rows`.
    """

    def __init__(self, name: str, doc: str | None, smoke: Mapping[str, Any], rows: Path | None = None) -> None:
        super().__init__(prog=f"python -m benchmarks.{name}", description=doc)
        self.formatter_class = RawDescriptionHelpFormatter
        self.add_argument(
            "--smoke", action="store_true", help="run a little of it in seconds, on made images; keep nothing"
        )
        self.set_defaults(rows=rows)
        self._smoke = smoke

    def read(self, words: Sequence[str] | None = None) -> Namespace:
        """Return what a command line says, by default that of this process.

        With `--smoke`, from here on the process has one core and the named datasets are made ones, and a path in
        the checkout is one in a folder that goes when the process ends. Pages have a copy there, rows do not.
        """
        given = self.parse_args(words)
        if given.smoke:
            print("a smoke run, on few made images: what it prints shows that it runs, and measures nothing")
            scratch = Path(tempfile.mkdtemp(prefix="smoke-"))
            atexit.register(shutil.rmtree, scratch, ignore_errors=True)
            write_images(scratch / "data")
            if hasattr(os, "sched_setaffinity"):  # fewer processes to wait for
                os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
            os.environ["COTERIE_DATA"] = str(scratch / "data")
            vars(given).update(self._smoke)
            vars(given).update({key: _set_aside(value, scratch) for key, value in vars(given).items()})
        return given


def _set_aside(value: Any, scratch: Path) -> Any:
    """Return where a path in the checkout is in the scratch folder; any other value is left as it is."""
    if not isinstance(value, Path) or not value.resolve().is_relative_to(ROOT):
        return value
    place = scratch / value.resolve().relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    if value.suffix == ".md" and value.exists():
        shutil.copy(value, place)
    return place


def shrink(experiment: Experiment) -> Experiment:
    """Return an experiment with few clients, samples and rounds, on made images instead of digits."""
    data, rounds = experiment.data, min(experiment.run.rounds, ROUNDS)
    changes: dict[str, Any] = {
        "run.rounds": rounds,
        "evaluation.every": min(experiment.evaluation.every, rounds),
        "training.epochs": 1,
    }
    if data.clients is not None:
        changes["data.name"] = "mnist" if data.name == "digits" else data.name
        changes["data.clients"] = min(data.clients, CLIENTS)
        changes["data.samples_per_client"] = min(data.samples_per_client or SAMPLES, SAMPLES)
    return experiment.updated(changes)


def pick_two(cells: list[T]) -> list[T]:
    """Return the first and the last of some cells."""
    return cells[:: max(1, len(cells) - 1)]


def make_images(count: int, side: int, channels: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return byte images `[count, side, side, channels]` of ten classes, each a pattern of its own under noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(count, dtype=np.uint8) % 10
    images = rng.integers(0, 200, (10, 4, 4, channels), np.uint8)[labels]
    images = images.repeat(side // 4, axis=1).repeat(side // 4, axis=2)
    images += rng.integers(0, 56, images.shape, np.uint8)
    return images, labels


def write_images(folder: Path) -> None:
    """Make `mnist` and `fashion-mnist`, of equal images."""
    images, labels = make_images(IMAGES, 28, 1)
    for what, values in (("images-idx3", images[..., 0]), ("labels-idx1", labels)):
        head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
        packed = gzip.compress(head + values.tobytes(), compresslevel=1)
        for name, half in product(("mnist", "fashion-mnist"), ("train", "t10k")):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{half}-{what}-ubyte.gz").write_bytes(packed)
