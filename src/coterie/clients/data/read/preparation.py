"""From columns to inputs: text as one column a level, missing values by a policy, standardised on training samples.

What was done to the training data is kept with a trained model (`Preparation`), so that it is done to whatever is
predicted later. Columns are known by their names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.clients.data.read import storage
from coterie.clients.data.read.columns import USUAL, Columns, Named, is_id, tell_differences
from coterie.clients.data.read.labelling import MOST_CLASSES
from coterie.clients.data.read.normalisation import Standard
from coterie.errors import MOST_NAMES, BadInput, count_of, shorten

MOST_LEVELS = 64
"""Different values that a column of text may have; one of more is left out, for each would be an input."""

Missing = Literal["refuse", "drop", "mean", "zero"]
Standardise = Literal["none", "client", "global"]


@dataclass(frozen=True)
class Column:
    """One column of a table and how it becomes inputs: a number as it is, text as one input for each level."""

    name: str
    levels: tuple[str, ...] | None = None
    """The values that text may have, in sorted order; None for numbers."""

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return 1 if self.levels is None else len(self.levels)


@dataclass(frozen=True)
class Preparation:
    """How data as read become inputs. Numbers `[channels]` are by the last axis of a sample.

    Attributes:
        columns: the columns of a table, in the order of the inputs; none where the features were an array.
        ignored: columns that were there and are no features.
        missing: what is done about missing values.
        fill: what stands for a missing value; empty unless `missing` is mean.
        standardise: on whose training samples the inputs are standardised.
        mean: is taken off each input, and empty where nothing is; of one client where that is so standardised.
        deviation: what each input is then divided by.
        named: what label and client were called, where an experiment said it.
    """

    columns: tuple[Column, ...] = ()
    ignored: tuple[str, ...] = ()
    missing: Missing = "refuse"
    fill: tuple[float, ...] = ()
    standardise: Standardise = "none"
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    named: Named = USUAL

    @property
    def input_names(self) -> tuple[str, ...]:
        """What each input is called; none where the features were an array."""
        return tuple(
            name
            for column in self.columns
            for name in ([column.name] if column.levels is None else [f"{column.name}={v}" for v in column.levels])
        )

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where the inputs of each column end."""
        return np.cumsum([column.width for column in self.columns])


AS_READ = Preparation()
"""Of data without named columns: nothing is missing, and nothing standardised."""


def find_columns(
    columns: Columns, wanted: Preparation, notes: list[str], declared: Collection[str] = ()
) -> Preparation:
    """Return how the features of training data become inputs, as far as it can be known before they are divided.

    `wanted` says what is done about missing values, and how inputs are to be standardised. Columns that are
    `declared` hold text, whatever it looks like.

    Raises:
        BadInput: a column holds numbers and other text, or numbers as text.
    """
    table = columns.features
    ignored = dict(columns.ignored or {})
    found, problems = list[Column](), list[BadInput]()
    if isinstance(table, pl.DataFrame):
        training = table if columns.given_split is None else table.filter(columns.given_split != 2)
        for name, kind in table.schema.items():
            if kind not in (pl.String, pl.Categorical, pl.Enum):
                found.append(Column(name))
                continue
            values = training[name].cast(pl.String)
            levels = values.drop_nulls().unique().sort().to_list()
            is_left_out = len(levels) > MOST_LEVELS or 2 * len(levels) > len(values)
            if name not in declared and (problem := _find_numbers_as_text(columns, name, values, is_left_out)):
                problems.append(problem)
            if is_left_out:
                ignored[name] = f"text with {len(levels)} values in {len(values)} rows"
            else:
                found.append(Column(name, tuple(levels)))
        if problems:
            raise BadInput([p for one in problems for p in one.problems], [t for one in problems for t in one.told])
        if not found:
            raise BadInput(f"{columns.where} has no features; beside its label it needs columns of numbers or text")
    if ignored:
        shown = ", ".join(f"{name} ({why})" if why else name for name, why in ignored.items())
        notes.append(f"{Path(columns.where).name}: columns ignored: {shown}")
    encoded = [f"{column.name} ({column.width})" for column in found if column.levels is not None]
    if encoded:
        notes.append(f"text became one input for each of its values: {', '.join(encoded)}")
    return replace(wanted, columns=tuple(found), ignored=tuple(ignored))


SEPARATED_NUMBER = r"^[+-]?(\d{1,3}([,.'\u00a0\u202f ]\d{3})+|\d+)(,\d+|\.\d+)?$"
"""A number that may have a decimal comma, or separators of thousands."""

MEND_NUMBERS = "write numbers as 1450.25, without separators of thousands"


def are_separated_numbers(texts: pl.Series) -> bool:
    """Return whether nine in ten texts are numbers, of which most are written so that the reader knew them not."""
    numbers = _look_like_numbers(texts)
    odd = numbers & texts.cast(pl.Float64, strict=False).is_null()
    return len(texts) > 0 and bool(numbers.sum() >= 0.9 * len(texts) and 2 * odd.sum() >= len(texts))


def _look_like_numbers(texts: pl.Series) -> pl.Series:
    return texts.str.strip_chars().str.contains(SEPARATED_NUMBER)


def refuse_odd_labels(columns: Columns) -> None:
    """Refuse labels of no named task that are numbers in a spelling that is not read, or many numbers and a text.

    Raises:
        BadInput: they are.
    """
    labels = columns.labels
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "OSU":
        return
    texts = [label for label in labels.tolist() if isinstance(label, str)]
    values, wrong = pl.Series(texts, dtype=pl.String), ""
    odd = values.cast(pl.Float64, strict=False).is_null()
    if are_separated_numbers(values):
        wrong = f"the labels look like numbers; {MEND_NUMBERS}"
    elif odd.any() and values.filter(~odd).n_unique() > max(MOST_CLASSES, int(odd.sum())):
        first = str(values.filter(odd)[0])
        row = next(row for row, label in enumerate(labels.tolist()) if label == first)
        wrong = f"the labels are numbers except {count_of(int(odd.sum()), 'text')}, the first {first!r} in "
        wrong += f"{columns.place(row)}; make all of them numbers, or leave them empty"
    if wrong:
        raise BadInput(f"{columns.where}: {wrong}, or, if each is a class, set task.name = 'classification'")


def _find_unread(texts: pl.Series) -> pl.Series:
    """Say which texts are not read as numbers."""
    return texts.is_not_null() & texts.cast(pl.Float64, strict=False).is_null()


def _find_odd(texts: pl.Series) -> pl.Series:
    """Say which texts are no numbers in any spelling: they hinder reading the others; where none is, the unread."""
    unread = _find_unread(texts)
    odd = unread & ~_look_like_numbers(texts)
    return odd if odd.any() else unread


def _find_numbers_as_text(columns: Columns, name: str, values: pl.Series, is_left_out: bool) -> BadInput | None:
    """Say so if most of a text is numbers: somebody meant a number, and the rest is a mistake or a gap."""
    there = values.drop_nulls()
    is_separated = is_left_out and are_separated_numbers(there)
    odd = _find_odd(values) if is_separated else _find_unread(values)
    count = int(odd.sum())
    if count and 2 * count <= len(there):
        row = odd.arg_max() or 0
        return BadInput(
            f"{columns.where}: column {name} has {count_of(count, 'text')} among its numbers, the first is "
            f"{values[row]!r} in {columns.place(row)}; make all of them numbers, or leave them empty",
            told=f"column {name} has {count_of(count, 'text')} among its numbers; make all of them numbers, or "
            "leave them empty",
        )
    all_numbers = not count and there.n_unique() > MOST_LEVELS
    if all_numbers or is_separated:
        return BadInput(
            f"{columns.where}: column {name} holds numbers as text; {MEND_NUMBERS}, or remove the column"
        )
    return None


def make_inputs(
    columns: Columns,
    known: Preparation,
    notes: list[str],
    *,
    keep_bytes: bool = False,
    standard: Standard | None = None,
) -> NDArray[Any]:
    """Return the features as inputs `[N, *features]`, before missing values, which are NaN, and standardising.

    They are float32; tokens are int64. With `keep_bytes`, 8-bit images stay bytes until a minibatch is made of
    them, unless they are to be standardised by training samples. With a `standard` they are not scaled to 0 … 1.

    Columns are found by their names, in any order. What a reader might not expect is added to `notes`.

    Raises:
        BadInput: a column is missing, is not known, or holds no numbers where numbers are known.
    """
    table = columns.features
    if not isinstance(table, pl.DataFrame):
        return _array_inputs(columns, known, notes, keep_bytes, standard)
    if not known.columns:
        notes.append("the model knows no columns by name; the features were taken in the order of the file")
        known = Preparation(tuple(Column(name) for name in table.columns if name not in known.ignored))
    names = [column.name for column in known.columns]
    passed_over = [name for name in table.columns if name in known.ignored or is_id(name)]
    if problems := tell_differences(columns.where, table.columns, names, "the model knows", passed_over):
        raise BadInput(problems)
    parts = [_encoded(columns, table[column.name], column, notes) for column in known.columns]
    return np.concatenate(parts, axis=1)


TOKENS = ("tokens", "input_ids")
"""Names of features that are looked up, and stay whole numbers."""


def scale_bytes(values: NDArray[Any], standard: Standard | None = None) -> NDArray[Any]:
    """Return inputs, made of bytes where these are some: by a dataset's standard, or scaled to 0 … 1."""
    if values.dtype != np.uint8:
        return values
    if standard is not None:
        return standard.samples(values)
    inputs = values.astype(np.float32)
    inputs /= 255
    return inputs


def _array_inputs(
    columns: Columns, known: Preparation, notes: list[str], keep_bytes: bool, standard: Standard | None
) -> NDArray[Any]:
    """An array of features as inputs: 8-bit images scaled, images given a channel axis."""
    values = columns.features
    assert isinstance(values, np.ndarray)
    if values.dtype.kind not in "biuf":
        raise BadInput(f"{columns.where}: features are of type {values.dtype}; they must be numbers")
    if values.ndim == 3 and (values.dtype == np.uint8 or columns.feature_key == "image"):
        values = values[..., None]
        notes.append("images without a channel axis were given one")
    if values.ndim == 1:
        values = values[:, None]
    if values.size == 0:
        raise BadInput(f"{columns.where}: features have shape {values.shape}; every sample needs at least one")
    if columns.feature_key in TOKENS:
        if values.dtype.kind not in "iu" or values.min(initial=0) < 0:
            raise BadInput(f"{columns.where}: {columns.feature_key} must hold whole numbers from 0 on")
        return values.astype(np.int64)
    are_bytes = values.dtype == np.uint8 and values.ndim in (4, 5)
    if are_bytes and standard is None:
        notes.append("8-bit images were scaled to 0 … 1")
    if are_bytes and keep_bytes and not known.columns and known.standardise == "none":
        return values
    if values.dtype == np.float32 and storage.is_mapped(values) and known.missing != "zero":
        inputs = values  # nothing is written to them before they are divided, which copies
    else:
        inputs = storage.to_floats(values)
    if are_bytes and standard is not None:
        inputs = standard.samples(values)
    elif are_bytes:
        inputs /= 255
    if known.columns:
        names = known.input_names
        if inputs.shape[1:] != (len(names),):
            raise BadInput(
                f"{columns.where} has features of shape {inputs.shape[1:]} without names; it needs the columns "
                f"{shorten([column.name for column in known.columns])}"
            )
        notes.append(f"the features have no names; they were taken to be {shorten(names)}")
    return inputs


def _encoded(columns: Columns, values: pl.Series, column: Column, notes: list[str]) -> NDArray[np.float32]:
    """One column as inputs `[N, width]`; NaN where there is no value."""
    if column.levels is None:
        odd = _find_odd(values.cast(pl.String))
        if values.dtype in (pl.String, pl.Categorical, pl.Enum) and odd.any():
            row = odd.arg_max() or 0
            raise BadInput(
                f"{columns.where}: column {column.name} in {columns.place(row)} is {values[row]!r}; in training it "
                "held numbers",
                told=f"column {column.name} holds text; in training it held numbers",
            )
        if values.dtype in (pl.Categorical, pl.Enum):
            values = values.cast(pl.String)
        numbers: NDArray[np.float32] = values.cast(pl.Float32).to_numpy(allow_copy=True)
        return np.array(numbers, np.float32)[:, None]
    texts = to_texts(values)
    unknown = texts.filter(~texts.is_in(list(column.levels)))
    if len(unknown):
        counts = [
            f"{text!r} ({(unknown == text).sum()})" for text in unknown.unique(maintain_order=True)[:MOST_NAMES]
        ]
        notes.append(
            f"column {column.name} has values that were not in training: {', '.join(counts)}; the model treats "
            "each as none of those it knows"
        )
    found = np.empty((len(texts), column.width), np.float32)
    for place, level in enumerate(column.levels):
        found[:, place] = (texts == level).cast(pl.Float32).to_numpy()  # NaN where there is no text
    return found


def to_texts(values: pl.Series) -> pl.Series:
    """Return the values of a column as texts; 1.0 is 1, as it was where the column held text, and 1.2 is 1.2."""
    texts = values.cast(pl.String)
    if not values.dtype.is_float():
        return texts
    whole = values.cast(pl.Int64, strict=False)  # null where there is no such number
    return whole.cast(pl.String).zip_with(
        (whole == values).fill_null(value=False), texts.set(values.is_nan(), None)
    )


FINITE = "every value must be a finite 32-bit number"
"""What is right of a value that is too large."""

FILL = "fill them in, or remove them"
"""What to do about missing values where nothing is there to set."""

SET_MISSING = "data.missing = mean, drop or zero says what to do with them, on the command line --set missing=mean"
"""The same for who writes the experiment."""


def handle_missing(
    inputs: NDArray[np.float32], columns: Columns, known: Preparation, notes: list[str], advice: str = FILL
) -> tuple[Columns, NDArray[np.float32]]:
    """Do what is to be done about missing values before data are divided; return the samples that stay.

    `advice` ends the sentence where they are refused, by what the caller's user can set. Zeros are written in
    place. Where means stand for them, they are still NaN afterwards.

    Raises:
        BadInput: there are some, and they are refused; or an input is infinite, also as a 32-bit number.
    """
    if all(np.isfinite(inputs[rows]).all() for rows in storage.blocks(inputs)):
        return columns, inputs
    infinite = np.isinf(inputs)
    if infinite.any():
        raise _bad_value(columns, known, infinite)
    absent = np.isnan(inputs)
    rows = np.any(absent.reshape(len(absent), -1), axis=1)
    if known.missing == "refuse":
        raise _bad_value(columns, known, absent, _count_missing(absent, rows, known, advice))
    if known.missing == "drop":
        were = "was" if rows.sum() == 1 else "were"
        notes.append(f"{rows.sum():,} of {len(rows):,} samples {were} left out, because a value is missing")
        if rows.all():
            raise BadInput(f"{columns.where}: every sample lacks a value; data.missing must be mean or zero")
        return columns.take(~rows), storage.take(inputs, ~rows)
    became = "set to 0" if known.missing == "zero" else "replaced by the mean of the training samples"
    count = sum(_count_by_column(absent, known).values())
    notes.append(f"{count_of(count, 'missing value')} {'was' if count == 1 else 'were'} {became}")
    if known.missing == "zero":
        inputs[absent] = 0
    return columns, inputs


def _count_missing(absent: NDArray[np.bool_], rows: NDArray[np.bool_], known: Preparation, advice: str) -> str:
    if not known.columns:
        return f"{absent.sum():,} of {absent.size:,} values are missing; {advice}"
    lacking = [f"{name} ({count})" for name, count in _count_by_column(absent, known).items() if count]
    return f"{rows.sum():,} of {len(rows):,} rows lack a value in {shorten(lacking)}; {advice}"


def _count_by_column(absent: NDArray[np.bool_], known: Preparation) -> dict[str, int]:
    """Return how many values each column lacks, whose text may be several inputs; all at once without columns."""
    if not known.columns:
        return {"": int(absent.sum())}
    return {c.name: int(absent[:, end - 1].sum()) for c, end in zip(known.columns, known.ends, strict=True)}


def _bad_value(columns: Columns, known: Preparation, bad: NDArray[np.bool_], right: str = FINITE) -> BadInput:
    """What is wrong with the first value that is `bad`, and what would be right."""
    row, *place = (int(k) for k in np.argwhere(bad)[0])
    values = columns.features
    if known.columns:
        name = known.columns[int(np.searchsorted(known.ends, place[0], side="right"))].name
        # Without names they were taken to be those columns.
        value = values[name][row] if isinstance(values, pl.DataFrame) else values[row, place[0]]
        what = "has no value" if value is None or value != value else f"is {value}"
        said = f"column {name} {what} in {columns.place(row)}"
        told = f"column {name} has no finite value in {columns.row(row)}"
    else:
        assert isinstance(values, np.ndarray)
        where = f"row {row}, column {', '.join(map(str, place))} of the features"
        value = values[row, *place] if values.ndim > len(place) else values[row]
        said, told = f"{where} is {value}", f"{where} is not finite"
    return BadInput(f"{columns.where}: {said}; {right}", told=f"{told}; {right}")


@dataclass(frozen=True)
class Sums:
    """What clients tell of their training samples so that all can be standardised alike."""

    rows: NDArray[np.float64]
    """`[3, channels]`: counts, sums and sums of squares of the values that are there; adding them adds clients."""

    @classmethod
    def of(cls, *parts: NDArray[Any]) -> Sums:
        """Of the inputs `[N, *features]` of one client or several; of very many, block by block."""
        found = np.zeros((len(parts), 3, parts[0].shape[-1]))
        for own, inputs in zip(found, parts, strict=True):
            for rows in storage.blocks(inputs):
                values = inputs[rows].reshape(-1, inputs.shape[-1]).astype(np.float64)
                there = ~np.isnan(values)
                values = np.where(there, values, 0)
                own += np.stack([there.sum(0), values.sum(0), (values**2).sum(0)])
        return cls(found.sum(0))

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean of each channel; 0 where nobody has a value."""
        count, total, _ = self.rows
        return np.asarray(total / np.maximum(count, 1))

    @property
    def deviation(self) -> NDArray[np.float64]:
        """The standard deviation of each channel; 1 where all values are the same."""
        count, _, squares = self.rows
        mean_square = squares / np.maximum(count, 1)
        variance = mean_square - self.mean**2
        # What is left of a constant after cancellation is no spread.
        constant = variance <= 1e-12 * np.maximum(mean_square, 1e-30)
        return np.where(constant, 1.0, np.sqrt(np.maximum(variance, 0)))


def fit_to_training(
    inputs: NDArray[Any], bounds: NDArray[np.int64], known: Preparation
) -> tuple[Preparation, NDArray[np.float64] | None]:
    """Fill and standardise the samples of all clients in place, by their training samples alone.

    Args:
        inputs: `[N, *features]`, each client's samples one run of rows.
        bounds: client i's samples are rows `bounds[i, 0]` to `bounds[i, 3]`, those up to `bounds[i, 1]` for
            training.
        known: what is to be done.

    Returns:
        The preparation with the numbers that were found; and each client's own mean and deviation,
        `[n, 2, channels]`, where every client is standardised by its own.
    """
    if known.missing != "mean" and known.standardise == "none":
        return known, None
    if known.missing == "mean" and any(np.isnan(inputs[rows]).any() for rows in storage.blocks(inputs)):
        known = replace(known, fill=_plain(_sum_training(inputs, bounds).mean))
        fill_and_scale(inputs, known)
    if known.standardise == "client":
        scales = np.empty((len(bounds), 2, inputs.shape[-1]))
        for own, (start, stop, _, end) in zip(scales, bounds.tolist(), strict=True):
            sums = Sums.of(inputs[start:stop])
            own[:] = sums.mean, sums.deviation
            _scale(inputs[start:end], own[0], own[1])
        return known, scales
    if known.standardise == "global":
        sums = _sum_training(inputs, bounds)
        known = replace(known, mean=_plain(sums.mean), deviation=_plain(sums.deviation))
        _scale(inputs, sums.mean, sums.deviation)
    return known, None


def _sum_training(inputs: NDArray[Any], bounds: NDArray[np.int64]) -> Sums:
    return Sums.of(*(inputs[start:stop] for start, stop in bounds[:, :2].tolist()))


def _plain(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(values.tolist())


def _scale(inputs: NDArray[Any], mean: Any, deviation: Any) -> None:
    inputs -= np.asarray(mean, inputs.dtype)
    inputs /= np.asarray(deviation, inputs.dtype)


def fill_and_scale(inputs: NDArray[Any], known: Preparation) -> None:
    """Fill and standardise inputs `[N, *features]` in place, as the training data were."""
    if known.fill:
        for rows in storage.blocks(inputs):
            np.copyto(inputs[rows], np.array(known.fill, inputs.dtype), where=np.isnan(inputs[rows]))
    if known.mean:
        _scale(inputs, known.mean, known.deviation)


SCALES_APART = 100
"""How many times the deviation of one input may be that of another before standardising is advised."""


def advise_standardising(inputs: NDArray[np.float32], known: Preparation) -> list[str]:
    """Return a note where inputs `[N, inputs]` are so unequal in scale that small ones are hardly learnt from."""
    if inputs.ndim != 2 or known.standardise != "none":
        return []
    deviation = Sums.of(inputs).deviation
    varies = np.fmax.reduce(inputs, axis=0) > np.fmin.reduce(inputs, axis=0)  # not where all values are missing
    if varies.sum() < 2:
        return []
    names = known.input_names or tuple(f"input {place}" for place in range(inputs.shape[1]))
    deviation = np.where(varies, deviation, np.nan)
    least, most = int(np.nanargmin(deviation)), int(np.nanargmax(deviation))
    ratio = deviation[most] / deviation[least]
    if ratio < SCALES_APART:
        return []
    return [
        f"{names[most]} varies {ratio:,.0f} times as much as {names[least]}; --set standardise=global brings "
        "inputs to one scale"
    ]
