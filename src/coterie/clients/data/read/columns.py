"""Data as they are read, before anything is checked; and the names by which their columns and arrays are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.clients.data.read import storage
from coterie.errors import BadInput, nearest_first, shorten


@dataclass(frozen=True)
class Role:
    """What a column of a table, or an array of an archive, is for, and the names that say so."""

    what: str
    """What a message calls it."""
    names: tuple[str, ...]
    """In lower case; data may write them in any case."""
    meaning: str


ROLES: Mapping[str, Role] = {
    "features": Role(
        "features",
        ("features", "x", "inputs", "image", "signal", "tokens", "input_ids"),
        "the inputs of each sample, as one array or one column of lists; without such a column, all other columns "
        "of a table",
    ),
    "label": Role(
        "label",
        ("label", "y", "labels", "target", "targets"),
        "what is predicted; a sample without a label is left out",
    ),
    "client": Role(
        "client",
        ("client", "user", "subject", "writer", "client_id", "user_id", "subject_id", "writer_id"),
        "the client that holds each sample",
    ),
    "split": Role(
        "split",
        ("split",),
        "train, validation or test, or 0, 1 or 2; if it is empty, Coterie decides",
    ),
    "segment": Role(
        "segment",
        ("segment",),
        "samples of a client in one segment are all for training or all for testing",
    ),
    "group": Role(
        "group",
        ("group",),
        "the true group of each client, to compare with the groups that are found",
    ),
    "columns": Role(
        "names of the features",
        ("columns", "feature_names"),
        "in an archive only: the names of the columns of its features",
    ),
}
"""Every name that means more than a feature. Nothing else is recognised."""

MASK = "attention_mask"
"""Stands beside `input_ids`, and says which of them count; both together are the inputs `[N, 2, tokens]`."""

IDS = ("id", "index", "row", "uuid", "", "__index_level_0__")
"""Names of columns that number samples; so does one that ends in `_id`. They are never features."""

MISSING_TEXTS = ("", "NA", "N/A", "n/a", "nan", "NaN", "NAN", "null", "NULL", "None", "?")
"""How files of text write that there is no value."""


def tell_differences(
    where: str, there: Iterable[str], wanted: Sequence[str], whose: str, passed_over: Iterable[str] = ()
) -> list[str]:
    """Return how columns that are there differ from those wanted, one sentence for missing and for further ones.

    Args:
        where: what a sentence calls the data.
        there: their columns.
        wanted: the columns that they should have.
        whose: who has those, with a verb, as in `the model knows`.
        passed_over: columns that may be there beside them.
    """
    own, known, others = dict.fromkeys(there), set(wanted), set(passed_over)
    missing = [name for name in wanted if name not in own]
    extra = [name for name in own if name not in known and name not in others]
    lists = (f"column{'s' * (len(names) > 1)} {shorten(names)}" for names in (missing, extra))
    lacks, has = lists
    names = shorten(wanted) if wanted else "features without names"
    found = [f"{where} has no {lacks}; {whose} {names}"] if missing else []
    return found + ([f"{where} has {has}, and {whose} only {names}; leave it out"] if extra else [])


@dataclass(frozen=True)
class Named:
    """What the label and the client of data are called where the usual names do not say it; None where they do."""

    label: str | None = None
    client: str | None = None
    asks: bool = field(default=False, compare=False, kw_only=True)
    """Whether a note asks who the clients are, where files and a column may both be."""

    @property
    def keys(self) -> dict[str, str]:
        """Those that are given, by their role, which is also their key in the section `[data]`."""
        return {role: name for role, name in (("label", self.label), ("client", self.client)) if name is not None}

    def pick(
        self, role: str, names: Iterable[str], where: str, needed: bool, usual: tuple[str, ...] = ()
    ) -> str | None:
        """Return the name of a role, the given one or the usual one; None if none is there or needed.

        Raises:
            BadInput: it is not there and needed, or several usual names are.
        """
        names, given = list(names), self.keys
        own = given.get(role)
        if own is None:
            others = [name for name in names if name not in given.values()]
            return pick_name(others, usual or ROLES[role].names, where, ROLES[role].what, needed)
        if own not in names and needed:
            known = shorten(nearest_first(own, names))
            raise BadInput(f"data.{role} = {own!r} is no column of {where}; it must be one of {known}")
        return own if own in names else None

    def refuse(self, data: str, why: str) -> list[str]:
        """Return why columns cannot be named with such data."""
        return [
            f"data.{role} = {name!r} is not possible with data = {data!r}: {why}; leave it out"
            for role, name in self.keys.items()
        ]


USUAL = Named()
"""The label and the client have usual names."""


@dataclass(frozen=True)
class Columns:
    """Data as read, before anything is checked.

    `where` names the file in error sentences; `user_key` is the name of the users' column. All but `features` have
    one entry a sample, `[N]`, and are None where they are not given.
    """

    where: str
    features: NDArray[Any] | pl.DataFrame
    """`[N, ...]`, or a table of named columns."""
    labels: NDArray[Any] | None
    users: NDArray[Any] | None = None
    user_key: str = "client"
    notes: tuple[str, ...] = ()
    feature_key: str = "features"
    given_split: NDArray[np.int8] | None = None
    """0 for training, 1 for validation, 2 for test, -1 where it is open."""
    segments: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    ignored: Mapping[str, str] | None = None
    """Columns of a table that are no features, and why."""
    lines: NDArray[np.int64] | None = None
    """Where a file of text holds each sample, as a spreadsheet counts: its names are in line 1."""

    @property
    def named(self) -> dict[str, NDArray[Any]]:
        """What is given beside the features, by its role."""
        values = {
            "label": self.labels,
            self.user_key: self.users,
            "split": self.given_split,
            "segment": self.segments,
            "group": self.groups,
        }
        return {name: value for name, value in values.items() if value is not None}

    def take(self, rows: NDArray[np.bool_]) -> Columns:
        """Return the samples that `rows` `[N]` marks."""

        features = self.features
        taken = features.filter(rows) if isinstance(features, pl.DataFrame) else storage.take(features, rows)
        return replace(self, features=taken, **take_each(self, PER_SAMPLE, rows))

    def row(self, row: int) -> str:
        """Say where a sample is, for a message: its line in a file of text, else its row from 0 on."""
        return name_row(row) if self.lines is None else f"line {self.lines[row]}"

    def place(self, row: int) -> str:
        """Say which sample a row is, and whose, for a message."""
        user = "" if self.users is None else str(self.users[row])
        if user and not user.lower().startswith(self.user_key):  # a client may be called factory 7
            user = f"{self.user_key} {user}"
        return f"{self.row(row)} ({user})" if user else self.row(row)


PER_SAMPLE = ("labels", "users", "given_split", "segments", "groups", "lines")
"""The fields of `Columns` that have one entry a sample beside its features."""


def take_each(held: Any, names: Iterable[str], rows: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the rows `[N]` that are marked of each of these arrays, by name; None where there is none."""
    arrays = {name: getattr(held, name) for name in names}
    return {name: None if values is None else values[rows] for name, values in arrays.items()}


OR_SAY_WHICH = ", or say which it is: data.label in the experiment, --set label=COLUMN on the command line"


def pick_name(
    names: Iterable[str],
    accepted: tuple[str, ...],
    where: str,
    what: str,
    needed: bool = True,
) -> str | None:
    """The one name among `names` that is accepted for `what`, in any case; None if none is there or needed.

    Raises:
        BadInput: several are there, or none is and one is needed.
    """
    found = [name for name in names if name.lower() in accepted]
    if len(found) > 1:
        raise BadInput(f"{where} has {' and '.join(found)}, which all name the {what}; keep one of them")
    if not found and needed:
        there = ", ".join(names) or "nothing"
        raise BadInput(
            f"{where} has no {what} (it has {there}); name one of them {', '.join(accepted[:-1])} or {accepted[-1]}"
            f"{OR_SAY_WHICH if what == 'label' else ''}"
        )
    return found[0] if found else None


def pick_roles(
    names: Iterable[str],
    where: str,
    labelled: bool,
    named: Named = USUAL,
    usual: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> dict[str, str | None]:
    """Return the name of each role that stands beside the features: label, client, split, segment and group.

    `usual` has the names of roles that are called in other ways than everywhere else.

    Raises:
        BadInput: several names claim a role; or there is no label, or not what is `named`, and data must be
            `labelled`.
    """
    names = list(names)
    return {
        role: named.pick(
            role, names, where, labelled and (role == "label" or role in named.keys), usual.get(role, ())
        )
        for role in ("label", "client", "split", "segment", "group")
    }


def find_mask(features: str, names: Iterable[str]) -> str | None:
    """Return the name of the mask that stands beside the features, where these are the ids of tokens."""
    return next((name for name in names if name.lower() == MASK), None) if features.lower() == "input_ids" else None


def join_mask(ids: NDArray[Any], mask: NDArray[Any], where: str) -> NDArray[Any]:
    """Return ids of tokens `[N, tokens]` and their mask, as large, as `[N, 2, tokens]`.

    Raises:
        BadInput: their shapes differ, or the mask holds other numbers than 0 and 1.
    """
    if ids.shape != mask.shape or not np.isin(mask, (0, 1)).all():
        raise BadInput(
            f"{where}: {MASK} has shape {mask.shape} and input_ids {ids.shape}; the shapes must be equal, and the "
            "mask must be 1 where a token counts and 0 elsewhere"
        )
    return np.stack([ids, mask.astype(ids.dtype)], 1)


def is_id(name: str) -> bool:
    """Return whether a column's name says that it numbers samples."""
    plain = name.strip().lower()
    return plain in IDS or plain.endswith("_id") or plain.startswith("unnamed: ")


def check_lengths(columns: Columns) -> None:
    """One label and one user per sample, where there are any.

    Raises:
        BadInput: the arrays do not have the same length, or have no axis at all.
    """
    values: Mapping[str, NDArray[Any] | pl.DataFrame] = {"features": columns.features, **columns.named}
    for name, each in values.items():
        if not each.shape or (name not in ("features", "label") and len(each.shape) != 1):
            raise BadInput(f"{columns.where}: {name} has shape {each.shape}; it needs one entry per sample")
    lengths = {name: len(each) for name, each in values.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise BadInput(f"{columns.where}: {counts} entries; they must have as many, one per sample")


SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "0"), 0),
    **dict.fromkeys(("validation", "valid", "val", "dev", "1"), 1),
    **dict.fromkeys(("test", "testing", "2"), 2),
    **dict.fromkeys(("none", "nan", "", "-1"), -1),
}


def name_row(row: int, first_line: int | None = None) -> str:
    """Say where a sample is: its row from 0 on, or its line where a file of text has the first sample in a line."""
    return f"row {row}" if first_line is None else f"line {row + first_line}"


def read_split(values: NDArray[Any] | None, where: str, first_line: int | None = None) -> NDArray[np.int8] | None:
    """Return what each sample is for `[N]`: 0 training, 1 validation, 2 test; -1 where a value is empty.

    None where data do not say it at all.

    Raises:
        BadInput: a value is none of these.
    """
    if values is None:
        return None
    if values.ndim != 1:
        raise BadInput(f"{where}: split has the shape {values.shape}; it must have one value a sample")
    found, which = np.unique(values.astype(str), return_inverse=True)
    numbers = np.array([SPLIT_WORDS.get(value.strip().lower().removesuffix(".0"), -2) for value in found], np.int8)
    if (numbers < -1).any():
        row = int(np.argmax(numbers[which] < -1))
        place, right = name_row(row, first_line), "it must be train, validation or test, or 0, 1 or 2"
        raise BadInput(
            f"{where}: split in {place} is {values[row]!s}; {right}",
            told=f"split in {place} is none of these; {right}",
        )
    return numbers[which]


def make_columns(
    where: str,
    features: NDArray[Any] | pl.DataFrame,
    roles: Mapping[str, str | None],
    held: Mapping[str, Any],
    feature_key: str,
    ignored: Iterable[str] | Mapping[str, str],
    first_line: int | None = None,
) -> Columns:
    """Return features with what stands beside them, `held` by the names that `roles` gives it.

    `first_line` is where a file of text holds the first sample; without it, samples are counted from 0.

    Raises:
        BadInput: a split is none.
    """
    given = {role: None if name is None else np.asarray(held[name]) for role, name in roles.items()}
    return Columns(
        where,
        features,
        given["label"],
        given["client"],
        (roles["client"] or "client").lower(),
        feature_key=feature_key.lower(),
        given_split=read_split(given["split"], where, first_line),
        segments=given["segment"],
        groups=given["group"],
        ignored=ignored if isinstance(ignored, Mapping) else dict.fromkeys(ignored, ""),
        lines=None if first_line is None else np.arange(len(features)) + first_line,
    )


PLACES = (
    *("hospital", "clinic", "ward", "site", "center", "centre", "school", "station", "store", "branch", "plant"),
    *("device", "machine", "person", "patient", "participant", "region"),
)
"""What people call a column by whose values samples belong to somebody, beside the usual names."""


def sort_places(names: Iterable[str]) -> list[str]:
    """Return the columns that are called as those of `PLACES`, in the order of these."""
    return sorted((name for name in names if name.lower() in PLACES), key=lambda name: PLACES.index(name.lower()))
