"""A comparison on disk: what is compared, the runs of its cells, the tables and the page made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import BadInput
from coterie.runs.folder.files import write_whole
from coterie.runs.folder.lock import LOCK, lock_folder
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import decode, encode
from coterie.runs.schema import toml
from coterie.runs.schema.sections import numbered_names
from coterie.studies.compare.spec import Cell, Comparison, deciding_tables

if TYPE_CHECKING:
    import polars as pl

    from coterie.studies.compare.measures import Frames

_WHAT = "comparison.toml"

ENDED = ("finished", "interrupted")
"""States of a run whose rounds are all on disk."""


class ComparisonFolder:
    """One comparison on disk. Opening a folder reads nothing and creates nothing.

    The run folders of the cells are in `pool`, each under its key.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.pool = self.path / "cells"

    @classmethod
    @contextmanager
    def hold(cls, parent: Path | str, name: str, comparison: Comparison) -> Iterator[ComparisonFolder]:
        """Write the comparison into the folder `parent/name`, and lock the folder for this process in the block.

        If the folder holds a comparison already, its finished cells are kept.

        Raises:
            BadInput: there is something else, also another comparison, or another process is at it.
        """
        folder = cls(Path(parent) / name)
        path = str(folder.path)
        if folder.path.exists():
            is_other = not folder.path.is_dir() or any(there.name != LOCK for there in folder.path.iterdir())
            if is_other and not folder.is_comparison:
                raise BadInput(f"{path!r} exists and is no comparison; give the comparison another name")
        with lock_folder(folder.path, f"comparison {path!r} is still running; wait for it, or stop it first"):
            try:
                difference = find_difference(folder.comparison(), comparison) if folder.is_comparison else None
            except BadInput as problem:
                raise BadInput([f"{path!r}: {sentence}" for sentence in problem.problems]) from None
            if difference:
                raise BadInput(
                    f"{path!r} holds another comparison: {difference}; give this one another name (--name), or "
                    "remove that folder"
                )
            folder.write_comparison(comparison)
            yield folder

    @property
    def is_comparison(self) -> bool:
        """Whether a comparison is kept here."""
        return (self.path / _WHAT).is_file()

    def comparison(self) -> Comparison:
        """Read what is compared, with the settings that tuning has picked.

        Raises:
            BadInput: the folder holds no comparison, or its file is damaged.
        """
        if not self.is_comparison:
            raise BadInput(f"{str(self.path)!r} is no comparison: it holds no {_WHAT}")
        return Comparison.from_toml(self.path / _WHAT)

    def write_comparison(self, comparison: Comparison) -> None:
        """Write what is compared."""
        write_whole(self.path / _WHAT, comparison.to_toml().encode())

    def cell(self, key: str) -> RunFolder:
        """Return the run folder of a cell, whether it exists or not."""
        return RunFolder(self.pool / key)

    def done(self, cells: Iterable[Cell]) -> dict[str, RunFolder]:
        """Return the run folders of those cells that are finished, by key."""
        return find_finished(cells, self.pool)

    def write_frames(self, frames: Frames, summary: pl.DataFrame) -> None:
        """Write the tables as Parquet: `cells`, `curves`, `clients` and `summary`."""
        tables = {"cells": frames.cells, "curves": frames.curves, "clients": frames.clients, "summary": summary}
        for name, table in tables.items():
            write_whole(self.path / f"{name}.parquet", encode(table, table.schema))

    def tuning(self) -> pl.DataFrame | None:
        """Read the trials by which settings were picked; None where there are none that can be read."""
        from coterie.studies.compare.tuning import TUNING

        try:
            return decode(self.path / "tuning.parquet", TUNING)
        except (BadInput, FileNotFoundError):  # an earlier version's has other columns
            return None

    def write_text(self, name: str, text: str) -> Path:
        """Write a text under a file name and return its path."""
        write_whole(self.path / name, text.encode())
        return self.path / name


def choose_free_name(comparison: Comparison, parent: Path | str) -> Comparison:
    """Return the comparison under the name of its folder: where nobody named it, one that no other comparison has.

    Of NAME, NAME-2, NAME-3, … it is the first that is free, or under which this comparison has begun.
    """
    if comparison.is_named:
        return comparison
    free = next(name for name in numbered_names(comparison.name) if _is_open(Path(parent) / name, comparison))
    return replace(comparison, name=free, is_named=True)


def _is_open(path: Path, comparison: Comparison) -> bool:
    """Whether no other comparison is kept at a path, nor one that cannot be read."""
    folder = ComparisonFolder(path)
    try:
        return not folder.is_comparison or _goes_on(folder.comparison(), comparison)
    except BadInput:
        return False


def _goes_on(kept: Comparison, given: Comparison) -> bool:
    """Whether a comparison nobody named goes on with one that is kept: they share a method in a setting."""
    kept_pairs, pairs = ({(s.name, m.name) for s in c.settings for m in c.methods} for c in (kept, given))
    return bool(kept_pairs & pairs) and find_difference(kept, given) is None


def find_difference(kept: Comparison, given: Comparison) -> str | None:
    """Return in what a comparison differs from one that is kept; None where it goes on with that one.

    It goes on where each method in each setting that both have is the same experiment, also where there is none
    such. Seeds, further methods and settings, the baseline and the target may differ, and so may what tuning has
    picked.
    """
    kept, given = (replace(comparison, tuned={}, adapted={}) for comparison in (kept, given))
    before, now = (
        {(s.name, m.name): (s, m) for s in comparison.settings for m in comparison.methods}
        for comparison in (kept, given)
    )
    for pair in (pair for pair in now if pair in before):
        deciding = [deciding_tables(c.experiment_of(*of[pair], 0)) for c, of in ((kept, before), (given, now))]
        tables = [{f"{title}.{key}": one[title][key] for title in one for key in one[title]} for one in deciding]
        for key in sorted({*tables[0], *tables[1]}):
            there, here = (toml.literal(t[key]) if key in t else "not set" for t in tables)
            if there != here:
                return f"{key} is {there} there and {here} here"
    return None


def find_finished(cells: Iterable[Cell], pool: Path) -> dict[str, RunFolder]:
    """Return the run folders in a pool of those cells that are finished, or as far as they are to go, by key."""
    found = {}
    for cell in {cell.key: cell for cell in cells}.values():
        folder, run = RunFolder(pool / cell.key), cell.experiment.run
        if (progress := folder.progress()) is None:
            continue
        rounds = run.rounds if run.passes is None else progress.rounds
        is_at_rest = progress.state in (("finished",) if cell.until is None else ENDED)
        if is_at_rest and progress.round >= min(rounds, cell.until or rounds):
            found[cell.key] = folder
    return found
