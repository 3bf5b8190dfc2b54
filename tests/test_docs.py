"""Every code block of the guides does what it says; see `tests/guide.py` for what that means."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guide import CHECKED, Wrong, blocks

ROOT = Path(__file__).parents[1]
GUIDES = [
    *(path for name in ("README.md", "CONTRIBUTING.md") if (path := ROOT / name).is_file()),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LONG = (
    "docs/comparing.md",
    "docs/data.md",
    "docs/guide.md",
    "docs/methods.md",
    "docs/predict.md",
    "docs/tasks.md",
    "docs/tracking.md",
    "docs/your-own.md",
)
"""Guides that run many commands; they are carried out in `make test-all` alone."""
SECONDS = 600
SCREEN = 40
"""Lines of a page that are seen at once."""
EXPERIMENT = '[method]\nname = "fedavg"\n'


def follow(guide: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Carry out a guide in an interpreter of its own, so that nothing it defines or imports outlives it."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "tests/guide.py"), str(guide)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "guide",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in LONG else name
        for name in (str(path.relative_to(ROOT)) for path in GUIDES)
    ],
)
def test_guide(guide: str, tmp_path: Path) -> None:
    if all(block.language not in CHECKED or block.passed_over for block in blocks(ROOT / guide)):
        return  # nothing in it can be carried out
    done = follow(ROOT / guide, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def write(folder: Path, text: str) -> Path:
    """A guide of the given text, in which `'''` stands for a fence."""
    path = folder / "guide.md"
    path.write_text(text.replace("'''", "```"), "utf-8")
    return path


def test_blocks_are_read(tmp_path: Path) -> None:
    text = """
# Title
'''python
x = 1
'''
1. Indented:

   <!-- not run: needs a federation -->

   ~~~sh
   coterie demo  # '''
   ~~~
"""
    first, second = blocks(write(tmp_path, text))
    assert (first.language, first.source, first.line, first.mark) == ("python", "x = 1\n", 4, "")
    assert (second.language, second.source, second.line) == ("sh", "coterie demo  # ```\n", 11)
    assert second.passed_over
    assert not first.passed_over


def test_commands_are_read(tmp_path: Path) -> None:
    text = "'''console\n$ coterie run \\\n    a.toml\nround 1\n$ ls\n'''\n'''sh\n# first\ncoterie demo\n\nls\n'''\n"
    console, shell = blocks(write(tmp_path, text))
    assert [command.split() for command in console.commands] == [["coterie", "run", "a.toml"], ["ls"]]
    assert shell.commands == ["coterie demo", "ls"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("'''python\nx = 1\n", "1: the block has no end"),
        ("'''\nx = 1\n'''", "language '' is not known"),
        ("'''py\nx = 1\n'''", "language 'py' is not known"),
        ("<!-- run -->\n\ntext\n'''sh\nls\n'''", "3: the mark 'run' must stand right before a block"),
        ("<!-- run -->\n'''python\nx = 1\n'''", "only sh and console"),
    ],
)
def test_a_malformed_guide_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(Wrong, match=sentence):
        list(blocks(write(tmp_path, text)))


@pytest.mark.parametrize("comment", ["<!-- not run -->", "<!-- not run: -->", "<!-- skip: slow -->"])
def test_a_block_without_a_reason_is_run(tmp_path: Path, comment: str) -> None:
    (block,) = blocks(write(tmp_path, f"{comment}\n'''python\nx = 1\n'''"))
    assert not block.passed_over


@pytest.mark.medium
@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("'''python\nx = 1\n'''\n\n'''python\n\nassert x == 2\n'''", 'guide.md", line 7'),
        ("'''python\nimport warnings\nwarnings.warn('old', stacklevel=1)\n'''", "UserWarning: old"),
        ("'''toml\n[method]\nname = \n'''", "guide.md:2"),
        ("'''toml\n[run]\nroundz = 3\n'''", "run.roundz is not a setting; did you mean rounds?"),
        ("'''toml\n[method]\nname = 'fedavgg'\n'''", "did you mean fedavg?"),
        ("'''sh\ncoterie dem\n'''", "guide.md:2: No such command 'dem'"),
        ("'''sh\nCOTERIE_DATA=. .venv/bin/coterie demo --no-such-option | less\n'''", "No such option"),
        ("'''console\n$ coterie list nothing-of-that-kind --no-such-option\n'''", "No such option"),
        ("<!-- run -->\n'''sh\nfalse\ntrue\n'''", "guide.md:3: the commands ended with status 1"),
    ],
)
def test_a_guide_that_is_wrong_fails(tmp_path: Path, text: str, sentence: str) -> None:
    done = follow(write(tmp_path, text), tmp_path)
    assert done.returncode == 1
    assert sentence in done.stderr


@pytest.mark.slow
def test_a_guide_that_is_right_passes(tmp_path: Path) -> None:
    text = f"""
'''toml
# mine.toml
{EXPERIMENT}'''
'''python
# kept_here.py
number = 3
'''
'''python
import kept_here
assert kept_here.number == 3
'''
'''python
from __future__ import annotations
from dataclasses import dataclass
@dataclass
class Kept:
    value: int
'''
<!-- run -->
'''console
$ coterie --help > help.txt
whatever it prints
$ pwd
'''
<!-- not run: it would fail -->
'''python
raise SystemExit(3)
'''
'''text
raise
'''
'''python
from pathlib import Path
assert Kept(1).value == 1
assert "demo" in Path("help.txt").read_text()
assert "fedavg" in Path("mine.toml").read_text()
Path("end").touch()
'''
"""
    done = follow(write(tmp_path, text), tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert (tmp_path / "end").exists()


def test_there_are_guides() -> None:
    assert ROOT / "README.md" in GUIDES


def test_the_readme_is_three_screens_and_leads_to_pages_that_are_there() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.count("\n") <= 3 * SCREEN
    assert text[: text.index("```sh\nmake demo ")].count("\n") <= SCREEN
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).is_file()] == []
