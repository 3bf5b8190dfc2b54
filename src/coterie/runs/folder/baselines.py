"""What lies in `baselines/` of a run's folder: runs of other methods on the same clients, and why some are not."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.runs.folder.files import encode_json, read_json, write_whole
from coterie.runs.folder.reading import AdaptedRun, RunResults, method_name
from coterie.runs.folder.run_folder import RunFolder

FOLDER = "baselines"
REFUSALS = "not-run.json"

FEDAVG, LOCAL = "fedavg", "local-only"
"""The folders of the baselines, which are the names of their methods."""

TITLES: Mapping[str, str] = {FEDAVG: "FedAvg", LOCAL: "local-only"}
TUNED = "FedAvg + FT"
"""FedAvg after every client has fine-tuned a copy."""


def write_refusals(folder: RunFolder, refused: Mapping[str, str]) -> None:
    """Keep why baselines were not run beside a run, by their names; no file where all were.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = folder.path / FOLDER / REFUSALS
    if refused:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, encode_json(dict(refused)))
    else:
        path.unlink(missing_ok=True)


def read_refusals(folder: RunFolder) -> dict[str, str]:
    """Read why baselines were not run, by their names.

    Raises:
        BadInput: the file is damaged.
    """
    return {str(name): str(why) for name, why in (read_json(folder.path / FOLDER / REFUSALS) or {}).items()}


def read_baselines(folder: RunFolder) -> list[RunResults]:
    """Return the finished baselines beside a run, each labelled; a run of FedAvg is no baseline of itself."""
    found: list[RunResults] = []
    own = method_name(folder.experiment())
    for name, title in TITLES.items():
        beside = RunFolder(folder.path / FOLDER / name)
        if not (beside.path / "experiment.toml").is_file() or beside.status != "finished":
            continue
        if name != own:
            found.append(RunResults(beside, title))
        if name == FEDAVG:
            found.append(AdaptedRun(beside, TUNED))
    return found
