"""Runs as the report reads them: each table is loaded once, and labels are unique on a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import polars as pl

from coterie.errors import BadInput
from coterie.runs.folder.group_traits import GroupTraits
from coterie.runs.folder.metrics import ADAPTED, RunMetrics, summary
from coterie.runs.folder.picture import Picture
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import FEDERATION, INTERVALS, rounds_without_all, take_adapted

MEGABYTE = 1e6

T = TypeVar("T")

UNCHECKED = "an earlier version wrote this run and kept no digests of its files, so damage to them may go unnoticed"
"""What is said of a run that is not `RunFolder.is_checked`."""


@dataclass(frozen=True)
class RunResults:
    """One run folder, read as needed and once."""

    folder: RunFolder
    label: str
    damage: list[str] | None = None
    """Gets a sentence on each damaged file that a reader can do without, which counts as missing; None: raise."""

    @cached_property
    def metrics(self) -> RunMetrics:
        """The run's metrics in order, the first of which decides."""
        return self.folder.metrics

    @cached_property
    def rounds(self) -> pl.DataFrame:
        """The table of rounds (`coterie.runs.folder.tables.rounds_schema`)."""
        return self.folder.rounds()

    @cached_property
    def clients(self) -> pl.DataFrame:
        """The clients' table (`clients_schema`); a metric that is not a number is missing."""
        return self._without_nan(self.folder.clients())

    def _without_nan(self, clients: pl.DataFrame) -> pl.DataFrame:
        names = {name for metric in self.metrics.of for name in (metric.name, f"{ADAPTED}{metric.name}")}
        return clients.with_columns(pl.col([name for name in clients.columns if name in names]).fill_nan(None))

    @cached_property
    def last(self) -> pl.DataFrame:
        """The clients at the last round that evaluated them, ascending by client."""
        return self.clients.filter(pl.col("round") == pl.col("round").max())

    @cached_property
    def picture(self) -> Picture | None:
        return self._read_sound(self.folder.picture)

    def _read_sound(self, read: Callable[[], T | None]) -> T | None:
        """Return what is read; None where it is damaged and that is to be noted."""
        try:
            return read()
        except BadInput as problem:
            if self.damage is None:
                raise
            self.damage.extend(problem.problems)
            return None

    @cached_property
    def intervals(self) -> pl.DataFrame:
        """How sure the last scores are, the table `INTERVALS`; without rows where that was not kept."""
        found = self._read_sound(self.folder.intervals)
        return pl.DataFrame(schema=INTERVALS) if found is None else found

    @cached_property
    def group_traits(self) -> GroupTraits | None:
        """What tells the groups of the last evaluated round apart; None where that was not kept."""
        found = self._read_sound(self.folder.group_traits)
        return found if found is not None and found.round == self.last["round"].max() else None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Last values, scores over the last evaluated rounds (`evaluation.last`), best round and totals.

        Raises:
            BadInput: no round is finished.
        """
        last = self.folder.experiment().get("evaluation", {}).get("last", 1)
        return summary(self.rounds, self.metrics, last, rounds_without_all(self.folder.failures()))

    @cached_property
    def federation(self) -> pl.DataFrame:
        """The table `coterie.runs.folder.tables.FEDERATION`; empty for a run that kept none."""
        federation = self._read_sound(self.folder.federation)
        return pl.DataFrame(schema=FEDERATION) if federation is None else federation

    @cached_property
    def names(self) -> dict[int, str]:
        """The name of each client; empty for a run that kept none."""
        return dict(self.federation.select("client", "name").iter_rows())

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called, in the order of their numbers; empty where they have numbers alone."""
        return tuple(map(str, self.folder.environment().get("classes", ())))

    @cached_property
    def newcomers(self) -> pl.DataFrame | None:
        """The table `coterie.runs.folder.tables.newcomers_schema`; what is not a number is missing."""
        newcomers = self._read_sound(self.folder.newcomers)
        return None if newcomers is None else newcomers.with_columns(pl.col(pl.Float64).fill_nan(None))

    @cached_property
    def log(self) -> pl.DataFrame:
        """The table `LOG`; of a number that was logged twice in a round, the later one."""
        return self.folder.log().unique(["round", "name", "of"], keep="last", maintain_order=True)

    def logged(self, name: str) -> pl.DataFrame:
        """What was logged under `name`: round, of, value, ascending by round; empty where nothing was."""
        return self.log.filter(pl.col("name") == name).select("round", "of", "value")

    @cached_property
    def promise(self) -> Mapping[str, Any] | None:
        """The promise of privacy, `epsilon`, `delta`, `hides`, `noise by`; None where the run promises nothing."""
        return self.folder.environment().get("privacy")

    @cached_property
    def epsilon(self) -> float | None:
        """What has been spent of the promise; None where nothing is promised, or no round is finished."""
        spent = self.logged("epsilon")["value"].to_list() if self.promise is not None else []
        return float(spent[-1]) if spent else None

    @cached_property
    def clustered(self) -> bool:
        """Whether there were ever two groups at a time."""
        groups = self.clients.filter(pl.col("group") >= 0).group_by("round").agg(pl.col("group").n_unique())
        return bool((groups["group"] > 1).any())


@dataclass(frozen=True)
class AdaptedRun(RunResults):
    """A run as it is after the clients' adaptation: those scores stand in the place of the ones before."""

    @cached_property
    def rounds(self) -> pl.DataFrame:
        """The table of rounds, its metrics after adaptation."""
        return take_adapted(self.folder.rounds())

    @cached_property
    def clients(self) -> pl.DataFrame:
        """The clients' table, its scores after adaptation."""
        return self._without_nan(take_adapted(self.folder.clients()))

    @cached_property
    def intervals(self) -> pl.DataFrame:
        """How sure the last scores after adaptation are."""
        return super().intervals.with_columns(low="adapted_low", high="adapted_high")


def read_runs(folders: Sequence[RunFolder], damage: list[str] | None = None) -> list[RunResults]:
    """Return the runs in the order given; folders of one name get `name (2)`, `name (3)`, … as labels.

    `damage` is as in `RunResults`.
    """
    runs: list[RunResults] = []
    for folder in folders:
        twins = sum(run.folder.name == folder.name for run in runs)
        runs.append(RunResults(folder, f"{folder.name} ({twins + 1})" if twins else folder.name, damage))
    return runs


def method_name(experiment: Mapping[str, Any]) -> str:
    """Return the name of an experiment's method, written as `method = "x"` or as a table with a `name`."""
    method = experiment.get("method")
    if isinstance(method, Mapping):
        method = method.get("name")
    return str(method) if method else "unknown"
