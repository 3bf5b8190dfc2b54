"""Who gains and who loses: each client's first metric with a method, held against that with the baseline."""

from __future__ import annotations

import altair as alt
import polars as pl

from coterie.errors import count_of
from coterie.report.comparison.view import View
from coterie.report.drawing.colours import NO_GROUP, of_groups
from coterie.report.drawing.figure import Figure, rows
from coterie.report.drawing.marks import PLAIN, colour
from coterie.report.gains import floats, gain_over, write_gain
from coterie.report.numbers import MISSING, capital, join_words
from coterie.report.tables import Table

MOST_DOTS = 2500
"""A chart has about so many dots at most. Of more, every k-th in the order of gains is drawn."""

MOST_GROUPS = 8
"""At most so many groups are told apart; the later ones are taken together."""

LARGEST = ("largest group", "2nd largest", "3rd largest", "4th largest")
REST, NONE = "other groups", "no group"

OTHER = ("other", "other_low", "other_high")
"""The columns of the baseline's score and its interval."""

_TINT = "#7A828C"


def pair_clients(view: View) -> pl.DataFrame:
    """Pair each client's first metric with the baseline's, for every seed that both methods have finished.

    Where the clients are people who are the same in every seed, one row a person, with the mean over the seeds.

    Returns:
        method, client, name, seeds (how many), label (of its group) and gain: positive where the client fares
        better, whatever the metric's direction, in percentage points where the metric is a share, and null where
        it is not known, as where both models diverged. Then
        test_samples, score, low and high, and other, other_low and other_high of the baseline; and seed, where a
        row is of one.
    """
    metric, own = view.metrics.deciding, pl.col("method") == view.baseline
    known, ends = view.scored, ("score", "low", "high")
    other = known.filter(own).select(
        "seed", "client", *(pl.col(c).alias(name) for c, name in zip(ends, OTHER, strict=True))
    )
    found = _with_labels(view, known.filter(~own)).join(other, on=["seed", "client"], maintain_order="left")
    gain = gain_over(metric, *(floats(found[column]) for column in ("score", "other")))
    found = found.with_columns(gain=pl.Series(gain, dtype=pl.Float64).fill_nan(None))
    numbers = ("test_samples", *ends, *OTHER)
    if are_same_people(view):
        return found.group_by("method", "client", maintain_order=True).agg(
            pl.col("name").first(),
            pl.len().alias("seeds"),
            # Where the group is not the same in every seed, the one that the client had most often.
            pl.col("label").mode().sort().first(),
            mean_if_known("gain").fill_nan(None),
            *map(mean_if_known, numbers),
        )
    return found.select(
        "method", "client", "name", pl.lit(1).alias("seeds"), "label", "gain", *numbers, pl.col("seed")
    )


def mean_if_known(column: str) -> pl.Expr:
    """Average a column, if every value is known."""
    return pl.when(pl.col(column).null_count() == 0).then(pl.col(column).mean()).alias(column)


def are_same_people(view: View) -> bool:
    """Whether client i is the same person in every seed: named by the data, and in the same true group.

    Clients that a split has cut out of the data hold other samples in every seed, whatever their numbers.
    """
    if len(view.seeds) < 2:
        return False
    made_up = pl.col("name") == pl.format("client {}", "client")
    by_client = view.clients.group_by("client").agg(
        made_up.any(),
        pl.col("name", "true_group").n_unique().name.suffix("_kinds"),
        pl.col("seed").n_unique().alias("seeds"),
    )
    same = ~pl.col("name") & (pl.col("name_kinds") == 1) & (pl.col("true_group_kinds") == 1)
    return bool(by_client.select((same & (pl.col("seeds") == len(view.seeds))).all()).item())


def draw_gains(view: View) -> Figure:
    """A strip of dots for each method: what its clients gain or lose against the baseline."""
    name, title = f"clients{view.mark}", f"Who gains and who loses against {view.baseline}"
    found = pair_clients(view)
    if not found.height:
        return Figure(name, title, f"There is no finished seed of both {view.baseline} and another method.")
    counts = count_by_method(found)
    alike = counts.filter(pl.col("same") == pl.col("clients"))["method"].to_list()
    if len(alike) == counts.height:
        return Figure(
            name, title, f"With {join_words(alike, 15)} every client fares exactly as with {view.baseline}."
        )
    found, counts = (frame.filter(~pl.col("method").is_in(alike)) for frame in (found, counts))
    lines = {
        row["method"]: f"{row['method']}\n{row['gained']} gain, {row['lost']} lose" for row in counts.to_dicts()
    }
    labels = labels_of(found)
    shades = of_groups([-1 if label == NONE else number for number, label in enumerate(labels)])
    looks = dict(zip(labels, shades, strict=True))
    name_line = pl.col("method").replace_strict(lines).alias("line")
    dots = found.rename({"label": "of"}).filter(pl.col("gain").is_finite())
    every = max(1, -(-dots.height // MOST_DOTS))
    dots = dots.sort("method", "of", "gain", maintain_order=True).gather_every(every)
    dots = dots.select("method", "of", "gain", pl.col("^(name|seed)$"), name_line)
    x = alt.X("gain:Q").title(f"{unit_of(view)} better than {view.baseline}")
    x = x.axis(format=f"+{PLAIN}", labelExpr="datum.value == 0 ? '0' : datum.label")
    # In the order of the mean gain, the best above.
    y = (
        alt.Y("line:N")
        .title(None)
        .sort(list(lines.values()))
        .axis(labelExpr="split(datum.label, '\\n')", labelLimit=170, labelPadding=8, domain=False, ticks=False)
    )
    form = "+.1f" if view.metrics.deciding.is_share else "+.3~g"
    tooltips = [
        alt.Tooltip("method:N"),
        alt.Tooltip("name:N"),
        *([alt.Tooltip("seed:N")] if "seed" in dots.columns else []),
        alt.Tooltip("of:N", title="group"),
        alt.Tooltip("gain:Q", format=form),
    ]
    encoded = alt.Chart(rows(dots)).mark_point(filled=True, opacity=0.7)
    encoded = encoded.encode(x=x, y=y, color=colour(looks, stroke=False), tooltip=tooltips)
    if len(labels) > 1:
        encoded = encoded.encode(yOffset=alt.YOffset("of:N").sort(labels))
    chart = alt.layer(
        alt.Chart(rows(pl.DataFrame({"gain": [0.0]}))).mark_rule(color=NO_GROUP, strokeWidth=2).encode(x=x),
        encoded,
        alt.Chart(rows(counts.with_columns(name_line)))
        .mark_tick(thickness=3, size=24, color=_TINT)
        .encode(
            x=alt.X("mean:Q"),
            y=y.bandPosition(0.5),
            tooltip=[alt.Tooltip("method:N"), alt.Tooltip("mean:Q", format=form)],
        ),
    )
    caption = _caption(view, found, counts, labels)
    caption += f" One dot in {every} is drawn." if every > 1 else ""
    if alike:
        caption += f" Left out, as every client fares exactly as with {view.baseline}: {join_words(alike, 15)}."
    height = 70 + counts.height * (36 + 5 * min(len(labels), MOST_GROUPS))
    return Figure(name, title, caption, chart, height=height)


def count_by_method(found: pl.DataFrame) -> pl.DataFrame:
    """One row a method, the highest mean gain first: method, gained, lost, same, clients, mean (null: unknown)."""
    return (
        found.group_by("method", maintain_order=True)
        .agg(
            (pl.col("gain") > 0).sum().alias("gained"),
            (pl.col("gain") < 0).sum().alias("lost"),
            (pl.col("gain") == 0).sum().alias("same"),
            pl.len().alias("clients"),
            pl.col("gain").mean().fill_nan(None).alias("mean"),
        )
        .sort("mean", descending=True, nulls_last=True, maintain_order=True)
    )


def gains_table(view: View) -> Table:
    """Count for each method the clients that gain and lose, and take the mean gain, over all and in each group.

    Under a group stands the mean gain of its clients, and the share of them that lose.
    """
    found, metric = pair_clients(view), view.metrics.deciding
    labels = labels_of(found)
    by_group = {
        (row["method"], row["label"]): row
        for row in found.group_by("method", "label")
        .agg(pl.col("gain").mean().fill_nan(None).alias("mean"), (pl.col("gain") < 0).mean().alias("lost"))
        .to_dicts()
    }
    split = labels if len(labels) > 1 else []
    lines = []
    for row in count_by_method(found).to_dicts():
        parts = [by_group.get((row["method"], label)) for label in split]
        shares = [
            MISSING
            if part is None or part["mean"] is None
            else f"{write_gain(metric, part['mean'])} ({part['lost']:.0%})"
            for part in parts
        ]
        counts = [str(row[column]) for column in ("gained", "lost", "same")]
        lines.append([row["method"], *counts, write_gain(metric, row["mean"]), *shares])
    header = ["Method", "Gain", "Lose", "Equal", f"Mean, {unit_of(view)}", *map(capital, split)]
    return Table(header, lines)


def labels_of(found: pl.DataFrame) -> list[str]:
    """The groups' labels in their order: true ones by number, others by size, then the rest and none."""
    there = set(found["label"])
    numbered = sorted((label for label in there if label.startswith("group ")), key=lambda label: int(label[6:]))
    return [*numbered, *(label for label in (*LARGEST, REST, NONE) if label in there)]


def _with_labels(view: View, frame: pl.DataFrame) -> pl.DataFrame:
    """With the `label` of each client's group.

    A true group keeps its number where the clients are in the same ones in every seed. Groups that were found have
    other numbers in every run, and so may true ones: then it is their place by size, in each run by itself.
    """
    if frame["true_group"].null_count() < frame.height and not frame["true_group"].null_count():
        alike = frame.group_by("client").agg(pl.col("true_group").n_unique())["true_group"].eq(1).all()
        if alike:
            number = pl.col("true_group")
            label = pl.when(number < MOST_GROUPS).then(pl.format("group {}", number)).otherwise(pl.lit(REST))
            return frame.with_columns(label.alias("label"))
        of = "true_group"
    else:
        of = "group"
    sizes = (
        frame.group_by("method", "seed", of)
        .agg(pl.len().alias("size"))
        .sort("method", "seed", "size", of, descending=[False, False, True, False])
    )
    real = sizes.filter(pl.col(of) >= 0).with_columns(place=pl.int_range(pl.len()).over("method", "seed"))
    named = real.with_columns(
        label=pl.col("place").replace_strict(dict(enumerate(LARGEST)), default=REST, return_dtype=pl.String)
    )
    joined = frame.join(
        named.select("method", "seed", of, "label"), on=["method", "seed", of], how="left", maintain_order="left"
    )
    return joined.with_columns(pl.col("label").fill_null(NONE))


def _caption(view: View, found: pl.DataFrame, counts: pl.DataFrame, labels: list[str]) -> str:
    seeds = int(found["seeds"].to_numpy().max(initial=1))
    if seeds > 1:
        dot = f"Each dot is a client, the mean over {count_of(seeds, 'seed')}"
    elif len(view.seeds) > 1:
        dot = "Each dot is a client of one seed. Another seed draws other clients, so none are averaged"
    else:
        dot = "Each dot is a client"
    caption = f"{dot}. Right of zero it does better than with {view.baseline}, left of zero worse."
    caption += " A grey bar is the mean."
    if len(labels) > 1:
        are_true = labels[0].startswith("group ")
        caption += f" Colours are the {'true groups' if are_true else 'groups by their size'}."
    first = counts.row(0, named=True)
    said = f"Here {first['gained']} of {first['clients']} gain with {first['method']}, and {first['lost']} lose."
    return f"{caption} {said}"


def unit_of(view: View) -> str:
    """Return in what gains are: points of a share, or the metric's own unit."""
    metric = view.metrics.deciding
    return f"points of {metric.title}" if metric.is_share else metric.title
