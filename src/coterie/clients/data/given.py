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

from coterie.clients.data.columns import USUAL, Columns, Named, check_lengths
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
    from coterie.clients.data.files import pool

    parts = []
    for client, part in data.items():
        columns = _read_part(part, f"the data of client {client!r}", named)
        if columns.users is not None:
            raise BadInput(f"the data of client {client!r} have a client column; give one table, or leave it out")
        parts.append(replace(columns, users=np.full(len(columns.features), str(client))))
    return pool("the data given", parts)


def _read_part(part: Any, where: str, named: Named) -> Columns:
    """One client's data, or everybody's, by what they are."""
    from coterie.clients.data.tables import read_table, without_counters

    module = type(part).__module__.split(".")[0]
    table = module in ("datasets", "pandas") or isinstance(part, pl.DataFrame)
    if not table and named != USUAL:
        raise BadInput(named.refuse(where, "they have no columns"))
    if isinstance(part, tuple):
        inputs, labels = part
        return Columns(where, _array(inputs), np.asarray(labels))
    if module == "datasets":
        from coterie.clients.data import hub

        return hub.read_given(part, where, named=named)
    if isinstance(part, pl.DataFrame) or module == "pandas":
        frame = part if isinstance(part, pl.DataFrame) else _from_pandas(part, where)
        return without_counters([read_table(frame, where, labelled=True, named=named)])[0]
    if not _is_part(part):
        raise BadInput(f"{where} are {type(part).__name__}; give {FORMS}")
    return _read_items(part, where)


def _from_pandas(frame: Any, where: str) -> pl.DataFrame:
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


def _read_items(dataset: Any, where: str) -> Columns:
    """A torch Dataset of (input, target): all of it, for what does not fit in memory is given as files."""
    tensors = getattr(dataset, "tensors", None)
    if tensors is not None and len(tensors) == 2:
        return Columns(where, _array(tensors[0]), np.asarray(tensors[1]))
    items = [dataset[place] for place in range(len(dataset))]
    if not items or any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise BadInput(f"{where}: every item must be a pair of an input and a target; give {FORMS}")
    shapes = {np.shape(item[0]) for item in items}
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise BadInput(f"{where}: inputs have the shapes {first} and {second}; make them equally large")
    inputs = np.stack([np.asarray(item[0]) for item in items])
    labels = np.asarray([item[1] for item in items])
    return Columns(where, _channels_last(inputs) if _is_tensor(items[0][0]) else inputs, labels)


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
