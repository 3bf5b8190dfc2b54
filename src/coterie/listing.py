"""What the command line prints: what can be chosen, and how a run ended."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from coterie.experiment_toml import literal, plain
from coterie.live import percent, volume

if TYPE_CHECKING:
    from coterie.catalog import Catalog, Entry
    from coterie.events import Result


def catalog_lines(catalog: Catalog, width: int | None = None) -> Iterator[str]:
    """Each entry: its name, its summary, then one line a setting with its default and its meaning.

    Args:
        catalog: methods, datasets, splits or networks.
        width: columns to wrap the summaries at; without it, the terminal's.
    """
    width = width or shutil.get_terminal_size((110, 24)).columns
    margin = max(len(name) for name in catalog.names()) + 2
    for entry in catalog:
        wrapped = textwrap.wrap(entry.summary, max(width - margin, 30)) or [""]
        yield f"{entry.name:<{margin}}{wrapped[0]}".rstrip()
        yield from (" " * margin + line for line in wrapped[1:])
        yield from _setting_lines(entry, " " * margin)


def _setting_lines(entry: Entry, indent: str) -> Iterator[str]:
    written = []
    for setting in entry.settings:
        if setting.required:
            written.append((f"{setting.name} (must be given)", setting.meaning))
        elif setting.default is None:
            written.append((f"{setting.name} (not set)", setting.meaning))
        else:
            written.append((f"{setting.name} = {literal(plain(setting.default))}", setting.meaning))
    margin = max((len(code) for code, _ in written), default=0) + 2
    for code, meaning in written:
        yield f"{indent}  {code:<{margin}}{meaning}".rstrip()


def console() -> Console:
    """Standard output, wide enough for every column where it is no terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def spoken(folder: Path) -> str:
    """What a user writes to name the run in `folder`: its name, or the path where it is not in `runs`."""
    return folder.name if folder.parent == Path("runs") else shlex.quote(str(folder))


def outcome(result: Result, page: Path) -> list[str]:
    """What a run has found, where it lies, and what can be done with it next."""
    last, run = result.summary, spoken(result.folder)
    groups = f"{last['groups']} groups" if last["groups"] else "no groups"
    ari = "" if last["ari"] is None else f" (ARI {last['ari']:.2f} to the planted ones)"
    return [
        f"accuracy {percent(last['macro_accuracy'])}, worst 10 % {percent(last['worst10'])}, {groups}{ari}, "
        f"{volume(last['up_bytes'])} up, {volume(last['down_bytes'])} down, {last['seconds']:.1f} s",
        f"folder  {result.folder}",
        f"page    {page}",
        f"next    coterie show {run}   or   coterie report {run} --charts charts",
    ]
