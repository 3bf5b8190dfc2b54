"""Cells of a table, each a run that is kept as soon as it has ended and not run again while its key is the same."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.measuring import machine
from benchmarks.smoke import Arguments, pick_two, shrink
from coterie.errors import BadInput, unknown
from coterie.report.drawing.figure import Chart, Figure, with_style
from coterie.report.drawing.saving import save_charts
from coterie.runs.events import Round
from coterie.runs.folder.files import write_whole
from coterie.runs.schema.experiment import Experiment
from coterie.studies.compare.spec import key_of
from coterie.studies.rows import write_rows

Row = Mapping[str, Any]


class Cell(Protocol):
    """One run."""

    def experiment(self) -> Experiment:
        """Return what is run."""

    @property
    def place(self) -> str:
        """What says which cell of the table it is."""


C = TypeVar("C", bound=Cell)
M = TypeVar("M", bound=str)


def play(experiment: Experiment, also: Callable[[Round], Row] = lambda last: {}) -> Row:
    """Run an experiment in this process and return its row: the accuracy after the last round, 0 if it gave up.

    `also` makes what else the row has from the last round, of a run that did not give up.
    """
    import coterie
    from coterie.runtime.threads import one_thread

    try:
        with one_thread(blas=True):
            *_, last = coterie.rounds(experiment)
    except BadInput as problem:
        return {"key": key_of(experiment), "accuracy": 0.0, "failed": str(problem)}
    return {"key": key_of(experiment), "accuracy": float(last.metrics["accuracy"]), **also(last)}


def fill(
    name: str,
    about: str | None,
    words: Sequence[str],
    kept: Path,
    methods: Sequence[M],
    cells: Callable[[Sequence[M]], list[C]],
    run: Callable[[Experiment], Row] = play,
    what: str = "method",
) -> tuple[dict[str, Row], Path | None]:
    """Read a benchmark's command line, run what is missing, and return all rows and the page to write, if any.

    Args:
        name: of the benchmark's module.
        about: what its help says.
        words: of the command line.
        kept: the file of the rows.
        methods: that can be asked for.
        cells: returns the cells of some methods.
        run: makes the row of a cell.
        what: is asked for, where that is no method.
    """
    parser = Arguments(name, about, {"only": "", "kept": False}, kept)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page that gets the tables")
    parser.add_argument("--only", default="", metavar=f"{what.upper()},…", help=f"run these {what}s alone")
    parser.add_argument("--kept", action="store_true", help="run nothing")
    asked = parser.read(words)
    kept = asked.rows
    only = [word for word in asked.only.split(",") if word]
    for word in only:
        if word not in methods:
            raise BadInput(unknown(what, word, methods))
    chosen = [method for method in methods if not only or method in only]
    logging.disable(logging.WARNING)
    rows: dict[str, Row] = json.loads(kept.read_text("utf-8"))["rows"] if kept.exists() else {}
    todo = [cell for cell in cells(chosen) if rows.get(cell.place, {}).get("key") != key_of(cell.experiment())]
    todo = [] if asked.kept else pick_two(todo) if asked.smoke else todo
    for number, cell in enumerate(todo, 1):
        rows[cell.place] = run(shrink(cell.experiment()) if asked.smoke else cell.experiment())
        if asked.smoke and "failed" in rows[cell.place]:
            raise BadInput(rows[cell.place]["failed"])
        print(f"{number}/{len(todo)} {cell.place}: {rows[cell.place]['accuracy']:.3f}", flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        found = {"benchmark": name, "machine": machine(), "rows": rows}
        write_whole(kept, write_rows(found, {"rows": 1}).encode())
    write: Path | None = asked.write
    return rows, write


def put_between(page: str, begin: str, end: str, parts: Sequence[str]) -> str:
    """Return the page with new parts in the place of what stands between two marks."""
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n" + "\n\n".join(parts) + f"\n\n{end}{after}"


def fill_marks(page: str, parts: Mapping[str, Sequence[str]]) -> str:
    """Return the page with new parts between the marks of each name."""
    for name, own in parts.items():
        page = put_between(page, f"<!-- begin {name} -->", f"<!-- end {name} -->", own)
    return page


def write_with_picture(
    page: Path, marks: tuple[str, str], parts: Sequence[str], chart: Chart, picture: str, says: str
) -> None:
    """Write the parts, and below them a chart as `pictures/PICTURE.svg`, between two marks of the page."""
    styled = with_style(Figure(picture, "", "", chart)).chart
    assert styled is not None
    folder = page.parent / "pictures"
    save_charts({picture: styled}, folder)
    (folder / f"{picture}.png").unlink()
    whole = [*parts, f"![{says}](pictures/{picture}.svg)"]
    write_whole(page, put_between(page.read_text("utf-8"), *marks, whole).encode())
