"""`coterie.compare`: run a comparison, and write its tables as Markdown and LaTeX, and its page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.report.comparison import page, table
from coterie.studies.compare import effort
from coterie.studies.compare.beside import Which
from coterie.studies.compare.cells import Watcher
from coterie.studies.compare.compare import Compared, run_comparison
from coterie.studies.compare.spec import Comparison


def compare(
    comparison: Comparison | Mapping[str, Any],
    *,
    folder: Path | str = "comparisons",
    jobs: int | None = None,
    tune: int | None = None,
    sampler: str = "grid",
    prune: bool = False,
    observer: Watcher | None = None,
    baselines: Which = "none",
) -> Compared:
    """Run every cell of a comparison that is not finished, and write its tables and its page.

    In a script, call it under `if __name__ == "__main__":`, for the processes that it starts read the script again.

    Args:
        comparison: a Comparison, or tables as in a comparison's TOML file.
        folder: where the comparison's own folder is made, or gone on with, under its name.
        jobs: cells at a time; None for one a core.
        tune: trials by which the settings of each method are picked first, on validation data; None for none.
        sampler: how they are drawn: `grid` from the methods' grids, `random` or `tpe` from the ranges that these
            span (extra `coterie[tune]`).
        prune: whether the worse half of each four trials ends at a quarter, and again at half, of the rounds.
        observer: is told how the cells get on.
        baselines: whether FedAvg, FedAvg+FT and local-only are further rows, where no method is one of them:
            "none", "done" (those run before), "cheap" (also those that take a minute at most) or "all".

    Returns:
        The tables, and where they are. After Ctrl-C the status is `interrupted`, and the same call goes on.

    Raises:
        BadInput: what is compared cannot run, or another process is at it; nothing has been run then. Or every cell
            has failed.
    """
    return run_comparison(
        comparison,
        folder=folder,
        jobs=jobs,
        tune=tune,
        sampler=sampler,
        prune=prune,
        observer=observer,
        baselines=baselines,
        write_report=_write_report,
    )


def _write_report(compared: Compared) -> None:
    frames, summary = compared.frames, compared.summary
    assert frames is not None
    assert summary is not None
    comparison, where = compared.comparison, compared.folder
    where.write_text(
        "table.md",
        table.to_markdown(
            summary, comparison, frames.metrics, [*effort.describe(comparison, summary), *compared.warnings]
        ),
    )
    where.write_text("table.tex", table.to_latex(summary, comparison, frames.metrics))
    failed = [f"{cell.label}: {sentence}" for cell, sentence in compared.failures()]
    notes = [*compared.notes, *failed, *compared.unmet()]
    page.build(where.path, comparison, frames, summary, notes, tuning=where.tuning())
