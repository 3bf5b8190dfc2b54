"""The notebooks: executed in a fresh kernel and an empty folder, each says what it was saved with."""

from __future__ import annotations

import base64
import json
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guide import blocks
from website.notebooks import ROOT, list_notebooks, make_page

NOTEBOOKS = list_notebooks()
MOST_BYTES = 200_000
"""Of a notebook with its pictures."""


def read(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    return cells


def texts_of(path: Path) -> list[tuple[int, str, str]]:
    """What each cell prints and shows as text: its place, the kind of text and the text."""
    return [
        (number, kind, "".join(text))
        for number, cell in enumerate(read(path))
        for output in cell.get("outputs", [])
        for kind, text in {"stdout": output.get("text", ""), **output.get("data", {})}.items()
        if not kind.startswith("image/")
    ]


def pictures_of(path: Path) -> Iterator[bytes]:
    for cell in read(path):
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                yield base64.b64decode("".join(output["data"]["image/png"]))


def save(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Execute a notebook by the command that CONTRIBUTING.md has for the first."""
    (line,) = (c for b in blocks(ROOT / "CONTRIBUTING.md") for c in b.commands if "website.notebooks" in c)
    words = shlex.split(line.replace(NOTEBOOKS[0].stem, path.stem))[1:]
    command = [sys.executable, "-W", "error", *words, "--to", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def test_there_are_five_in_order() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["1-", "2-", "3-", "4-", "5-"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_and_shows_what_it_was_saved_with(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    done = save(path, tmp_path)
    assert done.returncode == 0, done.stderr
    again = tmp_path / path.name
    assert texts_of(again) == texts_of(path)
    assert [struct.unpack(">II", png[16:24])[0] > 600 for png in pictures_of(again)] == [
        True for _ in pictures_of(path)
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_saved_notebook_is_whole_small_and_has_pictures(path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert all(not cell["metadata"] for cell in notebook["cells"])
    assert set(notebook["metadata"]["language_info"]) == {"name"}
    assert list(pictures_of(path))
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    links = [link for cell in read(path) for link in re.findall(r"\]\(([^)#]+)", "".join(cell["source"]))]
    links = [link for link in links if link.endswith((".md", ".ipynb"))]
    assert links
    assert [link for link in links if not (path.parent / link).is_file()] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_of_the_site_has_the_cells_and_the_pictures(path: Path) -> None:
    page, pictures = make_page(path)
    assert list(pictures.values()) == list(pictures_of(path))
    assert all(f"]({name}){{ width=" in page for name in pictures)
    assert ".ipynb)" not in page
    for cell in read(path):
        if cell["cell_type"] == "code":
            assert f"```python\n{''.join(cell['source'])}\n```" in page
    printed = [text for _, kind, text in texts_of(path) if kind == "stdout" and text]
    assert all(text.strip() in page for text in printed)
