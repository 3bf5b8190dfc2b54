"""The bars of the page on speed and memory: what rows of a benchmark are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from coterie.report.numbers import significant

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True)
class Judged:
    """What a bar came to: the median and the extremes of the repeats, turned so that more is better or not."""

    middle: float
    least: float
    most: float
    bar: float
    at_least: bool
    found: str

    @property
    def verdict(self) -> str:
        """Met or not, and whether every repeat says the same."""
        met, *each = (self._reaches(value) for value in (self.middle, self.least, self.most))
        word = "met" if met else "not met"
        return f"**{word}**" if all(one == met for one in each) else f"*{word}, within the spread*"

    def _reaches(self, value: float) -> bool:
        return value >= self.bar if self.at_least else value <= self.bar


@dataclass(frozen=True)
class Bar:
    """What was to be reached, and how rows are held against it; None where they do not say."""

    text: str
    judge: Callable[[Rows], Judged | None]


def ranged(middle: float, least: float, most: float, write: Callable[[float], str] = significant) -> str:
    """A number and the extremes of its repeats, where there are several."""
    return write(middle) if least == most else f"{write(middle)} ({write(least)} … {write(most)})"


def spread(row: Row, key: str, write: Callable[[float], str] = significant) -> str:
    """A number and the extremes of its repeats."""
    return ranged(row[key], row[f"{key}_least"], row[f"{key}_most"], write)


def share(value: float) -> str:
    """A share in whole per cent."""
    return f"{value:.0%}"


def _worst(
    rows: Rows, key: str, bar: float, at_least: bool, name: Callable[[Row], str], write: Any
) -> Judged | None:
    """The row that is farthest from the bar, on its wrong side or else on its right one."""
    if not rows:
        return None
    row = (min if at_least else max)(rows, key=lambda one: one[key])
    values = row[key], row.get(f"{key}_least", row[key]), row.get(f"{key}_most", row[key])
    return Judged(*values, bar, at_least, f"{ranged(*values, write)}, {name(row)}")


# Training and evaluation.


def _with_all_cores(rows: Rows, perceptrons: bool | None = None) -> Rows:
    """Of each network the faster engine with a worker a core; perceptrons, other networks, or all."""
    best: dict[str, Row] = {}
    for row in rows:
        wanted = perceptrons is None or row["network"].startswith("MLP") == perceptrons
        if wanted and row["workers"] == max(other["workers"] for other in rows):
            known = best.setdefault(row["network"], row)
            best[row["network"]] = max(known, row, key=lambda one: one["of_limit"])
    return list(best.values())


def of_the_limit(perceptrons: bool, bar: float) -> Callable[[Rows], Judged | None]:
    """The network that is farthest from the limit."""

    def judge(rows: Rows) -> Judged | None:
        some = [
            {"network": row["network"], "of": row["of_limit"], "of_least": row["least"], "of_most": row["most"]}
            for row in _with_all_cores(rows, perceptrons)
        ]
        above = sum(row["of"] >= bar for row in some)
        worst = _worst(some, "of", bar, True, lambda row: row["network"], "{:.2f}".format)
        return worst and replace(worst, found=f"{above} of {len(some)} networks; least {worst.found}")

    return judge


def evaluation(rows: Rows) -> Judged | None:
    """The network whose evaluation takes the largest share."""
    return _worst(_with_all_cores(rows), "evaluation", 0.25, False, lambda row: row["network"], "{:.2f}".format)


# Other simulators.


def _way(rows: Rows, workload: str, way: str) -> Row | None:
    found = [row for row in rows if (row["workload"], row["way"]) == (workload, way)]
    return found[0] if found else None


def _pfl(rows: Rows, workload: str) -> Row | None:
    """pfl at its fastest."""
    found = [row for row in rows if row["workload"] == workload and row["way"].startswith("pfl")]
    return min(found, key=lambda row: row["seconds"], default=None)


def faster(workload: str, bar: float, way: str = "coterie") -> Callable[[Rows], Judged | None]:
    """How many times as fast as pfl a way does a round."""

    def judge(rows: Rows) -> Judged | None:
        mine, its = _way(rows, workload, way), _pfl(rows, workload)
        if mine is None or its is None:
            return None
        middle = its["seconds"] / mine["seconds"]
        least, most = its["seconds_least"] / mine["seconds_most"], its["seconds_most"] / mine["seconds_least"]
        if way == "coterie":  # repeats of the two were timed side by side
            least, most = its["ratio_least"], its["ratio_most"]
        return Judged(middle, least, most, bar, True, f"{ranged(middle, least, most)} times")

    return judge


def no_larger(workload: str) -> Callable[[Rows], Judged | None]:
    """Peak memory beside pfl's and one model for each worker."""

    def judge(rows: Rows) -> Judged | None:
        mine, its = _way(rows, workload, "coterie"), _pfl(rows, workload)
        if mine is None or its is None:
            return None
        bar = its["memory_mib"] + mine["processes"] * mine["parameters"] * 4 / 2**20
        memory = mine["memory_mib"]
        return Judged(memory, memory, memory, bar, False, f"{memory:,.0f} MiB; pfl and the models {bar:,.0f} MiB")

    return judge


# Growth.


def _largest(rows: Rows) -> Rows:
    """The runs with the most clients, one a method."""
    some = [row for row in rows if row["part"] == "clients"]
    most = max((row["clients"] for row in some), default=0)
    return [row for row in some if row["clients"] == most]


def groups_found(rows: Rows) -> Judged | None:
    """Whether every method that looks for groups finds the planted ones among the most clients."""
    return _worst([r for r in _largest(rows) if r["ari"] is not None], "ari", 0.9, True, _run, significant)


def memory_held(rows: Rows) -> Judged | None:
    return _worst(_largest(rows), "peak_mb", 16_000, False, _run, significant)


def _run(row: Row) -> str:
    return f"{row['method']} with {row['clients']:,} clients"


# Methods.


def no_dearer(network: str, bar: float) -> Callable[[Rows], Judged | None]:
    """The method with the largest extra over FedAvg."""

    def judge(rows: Rows) -> Judged | None:
        some = [row for row in rows if row["network"] == network]
        over = sum(row["extra"] >= bar for row in some)
        worst = _worst(some, "extra", bar, False, lambda row: row["method"], share)
        return worst and replace(worst, found=f"{len(some) - over} of {len(some)} methods; most {worst.found}")

    return judge


# What people wait for first.


def waited(what: str, bar: float) -> Callable[[Rows], Judged | None]:
    """Seconds of one thing; where PyTorch is loaded that should not be, the bar is not met."""

    def judge(rows: Rows) -> Judged | None:
        some = [row for row in rows if row["what"] == what]
        if not some:
            return None
        (row,) = some
        found = Judged(
            row["seconds"], row["seconds_least"], row["seconds_most"], bar, False, f"{spread(row, 'seconds')} s"
        )
        if row["loads_torch"]:
            found = replace(found, middle=inf, least=inf, most=inf, found=f"{found.found}, and PyTorch is loaded")
        return found

    return judge
