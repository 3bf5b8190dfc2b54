"""The page on privacy says of every method what the code says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coterie.methods import METHODS
from coterie.methods.privacy import PrivacySupport

DOCS = Path(__file__).parents[1] / "docs"
KINDS = ("server", "clients", "samples")
OTHERWISE: dict[str, Any] = {"dynamic": True, "e_step": "update_aware", "init": "kmeans", "warm_up": 2}
"""For each setting of which the page says what it must be, another value."""


def rows() -> dict[str, tuple[str, ...]]:
    """What the table says of each method it names, for each kind of noise."""
    text = (DOCS / "privacy.md").read_text("utf-8")
    table = text.split("| method | noise by the server | noise by clients | single samples |")[1].split("\n\n")[0]
    found: dict[str, tuple[str, ...]] = {}
    for line in table.splitlines()[2:]:
        names, *cells = line.strip("| ").split(" | ")
        found |= {name: tuple(cells[:3]) for name in re.findall(r"`([^`]+)`", names) or [names]}
    return found


def privacy_support(name: str, **settings: Any) -> PrivacySupport:
    method = METHODS[name].target(**METHODS[name].bind(settings))
    found = method.privacy_support
    assert isinstance(found, PrivacySupport)
    return found


def told(cell: str) -> dict[str, Any]:
    """The settings that a cell names: with `key = value`, or without `key`."""
    if cell.startswith("without "):
        return {cell.removeprefix("without ").strip("`"): False}
    pairs = (pair.split(" = ") for pair in re.findall(r"`([^`]+)`", cell))
    return {key: value.strip('"') if '"' in value else int(value) for key, value in pairs}


@pytest.mark.parametrize("name", METHODS.names())
def test_the_table_says_which_noise_covers_a_method(name: str) -> None:
    said = rows()
    for kind, cell in zip(KINDS, said.get(name, said["all others"]), strict=True):
        if cell in ("yes", "no"):
            assert (getattr(privacy_support(name), kind) == "") == (cell == "yes"), (kind, cell)
            continue
        settings = told(cell)
        assert getattr(privacy_support(name, **settings), kind) == "", (kind, cell)
        for key in settings:
            assert getattr(privacy_support(name, **{**settings, key: OTHERWISE[key]}), kind), (kind, key)


def test_the_table_names_methods_that_there_are() -> None:
    assert set(rows()) - {"all others"} <= set(METHODS.names())
    assert rows()["all others"] == ("no", "no", "no")


def test_every_page_of_methods_says_what_the_server_sees() -> None:
    for page in (DOCS / "methods").glob("*.md"):
        told = page.read_text("utf-8").count("\n## What the server sees\n")
        assert told == (page.name not in ("conventions.md", "findings.md")), page.name
