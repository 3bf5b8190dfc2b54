"""What a run is compared with: kept in its folder, so that a page that is built anew shows it again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from coterie.errors import BadInput
from coterie.runs.folder.files import encode_json, read_json, write_whole
from coterie.runs.folder.run_folder import RunFolder

FILE = "against.json"


def write_against(folder: RunFolder, against: Sequence[RunFolder]) -> None:
    """Keep the runs that a run is compared with, as paths relative to its folder. An empty list forgets them.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = folder.path / FILE
    if against:
        here = folder.path.resolve()
        paths = [_path_from(here, other.path.resolve()).as_posix() for other in against]
        write_whole(path, encode_json({"runs": paths}))
    else:
        path.unlink(missing_ok=True)


def _path_from(here: Path, there: Path) -> Path:
    """Return the way to `there`: relative, or where that is on another drive, absolute."""
    return Path(os.path.relpath(there, here)) if here.drive == there.drive else there


def read_against(folder: RunFolder) -> tuple[list[RunFolder], list[str]]:
    """Read the runs with which a run is compared, and one sentence on each that is gone.

    Raises:
        BadInput: the file is damaged.
    """
    path, here = folder.path / FILE, folder.path.resolve()
    try:
        paths = (read_json(path) or {"runs": []})["runs"]
        runs = [(text, (here / text).resolve()) for text in paths]
    except (BadInput, KeyError, TypeError):
        raise BadInput(f"{path} is damaged; remove it, and name the other runs with --against") from None
    found, missing = [], []
    for text, place in runs:
        if (place / "experiment.toml").is_file():
            found.append(RunFolder(place))
        else:
            missing.append(f"run {place.name} is left out of the comparison: there is no run in {text} any more")
    return found, missing
