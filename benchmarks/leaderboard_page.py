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
from benchmarks.leaderboard_cells import FEDERATIONS, Result
from coterie.report.drawing.figure import Chart
from coterie.report.numbers import MISSING, decimals
from coterie.studies.compare.table import interval

Results = Mapping[tuple[str, str], Result]


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
    ari: float | None
    megabytes: float
    seconds: float

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
    rows: dict[str, list[dict[str, Any]]] = {}
    falls = False
    for (place, _), result in sorted(results.items()):
        if place == federation and not result["failed"]:
            rows |= result["rows"]
            falls = result["falls"]
    if not rows:
        return {}
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
            None if any(run["ari"] is None for run in runs) else _mean(run["ari"] for run in runs),
            _mean((run["up_bytes"] + run["down_bytes"]) / 1e6 for run in runs),
            _mean(run["simulated_seconds"] for run in runs),
        )
    return dict(sorted(found.items(), key=lambda item: (item[1].rank, item[0])))


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
        parts += [f"## {name}", FEDERATIONS[name].about, table(of, name)]
        failed = [one for (place, _), one in sorted(results.items()) if place == name and one["failed"]]
        reasons = [f"`{one['method']}` ({one['failed']})" for one in failed]
        parts += [f"Not here: {'; '.join(reasons)}."] if reasons else []
    first = [says(present), *says_missing(present)]
    return fill_marks(text, {"first": first, "summary": [summary(present)], "federations": parts})


def says(standings: Mapping[str, Mapping[str, Standing]]) -> str:
    """Return who is first where, and how many cannot be told from it."""
    lines = []
    for federation, of in standings.items():
        near = sum(one.is_within_noise for one in of.values()) - 1
        lines.append(
            f"* **{federation}**: `{next(iter(of))}`; {near} of the other {len(of) - 1} are within noise of it."
        )
    return "\n".join(lines)


def says_missing(present: Mapping[str, Mapping[str, Standing]]) -> list[str]:
    """Return a sentence that names the federations without any result; nothing where there are none."""
    missing = [f"**{name}**" for name in FEDERATIONS if name not in present]
    said = f"{len(present)} of the {len(FEDERATIONS)} federations are computed so far; all below is of these"
    return [f"**{said}.** Not yet: {', '.join(missing)}; the same command does it."] if missing else []


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
        lines.append(
            [
                f"`{name}`",
                f"**{text}**" if one.is_within_noise else text,
                "best" if one.is_best else f"{mean} [{low}, {high}]",
                _value(one.worst, federation),
                MISSING if one.ari is None else decimals(one.ari),
                decimals(one.megabytes, 1),
                decimals(one.seconds, 1),
            ]
        )
    return markdown(("method", what, "to the best", "worst 10 %", "ARI", "MB", "simulated s"), lines, 1)


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
