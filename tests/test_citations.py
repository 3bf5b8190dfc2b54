"""What code cites of the methods' pages is there, and so are the tests that the pages name."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/methods"
CITATION = re.compile(
    r"docs/methods/([\w-]+)\.md(?:,\s+(D\d+(?:(?:, | and | to )D\d+)*|conventions? \d+(?: and \d+)?))?"
)


def test_what_code_cites_is_there() -> None:
    missing = []
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("*.md")]:
        for name, places in CITATION.findall(path.read_text("utf-8")):
            page = PAGES / f"{name}.md"
            text = page.read_text("utf-8") if page.is_file() else ""
            marks = [r"^(?:\* \*\*|\| ){}\b", r"^{}\. \*\*"]
            wanted = [marks[place[0] != "D"].format(place) for place in re.findall(r"D\d+|\d+", places)]
            if not text or not all(re.search(mark, text, re.MULTILINE) for mark in wanted):
                missing.append(f"{path.relative_to(ROOT)}: {name}.md {places}")
    assert missing == []


def test_tests_that_pages_name_are_there() -> None:
    source = "\n".join(path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    names = re.findall(r"^def (test_\w+)", source, re.MULTILINE)
    named = [
        (page.name, n)
        for page in PAGES.glob("*.md")
        for n in re.findall(r"`(test_[\w*]+)`", page.read_text("utf-8"))
    ]
    assert len(named) > 40
    assert [(page, n) for page, n in named if not any(fnmatch(name, n) for name in names)] == []


def test_every_finding_is_mended_refuted_or_open() -> None:
    """A finding that is mended names a test, one that is not names what settles it, or would."""
    lines = (PAGES / "findings.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| \d", line)]
    assert {row[0].partition(".")[0] for row in rows} == set("1234567")
    for number, _, became, by in rows:
        state = became.partition(":")[0]
        assert state in ("mended", "refuted", "confirmed", "open"), number
        named = re.findall(r"`(test_[\w*]+)`", by)
        assert bool(named) == (state == "mended"), number
        assert named or by == "–" or re.match(r"`(coterie|python -m benchmarks)", by), number
