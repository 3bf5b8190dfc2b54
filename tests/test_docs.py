"""Every code block of the guides does what it says; see `tests/guide.py` for what that means."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

import tests.guide
from tests.guide import CHECKED, Wrong, blocks
from tests.processes import run_apart

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
SECONDS = 1800
"""How long a guide may take on a busy machine."""
SCREEN = 40
"""Lines of a page that are seen at once."""


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("'''py\nx = 1\n'''", "'py'"),
        ("'''sh\nls\n'''", "1: .*sh block.*<!-- run -->"),
    ],
)
def test_a_malformed_guide_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(Wrong, match=says):
        list(blocks(write(tmp_path, text)))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("'''python\nx = 1\n'''\n\n'''python\n\nassert x == 2\n'''", 'guide.md", line 7'),
        ("'''python\nimport warnings\nwarnings.warn('old', stacklevel=1)\n'''", "UserWarning: old"),
        ("'''toml\n[method]\nname = \n'''", "guide.md:2"),
        ("'''toml\n[run]\nroundz = 3\n'''", r"run\.roundz .*rounds\?"),
        ("'''toml\n[method]\nname = 'fedavgg'\n'''", r"fedavg\?"),
        ("<!-- run -->\n'''sh\nfalse\ntrue\n'''", "guide.md:3: .* 1"),
    ],
)
def test_a_guide_that_is_wrong_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    code, printed = follow(write(tmp_path, text), tmp_path, monkeypatch)
    assert code == 1
    assert re.search(says, printed)


def test_the_readme_is_three_screens_and_leads_to_pages_that_are_there() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.count("\n") <= 3 * SCREEN
    assert text[: text.index("```sh\nmake demo ")].count("\n") <= SCREEN
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).is_file()] == []
