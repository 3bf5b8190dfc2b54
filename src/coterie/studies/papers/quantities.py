"""What a table or a figure shows: one number of each run, read from its folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coterie.runs.folder.metrics import RunMetrics

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    from coterie.runs.folder.run_folder import RunFolder

Row = Mapping[str, Any]
MEGABYTE = 1e6
NAN = math.nan
REACHED = "over the seeds that reach it"


@dataclass(frozen=True)
class AtLeast:
    """A number that lies beyond what was run: a round, bytes or seconds that were never reached."""

    bound: float


@dataclass(frozen=True)
class BuiltIn:
    """A quantity that every run has: its unit, what it is, and how it follows from a row of the table of cells."""

    unit: str
    meaning: str
    of: Callable[[Row], float | AtLeast | None]


def _until_target(
    column: str, run: Callable[[Row], float], per: float = 1.0
) -> Callable[[Row], float | AtLeast | None]:
    """Return what reads a column on the target; where it was not reached, the number is beyond what the run has."""

    def read(row: Row) -> float | AtLeast | None:
        if row["target"] is None:
            return None
        return AtLeast(run(row) / per) if row[column] is None else float(row[column]) / per

    return read


def _read(column: str, times: float = 1.0, per: float = 1.0) -> Callable[[Row], float | None]:
    """Return what reads a column, in another unit; None stays None."""
    return lambda row: None if row[column] is None else float(row[column]) * times / per


def built_in(metrics: RunMetrics) -> dict[str, BuiltIn]:
    """Return the quantities that every run with these metrics has, of its last evaluated rounds or as a whole.

    Of a run that never reaches the target only a bound is known.
    """
    measures = {
        name: BuiltIn("%" if metric.is_share else "", metric.meaning, _read(name, 100 if metric.is_share else 1))
        for name, metric in metrics.measures.items()
    }
    return {**measures, **_OF_EVERY_RUN}


_OF_EVERY_RUN: dict[str, BuiltIn] = {
    "groups": BuiltIn("", "groups in the last round", _read("groups")),
    "ari": BuiltIn("", "adjusted Rand index against the true groups", _read("ari")),
    "nmi": BuiltIn("", "normalised mutual information with the true groups", _read("nmi")),
    "up_mb": BuiltIn("MB", "sent to the server in all", _read("up_bytes", per=MEGABYTE)),
    "down_mb": BuiltIn("MB", "sent to the clients in all", _read("down_bytes", per=MEGABYTE)),
    "mb": BuiltIn("MB", "sent both ways in all", lambda row: (row["up_bytes"] + row["down_bytes"]) / MEGABYTE),
    "seconds": BuiltIn("s", "simulated time in all", _read("simulated_seconds")),
    "rounds_to_target": BuiltIn(
        "rounds",
        f"rounds to the target, {REACHED}",
        _until_target("rounds_to_target", lambda row: row["rounds"] + 1),
    ),
    "mb_to_target": BuiltIn(
        "MB",
        f"sent both ways until the target, {REACHED}",
        _until_target("bytes_to_target", lambda row: row["up_bytes"] + row["down_bytes"], per=MEGABYTE),
    ),
    "seconds_to_target": BuiltIn(
        "s",
        f"simulated time until the target, {REACHED}",
        _until_target("seconds_to_target", lambda row: row["simulated_seconds"]),
    ),
}


def known_measures(metrics: RunMetrics) -> list[str]:
    """Return the columns of the table of rounds that a quantity may name."""
    from coterie.runs.folder.tables import adapted_columns, rounds_schema

    schema = rounds_schema(metrics)
    return [name for name in (*schema, *adapted_columns(schema)) if name != "round"]


PLACES = ("at", "round", "first_above", "first_below", "share_above", "drop_at")
"""Which of a course's values count; a quantity has one of them."""


class Quantity(BaseModel):
    """A quantity that an item defines: one of `log`, `measure`, `rounds_to` and `correlation`, read per run."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    log: str | None = None
    """The name of what the method logs."""
    of: str = ""
    """Which part of it: exact, a glob (then the mean over the parts), or the clients @few_shot or @others."""
    measure: str | None = None
    """A column of the table of rounds."""
    rounds_to: float | None = None
    """The first evaluated round in which the item's measure is at least this; at most, where less is better."""
    correlation: Literal["label-kl"] | None = None
    """Pearson's correlation between the picture's distances of clients and the divergence of their labels."""
    at: Literal["last", "first", "mean", "min", "max", "sum", "count"] | None = None
    round: int | None = Field(None, ge=1)
    """The last value at or before this round."""
    first_above: float | None = None
    first_below: float | None = None
    """The first round with a value above or below this."""
    share_above: float | None = None
    """The share of the rounds with a value above this."""
    drop_at: str | None = None
    """The name of what the method logs: what the measure loses where that is first above 0. That is its last value
    before that round, less the worst from there to two rounds later; positive where it gets worse."""
    unit: Literal["%"] | None = None
    """% multiplies by 100."""

    @model_validator(mode="after")
    def _find_misfits(self) -> Self:
        sources = [k for k in ("log", "measure", "rounds_to", "correlation") if getattr(self, k) is not None]
        places = [k for k in PLACES if getattr(self, k) is not None]
        if len(sources) != 1:
            raise ValueError("it must have exactly one of log, measure, rounds_to and correlation")
        if len(places) != (sources[0] in ("log", "measure")) or (self.drop_at is not None and self.log is not None):
            raise ValueError(
                f"log and measure take exactly one of {', '.join(PLACES)}, and log no drop_at; others none"
            )
        if self.of and self.log is None:
            raise ValueError("of is for parts of a log")
        return self

    def describe(self, falling: Collection[str], measure: str) -> str:
        """Return the definition in a few words.

        Args:
            falling: the measures of which less is better.
            measure: the one that the item compares.
        """
        if self.rounds_to is not None:
            beyond = "below" if measure in falling else "above"
            return f"first round with the measure at {self.rounds_to:g} or {beyond}, {REACHED}"
        if self.correlation is not None:
            return "correlation of the clients' distances with the divergence of their labels"
        parts = f" of {self.of}" if self.of else ""
        name = f"log '{self.log}'{parts}" if self.log is not None else str(self.measure).replace("_", " ")
        if self.round is not None:
            return f"{name} in round {self.round}"
        if self.at is not None:
            return f"{name}, {_AT[self.at]}"
        if self.drop_at is not None:
            if self.measure in falling:
                return (
                    f"highest {name} until two rounds after log '{self.drop_at}' is first above 0, less that before"
                )
            return f"{name} before log '{self.drop_at}' is first above 0, less the lowest until two rounds later"
        if self.share_above is not None:
            return f"share of rounds with {name} above {self.share_above:g}"
        edge, side = (self.first_below, "below") if self.first_above is None else (self.first_above, "above")
        return f"first round with {name} {side} {edge:g}, {REACHED}"

    def read(self, folder: RunFolder, measure: str, rounds: int, adapted: bool = False) -> float | AtLeast:
        """The number of a finished run; NaN where the run has none, a bound for a round that never came.

        Args:
            folder: the run.
            measure: the column of the table of rounds that the item compares.
            rounds: how many rounds the run has.
            adapted: whether the metrics after adaptation stand in the place of those before.

        Raises:
            BadInput: a file of the run is damaged.
        """
        import polars as pl

        from coterie.runs.folder.tables import take_adapted

        def read_rounds() -> pl.DataFrame:
            return take_adapted(folder.rounds()) if adapted else folder.rounds()

        if self.correlation is not None:
            return _label_correlation(folder)
        if self.rounds_to is not None:
            course = _course(read_rounds(), measure)
            falls = measure in folder.metrics.falling
            met = pl.col("value") <= self.rounds_to if falls else pl.col("value") >= self.rounds_to
            return _first(course.filter(met), course, rounds)
        course = self.read_log(folder) if self.log is not None else _course(read_rounds(), str(self.measure))
        scale = 100.0 if self.unit == "%" else 1.0
        if not course.height:
            return NAN
        if self.round is not None:
            until = course.filter(pl.col("round") <= self.round)
            return scale * float(until["value"][-1]) if until.height else NAN
        if self.at is not None:
            return scale * _reduced(course["value"], self.at)
        if self.drop_at is not None:
            return scale * _drop(
                course, self.read_log(folder, self.drop_at), self.measure in folder.metrics.falling
            )
        if self.share_above is not None:
            return scale * float((course["value"] > self.share_above).to_numpy().mean())
        value = pl.col("value")
        beyond = value < self.first_below if self.first_above is None else value > self.first_above
        return _first(course.filter(beyond), course, rounds)

    def read_log(self, folder: RunFolder, name: str | None = None) -> pl.DataFrame:
        """Read what a run logged: a row a round that has it, columns `round`, `value`, the mean over the parts
        meant."""
        import polars as pl

        rows = folder.log().filter(pl.col("name") == (name or self.log))
        if self.of.startswith("@"):
            federation = folder.federation()
            assert federation is not None  # a finished run has kept who the clients are
            wanted = federation.filter(pl.col("few_shot") == (self.of == "@few_shot"))["client"].cast(pl.String)
            meant = set(wanted.to_list())
        else:
            meant = {part for part in rows["of"].unique().to_list() if fnmatchcase(part, self.of)}
        rows = rows.filter(pl.col("of").is_in(sorted(meant)))
        return rows.group_by("round").agg(pl.col("value").mean()).sort("round")


def _drop(course: pl.DataFrame, logged: pl.DataFrame, falls: bool) -> float:
    """What a course loses at the first round in which something logged is above 0; NaN where none is.

    Where less is better (`falls`), it loses what it rises by.
    """
    import polars as pl

    rounds = logged.filter(pl.col("value") > 0)["round"]
    if not len(rounds):
        return NAN
    before = course.filter(pl.col("round") < rounds[0])["value"]
    after = course.filter(pl.col("round").is_between(rounds[0], rounds[0] + 2))["value"]
    if not len(before) or not len(after):
        return NAN
    if falls:
        return float(after.to_numpy().max()) - float(before[-1])
    return float(before[-1]) - float(after.to_numpy().min())


_AT = {
    "last": "last value",
    "first": "first value",
    "mean": "mean over rounds",
    "min": "lowest value",
    "max": "highest value",
    "sum": "sum over rounds",
    "count": "number of rounds that have it",
}


def _reduced(values: pl.Series, at: str) -> float:
    if at in ("last", "first"):
        return float(values[-1 if at == "last" else 0])
    array = values.to_numpy()
    return float(array.size if at == "count" else getattr(array, at)())


def _course(rounds: pl.DataFrame, column: str) -> pl.DataFrame:
    """The rounds that have a value, and it."""
    import polars as pl

    if column not in rounds.columns:  # a measure after adaptation, of a run without one
        return pl.DataFrame(schema={"round": pl.Int32, "value": pl.Float64})
    values = rounds.select("round", pl.col(column).cast(pl.Float64).fill_nan(None).alias("value"))
    return values.drop_nulls()


def _first(found: pl.DataFrame, course: pl.DataFrame, rounds: int) -> float | AtLeast:
    if not course.height:
        return NAN
    return float(found["round"][0]) if found.height else AtLeast(rounds + 1.0)


def compare_pairs(folder: RunFolder) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
    """Return for each pair of clients in the picture of a run how far apart they are.

    Returns:
        The divergence of their labels and their distance, `[pairs]` each; None without a picture of three clients
        or more against each other.
    """
    import numpy as np

    from coterie.grouping.label_divergence import label_divergence

    picture, federation = folder.picture(), folder.federation()
    if picture is None or federation is None or picture.affinity.shape[0] != picture.affinity.shape[1]:
        return None
    n = len(picture.clients)
    if n < 3:
        return None
    # The labels of all clients, as counts of each class.
    counts = np.array(federation["labels"].to_list(), np.float64)[picture.clients]
    first, second = np.triu_indices(n, 1)
    divergence = np.array([label_divergence(counts[[i, j]]) for i, j in zip(first, second, strict=True)])
    return divergence, np.asarray(picture.affinity, np.float64)[first, second]


def _label_correlation(folder: RunFolder) -> float:
    """Over all pairs of clients in the picture, as in DC-PFL's figure 5; NaN where one side does not vary."""
    import numpy as np

    pairs = compare_pairs(folder)
    if pairs is None:
        return NAN
    divergence, distance = pairs
    if distance.std() == 0 or divergence.std() == 0 or not np.isfinite(distance).all():
        return NAN
    return float(np.corrcoef(distance, divergence)[0, 1])
