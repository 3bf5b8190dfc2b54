"""What a test needs to look into a drawn figure."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from coterie.report.charts import draw_run
from coterie.report.drawing.figure import Chart, Figure
from coterie.report.drawing.saving import specification
from coterie.runs.folder.reading import RunResults, read_runs
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import LOG


def logging(run: RunFolder, *rows: tuple[int, str, str, float]) -> RunResults:
    """The run as if its method had logged these rows and nothing else."""
    changed = read_runs([run])[0]
    changed.__dict__["log"] = pl.DataFrame(rows, LOG, orient="row")
    return changed


def charts_of(folder: RunFolder, against: Sequence[RunFolder] = ()) -> dict[str, Chart]:
    """The charts of a run's page, by name."""
    run, *others = read_runs([folder, *against])
    return {figure.name: figure.chart for figure in draw_run(run, others) if figure.chart is not None}


def story(run: RunResults) -> list[Figure]:
    """The figures of what the method logged."""
    every_run_has = {"accuracy", "distribution", "groups", "affinity", "map"}
    return [figure for figure in draw_run(run) if figure.name not in every_run_has]


def the(run: RunResults, name: str) -> Figure:
    return next(figure for figure in story(run) if figure.name == name)


def drawn(figure: Figure) -> list[list[dict[str, Any]]]:
    """The data of each layer that has its own, in drawing order."""
    assert figure.chart is not None
    spec = specification(figure.chart)

    def names(part: dict[str, Any]) -> list[str]:
        own = [part["data"]["name"]] if "data" in part else []
        return own + [name for layer in part.get("layer", []) for name in names(layer)]

    return [spec["datasets"][name] for name in dict.fromkeys(names(spec))]
