"""The numbers that an item measured at a scale, in a small file from which every verdict follows."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.errors import BadInput
from coterie.runs.folder.files import damaged_file, read_json, write_whole
from coterie.studies.papers import claims
from coterie.studies.papers.claims import JudgedClaim, Reference, Span
from coterie.studies.papers.item import Claim, Item
from coterie.studies.papers.quantities import AtLeast, built_in
from coterie.studies.rows import write_rows

if TYPE_CHECKING:
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.studies.compare.measures import Frames
    from coterie.studies.compare.spec import Comparison

DIGITS = 6
"""Significant digits of a number in the file. Verdicts use the rounded numbers, so a file gives the same ones."""

BEYOND = ">="
"""Stands in the file before the bound of a number that lies beyond what was run."""


@dataclass(frozen=True)
class Result:
    """The numbers of an item at a scale."""

    item: str
    scale: str
    digest: str
    """Of the settings that these numbers come from; see `Item.digest`."""
    seeds: tuple[int, ...]
    values: Mapping[Reference, tuple[float | AtLeast | None, ...]]
    """One number per seed; None for a missing one."""
    runs: int
    finished: int
    seconds: float
    """The runs' own wall time, summed."""
    failed: tuple[str, ...]
    """One sentence for each run that failed."""
    notes: tuple[str, ...]
    """One sentence for each quantity that no run has."""
    versions: Mapping[str, str]
    """Of Python and the packages, and the `commit` of Coterie's sources where they are a checkout."""
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each row its method and settings when it was run, the defaults written out; see `changed`."""
    level: float = claims.LEVEL
    """The two-sided error of each verdict: less where seeds were added until a claim was decided."""

    @property
    def adds_seeds(self) -> bool:
        """Whether seeds were added until its claims were decided."""
        return self.level != claims.LEVEL

    @property
    def label(self) -> str:
        """The scale, and whether seeds were added."""
        return f"{self.scale}, seeds added" if self.adds_seeds else self.scale

    @property
    def file(self) -> str:
        """The name of the file in which it is kept."""
        return f"{self.item}-{self.scale}{'-decided' * self.adds_seeds}.json"

    @property
    def command(self) -> str:
        """The command that runs it again."""
        return f"coterie reproduce {self.item} --scale {self.scale}{' --decide 1' * self.adds_seeds}"

    def lookup(self, reference: Reference) -> Span | None:
        """Return the values over the seeds, NaN for a missing one; None if the quantity was not run."""
        values = self.values.get(reference)
        if values is None:
            return None
        ends = [
            (v.bound, math.inf) if isinstance(v, AtLeast) else (math.nan if v is None else v,) * 2 for v in values
        ]
        low, high = np.array(ends, np.float64).reshape(-1, 2).T
        return Span(low, high)

    def count_beyond(self, reference: Reference) -> tuple[int, float]:
        """Return in how many seeds the value lies beyond what was run, and the least bound of these."""
        bounds = [v.bound for v in self.values.get(reference, ()) if isinstance(v, AtLeast)]
        return len(bounds), min(bounds, default=math.nan)

    def mean_and_sd(self, reference: Reference) -> tuple[float, float] | None:
        """Return mean and standard deviation (n - 1 below) over the seeds that have a value; None if none has.

        The deviation is NaN for one value.
        """
        values = self.values.get(reference, ())
        known = np.array([v for v in values if v is not None and not isinstance(v, AtLeast)], np.float64)
        if not known.size:
            return None
        return float(known.mean()), float(known.std(ddof=1)) if known.size > 1 else math.nan

    def is_stale(self, item: Item) -> bool:
        """Whether the item has changed since in what these numbers depend on; see `missing` for what is new."""
        former = self.scale not in item.scales or self.digest != item.digest(self.scale, self.values)
        return former or bool(self.changed(item))

    def changed(self, item: Item) -> list[str]:
        """Return the rows whose methods have other settings now, by other defaults too.

        A setting that a method did not have is none of these: its default keeps what there was. Nor is one that it
        has no more: no item names it, and what goes is kept at its default.
        """
        now = item.method_settings(self.scale) if self.methods else {}
        return [
            name
            for name, settings in self.methods.items()
            if any(now.get(name, {}).get(key, value) != value for key, value in settings.items())
        ]

    def missing(self, item: Item) -> list[str]:
        """Return the names of methods, settings and quantities that the item has at this scale and these lack."""
        if self.adds_seeds:  # to the methods of some claims alone
            return []
        wanted = [r for r in item.wanted_numbers(self.scale) if r not in self.values]
        names: list[str] = []
        for kind in ("method", "setting", "quantity"):
            there = {getattr(r, kind) for r in self.values}
            names += dict.fromkeys(getattr(r, kind) for r in wanted if getattr(r, kind) not in there)
        return names


def measure_item(
    item: Item,
    scale: str,
    comparison: Comparison,
    frames: Frames,
    finished: Mapping[str, RunFolder],
    failed: Iterable[str],
) -> Result:
    """Read every quantity of an item from its runs.

    Args:
        item: the table or figure.
        scale: how much of it was run.
        comparison: the item at that scale.
        frames: what `comparison.measures.read` gives.
        finished: the run folders of the finished cells, by key.
        failed: one sentence for each cell that failed.

    Raises:
        BadInput: a file of a run is damaged.
    """
    cells, given = comparison.cells(), built_in(item.metrics)
    rows = {(row["setting"], row["method"], row["seed"]): row for row in frames.cells.to_dicts()}
    values: dict[Reference, tuple[float | AtLeast | None, ...]] = {}
    notes = []
    for quantity in item.wanted_quantities():
        numbers: dict[Reference, list[float | AtLeast | None]] = {}
        for cell in cells:
            there = numbers.setdefault(Reference(quantity, cell.method, cell.setting), [])
            row = rows.get((cell.setting, cell.method, cell.seed))
            if row is None:
                there.append(None)
            elif quantity in given:
                there.append(_round(given[quantity].of(row)))
            else:
                own = item.quantities[scale][quantity]
                rounds = cell.experiment.run.rounds
                there.append(_round(own.read(finished[cell.key], comparison.measure, rounds, cell.is_adapted)))
        if finished and {value for of_seeds in numbers.values() for value in of_seeds} <= {None}:
            notes.append(f"no run has {quantity}")
        values |= {reference: tuple(of_seeds) for reference, of_seeds in numbers.items()}
    return Result(
        item.id,
        scale,
        item.digest(scale),
        comparison.seeds,
        values,
        len({cell.key for cell in cells}),
        len(finished),
        float(f"{sum({row['key']: row['seconds'] for row in rows.values()}.values()):.{DIGITS}g}"),
        tuple(failed),
        tuple(notes),
        _collect_versions(finished.values()) | _find_commit(),
        item.method_settings(scale),
    )


def judge_claims(item: Item, result: Result) -> list[JudgedClaim]:
    """Judge each claim of the item by these numbers; `corrected` is for the number of them, where all have as many
    seeds."""
    named = {reference.quantity for claim in item.claims for reference in claims.references(claim.links)}
    in_points = [quantity for quantity in named if item.unit(quantity) == "%"]

    def judge(claim: Claim) -> JudgedClaim:
        settings = [partial(item.with_setting, pooled=setting) for setting in claim.pool or [""]]
        lookups = [lambda r, place=place: result.lookup(place(r)) for place in settings]
        found = claims.judge_claim(
            claim.links, *lookups, exact=claim.exact, in_points=in_points, level=result.level
        )
        if claim.verdict is None or found.verdict == "not run":
            return found
        verdict, reason = claim.verdict
        return replace(found, verdict=verdict, corrected=verdict, reason=reason)

    judged = [judge(claim) for claim in item.claims]
    return judged if result.adds_seeds else claims.correct(judged)


def judge_published(item: Item) -> list[list[tuple[float, bool]] | None]:
    """Judge each claim by the printed numbers: left minus right of each link, and whether it holds.

    A claim is None if one of its numbers was not printed.
    """
    found = []
    for claim in item.claims:
        settings = []
        for pooled in claim.pool or [""]:
            meant = {r: item.with_setting(r, pooled) for r in claims.references(claim.links)}
            settings.append({r: item.published[full] for r, full in meant.items() if full in item.published})
        found.append(claims.judge_printed(claim.links, *settings))
    return found


def write(path: Path, item: Item, result: Result) -> None:
    """Write a result as JSON, with the claims and their verdicts for readers of this file alone."""
    table = {
        **{key: value for key, value in vars(result).items() if key != "values"},
        "command": result.command,
        "values": _nest({r: tuple(map(_write_value, numbers)) for r, numbers in result.values.items()}),
        "published": _nest(item.published),
        "claims": [
            {
                "text": claim.text,
                "verdict": found.verdict,
                "corrected": found.corrected,
                "reason": found.reason,
                "p": found.p,
                "published_size": claims.find_published_size(found, printed),
                "links": [asdict(link) for link in found.links],
                "published": None if printed is None else [{"difference": d, "holds": h} for d, h in printed],
                "finding": claim.finding.get(result.scale),
            }
            for claim, found, printed in zip(
                item.claims, judge_claims(item, result), judge_published(item), strict=True
            )
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, write_rows(table, {"methods": 1, "values": 2, "published": 2, "claims": 1}).encode())


def read(path: Path) -> Result:
    """Read a result.

    Raises:
        BadInput: there is no such file, or it is damaged.
    """
    table = read_json(path)
    if table is None:
        raise BadInput(f"{str(path)!r} does not exist; name a file that coterie reproduce --keep has written")
    try:
        values = {
            Reference(quantity, method, setting): tuple(map(_read_value, numbers))
            for quantity, by_setting in table["values"].items()
            for setting, by_method in by_setting.items()
            for method, numbers in by_method.items()
        }
        alone = ("item", "scale", "digest", "runs", "finished", "seconds", "versions")
        kept: dict[str, Any] = {name: table[name] for name in alone}
        kept |= {name: tuple(table[name]) for name in ("seeds", "failed", "notes")}
        level = float(table.get("level", claims.LEVEL))
        return Result(**kept, values=values, methods=table.get("methods", {}), level=level)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged_file(path, error) from None


def _nest(values: Mapping[Reference, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the values as a tree: by quantity, setting and method."""
    tree: dict[str, dict[str, dict[str, Any]]] = {}
    for reference, value in values.items():
        tree.setdefault(reference.quantity, {}).setdefault(reference.setting, {})[reference.method] = value
    return tree


def _round(value: float | AtLeast | None) -> float | AtLeast | None:
    if isinstance(value, AtLeast):
        return AtLeast(float(f"{value.bound:.{DIGITS}g}"))
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _write_value(value: float | AtLeast | None) -> float | str | None:
    return f"{BEYOND}{value.bound!r}" if isinstance(value, AtLeast) else value


def _read_value(value: Any) -> float | AtLeast | None:
    if isinstance(value, str):
        return AtLeast(float(value.removeprefix(BEYOND)))
    return None if value is None else float(value)


def _collect_versions(folders: Iterable[RunFolder]) -> dict[str, str]:
    """Return the versions of Python and the packages; all of them for a package that changed between runs."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        environment = folder.environment()
        for name, version in {"python": environment["python"], **environment["packages"]}.items():
            found.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def _find_commit() -> dict[str, str]:
    """Return the commit of the checkout that this file lies in; nothing where Coterie is installed."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return {}
    words = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty"]
    try:
        return {"commit": subprocess.run(words, capture_output=True, check=True, text=True).stdout.strip()}
    except (OSError, subprocess.CalledProcessError):
        return {}
