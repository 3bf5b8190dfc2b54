"""What real clients agree on before the first round: their columns, the values of text, and how inputs are scaled.

No client knows the file of another, so a federation of tables begins by comparing names:

    1. Each client tells the names of its columns, and which hold text; the values of text only where its operator
       allows it.
    2. The server sends all of them one list of columns, to which each matches its own by name, or refuses.
    3. Where inputs are standardised alike, each tells sums over its training samples, and all hear the means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import polars as pl
from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError

from coterie.clients.data.agree.population import ClientInfo
from coterie.clients.data.read.columns import Columns, Named, tell_differences
from coterie.clients.data.read.preparation import (
    Column,
    Missing,
    Preparation,
    Standardise,
    Sums,
    to_texts,
)
from coterie.errors import BadInput, sentences, shorten

MAX_COLUMNS = 100_000
"""Columns that a message may name."""

MAX_LEVELS = 10_000
"""Values of text that a message may name for one column."""

MAX_TEXT = 1000
"""Characters of a column's name, or of a value of text, in a message."""

LARGEST_SQUARE = float(np.finfo(np.float32).max) ** 2
"""Of a value of an input, which is a 32-bit number."""


@dataclass(frozen=True)
class Agreement:
    """What all clients of a federation do alike.

    Attributes:
        columns: of every client's table, in the order of the inputs; none where features have no names.
        mean: is taken off each input `[channels]`; empty where nothing is, or as long as it is not known.
        deviation: what each input is then divided by.
    """

    columns: tuple[Column, ...] = ()
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def scaled(self, clients: Sequence[ClientInfo]) -> Agreement:
        """Return the same with the mean and the deviation of what these clients told of their samples, in order.

        Raises:
            BadInput: the sums have no finite total.
        """
        with np.errstate(over="ignore"):
            whole = Sums(np.array([client.sums for client in clients]).sum(0))
        if not np.isfinite(whole.rows).all():
            raise BadInput("the sums that the clients sent have no finite total; check the clients' inputs")
        return replace(self, mean=tuple(whole.mean.tolist()), deviation=tuple(whole.deviation.tolist()))

    def preparation(self, missing: Missing, standardise: Standardise, named: Named) -> Preparation:
        """Return how every client makes inputs, as far as it is the same for all."""
        return Preparation(
            self.columns,
            missing=missing,
            standardise=standardise,
            mean=self.mean,
            deviation=self.deviation,
            named=named,
        )

    def to_json(self) -> str:
        return json.dumps(
            {"columns": write_columns(self.columns), "mean": self.mean, "deviation": self.deviation},
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Agreement:
        """Read what `to_json` wrote.

        Raises:
            BadInput: it is something else, or is not possible.
        """
        try:
            found = _WrittenAgreement.model_validate_json(text)
        except ValidationError as error:
            said = "; ".join(sentences(error))
            raise BadInput(
                f"what the clients agreed on is not possible ({said}); it must be as the server wrote it"
            ) from None
        if len(found.mean) != len(found.deviation):
            raise BadInput("the agreed means are not possible; there must be one mean for each deviation")
        return cls(_as_columns(found.columns), found.mean, found.deviation)


_Text = Annotated[str, Field(max_length=MAX_TEXT)]
_WrittenColumns = Annotated[
    list[tuple[_Text, Annotated[list[_Text], Field(max_length=MAX_LEVELS)] | None]], Field(max_length=MAX_COLUMNS)
]
"""Columns in JSON: a name, and the values of text or null for numbers."""


class _WrittenAgreement(BaseModel):
    columns: _WrittenColumns
    mean: tuple[FiniteFloat, ...]
    deviation: tuple[Annotated[FiniteFloat, Field(gt=0)], ...]


def write_columns(columns: Sequence[Column]) -> list[tuple[str, tuple[str, ...] | None]]:
    """Return columns as plain values for JSON."""
    return [(column.name, column.levels) for column in columns]


def read_columns_of(content: Any) -> tuple[Column, ...]:
    """Read columns from plain values that somebody else sent.

    Raises:
        BadInput: they are too many or too long, a name is there twice, or they are something else.
    """
    try:
        return _as_columns(TypeAdapter(_WrittenColumns).validate_python(content))
    except ValidationError as error:
        raise BadInput(sentences(error, "columns")[0]) from None


def _as_columns(written: Sequence[tuple[str, Sequence[str] | None]]) -> tuple[Column, ...]:
    for names in ([name for name, _ in written], *(levels or () for _, levels in written)):
        if len(set(names)) != len(names):
            raise BadInput("a name is there twice; each column, and each value of a column, must be named once")
    return tuple(Column(name, None if levels is None else tuple(levels)) for name, levels in written)


def propose_columns(
    clients: Sequence[ClientInfo],
    names: Sequence[str] | None = None,
    levels: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Column, ...]:
    """Return the columns that every client is to have, in the order of the inputs.

    Args:
        clients: who told which columns they have, the first of whom counts where nothing else is said.
        names: as the experiment says them; None for those of the first client that has named columns.
        levels: the values of text that the experiment names. For other columns of text they are all that clients
            tell, in sorted order.

    Raises:
        BadInput: nobody says which values a column of text may have, or clients tell too many.
    """
    levels = levels or {}
    if names is None:
        names = [column.name for column in next((client.columns for client in clients if client.columns), ())]
    problems = [
        f"data.levels names column {name!r}, which is not among the columns {shorten(names)}; leave it out"
        for name in levels
        if name not in names
    ]
    told: dict[str, set[str]] = {}
    for column in (column for client in clients for column in client.columns if column.levels is not None):
        told.setdefault(column.name, set()).update(column.levels or ())
    found = []
    for name in names:
        known = levels[name] if name in levels else sorted(told[name]) if name in told else None
        found.append(Column(name, None if known is None else tuple(known)))
        if name in levels or known is None:
            continue
        if len(known) > MAX_LEVELS:
            problems.append(
                f"column {name!r} has {len(known):,} different texts among the clients; at most {MAX_LEVELS:,} are "
                "possible: leave it out of the data, or make it numbers"
            )
        elif not known:
            whose = next(c.name for c in clients if any(o.name == name and o.levels is not None for o in c.columns))
            problems.append(
                f"column {name!r} of client {whose} holds text, and the server does not know its possible values; "
                f"name them in the experiment, as in data.levels = {{{name} = ['a', 'b']}}, or let clients report "
                "theirs with --node-config 'tell-levels=true'"
            )
    if problems:
        raise BadInput(problems)
    return tuple(found)


def check_width(columns: Sequence[Column], features: Sequence[int]) -> None:
    """Compare the inputs that agreed columns become with the shape of a sample, before any are made.

    Raises:
        BadInput: they are of another number.
    """
    width = sum(column.width for column in columns)
    if columns and width != math.prod(features):
        widest = sorted(columns, key=lambda column: -column.width)
        shown = shorten([f"{column.name} ({column.width:,})" for column in widest])
        raise BadInput(
            f"data.features = {list(features)} is not possible; it must be [{width}], because the clients' columns "
            f"make that many inputs: {shown}"
        )


def match_columns(columns: Columns, agreed: Sequence[Column], own: Preparation) -> Preparation:
    """Return how a client's table becomes the inputs that the federation agreed on.

    Args:
        columns: as the client read them.
        agreed: the federation's columns.
        own: how the client alone would make inputs of its own.

    Raises:
        BadInput: a column is missing or is one too many, holds text where numbers were agreed on or other values of
            text, or only one side has names. What others are told of it holds no value, and not how many rows have
            one: a server that names all values but one would learn from it how frequent that one is.
    """
    where, table, names = columns.where, columns.features, [column.name for column in agreed]
    if not isinstance(table, pl.DataFrame):
        if not agreed:
            return own
        raise BadInput(
            f"{where}: the features have no names, and those of the federation are {shorten(names)}; name them in "
            "an array 'columns'"
        )
    own_names = {column.name for column in own.columns}
    left_out = [name for name in table.columns if name not in own_names]
    differences = tell_differences(where, table.columns, names, "the federation has", left_out)
    problems = [BadInput(text) for text in differences]
    training = table if columns.given_split is None else table.filter(columns.given_split != 2)
    for column in agreed:
        if column.name not in table.columns or column.levels is None:
            continue
        texts = to_texts(training[column.name]).drop_nulls()
        unknown = texts.filter(~texts.is_in(list(column.levels)))
        if len(unknown):
            values = sorted(unknown.unique().to_list())
            problems.append(
                BadInput(
                    f"{where}: column {column.name} has {shorten([repr(v) for v in values])} in {len(unknown)} "
                    f"rows; the federation knows {shorten(column.levels)}",
                    told=f"column {column.name} has values that data.levels does not name",
                )
            )
    if problems:
        raise BadInput.together(problems)
    ignored = tuple(name for name in own.ignored if name not in names)
    return replace(own, columns=tuple(agreed), ignored=ignored)


def check_sums(rows: Any, channels: int, most: int) -> tuple[tuple[float, ...], ...]:
    """Return what a client tells of its training samples (see `Sums`), if it is possible.

    Args:
        rows: as it tells them.
        channels: length of the last axis of a sample.
        most: values of one channel in all its training samples.

    Raises:
        BadInput: it is of other lengths, not finite, or of no samples that there could be.
    """
    try:
        count, total, squares = np.array(rows, np.float64).reshape(3, channels)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"its sums cannot be read; they must be three rows of {channels} numbers") from None
    # By Cauchy and Schwarz, total² <= count * squares; sums of many samples are rounded.
    with np.errstate(over="ignore", invalid="ignore"):
        possible = (
            (count >= 0)
            & (count <= most)
            & (count == np.floor(count))
            & (squares >= 0)
            & (squares <= count * LARGEST_SQUARE * (1 + 1e-6))
            & (np.abs(total) <= np.sqrt(count * squares * (1 + 1e-6) + 1e-9))
        )
    if not possible.all():
        raise BadInput(f"its sums are not possible; they must be of at most {most:,} finite 32-bit numbers each")
    return tuple(tuple(row.tolist()) for row in (count, total, squares))
