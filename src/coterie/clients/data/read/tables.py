"""Tables: which of their columns are features, and the table as columns; `.csv` and `.parquet` files are such."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.clients.data.read.columns import (
    MISSING_TEXTS,
    USUAL,
    Columns,
    Named,
    find_mask,
    is_id,
    join_mask,
    make_columns,
    name_row,
    pick_roles,
    tell_differences,
)
from coterie.errors import BadInput
from coterie.room import require

SEPARATORS = ",;\t|"
"""What may stand between the values of a `.csv` file; the one that its first line has most often does."""

COUNTING_ROWS = 10
"""In a table of at least so many rows, whole numbers that go up by one from row to row number the rows."""


@dataclass(frozen=True)
class Header:
    """What the columns of a table are for."""

    features: tuple[str, ...]
    is_list: bool
    """Whether the features are one column of lists, or such a one of ids of tokens and one of their mask."""
    roles: Mapping[str, str | None]
    ignored: Mapping[str, str]
    """Columns that are no features, and why."""


def read_header(schema: Mapping[str, Any], where: str, labelled: bool, named: Named = USUAL) -> Header:
    """Return what the columns of a table are for, by their names and types.

    Raises:
        BadInput: a column is missing or of a type that cannot be used.
    """
    roles = pick_roles(schema, where, labelled, named)
    rest = {name: kind for name, kind in schema.items() if name not in roles.values()}
    lists = [name for name, kind in rest.items() if kind.is_nested()]
    if lists:
        ids = next((name for name in lists if name.lower() == "input_ids"), None)
        if ids is None and len(lists) > 1:
            raise BadInput(
                f"{where} has several list columns ({', '.join(lists)}); keep the one that holds the features"
            )
        features = tuple(name for name in (ids, find_mask(ids, lists)) if name) if ids else tuple(lists)
        return Header(features, True, roles, {name: "" for name in rest if name not in features})
    ignored = {name: "an id" for name in rest if is_id(name)}
    ignored |= {
        name: f"of type {kind}" for name, kind in rest.items() if name not in ignored and not _is_usable(kind)
    }
    features = tuple(name for name in rest if name not in ignored)
    if not features:
        label = roles["label"]
        beside = f"beside {label} " if label else ""
        raise BadInput(f"{where} has no features; {beside}it needs columns of numbers or text, or one list column")
    return Header(features, False, roles, ignored)


def _is_usable(kind: Any) -> bool:
    return bool(kind.is_numeric() or kind in (pl.Boolean, pl.String, pl.Categorical, pl.Enum, pl.Null))


def read_table(
    table: pl.DataFrame, where: str, labelled: bool, named: Named = USUAL, first_line: int | None = None
) -> Columns:
    """Return a table as columns. Rows and values are as they are; nothing is checked but names and types.

    `first_line` is where a file of text holds the first row; without it, rows are counted from 0.

    Raises:
        BadInput: a column is missing or of a type that cannot be used.
    """
    vast = [name for name, kind in table.schema.items() if kind.is_integer() and "128" in str(kind)]
    table = table.with_columns(pl.col(vast).cast(pl.Float64))  # NumPy has no such numbers
    header = read_header(dict(table.schema), where, labelled, named)
    features: NDArray[Any] | pl.DataFrame = table.select(header.features)
    if header.is_list:
        features, *mask = (_list_column(table[name], where) for name in header.features)
        features = join_mask(features, mask[0], where) if mask else features
    held = {}
    for role, name in header.roles.items():
        if name is None:
            continue
        column = table[name]
        if role in ("client", "segment", "group") and column.is_null().any():
            row = name_row(column.is_null().arg_max() or 0, first_line)
            raise BadInput(f"{where}: column {name} has no value in {row}; every row needs one")
        held[name] = _list_column(column, where) if column.dtype.is_nested() else _values(column)
    key = header.features[0] if header.is_list else "features"
    return make_columns(where, features, header.roles, held, key, header.ignored, first_line)


def _values(column: pl.Series) -> NDArray[Any]:
    if column.dtype == pl.Duration:  # which no text stands for
        return column.to_physical().to_numpy()
    if column.dtype in (pl.Categorical, pl.Enum) or column.dtype.is_temporal():
        column = column.cast(pl.String)
    return column.to_numpy()


def without_counters(files: list[Columns]) -> list[Columns]:
    """Return files without the columns that number the rows of every one of them."""
    tables = [file.features for file in files if isinstance(file.features, pl.DataFrame)]
    if len(tables) < len(files):
        return files
    counting = [{column.name for column in table.get_columns() if _counts_rows(column)} for table in tables]
    names = [name for name in tables[0].columns if all(name in own for own in counting)]
    if not names or len(names) == len(tables[0].columns):
        return files
    why = dict.fromkeys(names, "it numbers the rows")
    return [
        replace(file, features=table.drop(names), ignored={**(file.ignored or {}), **why})
        for file, table in zip(files, tables, strict=True)
    ]


def _counts_rows(column: pl.Series) -> bool:
    """Whether whole numbers go up by one from row to row."""
    if len(column) < COUNTING_ROWS or not column.dtype.is_integer() or column.is_null().any():
        return False
    return bool((np.diff(column.to_numpy().astype(np.int64)) == 1).all())


def read_parquet(path: Path, labelled: bool, named: Named = USUAL) -> Columns:
    """Read a `.parquet` file.

    Raises:
        BadInput: it is damaged, or its columns cannot be used.
    """
    try:
        schema = pl.read_parquet_schema(path)
        columns = len(schema)
        _refuse_many(path, columns)
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
        lists = [pl.col(name).list.len().sum() for name, kind in schema.items() if isinstance(kind, pl.List)]
        counted = pl.scan_parquet(path).select(lists).collect(engine="streaming").row(0) if lists else ()
        values = rows * columns + sum(map(int, counted))
        require(values * BYTES_PER_VALUE, f"{path}, with {values:,} values in {rows:,} rows", "take fewer rows")
        table = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise BadInput(
            f"{path} is damaged or not what its name says ({type(error).__name__}); replace it"
        ) from None
    return read_table(table, str(path), labelled, named)


MOST_COLUMNS = 50_000
"""Columns of a table at most; each is looked at by itself."""
BYTES_PER_VALUE = 12
"""What a value of a table takes until it is an input: about 10 while it is read, then 4 beside its 8."""

FIRST_LINE = 2
"""Where the first sample of a `.csv` file is, as a spreadsheet counts."""


def read_csv(path: Path, labelled: bool, named: Named = USUAL) -> Columns:
    """Read a `.csv` file: a line of names, then a line a sample.

    Raises:
        BadInput: it is no table, or its columns cannot be used.
    """
    return read_table(read_csv_table(path), str(path), labelled, named, FIRST_LINE)


def _refuse_many(path: Path, columns: int) -> None:
    """Let a table pass that has no more columns than can be looked at one by one.

    Raises:
        BadInput: it has more.
    """
    if columns > MOST_COLUMNS:
        raise BadInput(
            f"{path} has {columns:,} columns, and a table may have {MOST_COLUMNS:,}; save so many features as one "
            "array in a .npz file"
        )


def read_csv_table(path: Path, rows: int | None = None, texts: Sequence[str] = ()) -> pl.DataFrame:
    """Read a `.csv` file as a table; each column is of numbers, or of dates, where all its values are.

    Decimals may have a comma where another sign stands between values. Columns of `texts` stay as they are written.

    Raises:
        BadInput: it is no table of UTF-8 text.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline().strip("\r\n")
        separator = max(SEPARATORS, key=first.count)
        names = [name.strip().strip('"') for name in first.split(separator)]
        _refuse_many(path, len(names))
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice and '"' not in first:
            raise BadInput(f"{path} has column {twice[0]!r} twice; give every column a name of its own")
        read = partial(
            pl.read_csv,
            path,
            separator=separator,
            n_rows=rows,
            infer_schema_length=rows,
            null_values=list(MISSING_TEXTS),
            schema_overrides=dict.fromkeys(texts, pl.String),
            try_parse_dates=True,
        )
        table = read()
        if separator != "," and pl.String in table.dtypes:
            by_comma = read(decimal_comma=True)
            table = min(table, by_comma, key=lambda each: each.dtypes.count(pl.String()))
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = "" if isinstance(error, OSError) else _find_broken_line(path, separator)
        reason = reason or f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise BadInput(
            f"{path} cannot be read as a table ({reason}); mend it",
            told=f"{path} cannot be read as a table ({type(error).__name__}); mend it",
        ) from None
    empty = [
        column.name for column in table.get_columns() if column.is_null().all()
    ]  # of no type, whatever was inferred
    return table.with_columns(pl.col(empty).cast(pl.Null)) if empty else table


def _find_broken_line(path: Path, separator: str) -> str:
    """Return what is wrong with the first broken line of a `.csv` file; nothing if none is found."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.reader(file, delimiter=separator, strict=True)
        line = 0
        try:
            width, line = len(next(rows, [])), rows.line_num
            for row in rows:
                line = rows.line_num
                if len(row) > width:
                    return f"line {line} has {len(row)} values, and the header {width}"
        except csv.Error:
            return f"line {line + 1} opens a quote that is not closed"
    return ""


def _list_column(column: pl.Series, where: str) -> NDArray[Any]:
    """A list or array column as `[N, width]`; all rows must be equally long."""
    if isinstance(column.dtype, pl.List) and column.list.len().n_unique() == 1:
        column = column.list.to_array(column.list.len()[0] or 0)
    is_array = isinstance(column.dtype, pl.Array) and not column.has_nulls()
    values = column.to_numpy() if is_array else np.empty(0, np.object_)
    if values.dtype.kind not in "biuf":
        raise BadInput(
            f"{where}: column {column.name} is of type {column.dtype}; its rows must be equally long lists of "
            "numbers"
        )
    return values


def join_tables(tables: list[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """Put the features of several tables, each with what a message calls it, one below the other, by their names.

    Raises:
        BadInput: one of them has other columns than the first.
    """
    (first, begun), *others = tables
    for where, table in others:
        if problems := tell_differences(where, table.columns, begun.columns, f"{first} has"):
            raise BadInput(problems)
    return pl.concat([table.select(begun.columns) for _, table in tables], how="vertical_relaxed")
