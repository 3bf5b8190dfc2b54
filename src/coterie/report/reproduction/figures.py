"""What a paper's figure draws, of our runs, beyond what the page of every comparison has by itself.

* `log`: what the method logs over the rounds, as a Hopkins statistic or a gap.
* `pairs`: distance and divergence of labels of each pair of clients.
* `matrix`, `map`: how far apart the clients are, as a matrix and as a map, from the first seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from coterie.report.charts.groups import draw_affinity, draw_model_map
from coterie.report.drawing.colours import PALETTE
from coterie.report.drawing.figure import Chart, Figure, axis_of_rounds, rows, with_style
from coterie.report.drawing.marks import lines, value_axis
from coterie.report.numbers import capital
from coterie.runs.folder.reading import RunResults
from coterie.studies.papers.claims import Reference
from coterie.studies.papers.quantities import compare_pairs

if TYPE_CHECKING:
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.studies.compare.spec import Cell, Comparison
    from coterie.studies.papers.item import Item
    from coterie.studies.papers.result import Result

Runs = list[tuple["Cell", "RunFolder"]]


def draw_item(item: Item, found: Result, comparison: Comparison, finished: Mapping[str, RunFolder]) -> list[Figure]:
    """Draw what the paper draws, of the runs that are finished."""
    runs = [
        (cell, finished[cell.key]) for cell in comparison.cells() if cell.key in finished and not cell.is_adapted
    ]
    draw = {
        "log": lambda: _draw_logs(item, found, runs),
        "pairs": lambda: _draw_pairs(item, found, runs),
        "matrix": lambda: _draw_clients(runs, "matrix"),
        "map": lambda: _draw_clients(runs, "map"),
    }
    return [with_style(figure) for kind in item.draws for figure in draw[kind]()]


def _draw_logs(item: Item, found: Result, runs: Runs) -> Iterator[Figure]:
    """A figure for each log that the item's quantities read, and each setting: its course, a line a method and
    part."""
    logs: dict[str, dict[str, str]] = {}
    for name, quantity in item.quantities[found.scale].items():
        if quantity.log is not None:
            logs.setdefault(quantity.log, {}).setdefault(quantity.of, name)
    for number, setting in enumerate(dict.fromkeys(cell.setting for cell, _ in runs)):
        for log, parts in logs.items():
            frames = [
                item.quantities[found.scale][name]
                .read_log(folder)
                .with_columns(of=pl.lit(f"{cell.method} {part.removeprefix('@').replace('_', '-')}".rstrip()))
                for cell, folder in runs
                if cell.setting == setting
                for part, name in parts.items()
            ]
            frame = pl.concat(frames) if frames else pl.DataFrame()
            if not frame.height:
                continue
            frame = frame.group_by("of", "round", maintain_order=True).agg(pl.col("value").mean()).sort("round")
            x = axis_of_rounds("round", frame["round"][0], frame["round"][-1])
            name = "-".join(["log", *log.split(), *([str(number + 1)] if number else [])])
            title = f"{capital(log)}, over rounds" + (f": {setting}" if setting else "")
            yield Figure(name, title, "A line is the mean over the seeds.", lines(frame, x, value_axis(log)))


def _draw_pairs(item: Item, found: Result, runs: Runs) -> Iterator[Figure]:
    """A figure for each method: a dot a pair of clients."""
    (name, *_) = [name for name, q in item.quantities[found.scale].items() if q.correlation is not None]
    for number, (setting, method) in enumerate(dict.fromkeys((cell.setting, cell.method) for cell, _ in runs), 1):
        own = [(cell.seed, folder) for cell, folder in runs if (cell.setting, cell.method) == (setting, method)]
        frames = [
            pl.DataFrame({"divergence": pairs[0], "distance": pairs[1], "seed": [f"seed {seed}"] * len(pairs[0])})
            for seed, folder in own
            if (pairs := compare_pairs(folder)) is not None
        ]
        if not frames:
            continue
        reference = Reference(name, method, setting)
        ours, printed = found.mean_and_sd(reference), item.published.get(reference)
        said = "Each dot is a pair of clients."
        said += f" The correlation is {ours[0]:.3f} on average over the seeds." if ours else ""
        said += f" The paper prints {printed:g}." if printed is not None else ""
        chart: Chart = (
            alt.Chart(rows(pl.concat(frames)))
            .mark_circle(size=22, opacity=0.5)
            .encode(
                x=alt.X("divergence:Q").title("divergence of labels"),
                y=alt.Y("distance:Q").title("distance of models").scale(zero=False),
                color=alt.Color("seed:N", title=None, scale=alt.Scale(range=PALETTE)),
                tooltip=["seed:N", "divergence:Q", "distance:Q"],
            )
        )
        title = " of ".join(filter(None, ["Labels and models of pairs of clients", setting]))
        yield Figure(f"pairs-{number}", f"{title}: {method}", said, chart)


def _draw_clients(runs: Runs, kind: str) -> Iterator[Figure]:
    """The clients of each method in the first seed, as a run's page draws them."""
    draw = {"matrix": draw_affinity, "map": draw_model_map}[kind]
    seen: set[tuple[str, str]] = set()
    for cell, folder in runs:
        if (cell.setting, cell.method) not in seen:
            seen.add((cell.setting, cell.method))
            figure = draw(RunResults(folder, cell.label))
            if figure.chart is not None:
                yield replace(figure, name=f"{kind}-{len(seen)}", title=f"{figure.title}: {cell.label}")
