"""Writes the tables of the page on speed and memory from what the benchmarks measured.

    python -m benchmarks.document [--environments FOLDER] [--only NAME ...] [--smoke]
    python -m benchmarks.document --from FOLDER [--to FILE]

Without `--from`, every benchmark (or those named) is run first, and its rows are kept in docs/performance. With it,
nothing is run, and the page is made of the files that are there. The same files give the same page.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.document_bars import Row
from benchmarks.document_sections import SECTIONS, Section, draw_peers, markdown
from benchmarks.kept_cells import fill_marks
from benchmarks.smoke import Arguments
from coterie.report.drawing.saving import save_charts

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "performance"
PAGE = ROOT / "docs" / "performance.md"

Found = Mapping[str, Any]
"""What a benchmark has kept: `benchmark`, `machine` and `rows`."""


def page(text: str, folder: Path) -> str:
    """The page with its tables made anew, from the files in `folder` alone.

    Raises:
        ValueError: a file is not of the benchmark that its name says.
    """
    found = {section.name: kept(folder, section.name) for section in SECTIONS}
    parts = {"bars": [_bars(found)], "machines": [_machines(found)]}
    return fill_marks(text, parts | {section.name: _section(section, found[section.name]) for section in SECTIONS})


def kept(folder: Path, name: str) -> Found | None:
    """What a benchmark has kept in a folder; None where it has not.

    Raises:
        ValueError: the file is of another benchmark.
    """
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if found["benchmark"] != name or not found["rows"]:
        raise ValueError(
            f"{path.name} is of {found['benchmark']} with {len(found['rows'])} rows; it must be of {name}"
        )
    return found


def _bars(found: Mapping[str, Found | None]) -> str:
    rows = []
    for section in SECTIONS:
        kept = found[section.name]
        for bar in section.bars:
            judged = None if kept is None else bar.judge(kept["rows"])
            told = ("–", "*not measured*") if judged is None else (judged.found, judged.verdict)
            rows.append([bar.text, *told, f"`{section.name}`"])
    return markdown(("bar", "measured", "", "benchmark"), rows)


def _machines(found: Mapping[str, Found | None]) -> str:
    """Each machine once, with the benchmarks that ran on it."""
    on: dict[str, list[str]] = {}
    for name, kept in found.items():
        if kept is not None:
            on.setdefault(_machine(kept["machine"]), []).append(f"`{name}`")
    if not on:
        return "Nothing has been measured yet."
    return "\n".join(f"- {', '.join(names)}: {machine}" for machine, names in on.items())


def _machine(machine: Row) -> str:
    versions = f"Python {machine['python']}, PyTorch {machine['torch']}, NumPy {machine['numpy']}"
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['instructions']}, "
        f"{machine['memory_gib']} GiB; {machine['system']}, {versions}."
    )


def _section(section: Section, kept: Found | None) -> list[str]:
    command = f"`python -m benchmarks.{section.name}{section.options}`"
    if kept is None:
        return [f"Not measured yet: {command} does it."]
    return [f"Measured by {command}.", *section.shown(kept["rows"])]


def run(names: Sequence[str], given: Namespace) -> None:
    """Run benchmarks one after the other as the command line says, and keep their rows.

    Raises:
        subprocess.CalledProcessError: one of them failed.
    """
    given.rows.mkdir(parents=True, exist_ok=True)
    for name in names:
        more = ["--environments", given.environments] if name == "peers" and given.environments else []
        more += ["--chart", str(given.to.parent / "pictures")] if name == "scale" else []
        more += ["--smoke"] if given.smoke else []
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(given.rows / f"{name}.json"), *more]
        subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    """Write the page."""
    names = [section.name for section in SECTIONS]
    parser = Arguments("document", __doc__, {"only": ["bf16"], "folder": None}, KEPT)
    parser.add_argument(
        "--from", dest="folder", type=Path, metavar="FOLDER", help="rows kept earlier; runs nothing"
    )
    parser.add_argument("--only", nargs="+", choices=names, help="benchmarks to run; without it, all")
    parser.add_argument("--environments", metavar="FOLDER", help="other simulators, for `peers`")
    parser.add_argument("--to", type=Path, default=PAGE, metavar="FILE", help="the page")
    given = parser.read()
    if given.folder is None:
        run(given.only or names, given)
    text = (given.to if given.to.exists() else PAGE).read_text("utf-8")
    given.to.write_text(page(text, given.folder or given.rows), encoding="utf-8")
    pictures = given.to.parent / "pictures"
    if (peers := kept(given.folder or given.rows, "peers")) is not None:
        save_charts({"peers": draw_peers(peers["rows"])}, pictures)
    for name in ("peers", "scale"):  # the page has the SVG
        (pictures / f"{name}.png").unlink(missing_ok=True)
    print(given.to)


if __name__ == "__main__":
    main()
