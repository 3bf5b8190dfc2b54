"""Every code block of the guides does what it says; see `tests/guide.py` for what that means."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

import tests.guide
from tests.guide import CHECKED, Wrong, blocks, run_apart

ROOT = Path(__file__).parents[1]
GUIDES = [
    *(path for name in ("README.md", "CONTRIBUTING.md") if (path := ROOT / name).is_file()),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
NAMES = [str(path.relative_to(ROOT)) for path in GUIDES]
CHECKOUT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "examples", "tests", "website")
"""What of a checkout the commands of `README.md` and `CONTRIBUTING.md` read and write."""
TABLE = "client,age,dose,label\n" + "".join(
    f"{client},{20 + 7 * row % 60},{row % 5},{(row + row // 3) % 2}\n" for client in "abcdef" for row in range(40)
)
"""A reader's own `clients.csv`."""
UNRUN = "<!-- not run: takes a minute -->"
SECONDS = 1800
"""How long a guide may take on a busy machine."""
SCREEN = 40
"""Lines of a page that are seen at once."""
EXPERIMENT = '[method]\nname = "fedavg"\n'


def follow(guide: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Carry out a guide in a process of its own; return its exit code and what it printed."""
    monkeypatch.chdir(folder)
    log = folder.with_suffix(".log")
    return run_apart(tests.guide.follow, str(guide), output=log, seconds=SECONDS), log.read_text("utf-8")


def copy_checkout(folder: Path) -> None:
    """Make a folder look like a checkout in which the package is installed, and which has a reader's own table."""
    for name in CHECKOUT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)
    listing = Path("src/coterie/cli/listing.json")
    (folder / listing).parent.mkdir(parents=True)
    shutil.copy(ROOT / listing, folder / listing)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "clients.csv").write_text(TABLE, "utf-8")


@pytest.mark.parametrize("guide", NAMES)
def test_every_shell_block_is_run_or_says_why_not(guide: str) -> None:
    """A block without a mark is refused as it is read; a test that is said to run one has to name its page."""
    for block in blocks(ROOT / guide):
        if block.test:
            assert Path(guide).name in (ROOT / block.test).read_text("utf-8"), f"{guide}:{block.line}"


@pytest.mark.slow
@pytest.mark.parametrize("guide", NAMES)
def test_guide(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if all(block.language not in CHECKED or block.passed_over for block in blocks(ROOT / guide)):
        return  # nothing in it can be carried out
    if "/" not in guide:
        copy_checkout(tmp_path)
    code, printed = follow(ROOT / guide, tmp_path, monkeypatch)
    assert code == 0, printed


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

<!-- not run: it would fail -->
'''python
x = y
'''
"""
    first, second, third = blocks(write(tmp_path, text))
    assert (first.language, first.source, first.line, first.mark) == ("python", "x = 1\n", 4, "")
    assert (second.language, second.source, second.line) == ("sh", "coterie demo  # ```\n", 11)
    assert third.passed_over
    assert not first.passed_over
    assert not second.passed_over  # its commands are parsed
    assert second.script == ""


def test_commands_are_read(tmp_path: Path) -> None:
    text = "MARK\n'''console\n$ coterie run \\\n    a.toml\nround 1\n$ ls\n'''\n"
    text += "MARK\n'''sh\n# first\ncoterie demo\n\nls\n'''\n"
    console, shell = blocks(write(tmp_path, text.replace("MARK", "<!-- run -->")))
    assert [command.split() for command in console.commands] == [["coterie", "run", "a.toml"], ["ls"]]
    assert shell.commands == ["coterie demo", "ls"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("'''python\nx = 1\n", "1: .*block"),
        ("'''\nx = 1\n'''", "''"),
        ("'''py\nx = 1\n'''", "'py'"),
        ("<!-- run -->\n\ntext\n'''sh\nls\n'''", "3: .*'run'"),
        ("<!-- run -->\n'''python\nx = 1\n'''", "sh and console"),
        ("<!-- run by tests/test_docs.py -->\n'''toml\n'''", "sh and console"),
        ("'''sh\nls\n'''", "1: .*sh block.*<!-- run -->"),
        ("<!-- not run: -->\n'''console\n$ ls\n'''", "2: .*console block"),
        ("<!-- run by hand -->\n'''sh\nls\n'''", "sh block"),
    ],
)
def test_a_malformed_guide_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(Wrong, match=says):
        list(blocks(write(tmp_path, text)))


def test_a_mark_makes_commands_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = "with: run --rounds 1; list methods --help"
    commands = (
        "coterie run a --rounds 9  # long\ncoterie run 'b(c=1)'\ncoterie list methods\ncoterie list splits\nls\n"
    )
    small = """coterie run a --rounds 9 --rounds 1
coterie run 'b(c=1)' --rounds 1
coterie list methods --help
coterie list splits
ls"""
    text = f"<!-- run {mark} -->\n'''sh\n{commands}'''\n<!-- run on real data {mark} -->\n'''sh\n{commands}'''\n"
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    assert [block.script for block in blocks(write(tmp_path, text))] == [small, ""]
    monkeypatch.setenv("COTERIE_DATA", "data")
    assert [block.script for block in blocks(write(tmp_path, text))] == [small, small]


def test_another_test_runs_a_block(tmp_path: Path) -> None:
    marks = ["run by tests/test_docs.py", "run by tests/test_docs.py: first"]
    text = "".join(f"<!-- {mark} -->\n'''sh\nfalse\n'''\n" for mark in marks)
    found = list(blocks(write(tmp_path, text)))
    assert [block.mark for block in found] == marks
    assert [(block.test, block.script) for block in found] == [("tests/test_docs.py", "")] * 2


@pytest.mark.parametrize("comment", ["<!-- not run -->", "<!-- not run: -->", "<!-- skip: slow -->"])
def test_a_block_without_a_reason_is_run(tmp_path: Path, comment: str) -> None:
    (block,) = blocks(write(tmp_path, f"{comment}\n'''python\nx = 1\n'''"))
    assert not block.passed_over


@pytest.mark.medium
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("'''python\nx = 1\n'''\n\n'''python\n\nassert x == 2\n'''", 'guide.md", line 7'),
        ("'''python\nimport warnings\nwarnings.warn('old', stacklevel=1)\n'''", "UserWarning: old"),
        ("'''toml\n[method]\nname = \n'''", "guide.md:2"),
        ("'''toml\n[run]\nroundz = 3\n'''", r"run\.roundz .*rounds\?"),
        ("'''toml\n[method]\nname = 'fedavgg'\n'''", r"fedavg\?"),
        ("<!-- run -->\n'''sh\ncoterie dem\n'''", "guide.md:3: .*'dem'"),
        (
            f"{UNRUN}\n'''sh\nCOTERIE_DATA=. .venv/bin/coterie demo --no-such-option | less\n'''",
            r"guide\.md:3: .*--no-such-option",
        ),
        (
            f"{UNRUN}\n'''console\n$ coterie list nothing-of-that-kind --no-such-option\n'''",
            r"guide\.md:3: .*--no-such-option",
        ),
        ("<!-- run with: demo --seed 1 -->\n'''sh\ncoterie --help\n'''", "'coterie demo'"),
        ("<!-- run -->\n'''sh\nfalse\ntrue\n'''", "guide.md:3: .* 1"),
    ],
)
def test_a_guide_that_is_wrong_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    code, printed = follow(write(tmp_path, text), tmp_path, monkeypatch)
    assert code == 1
    assert re.search(says, printed)


@pytest.mark.medium
def test_a_guide_that_is_right_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    code, printed = follow(write(tmp_path, text), tmp_path, monkeypatch)
    assert code == 0, printed
    assert str(tmp_path) in printed
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
