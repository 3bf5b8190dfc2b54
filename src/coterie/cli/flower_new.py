"""Writes a Flower app: a folder with an experiment and two files that import the apps from Coterie."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tomli_w

from coterie.clients.tasks import CLASSIFICATION
from coterie.errors import BadInput
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.schema.refusals import OF_SIMULATIONS
from coterie.runs.schema.sections import REMOTE
from coterie.runs.setup import load_federation

TEMPLATE = Path(__file__).with_name("flower_app")
"""The files of every app; `{{name}}` and `{{package}}` stand for its names."""

DEFAULT_CONFIG = {
    "experiment": "experiment.toml",
    "runs": "runs",
    "name": "",
    "resume": "",
    "wait": 300,
    "round-seconds": 600,
    "diagnose": "",
    "profiles": False,
    "data": "",
    "state-dir": "",
}
"""All keys of a run's configuration with their defaults; Flower refuses keys that an app does not declare."""

MAX_NAME_LENGTH = 32
"""Characters of an app's name that Flower accepts."""

IGNORED = """\
# Keys never go into version control, nor into the app that is sent to every client.
/keys/
*.key
*.pem
# What runs leave behind.
/runs/
/server/
/node*/
/parts/
__pycache__/
"""


def write_app(folder: Path, experiment: str) -> list[Path]:
    """Write an app that carries out an experiment.

    Args:
        folder: new or empty; the app gets its name.
        experiment: the text of `experiment.toml`.

    Returns:
        The files that were written.

    Raises:
        BadInput: the folder holds something, or its name has no letter that an app could be called by.
    """
    name = make_app_name(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{str(folder)!r} exists already and is not empty; name another folder")
    package = f"{name.replace('-', '_').removesuffix('_app')}_app"
    names = {"{{name}}": name, "{{package}}": package}
    files = {
        "pyproject.toml": tomli_w.dumps(_make_project(name, package)),
        "experiment.toml": experiment,
        "README.md": _fill_template(TEMPLATE / "README.md", names),
        ".gitignore": IGNORED,
        f"{package}/__init__.py": "",
        f"{package}/server_app.py": _fill_template(TEMPLATE / "server_app.py", names),
        f"{package}/client_app.py": _fill_template(TEMPLATE / "client_app.py", names),
    }
    (folder / package).mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
    return [folder / file for file in files]


def leave_data_with_clients(experiment: Experiment) -> Experiment:
    """Return an experiment on files of one's own as one for clients who each hold such data.

    The data say what clients cannot know of each other: how many there are, the shape of a sample, the classes, the
    mean and deviation of numbers to learn, and of a table the columns and the values of its text.

    Raises:
        BadInput: the data cannot be read, or the experiment is for simulations alone.
    """
    federation = load_federation(prepare(experiment))
    columns, task = federation.preparation.columns, federation.task
    scale = getattr(task, "target_scale", None)
    levels = {column.name: column.levels for column in columns if column.levels is not None}
    found = experiment.updated(
        {
            **dict.fromkeys(f"data.{key}" for key in OF_SIMULATIONS),
            "data.name": REMOTE,
            "data.split": None,
            "data.client": None,
            "data.clients": federation.n,
            "data.features": federation.features,
            "data.classes": federation.target_names or federation.classes or federation.outputs,
            "data.columns": tuple(column.name for column in columns) or None,
            "data.levels": levels or None,
            **({} if type(task) is type(CLASSIFICATION) else {"task.name": task.name}),
            **({"task.target_scale": scale} if isinstance(scale, tuple) else {}),
        }
    )
    found.check()
    return found


def make_app_name(folder: Path) -> str:
    """Return the name of an app in `folder`: lower case letters, digits and hyphens, beginning with a letter.

    Raises:
        BadInput: nothing is left of the folder's name.
    """
    words = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    name = re.sub(r"^[0-9-]+", "", words)[:MAX_NAME_LENGTH].rstrip("-")
    if not name:
        raise BadInput(
            f"{str(folder)!r} is no name for an app; write at least one letter from a to z, and digits and hyphens "
            "behind it"
        )
    return name


def _make_project(name: str, package: str) -> dict[str, Any]:
    """Return what Flower reads of an app. It has no dependencies: Flower would install them at every client."""
    return {
        "project": {
            "name": name,
            "version": "1.0.0",
            "description": "A federation trained with Coterie",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "coterie",
                    "components": {
                        "serverapp": f"{package}.server_app:app",
                        "clientapp": f"{package}.client_app:app",
                    },
                    "config": DEFAULT_CONFIG,
                }
            }
        },
    }


def _fill_template(path: Path, names: dict[str, str]) -> str:
    text = path.read_text("utf-8")
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return text
