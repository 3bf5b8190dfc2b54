"""What the shell may complete a word to: names of methods, networks, datasets and splits, of runs and of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer


def complete_runs(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the runs that begin so, in the folder that the command was given."""
    folder = Path(str(context.params.get("folder") or "runs"))
    return sorted(found.parent.name for found in folder.glob(f"{_plain(incomplete)}*/experiment.toml"))


def complete_names(kind: str, endings: tuple[str, ...] = ()) -> Callable[[str], list[str]]:
    """Return what completes names of a catalogue, such as `methods`, and files with one of the endings."""

    def complete(incomplete: str) -> list[str]:
        from coterie.runs.schema.names import catalog

        names = [name for name in catalog(kind).names() if name.startswith(incomplete)]
        return names + (complete_files(incomplete, endings) if endings else [])

    return complete


def complete_files(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    """Return the files with one of the endings, and the folders, whose paths begin so."""
    beginning = Path(f"{incomplete}x")
    there = list(beginning.parent.glob(f"{_plain(beginning.name[:-1])}*"))
    files = [str(path) for path in there if path.suffix in endings and path.is_file()]
    return sorted(files + [f"{path}/" for path in there if path.is_dir()])


def _plain(text: str) -> str:
    """Return a text in which nothing stands for other characters."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in text)
