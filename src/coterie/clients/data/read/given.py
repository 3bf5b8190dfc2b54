"""Data given in Python: kept by this process under a digest of them, which is their name in an experiment.

An experiment's file can so say which data it was, but not hold them: whoever goes on with a run gives them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.clients.data.read import storage
from coterie.clients.data.read.columns import (
    MASK,
    ROLES,
    USUAL,
    Columns,
    Named,
    check_lengths,
    join_mask,
    pick_name,
)
from coterie.errors import BadInput

PREFIX = "given-"

KEPT: dict[str, Columns] = {}
"""By name; for as long as the process lives."""

_NAMED: dict[str, Named] = {}
"""What was said of their columns, by name."""

FORMS = "{client: (x, y)}, {client: torch Dataset}, (x, y), a torch Dataset, a frame, or a Hugging Face dataset"


def is_given(value: Any) -> bool:
    """Return whether a value is data, or a mapping of clients to data, and no name or table of settings."""
    if isinstance(value, Mapping):
        return bool(value) and all(_is_part(part) for part in value.values())
    return _is_part(value)


def _is_part(value: Any) -> bool:
    if isinstance(value, str | bytes | Mapping | list) or not hasattr(value, "__len__"):
        return False
    if isinstance(value, tuple):
        return len(value) == 2 and all(hasattr(part, "__len__") and not isinstance(part, str) for part in value)
    return hasattr(value, "__getitem__")


def keep(data: Any, named: Named = USUAL) -> str:
    """Keep data for the experiments of this process; return the name by which these know them.

    Raises:
        BadInput: they are in no form that can be read.
    """
    columns = _read(data, named)
    check_lengths(columns)
    name = f"{PREFIX}{_digest(columns)}"
    _NAMED[name] = named
    KEPT[name] = replace(columns, where="the data given")
    return name


def find_problems(name: str, named: Named = USUAL) -> list[str]:
    """Return why data of that name cannot be had, or not with these columns named."""
    if name in KEPT:
        why = "they were read when they were given; give it with them, as {'name': frame, 'label': 'price'}"
        return [] if _NAMED[name] == named else named.refuse(name, why)
    return [
        f"data = {name!r} were given in Python, to a process that has ended; give them again, as in "
        "coterie.resume(folder, data=...)"
    ]


def fetch(name: str) -> Columns:
    """Return the data that were kept under that name.

    Raises:
        BadInput: there are none, or they have been changed.
    """
    if problems := find_problems(name, _NAMED.get(name, USUAL)):
        raise BadInput(problems)
    if f"{PREFIX}{_digest(KEPT[name])}" != name:
        raise BadInput(f"data = {name!r} have been changed since they were given; give them again")
    return KEPT[name]


def _read(data: Any, named: Named) -> Columns:
    if not isinstance(data, Mapping) or type(data).__module__.startswith("datasets."):
        return _read_part(data, "the data given", named)
    from coterie.clients.data.read.files import pool

    parts = []
    for client, part in data.items():
        columns = _read_part(part, f"the data of client {client!r}", named)
        if columns.users is not None:
            raise BadInput(f"the data of client {client!r} have a client column; give one table, or leave it out")
        parts.append(replace(columns, users=np.full(len(columns.features), str(client))))
    return pool("the data given", parts)


def _read_part(part: Any, where: str, named: Named) -> Columns:
    """One client's data, or everybody's, by what they are."""
    from coterie.clients.data.read.tables import read_table, without_counters

    module = type(part).__module__.split(".")[0]
    table = module in ("datasets", "pandas") or isinstance(part, pl.DataFrame)
    if not table and named != USUAL:
        raise BadInput(named.refuse(where, "they have no columns"))
    if isinstance(part, tuple):
        inputs, labels = part
        if isinstance(inputs, Mapping):
            return _read_tokens(inputs, labels, where)
        return Columns(where, _array(inputs), np.asarray(labels))
    if module == "datasets":
        from coterie.clients.data.read import hub

        return hub.read_given(part, where, named=named)
    if table:
        frame = to_polars(part, where)
        return without_counters([read_table(frame, where, labelled=True, named=named)])[0]
    if not _is_part(part):
        raise BadInput(f"{where} are {type(part).__name__}; give {FORMS}")
    return _read_items(part, where)


def to_polars(frame: Any, where: str) -> pl.DataFrame:
    """Return a frame of polars as it is, and one of pandas as one of polars.

    Raises:
        BadInput: it is another thing, or holds what polars cannot.
    """
    if isinstance(frame, pl.DataFrame):
        return frame
    if type(frame).__module__.split(".")[0] != "pandas" or not hasattr(frame, "columns"):
        raise BadInput(f"{where} are {type(frame).__name__}; give a path, or a frame of polars or pandas")
    columns = {}
    for name in frame.columns:
        values = frame[name].to_numpy()
        if values.dtype.kind == "O":
            values = [None if value is None or value != value else value for value in values.tolist()]
        columns[str(name)] = values
    try:
        return pl.DataFrame(columns, strict=False)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise BadInput(f"{where}: the frame cannot be read ({type(error).__name__}: {error}); mend it") from None


def _read_tokens(inputs: Mapping[str, Any], labels: Any, where: str) -> Columns:
    """Ids of tokens and, beside them, their mask."""
    given = {str(name).lower(): np.asarray(values) for name, values in inputs.items()}
    if not {"input_ids"} <= set(given) <= {"input_ids", MASK}:
        raise BadInput(
            f"{where}: inputs by name are {', '.join(map(repr, inputs))}; they must be 'input_ids', and {MASK!r} "
            "where some do not count"
        )
    ids = given["input_ids"]
    features = join_mask(ids, given[MASK], where) if MASK in given else ids
    return Columns(where, features, np.asarray(labels), feature_key="input_ids")


def _read_items(dataset: Any, where: str) -> Columns:
    """A torch Dataset of pairs of an input and a target, read one item after the other.

    Many samples then lie in a file, and of the items no more than one is held beside them.
    """
    tensors = getattr(dataset, "tensors", None)
    if tensors is not None and len(tensors) == 2:
        return Columns(where, _array(tensors[0]), np.asarray(tensors[1]))
    found: dict[str, NDArray[Any]] = {}
    labels: list[Any] = []
    no_pairs = f"{where}: there must be items, and each a pair of an input and a target; give {FORMS}"
    for place in range(len(dataset)):
        item = dataset[place]
        if isinstance(item, Mapping):
            item = _pair(item, where)
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise BadInput(no_pairs)
        named = item[0] if isinstance(item[0], Mapping) else {"": item[0]}
        if place and named.keys() != found.keys():
            raise BadInput(f"{where}: item {place} names other inputs than item 0; give all items the same")
        for name, value in named.items():
            array = np.asarray(value)
            if _is_tensor(value):
                array = _channels_last(array[None])[0]
            found[name] = _put(found.get(name), array, place, len(dataset), where)
        labels.append(item[1])
    if not found:
        raise BadInput(no_pairs)
    return Columns(where, found[""], np.asarray(labels)) if "" in found else _read_tokens(found, labels, where)


def _pair(item: Mapping[str, Any], where: str) -> tuple[dict[str, Any], Any]:
    """An item that names its parts, as tokenizers make them: its inputs and its target."""
    label = pick_name([str(name) for name in item], ROLES["label"].names, where, "label")
    return {str(name): value for name, value in item.items() if name != label}, item[str(label)]


def _put(found: NDArray[Any] | None, value: NDArray[Any], place: int, count: int, where: str) -> NDArray[Any]:
    """Write one item's input into its place of those of all items; return these.

    Raises:
        BadInput: it has another shape than those before it.
    """
    if found is None:
        found = storage.allocate((count, *value.shape), value.dtype)
    if value.shape != found.shape[1:]:
        raise BadInput(
            f"{where}: inputs have the shapes {found.shape[1:]} and {value.shape}; make them equally large"
        )
    kind = np.result_type(found.dtype, value.dtype)
    if kind != found.dtype:  # as floats after whole numbers
        narrower, found = found, storage.allocate(found.shape, kind)
        for rows in storage.blocks(found):
            found[rows] = narrower[rows]
    found[place] = value
    return found


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch"


def _array(values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    return _channels_last(array) if _is_tensor(values) else array


def _channels_last(inputs: NDArray[Any]) -> NDArray[Any]:
    """Images `[N, channels, height, width]`, as tensors hold them, in the layout of all others."""
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3) and inputs.shape[3] not in (1, 3):
        return np.ascontiguousarray(inputs.transpose(0, 2, 3, 1))
    return inputs


def _digest(columns: Columns) -> str:
    found = blake2b(digest_size=8)
    if isinstance(columns.features, pl.DataFrame):
        for series in columns.features.get_columns():
            found.update(series.name.encode())
            _feed(found, series.to_numpy())
    else:
        _feed(found, columns.features)
    for name, values in columns.named.items():
        found.update(name.encode())
        _feed(found, values)
    return found.hexdigest()


def _feed(digest: Any, values: NDArray[Any]) -> None:
    digest.update(f"{values.dtype.kind} {values.shape}".encode())
    if values.dtype.kind in "OSU":
        digest.update("\0".join(map(repr, values.tolist())).encode())
    else:
        digest.update(np.ascontiguousarray(values).data)
