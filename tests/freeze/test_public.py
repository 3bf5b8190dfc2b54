"""The names that a user imports."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import coterie

HOMES = {
    "LocalUpdate": "coterie.clients.rules",
    "Exchange": "coterie.methods.exchange",
    "Log": "coterie.methods.exchange",
    "Replies": "coterie.methods.exchange",
    "Send": "coterie.methods.exchange",
    "METHODS": "coterie.methods",
    "Method": "coterie.methods",
    "Serving": "coterie.methods",
    "GlobalState": "coterie.methods.one_model",
    "OneModel": "coterie.methods.one_model",
    "channels_first": "coterie.models.networks",
    "RunFolder": "coterie.runs.folder.run_folder",
    "trained_model": "coterie.shipping.model.served",
    "mean": "coterie.grouping.aggregate",
    "read_model": "coterie.shipping.model.trained",
}
"""What README.md, CONTRIBUTING.md, docs and examples import. A move changes the right side alone."""

ALL = [
    "BadInput",
    "Experiment",
    "Federation",
    "Observer",
    "Result",
    "Round",
    "RunFolder",
    "__version__",
    "check",
    "compare",
    "diagnose",
    "draw",
    "explain",
    "resume",
    "rounds",
    "run",
]

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "examples").glob("*.py"),
]
IMPORT = re.compile(r"^ *from coterie\.([\w.]+) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


def test_the_public_names_stay() -> None:
    assert sorted(coterie.__all__) == sorted(ALL)
    assert sorted(dir(coterie)) == sorted(ALL)
    for name in ALL:
        assert getattr(coterie, name) is not None


@pytest.mark.parametrize("name", HOMES)
def test_what_pages_import_is_there(name: str) -> None:
    assert getattr(import_module(HOMES[name]), name) is not None


def test_pages_import_names_from_their_homes() -> None:
    found = set()
    for page in PAGES:
        for module, several, one in IMPORT.findall(page.read_text(encoding="utf-8")):
            names = re.sub(r"#.*", "", several or one).split(",")
            found |= {(name.split(" as ")[0].strip(), f"coterie.{module}") for name in names if name.strip()}
    assert {name: home for name, home in found if name in HOMES} == HOMES
    assert all(home == HOMES[name] for name, home in found if name in HOMES)
