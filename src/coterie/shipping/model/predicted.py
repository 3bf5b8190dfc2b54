"""What a trained model predicts: a table of classes or of numbers, or an array, and how good it is."""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.tasks import Task
from coterie.clients.tasks.measures import compute_metrics
from coterie.errors import BadInput, count_of
from coterie.runs.folder.files import write_whole
from coterie.shipping.model.trained import About

ENDINGS = (".parquet", ".csv", ".npz")


@dataclass(frozen=True, eq=False, repr=False)
class _Predictions(ABC):
    """The predictions of a model for `N` samples."""

    about: About
    """Whose predictions they are."""
    labels: NDArray[Any] | None = field(kw_only=True)
    """The truth `[N, ...]`, in the form of the task's targets, where it is known."""
    metrics: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """Those of the task, by name; none where accuracy alone counts."""
    beside: pl.DataFrame = field(default_factory=pl.DataFrame, kw_only=True)
    """What says which sample is which, and whose model answered: `N` rows, or no columns."""

    def __repr__(self) -> str:
        said = f"{count_of(len(self._leading['row']), 'sample')} by {self.about.whose}"
        return f"<{type(self).__name__}: {said}; .table() is a frame, .write(path) a file>"

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return `predicted` `[N, …]`, and `label` and `probability` where there are any."""

    @property
    def _leading(self) -> dict[str, Any]:
        """The columns with which a table begins."""
        count = len(next(iter(self.arrays().values())))
        return {"row": np.arange(count), **self.beside.to_dict()}

    @abstractmethod
    def table(self) -> pl.DataFrame:
        """Return one row a sample.

        Raises:
            BadInput: a prediction is an array.
        """

    def write(self, path: Path) -> None:
        """Write the table to a .parquet or .csv file, or the arrays to an .npz file, whole or not at all.

        Raises:
            BadInput: the name has another ending, or there is no table.
        """
        if problems := check_out(path):
            raise BadInput(problems)
        buffer = BytesIO()
        if path.suffix == ".csv":
            _without_formulas(self.table()).write_csv(buffer)
        elif path.suffix == ".parquet":
            self.table().write_parquet(buffer)
        else:
            beside = {column.name: column.to_numpy() for column in self.beside.get_columns()}
            arrays: dict[str, Any] = {
                name: values.astype(str) if values.dtype.kind == "O" else values
                for name, values in {**beside, **self.arrays()}.items()
            }
            with zipfile.ZipFile(buffer, "w") as archive:  # np.savez takes no array that is called `file`
                for name, values in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, values, allow_pickle=False)
        write_whole(path, buffer.getvalue())


@dataclass(frozen=True, eq=False, repr=False)
class Predicted(_Predictions):
    """The classes of `N` samples: `probabilities` is `[N, classes]`, `labels` `[N]`."""

    probabilities: NDArray[np.float32]

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """The most probable class of each sample `[N]`; the first of equals."""
        found: NDArray[np.int64] = self.probabilities.argmax(1)
        return found

    @cached_property
    def confidence(self) -> NDArray[np.float32]:
        """The probability of that class `[N]`."""
        found: NDArray[np.float32] = self.probabilities.max(1)
        return found

    @property
    def correct(self) -> int | None:
        """How many predictions are right; None where labels are not known."""
        return None if self.labels is None else int((self.labels == self.classes).sum())

    def table(self) -> pl.DataFrame:
        """One row a sample: `row`, what is `beside`, `predicted`, `label` if known, and `probability_…` of classes.

        Classes are called by their names where they have any.
        """
        named = {k: v for k, v in self.arrays().items() if k != "probability"}
        probabilities = {f"probability_{n}": p for n, p in zip(self._names, self.probabilities.T, strict=True)}
        return pl.DataFrame({**self._leading, **named, **probabilities})

    def by_class(self) -> pl.DataFrame:
        """One row a class that occurs: how often predicted and how surely; how many there are, how many found."""
        count, right = self.probabilities.shape[1], self.classes == self.labels
        predicted = np.bincount(self.classes, minlength=count)
        samples = None if self.labels is None else np.bincount(self.labels, minlength=count)
        found = None if self.labels is None else np.bincount(self.classes[right], minlength=count)
        sure = np.bincount(self.classes, self.confidence, count) / np.maximum(predicted, 1)
        table = pl.DataFrame(
            {"class": self._names, "predicted": predicted, "confidence": sure, "samples": samples, "correct": found}
        )
        sure_of = pl.when(pl.col("predicted") > 0).then("confidence")
        return table.with_columns(confidence=sure_of).filter((pl.col("predicted") > 0) | (pl.col("samples") > 0))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return `predicted` `[N]`, `label` `[N]` where it is known, and `probability` `[N, classes]`."""
        label = {} if self.labels is None else {"label": self._name_classes(self.labels)}
        return {"predicted": self._name_classes(self.classes), **label, "probability": self.probabilities}

    @property
    def _names(self) -> list[str]:
        return [self.about.name_of(number) for number in range(self.probabilities.shape[1])]

    def _name_classes(self, classes: NDArray[np.int64]) -> NDArray[Any]:
        return classes if self.about.labels is None else np.array(self.about.labels, object)[classes]


@dataclass(frozen=True, eq=False, repr=False)
class PredictedValues(_Predictions):
    """Predictions for `N` samples that are not of one class each: `predicted` `[N, ...]` as the task's targets.

    `probabilities` are those of each label, in the same form; None where the task has none.
    """

    predicted: NDArray[Any]
    probabilities: NDArray[np.float32] | None

    @property
    def is_table(self) -> bool:
        """Whether there is a column for each output."""
        return has_columns(self.about, self.predicted.shape)

    @property
    def names(self) -> list[str]:
        """What follows the names of the columns of each output; nothing where there is one."""
        if self.predicted.size == len(self.predicted) and self.about.labels is None:
            return [""]
        return [f"_{self.about.name_of(number)}" for number in range(self.predicted[:1].size)]

    def table(self) -> pl.DataFrame:
        """One row a sample: `row`, what is `beside`, `predicted_…`, `label_…` and `probability_…` of each output.

        Raises:
            BadInput: a prediction is an array of another kind.
        """
        if not self.is_table:
            raise BadInput(f"each prediction is an array {list(self.predicted.shape[1:])}; write it as .npz")
        columns: dict[str, object] = self._leading
        for title, values in self.arrays().items():
            for name, column in zip(self.names, values.reshape(len(values), -1).T, strict=True):
                columns[f"{title}{name}"] = column
        return pl.DataFrame(columns)

    def by_output(self) -> pl.DataFrame:
        """One row an output: mean, least and greatest prediction, and the mean of the labels that are known."""
        values = self.predicted if self.probabilities is None else self.probabilities
        columns = values.reshape(len(values), -1)
        label = None
        if self.labels is not None:
            label = pl.DataFrame(self.labels.reshape(columns.shape)).fill_nan(None).mean().row(0)
        return pl.DataFrame(
            {
                "output": [name.removeprefix("_") or "predicted" for name in self.names],
                "mean": columns.mean(0, dtype=np.float64),
                "least": columns.min(0),
                "greatest": columns.max(0),
                "label": label,
            }
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return `predicted` `[N, …]`, and `label` and `probability` where there are any, all of one shape."""
        found = {"predicted": self.predicted, "label": self.labels, "probability": self.probabilities}
        return {name: values for name, values in found.items() if values is not None}


Predictions = Predicted | PredictedValues


def conclude(
    about: About, task: Task, outputs: Tensor, labels: NDArray[Any] | None, beside: pl.DataFrame
) -> Predictions:
    """Return what a network's outputs `[N, ...]` predict, and the task's metrics over all samples.

    What is `beside` them is kept there.

    Raises:
        BadInput: a sample has no finite output.
    """
    found = task.distributions(outputs).numpy() if task.one_class else outputs.numpy()
    sound = np.isfinite(found).reshape(len(found), -1).all(1)
    if not sound.all():
        row = int(np.argmin(sound))
        raise BadInput(f"the model gives row {row} no finite outputs; its features must be as large as in training")
    metrics = {}
    if labels is not None and about.task:  # of plain classification the accuracy is said, which needs none
        metrics = compute_metrics(task, task.metrics, outputs, torch.from_numpy(labels))
    if task.one_class:
        return Predicted(about, found, labels=labels, metrics=metrics, beside=beside)
    scores = task.scores(outputs).numpy() if task.probable else None
    predicted = task.predict(outputs).numpy()
    return PredictedValues(about, predicted, scores, labels=labels, metrics=metrics, beside=beside)


def has_columns(about: About, shape: tuple[int, ...]) -> bool:
    """Return whether predictions `[N, ...]` of this shape are a number for each output, not an array."""
    return shape[1:] in ((), (about.classes,)) and not about.build_task().tokens


def is_taken(name: str) -> bool:
    """Return whether a column of predictions may have this name by itself."""
    return name in ("row", "model") or name.startswith(("predicted", "label", "probability"))


def _without_formulas(table: pl.DataFrame) -> pl.DataFrame:
    """The table with an apostrophe before texts that a spreadsheet would run as a formula."""
    texts = pl.col(pl.String)
    formula = texts.str.contains(r"^[=+\-@\t\r]") & texts.cast(pl.Float64, strict=False).is_null()
    return table.with_columns(pl.when(formula).then(pl.lit("'") + texts).otherwise(texts).name.keep())


def check_out(path: Path) -> list[str]:
    """Return what is wrong with a file to write predictions to."""
    if path.suffix in ENDINGS:
        return []
    ending = path.suffix or "nothing"
    return [f"--out {str(path)!r} ends in {ending!r}; it must be a .parquet or .csv file, or .npz for arrays"]
