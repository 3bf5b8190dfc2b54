"""The tables of the leaderboard, made of kept results alone; what they mean is said on the page itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from scipy.stats import rankdata

from benchmarks.document_sections import markdown
from benchmarks.kept_cells import fill_marks
from benchmarks.leaderboard_cells import ADAPTED, FEDERATIONS, REFERENCE, Result
from coterie.report.drawing.figure import Chart
from coterie.report.numbers import MISSING, decimals
from coterie.studies.compare.table import interval

Results = Mapping[tuple[str, str], Result]

COMMAND = "python -m benchmarks.leaderboard --write docs/leaderboard.md"

PICTURE = """![Ranks of all methods on each federation, the best mean rank on top](pictures/leaderboard.svg)

Numbers in it are ranks: 1 is the best, and equal ones share the mean of their places. A dot marks what is within
noise of the best."""


@dataclass(frozen=True)
class Standing:
    """What a row of the leaderboard came to on one federation."""

    mean: float
    half: float
    """Half of the 95 % interval over the seeds."""
    rank: float
    """1 is the best; equal ones share the mean of their places."""
    difference: tuple[float, float, float]
    """To the best, paired by seed: mean, low, high."""
    by_client: tuple[float, float, float]
    """The same, paired by client and seed."""
    worst: float
    adapted: tuple[float, float] | None
    """Mean and half of the interval after one epoch on each client."""
    groups: float
    ari: float | None
    passes: float | None
    """Over its own samples that a client trains, a mean over clients."""
    megabytes: float
    samples: float | None
    """For training, a mean over clients."""
    rate: float | None
    is_reference: str
    """At which rate it is FedAvg, as `fedavg, lr 0.1`; empty where it is not."""

    @property
    def is_best(self) -> bool:
        """Whether no other has a better mean."""
        return self.difference == (0.0, 0.0, 0.0)

    @property
    def is_within_noise(self) -> bool:
        """Whether it cannot be told from the best: one of the two intervals holds 0."""
        return any(not (low > 0 or high < 0) for _, low, high in (self.difference, self.by_client))


def stand(results: Results, federation: str) -> dict[str, Standing]:
    """Return how every row did on a federation, the best first."""
    there = {
        name: one for (place, name), one in sorted(results.items()) if place == federation and not one["failed"]
    }
    if not there:
        return {}
    falls = any(one["falls"] for one in there.values())
    every = {name: runs for one in there.values() for name, runs in one["rows"].items()}
    rows = {name: runs for name, runs in every.items() if not name.endswith(ADAPTED)}
    values = {name: np.array([run["value"] for run in runs], np.float64) for name, runs in rows.items()}
    means = np.array([each.mean() for each in values.values()])
    ranks = rankdata(np.where(np.isnan(means), np.inf, means if falls else -means))
    best = min(zip(ranks, rows, strict=True))[1]
    clients = {name: np.concatenate([_numbers(run["clients"]) for run in runs]) for name, runs in rows.items()}
    found = {}
    for (name, runs), rank in zip(rows.items(), ranks, strict=True):
        mean, low, _ = interval(values[name])
        is_best = name == best
        found[name] = Standing(
            mean,
            mean - low,
            float(rank),
            (0.0, 0.0, 0.0) if is_best else interval(values[name] - values[best]),
            (0.0, 0.0, 0.0) if is_best else interval(clients[name] - clients[best]),
            _mean(run["worst10"] for run in runs),
            _mean_and_half(every.get(f"{name}{ADAPTED}")),
            _mean(run["groups"] for run in runs),
            None if any(run["ari"] is None for run in runs) else _mean(run["ari"] for run in runs),
            None if any(run["passes"] is None for run in runs) else _mean(run["passes"] for run in runs),
            _mean((run["up_bytes"] + run["down_bytes"]) / 1e6 for run in runs),
            None if any(run["samples"] is None for run in runs) else _mean(run["samples"] for run in runs),
            there[name]["rate"],
            find_reference(there, name),
        )
    return dict(sorted(found.items(), key=lambda item: (item[1].rank, item[0])))


def find_reference(there: Mapping[str, Result], method: str) -> str:
    """Say at which rate a method is FedAvg: one group in every seed, and equal trials and losses at its rate."""
    own, reference = there[method], there.get(REFERENCE)
    if method == REFERENCE or reference is None or any(run["groups"] != 1 for run in own["rows"][method]):
        return ""
    ours, theirs = ([t for t in one["trials"] if t["rate"] == own["rate"]] for one in (own, reference))
    if ours != theirs:
        return ""
    if own["rate"] == reference["rate"] and not _have_equal_values(
        own["rows"][method], reference["rows"][REFERENCE]
    ):
        return ""
    return f"{REFERENCE}, lr {own['rate']:g}"


def _have_equal_values(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    return [run["value"] for run in first] == [run["value"] for run in second]


def _mean_and_half(runs: list[dict[str, Any]] | None) -> tuple[float, float] | None:
    if not runs:
        return None
    mean, low, _ = interval(_numbers([run["value"] for run in runs]))
    return mean, mean - low


def _numbers(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _mean(values: Any) -> float:
    return float(np.mean(_numbers(list(values))))


def order(standings: Mapping[str, Mapping[str, Standing]]) -> dict[str, float]:
    """Return the mean rank of every row over the federations where it has one, the best first."""
    names = {name for of in standings.values() for name in of}
    ranks = {name: _mean(of[name].rank for of in standings.values() if name in of) for name in names}
    return dict(sorted(ranks.items(), key=lambda item: (item[1], item[0])))


def page(text: str, results: Results) -> str:
    """Return the page with its tables made anew."""
    standings = {name: stand(results, name) for name in FEDERATIONS}
    present = {name: of for name, of in standings.items() if of}
    parts: list[str] = []
    for name, of in present.items():
        parts += [f"## {name}", FEDERATIONS[name].about, table(of, name), *says_noise(results, name)]
        failed = [one for (place, _), one in sorted(results.items()) if place == name and one["failed"]]
        reasons = [f"`{one['method']}` ({one['failed']})" for one in failed]
        parts += [f"Not here: {'; '.join(reasons)}."] if reasons else []
    first = [*([says(present, results)] if present else []), *says_missing(present)]
    return fill_marks(
        text, {"first": first, "summary": [PICTURE, summary(present)] if present else [], "federations": parts}
    )


def says(standings: Mapping[str, Mapping[str, Standing]], results: Results) -> str:
    """Return which three to try first, by the kind of skew and the samples of a client."""
    lines = []
    for federation, of in standings.items():
        falls = any(
            one["falls"] for (place, _), one in results.items() if place == federation and not one["failed"]
        )
        tried: dict[str, float] = {}
        for name, one in of.items():
            if not one.is_reference:  # that is FedAvg, under another name
                tried[name] = one.mean
                if one.adapted is not None and (one.adapted[0] < one.mean) == falls and one.adapted[0] != one.mean:
                    tried[f"{name}{ADAPTED}"] = one.adapted[0]
                    del tried[name]
        best = sorted(tried, key=lambda name: tried[name] if falls else -tried[name])[:3]
        samples = next((f", {one.samples:.0f} samples a client" for one in of.values() if one.samples), "")
        named = ", ".join(f"`{name}` ({_value(tried[name], federation)})" for name in best)
        near = sum(one.is_within_noise for one in of.values()) - 1
        lines.append(
            f"* **{FEDERATIONS[federation].skew}**{samples} (`{federation}`): {named}; as served, {near} of the "
            f"other {len(of) - 1} are within noise of the best."
        )
    return "\n".join(lines)


def says_noise(results: Results, federation: str) -> list[str]:
    """Return a sentence on what other seeds do to FedAvg, where that was run."""
    one = results.get((federation, REFERENCE))
    if one is None or one["failed"] or not one["again"]:
        return []
    values = ((run["value"] for run in runs) for runs in (one["rows"][REFERENCE], one["again"]))
    first, again = (f"{_value(_mean(runs), federation)}" for runs in values)
    return [f"Noise: FedAvg has {first} above, and {again} at the same settings from other seeds."]


def says_missing(present: Mapping[str, Mapping[str, Standing]]) -> list[str]:
    """Return a sentence that names the federations without any result; nothing where there are none."""
    missing = [f"**{name}**" for name in FEDERATIONS if name not in present]
    if not present:
        return [f"**Nothing is computed so far** with one grid of rates for all; `{COMMAND}` does it."]
    said = f"{len(present)} of the {len(FEDERATIONS)} federations are computed so far; all below is of these"
    return [f"**{said}.** Not yet: {', '.join(missing)}; `{COMMAND}` goes on."] if missing else []


def summary(standings: Mapping[str, Mapping[str, Standing]]) -> str:
    """Return the table of all federations: a row for each method, the best mean rank first."""
    lines = []
    for name, rank in order(standings).items():
        own = [of[name] for of in standings.values() if name in of]
        cells = [_short(of.get(name), federation) for federation, of in standings.items()]
        near = f"{sum(one.is_within_noise for one in own)} of {len(own)}"
        lines.append([f"`{name}`", f"{rank:.1f}", near, *cells])
    return markdown(("method", "mean rank", "near best", *standings), lines, 1)


def _short(one: Standing | None, federation: str) -> str:
    if one is None:
        return MISSING
    text = _value(one.mean, federation)
    return f"{f'**{text}**' if one.is_within_noise else text} ±{_value(one.half, federation)}"


def _value(value: float, federation: str) -> str:
    """Write an accuracy in per cent, a perplexity as it is."""
    return decimals(value if federation == "roles" else 100 * value, 1)


def table(of: Mapping[str, Standing], federation: str) -> str:
    """Return the table of a federation: a row for each method, the best first."""
    what = "perplexity" if federation == "roles" else "accuracy, %"
    lines = []
    for name, one in of.items():
        text = f"{_value(one.mean, federation)} ± {_value(one.half, federation)}"
        mean, low, high = (_value(value, federation) for value in one.difference)
        adapted = one.adapted and " ± ".join(_value(value, federation) for value in one.adapted)
        lines.append(
            [
                f"`{name}`" + (f" = {one.is_reference}" if one.is_reference else ""),
                f"**{text}**" if one.is_within_noise else text,
                "best" if one.is_best else f"{mean} [{low}, {high}]",
                adapted or MISSING,
                _value(one.worst, federation),
                decimals(one.groups, 1),
                MISSING if one.ari is None else decimals(one.ari),
                MISSING if one.rate is None else f"{one.rate:g}",
                MISSING if one.passes is None else decimals(one.passes, 0),
                decimals(one.megabytes, 1),
            ]
        )
    header = ("method", what, "to the best", "after an epoch", "worst 10 %", "groups", "ARI", "lr", "passes", "MB")
    return markdown(header, lines, 1)


def draw(results: Results) -> Chart:
    """Draw the ranks: a row for each method, a column for each federation, dark where the rank is good."""
    standings = {name: of for name in FEDERATIONS if (of := stand(results, name))}
    methods = list(order(standings))
    points = [
        {
            "method": name,
            "federation": federation,
            "rank": one.rank,
            "text": f"{one.rank:.0f}{' •' if one.is_within_noise else ''}",
            "dark": bool(one.rank <= len(of) / 2.2),
        }
        for federation, of in standings.items()
        for name, one in of.items()
    ]
    names = {
        "method": pl.String,
        "federation": pl.String,
        "rank": pl.Float64,
        "text": pl.String,
        "dark": pl.Boolean,
    }
    base = alt.Chart(alt.InlineData(values=pl.DataFrame(points, schema=names).to_dicts())).encode(
        x=alt.X("federation:N", title=None, sort=list(standings), axis=alt.Axis(orient="top", labelAngle=0)),
        y=alt.Y("method:N", title=None, sort=methods, axis=alt.Axis(labelOverlap=False)),
    )
    scale = alt.Scale(scheme="blues", reverse=True)
    tiles = base.mark_rect(stroke="white").encode(color=alt.Color("rank:Q", title="rank", scale=scale))
    ink = alt.condition("datum.dark", alt.value("white"), alt.value("#20242A"))
    return alt.layer(tiles, base.mark_text(fontSize=12).encode(text="text:N", color=ink))
