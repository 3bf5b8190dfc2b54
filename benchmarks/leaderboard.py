"""All methods on nine federations, each at the best of one grid of learning rates, with what is known of the noise.

    python -m benchmarks.leaderboard [--write FILE] [--only METHOD,…] [--federations NAME,…] [--folder FOLDER]
                                     [--with FOLDER] [--import MODULE] [--kept] [--smoke]

A cell is a method on a federation: a trial of each rate on validation samples, and its runs from every seed, scored
as served and after one epoch on each client. It is kept in a file of its own as soon as it has ended, with a
digest, and not run again while its settings are the same; an interruption costs one cell at most. A file whose
digest is another one is refused.

A method of your own is computed into a folder of its own, `--only NAME --folder FOLDER`, with `--import MODULE`
where a module registers it. `--with FOLDER` adds what is there to the page as further rows.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.leaderboard_cells import (
    FEDERATIONS,
    Result,
    compute,
    file_of,
    join,
    keep,
    read,
    read_file,
    settings_of,
)
from benchmarks.leaderboard_page import draw, page
from benchmarks.smoke import Arguments
from coterie.errors import BadInput, unknown
from coterie.methods import METHODS
from coterie.plugins import give, import_modules, is_path
from coterie.report.drawing.figure import Figure, with_style
from coterie.report.drawing.saving import save_charts
from coterie.runs.folder.files import write_whole
from coterie.runs.schema.names import catalog

KEPT = Path(__file__).parents[1] / "docs" / "leaderboard"
PAGE = KEPT.with_suffix(".md")
PICTURE = "leaderboard"
SMOKE = {"only": "local-only", "federations": "tumours", "folder": KEPT, "others": [], "kept": False}
NAMES = tuple(entry.name for entry in METHODS)
"""The methods of the leaderboard: all that Coterie has."""


def main(words: Sequence[str]) -> int:
    """Read what is kept, compute what is missing, and write the page."""
    parser = Arguments("leaderboard", __doc__, SMOKE)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to be written")
    parser.add_argument("--only", default="", metavar="METHOD,…", help="these methods alone")
    parser.add_argument("--federations", default="", metavar="NAME,…", help="these federations alone")
    parser.add_argument("--folder", type=Path, default=KEPT, help="where results are kept")
    parser.add_argument("--with", type=Path, action="append", default=[], dest="others", metavar="FOLDER")
    parser.add_argument("--import", action="append", default=[], dest="modules", metavar="MODULE")
    parser.add_argument("--kept", action="store_true", help="compute nothing")
    asked = parser.read(words)
    methods = [name for name in asked.only.split(",") if name] or list(NAMES)
    give([*asked.modules, *filter(is_path, methods)])
    import_modules(asked.modules)
    federations = [name for name in asked.federations.split(",") if name] or list(FEDERATIONS)
    for name in methods:
        _ = catalog("method")[name]
    for name in federations:
        if name not in FEDERATIONS:
            raise BadInput(unknown("federation", name, FEDERATIONS))
    if not asked.kept:
        logging.disable(logging.WARNING)
        fill(asked.folder, methods, federations, must_run=asked.smoke)
    if asked.write is not None:
        own = read(asked.folder) if asked.folder.is_dir() or asked.folder != KEPT else {}
        write(asked.write, join(own, asked.others))
        print(asked.write)
    return 0


def fill(folder: Path, methods: Sequence[str], federations: Sequence[str], *, must_run: bool = False) -> None:
    """Compute the cells that a folder lacks, or has from other settings, and keep each as soon as it has ended.

    Raises:
        BadInput: a file in the folder is damaged or was changed; or `must_run`, and a method cannot run.
    """
    wanted = [(federation, method) for federation in federations for method in methods]
    todo = [place for place in wanted if not is_kept(folder, *place)]
    print(f"{len(wanted)} cells, of which {len(wanted) - len(todo)} are kept already", flush=True)
    for number, (federation, method) in enumerate(todo, 1):
        result = compute(federation, method)
        keep(folder, result)
        said = result["failed"] or f"{result['seconds']:.1f} s"
        if must_run and result["failed"]:
            raise BadInput(said)
        print(f"{number}/{len(todo)} {federation}, {method}: {said}", flush=True)


def is_kept(folder: Path, federation: str, method: str) -> bool:
    """Return whether a folder has a cell's result, by the settings of today."""
    path = file_of(folder, federation, method)
    return path.exists() and read_file(path)["settings"] == settings_of(federation, method)


def write(path: Path, results: Mapping[tuple[str, str], Result]) -> None:
    """Write the page, and its picture into `pictures` beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if results:
        chart = with_style(Figure(PICTURE, "", "", draw(results), height=560)).chart
        assert chart is not None
        save_charts({PICTURE: chart}, path.parent / "pictures")
        (path.parent / "pictures" / f"{PICTURE}.png").unlink()
    text = (path if path.exists() else PAGE).read_text("utf-8")
    write_whole(path, page(text, results).encode())


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInput as problem:
        sys.exit("\n".join(problem.problems))
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on with the next cell")
