"""The plays of Shakespeare by speaking role: windows of characters, of which the next ones are to be predicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.errors import BadInput

VOCABULARY = "\n" + "".join(map(chr, range(32, 127)))
"""The characters by number: the end of a line and those of ASCII that can be printed, whether or not they occur."""
WINDOW = 80
"""Characters of a sample, as in LEAF (Caldas et al., arXiv 1812.01097)."""
RUN = 4 * WINDOW
"""Speeches of a role are joined until they have so many characters; the windows of such a run stay together."""
MIN_CHARACTERS = 1000
"""A role that says less is left out: it would have fewer than a dozen samples."""

Indices = NDArray[np.int64]


def read_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each role of each play, named `play: ROLE`, and its speeches in order.

    Raises:
        BadInput: the file cannot be read, or has other columns.
    """
    wanted = ["play", "role", "speech", "text"]
    try:
        table = pl.read_parquet(path, columns=wanted)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise BadInput(f"{path} is damaged or not what it should be ({type(error).__name__}); replace it") from None
    rows = table.with_columns(pl.col("play", "role").cast(pl.String)).sort("play", "role", maintain_order=True)
    for (play, role), own in groupby(rows.iter_rows(), key=lambda row: row[:2]):
        speeches = groupby(own, key=lambda row: row[2])
        yield f"{play}: {role}", ["".join(f"{row[3]}\n" for row in lines) for _, lines in speeches]


def encode(text: str) -> NDArray[np.int64]:
    """The characters of a text by their number in `VOCABULARY`.

    Raises:
        BadInput: one is not in it.
    """
    table = np.full(128, -1, np.int64)
    table[[ord(sign) for sign in VOCABULARY]] = np.arange(len(VOCABULARY))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    found = np.where(points < 128, table[np.minimum(points, 127)], -1)
    if (found < 0).any():
        raise BadInput(f"{text[int(np.argmax(found < 0))]!r} is not among the {len(VOCABULARY)} characters")
    return found


def cut_windows(
    roles: Iterable[tuple[str, Sequence[str]]],
) -> tuple[Indices, Indices, Indices, tuple[str, ...], Indices]:
    """Cut the speeches of each role into windows.

    Returns:
        Inputs and targets `[N, WINDOW]`, a target being the character after the one in its place; the role of each
        window `[N]`; the names of the roles; and the run of text that each window is of `[N]`.
    """
    inputs, targets, users, runs = [], [], [], []
    names: list[str] = []
    count = 0
    for name, speeches in roles:
        if sum(map(len, speeches)) < MIN_CHARACTERS:
            continue
        for text in _join_speeches(speeches):
            values = encode(text)
            # The last window ends where the text does: it shares characters with the one before it alone.
            last = len(values) - 1 - WINDOW
            starts = np.unique(np.minimum(np.arange(0, len(values) - 1, WINDOW), last))
            places = starts[:, None] + np.arange(WINDOW)
            inputs.append(values[places])
            targets.append(values[places + 1])
            users.append(np.full(len(starts), len(names)))
            runs.append(np.full(len(starts), count))
            count += 1
        names.append(name)
    return (
        np.concatenate(inputs),
        np.concatenate(targets),
        np.concatenate(users),
        tuple(names),
        np.concatenate(runs),
    )


def _join_speeches(speeches: Sequence[str]) -> list[str]:
    """Whole speeches one after another, in texts of at least `RUN` characters."""
    found, text = [], ""
    for speech in speeches:
        text += speech
        if len(text) >= RUN:
            found.append(text)
            text = ""
    if text and found:
        found[-1] += text
    return found
