"""How Flower's programs are called: where they are, their environment, their settings and their answers."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.errors import BadInput

Scalar = bool | int | float | str

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
"""No telemetry, no search for updates."""

POLL_SECONDS = "0.2"
"""Between two looks for an app to start; with Flower's own one second every round would be longer."""

MAX_WORDS = 80
"""Words of Flower's error that ours repeats."""


class DeploymentFailed(RuntimeError):
    """The federation does not do what it was asked to; the message says why, or ends with the lines of a log."""


def format_settings(settings: Mapping[str, Scalar]) -> str:
    """Write keys and values as Flower reads them behind `--run-config` and `--node-config`.

    Raises:
        BadInput: a key or a text that Flower could not read back.
    """
    problems = [
        f"{key} = {value!r} cannot be passed to Flower; write a key without spaces and '=', and a text on one line "
        "with at most one kind of quotes"
        for key, value in settings.items()
        if not _KEY.fullmatch(key) or (isinstance(value, str) and not _is_quotable(value))
    ]
    if problems:
        raise BadInput(problems)
    return " ".join(f"{key}={_literal(value)}" for key, value in settings.items())


_KEY = re.compile(r"[A-Za-z0-9_-]+")


def _is_quotable(text: str) -> bool:
    return text.isprintable() and ("'" not in text or not set('"\\') & set(text))


def _literal(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # between single quotes TOML takes everything as it is
        return f'"{value}"' if "'" in value else f"'{value}'"
    return str(value)


def parse_answer(words: Sequence[str], output: str, errors: str) -> dict[str, Any]:
    """Parse the answer of Flower's command line to `words`. Its exit code is 0 even where it refuses.

    Raises:
        DeploymentFailed: it refuses.
    """
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        answer = {"error-message": f"{output} {errors}"}
    if not answer.get("success"):
        said = " ".join(str(answer.get("error-message")).split()[-MAX_WORDS:])
        raise DeploymentFailed(f"flwr {' '.join(words)} was refused: {said}")
    return answer


def programs_folder() -> Path:
    """Return where Flower's programs are: beside the interpreter that Flower is installed for."""
    return Path(sys.executable).parent


def make_environment(home: Path) -> dict[str, str]:
    """Return the environment of a process of Flower whose own files go to `home`."""
    path = os.pathsep.join([str(programs_folder()), os.environ.get("PATH", os.defpath)])
    own = {"FLWR_HOME": str(home), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": POLL_SECONDS, "NO_COLOR": "1", "PATH": path}
    return {**os.environ, **QUIET, **own}
