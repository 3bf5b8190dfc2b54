"""The bars of the page on speed and memory: what rows of a benchmark are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import ge, gt, le, lt
from typing import Any

from benchmarks.measuring import ratios
from coterie.report.numbers import significant

Row = Mapping[str, Any]
Rows = Sequence[Row]
Reaches = Callable[[float, float], bool]
"""Whether a value reaches a bar: at least it, above it, no more than it, or below it."""


@dataclass(frozen=True)
class Judged:
    """What a bar came to: the median and the extremes of the repeats, turned so that more is better or not."""

    middle: float
    least: float
    most: float
    bar: float
    reaches: Reaches
    found: str

    @property
    def verdict(self) -> str:
        """Met or not, and whether every repeat says the same."""
        met, *each = (self.reaches(value, self.bar) for value in (self.middle, self.least, self.most))
        word = "met" if met else "not met"
        return f"**{word}**" if all(one == met for one in each) else f"*{word}, within the spread*"


Judge = Callable[[Rows], Judged | None]
"""Holds rows against a bar; None where they do not say."""


@dataclass(frozen=True)
class Bar:
    """What was to be reached, and how rows are held against it."""

    text: str
    judge: Judge


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
    rows: Rows, key: str, bar: float, reaches: Reaches, name: Callable[[Row], str], write: Any
) -> Judged | None:
    """The row that is farthest from the bar, on its wrong side or else on its right one."""
    if not rows:
        return None
    row = (min if reaches in (ge, gt) else max)(rows, key=lambda one: one[key])
    values = row[key], row.get(f"{key}_least", row[key]), row.get(f"{key}_most", row[key])
    return Judged(*values, bar, reaches, f"{ranged(*values, write)}, {name(row)}")


def _counted(rows: Rows, judged: Judged | None, key: str, text: str) -> Judged | None:
    """How many rows reach the bar, in front of the one that is farthest from it."""
    if judged is None:
        return None
    met = sum(judged.reaches(row[key], judged.bar) for row in rows)
    return replace(judged, found=f"{met} of {len(rows)} {text} {judged.found}")


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


def of_the_limit(perceptrons: bool, bar: float) -> Judge:
    """The network that is farthest from the limit."""

    def judge(rows: Rows) -> Judged | None:
        some = [
            {"network": row["network"], "of": row["of_limit"], "of_least": row["least"], "of_most": row["most"]}
            for row in _with_all_cores(rows, perceptrons)
        ]
        worst = _worst(some, "of", bar, ge, lambda row: row["network"], "{:.2f}".format)
        return _counted(some, worst, "of", "networks; least")

    return judge


def evaluation(rows: Rows) -> Judged | None:
    """The network whose evaluation takes the largest share."""
    return _worst(_with_all_cores(rows), "evaluation", 0.25, lt, lambda row: row["network"], "{:.2f}".format)


# Other simulators.


def _way(rows: Rows, workload: str, way: str) -> Row | None:
    found = [row for row in rows if (row["workload"], row["way"]) == (workload, way)]
    return found[0] if found else None


def _pfl(rows: Rows, workload: str, best: bool) -> Row | None:
    """pfl at its fastest, or as it is run where nobody asks for more processes than one."""
    if not best:
        return _way(rows, workload, "pfl, one process")
    found = [row for row in rows if row["workload"] == workload and row["way"].startswith("pfl")]
    return min(found, key=lambda row: row["seconds"], default=None)


def faster(workload: str, bar: float, way: str = "coterie", *, best: bool) -> Judge:
    """How many times as fast as pfl a way does a round: of each pair of rounds timed side by side."""

    def judge(rows: Rows) -> Judged | None:
        mine, its = _way(rows, workload, way), _pfl(rows, workload, best)
        if mine is None or its is None:
            return None
        found = ratios(its["each"], mine["each"])
        return Judged(*found, bar, ge, f"{ranged(*found)} times")

    return judge


def held_below(workload: str, most: float | None = None) -> Judge:
    """Peak memory beside so many MiB, or beside pfl's in one process."""

    def judge(rows: Rows) -> Judged | None:
        mine, its = _way(rows, workload, "coterie"), _pfl(rows, workload, best=False)
        limit = most if most is not None or its is None else its["memory_mib"]
        if mine is None or limit is None:
            return None
        memory = mine["memory_mib"]
        return Judged(memory, memory, memory, limit, le, f"{memory:,.0f} MiB; {limit:,.0f} allowed")

    return judge


def of_a_plain_loop(bar: float) -> Judge:
    """The module that is farthest from a plain loop over the same samples."""

    def judge(rows: Rows) -> Judged | None:
        some = [row for row in rows if "of_plain" in row]  # not those that compare engines
        worst = _worst(some, "of_plain", bar, ge, lambda row: row["module"], "{:.2f}".format)
        return _counted(some, worst, "of_plain", "modules; least")

    return judge


# Growth.


def _largest(rows: Rows) -> Rows:
    """The runs with the most clients, one a method."""
    some = [row for row in rows if row["part"] == "clients"]
    most = max((row["clients"] for row in some), default=0)
    return [row for row in some if row["clients"] == most]


def groups_found(rows: Rows) -> Judged | None:
    """Whether every method that looks for groups finds the planted ones among the most clients."""
    return _worst([r for r in _largest(rows) if r["ari"] is not None], "ari", 0.9, gt, _run, significant)


def memory_held(rows: Rows) -> Judged | None:
    return _worst(_largest(rows), "peak_mb", 16_000, lt, _run, significant)


def _run(row: Row) -> str:
    return f"{row['method']} with {row['clients']:,} clients"


# Methods.


def no_dearer(network: str, epochs: int, bar: float) -> Judge:
    """The method with the largest extra over FedAvg, with a network and so many local epochs."""

    def judge(rows: Rows) -> Judged | None:
        some = [row for row in rows if (row["network"], row["epochs"]) == (network, epochs)]
        worst = _worst(some, "extra", bar, lt, lambda row: row["method"], share)
        return _counted(some, worst, "extra", "methods; most")

    return judge


# What people wait for first.


def waited(what: str, bar: float) -> Judge:
    """Seconds of one thing; where PyTorch is loaded that should not be, the bar is not met."""

    def judge(rows: Rows) -> Judged | None:
        some = [row for row in rows if row["what"] == what]
        if not some:
            return None
        (row,) = some
        found = Judged(
            row["seconds"], row["seconds_least"], row["seconds_most"], bar, lt, f"{spread(row, 'seconds')} s"
        )
        if row["loads_torch"]:
            found = replace(found, middle=inf, least=inf, most=inf, found=f"{found.found}, and PyTorch is loaded")
        return found

    return judge
