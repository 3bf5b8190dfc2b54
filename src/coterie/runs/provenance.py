"""Where a run's numbers come from: versions, seed, command, and what the clients' data were."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("coterie", "torch", "numpy", "scipy", "scikit-learn", "polars", "safetensors", "pydantic")


def environment(seed: int, engine: str, fingerprint: str, description: list[str]) -> dict[str, Any]:
    """Return what a run was made of, as plain values."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["coterie", *sys.argv[1:]]) if Path(sys.argv[0]).name == "coterie" else None,
        "seed": seed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "engine": engine,
        "federation": fingerprint,
        "description": description,
    }


def find_differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return one sentence for each version that is not what it was in the environment `before`."""
    then = {"python": before.get("python"), **before.get("packages", {})}
    today = {"python": now["python"], **now["packages"]}
    return [
        f"{name} was {old} when the run began and is {today.get(name)} now: the last digits may differ"
        for name, old in then.items()
        if old != today.get(name)
    ]
