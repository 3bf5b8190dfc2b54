"""What one client of a real federation holds: its own samples, read where they lie and shown to nobody."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.data.agree.agreement import Agreement, check_width, match_columns
from coterie.clients.data.agree.population import ClientInfo
from coterie.clients.data.divide.augmentation import Augmentation
from coterie.clients.data.divide.holdout import check_given, hold_out
from coterie.clients.data.federation import Federation, Split
from coterie.clients.data.read import storage
from coterie.clients.data.read.columns import USUAL, Columns, Named, check_lengths
from coterie.clients.data.read.datasets import number_segments
from coterie.clients.data.read.files import read_columns
from coterie.clients.data.read.labelling import leave_out_unlabelled
from coterie.clients.data.read.preparation import (
    AS_READ,
    Missing,
    Preparation,
    Standardise,
    Sums,
    fill_and_scale,
    find_columns,
    fit_to_training,
    handle_missing,
    make_inputs,
)
from coterie.clients.rules.minibatch import to_numbers
from coterie.clients.tasks import CLASSIFICATION, Task
from coterie.errors import BadInput, count_of
from coterie.randomness import stream

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
"""What 0, 1 and 2 mean in the array `split` of a `.npz` file."""


@dataclass(frozen=True)
class Holding:
    """One client's samples: inputs `[s, *features]` and targets `[s, *shape]` of each split."""

    name: str
    classes: int
    parts: tuple[tuple[Tensor, Tensor], ...]
    task: Task = CLASSIFICATION
    outputs: int = 0
    preparation: Preparation = AS_READ
    augment: Augmentation | None = None
    sums: tuple[tuple[float, ...], ...] = ()
    """Of its training samples, `[3, channels]`, where all clients are to be scaled alike (see `Sums`)."""

    def __post_init__(self) -> None:
        if not self.outputs:
            object.__setattr__(self, "outputs", self.classes)

    @classmethod
    def of(cls, federation: Federation, client: int) -> Holding:
        """A client's part of a simulated federation."""
        slices = (federation.slice(client, split) for split in SPLITS)
        parts = tuple((federation.to_numbers(inputs), labels) for inputs, labels in slices)
        return cls(
            federation.names[client],
            federation.classes,
            parts,
            federation.task,
            federation.outputs,
            federation.preparation,
            federation.augment,
        )

    @property
    def features(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.parts[0][0].shape[1:])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Training, validation and test samples."""
        train, validation, test = (len(labels) for _, labels in self.parts)
        return train, validation, test

    @property
    def digest(self) -> str:
        """Of all samples and what each is for."""
        found = blake2b(str(self.sizes).encode(), digest_size=16)
        for inputs, labels in self.parts:
            found.update(inputs.contiguous().numpy().data)
            found.update(labels.contiguous().numpy().data)
        return found.hexdigest()

    @property
    def info(self) -> ClientInfo:
        """What the client tells of itself and of these samples."""
        return ClientInfo(self.name, self.sizes, self.features, self.classes, self.digest, self.outputs)

    def slice(self, client: int, split: Split) -> tuple[Tensor, Tensor]:
        """The inputs and labels of a split, as views; there is but this client."""
        return self.parts[SPLITS.index(split)]

    def to_numbers(self, stored: Tensor) -> Tensor:
        """Return inputs `[s, *features]` as networks take them, with the channels last."""
        return to_numbers(stored)


def load_own(
    name: str,
    path: Path,
    features: Sequence[int],
    classes: int | Sequence[str],
    *,
    validation: float,
    test: float,
    min_samples: int,
    seed: int,
    task: Task = CLASSIFICATION,
    missing: Missing = "refuse",
    standardise: Standardise = "none",
    named: Named = USUAL,
    agreed: Agreement | None = None,
    declared: Collection[str] = (),
) -> Holding:
    """Read a client's own data, and hold out its validation and test samples.

    Args:
        name: of the client.
        path: a `.npz` or `.parquet` file, or a folder of such. An array or a column `split` may say what each
            sample is for.
        features: the shape that a sample must have; flat ones of as many numbers take it.
        classes: how many labels there are, which are then 0, 1, …; or what they are called, in order. For a task
            without classes, how many outputs.
        validation: share of the samples held out for validation, where the file says nothing of it.
        test: share held out for testing, likewise.
        min_samples: fewer than so many are refused.
        seed: of the draw.
        task: reads the targets.
        missing: what is done about missing values; means are those of the client's own training samples.
        named: what the label is called, where no usual name says it.
        standardise: `client`, by its own training samples; `global`, as was agreed, once it was; or `none`.
        agreed: what all clients do alike. Until they have agreed on it, the columns of a table are in the order of
            their names, and their number is not compared with `features`.
        declared: columns of text whose values the experiment names.

    Raises:
        BadInput: the data cannot be read, are not of this shape or with these labels, or have other columns than
            those that were agreed on.
    """
    columns = read_columns(path, named=named)
    check_lengths(columns)
    columns = leave_out_unlabelled(columns, task, [])
    if task.tokens:
        columns = replace(columns, feature_key="tokens")
    kept_as = "none" if standardise == "global" else standardise
    wanted = Preparation(missing=missing, standardise=kept_as, named=named)
    columns, inputs, preparation = _make_inputs(columns, wanted, features, agreed, declared)
    found: list[BadInput] = []
    open_columns = agreed is None and preparation.columns
    if inputs.shape[1:] != tuple(features) and not open_columns:
        found.append(
            BadInput(
                f"{columns.where}: a sample has the shape {list(inputs.shape[1:])}; it must be {list(features)}, "
                "as data.features says"
            )
        )
    targets = None
    try:
        assert columns.labels is not None
        targets = task.read_targets(columns.labels, columns.where, [], classes)
    except BadInput as error:
        found.append(error)
    if len(inputs) < min_samples:
        found.append(
            BadInput(f"{columns.where} has {count_of(len(inputs), 'sample')}; it must have at least {min_samples}")
        )
    if found or targets is None:
        raise BadInput.together(found)
    roles = _roles(columns, validation, test, seed)
    order = np.concatenate(roles)
    ends = np.cumsum([0, *(len(rows) for rows in roles)])
    ordered = storage.take(inputs, order)
    preparation, scales = fit_to_training(ordered, ends[None], preparation)
    if scales is not None:
        mean, deviation = (tuple(values.tolist()) for values in scales[0])
        preparation = replace(preparation, mean=mean, deviation=deviation)
    sums: tuple[tuple[float, ...], ...] = ()
    if standardise == "global":
        sums = tuple(tuple(row) for row in Sums.of(ordered[: ends[1]]).rows.tolist())
        preparation = replace(preparation, standardise="global")
        if agreed is not None and agreed.mean:
            _scale_as_agreed(ordered, agreed, columns.where)
            preparation = replace(preparation, mean=agreed.mean, deviation=agreed.deviation)
    whole, values = torch.from_numpy(ordered), torch.from_numpy(targets.values[order])
    parts = tuple((whole[start:stop], values[start:stop]) for start, stop in pairwise(ends.tolist()))
    return Holding(name, targets.classes, parts, task, targets.outputs, preparation, sums=sums)


@contextmanager
def path_withheld(path: Path) -> Iterator[None]:
    """Have others told of a refusal without where a client's files lie, or what they are called."""
    try:
        yield
    except BadInput as error:
        files = sorted(map(str, (path, *path.rglob("*"))), key=len, reverse=True)
        told = error.told
        for file in files:
            told = [text.replace(repr(file), "…").replace(file, "its data") for text in told]
        raise BadInput(error.problems, told) from None


def _make_inputs(
    columns: Columns,
    wanted: Preparation,
    features: Sequence[int],
    agreed: Agreement | None,
    declared: Collection[str],
) -> tuple[Columns, NDArray[Any], Preparation]:
    """Return the samples that stay, as inputs in the shape that is wanted where they can have it, and how."""
    found = find_columns(columns, wanted, [], declared)
    # An order on which clients agree who do not know each other's files.
    preparation = replace(found, columns=tuple(sorted(found.columns, key=lambda column: column.name)))
    if agreed is not None:
        preparation = match_columns(columns, agreed.columns, preparation)
        check_width(agreed.columns, features)
    columns, inputs = handle_missing(make_inputs(columns, preparation, []), columns, preparation, [])
    shape, asked = inputs.shape[1:], tuple(features)
    if shape == (math.prod(asked),) or (*shape, 1) == asked:
        inputs = inputs.reshape(len(inputs), *asked)
    return columns, inputs, preparation


def _scale_as_agreed(inputs: NDArray[Any], agreed: Agreement, where: str) -> None:
    if len(agreed.mean) != inputs.shape[-1]:
        raise BadInput(
            f"{where}: a sample has {inputs.shape[-1]} channels; it must have {len(agreed.mean)}, as the means "
            "that the clients agreed on"
        )
    fill_and_scale(inputs, Preparation(mean=agreed.mean, deviation=agreed.deviation))


def public_inputs(
    path: Path,
    features: Sequence[int],
    count: int,
    seed: int,
    agreed: Agreement | None = None,
    *,
    missing: Missing = "refuse",
    named: Named = USUAL,
    declared: Collection[str] = (),
) -> Tensor:
    """At most `count` unlabelled samples `[M, *features]` that the server holds in a file, drawn at random.

    They become inputs as the clients agreed to make theirs; means that stand for missing values are their own. A
    column that is `named` the label may be there, and is left out; columns that are `declared` hold text.

    Raises:
        BadInput: the file cannot be read, its columns are others, or its samples have another shape.
    """
    columns = read_columns(path, labelled=False, named=named)
    wanted = Preparation(missing=missing, named=named)
    _, inputs, preparation = _make_inputs(columns, wanted, features, agreed, declared)
    if inputs.shape[1:] != tuple(features):
        raise BadInput(
            f"data.public_file = {str(path)!r}: a sample has the shape {list(inputs.shape[1:])}; it must be "
            f"{list(features)}, as data.features says"
        )
    rows = np.arange(len(inputs))
    if count < len(inputs):
        rows = np.sort(stream(seed, "public").choice(len(inputs), count, replace=False))
    inputs = storage.take(inputs, rows)
    preparation, _ = fit_to_training(inputs, np.array([[0, len(inputs), len(inputs), len(inputs)]]), preparation)
    if agreed is not None and agreed.mean:
        _scale_as_agreed(inputs, agreed, str(path))
    return torch.from_numpy(inputs)


def _roles(columns: Columns, validation: float, test: float, seed: int) -> list[NDArray[np.int64]]:
    """Which samples are for training, for validation and for testing, ascending."""
    units = number_segments(columns)
    if columns.given_split is not None:
        check_given(columns.given_split, units, columns.where)
    whole = np.arange(len(columns.features))
    (found,) = hold_out([whole], units, validation, test, seed, columns.given_split)
    return [np.sort(rows) for rows in found]
