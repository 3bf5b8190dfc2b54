"""Every method has a page of its own in docs/methods/, which says what it should and what the code does today."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from coterie.catalogue import Entry
from website.methods import (
    HEADINGS,
    PAGES,
    find_page,
    own_methods,
    read_headings,
    renew_table,
)

ROOT = Path(__file__).parents[1]
METHODS = own_methods()
BESIDE = {"conventions", "findings"}
"""Pages of the folder that are of no method."""
WITHOUT_A_PAPER = {"grouped-layers", "halves", "local-only"}

COST = "| down a round | up a round | the server remembers | a client keeps |\n|---|---|---|---|\n"
DECISION = re.compile(r"^(?:\* \*\*|\| )D(\d+)\b", re.MULTILINE)

every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def read_section(method: Entry, heading: str) -> str:
    """Return what stands below a heading of a method's page, up to the next of its level."""
    found = re.search(
        rf"^## {heading}\n(.*?)(?=^## |\Z)", find_page(method).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None, heading
    return found[1].strip()


def test_the_folder_has_a_page_for_each_method_and_nothing_more() -> None:
    assert len(METHODS) > 20
    assert {path.name for path in PAGES.iterdir()} == {f"{name}.md" for name in {m.name for m in METHODS} | BESIDE}


def test_the_site_and_the_overview_lead_to_each_page() -> None:
    nav, overview = (ROOT / "mkdocs.yml").read_text("utf-8"), (ROOT / "docs/methods.md").read_text("utf-8")
    for method in METHODS:
        assert len(re.findall(rf": methods/{re.escape(method.name)}\.md$", nav, re.MULTILINE)) == 1, method.name
        assert f"\n| [`{method.name}`](methods/{method.name}.md) |" in overview
        assert f"](methods/{method.name}.md#cost)" in overview


@every_method
def test_a_page_has_the_headings_that_every_page_has(method: Entry) -> None:
    found = read_headings(find_page(method).read_text("utf-8"))
    assert [heading for heading in found if heading in HEADINGS] == list(HEADINGS)
    assert [heading for heading in HEADINGS if len(read_section(method, heading)) < 20] == []


@every_method
def test_a_page_begins_with_a_name_a_reference_and_the_file(method: Entry) -> None:
    text = find_page(method).read_text("utf-8")
    first = text[: text.index("\n## ")]
    title = re.match(r"# ([\w-]+)\n\n", first)
    assert title is not None
    assert title[1].lower().replace("-", "") == method.name.replace("-", "")
    assert ("](https://" in first) == (method.name not in WITHOUT_A_PAPER)
    assert Path(inspect.getfile(method.target)).relative_to(ROOT).as_posix() in first


@every_method
def test_a_page_has_an_algorithm_in_steps(method: Entry) -> None:
    assert re.search(r"^1\. ", read_section(method, "Algorithm"), re.MULTILINE)


@every_method
def test_decisions_are_counted_from_1_and_those_that_are_named_are_there(method: Entry) -> None:
    made = [int(number) for number in DECISION.findall(read_section(method, "Decisions"))]
    assert made == list(range(1, len(made) + 1))
    text = find_page(method).read_text("utf-8")
    named = {int(n) for several in re.findall(r"\((D\d+(?:, D\d+)*)\)", text) for n in re.findall(r"\d+", several)}
    assert named <= set(made)


@every_method
def test_decisions_of_other_pages_are_there(method: Entry) -> None:
    cited = re.findall(
        r"\]\(([\w-]+)\.md#decisions\),\s+(D\d+)(?:\s+to\s+(D\d+))?", find_page(method).read_text("utf-8")
    )
    for name, *places in cited:
        made = DECISION.findall((PAGES / f"{name}.md").read_text("utf-8"))
        assert {place[1:] for place in places if place} <= set(made), name


@every_method
def test_settings_have_todays_defaults(method: Entry) -> None:
    text = find_page(method).read_text("utf-8")
    assert renew_table(text, method) == text, "`python -m website.methods --write` renews it"
    named = re.findall(r"^\| `(\w+)` \|", read_section(method, "Settings"), re.MULTILINE)
    assert named == [setting.name for setting in method.settings]


@every_method
def test_properties_name_the_tests_that_hold_them(method: Entry) -> None:
    assert re.search(r"`test_\w+", read_section(method, "Properties"))


@every_method
def test_the_cost_is_told_of_both_ways_and_both_sides(method: Entry) -> None:
    before, found, row = read_section(method, "Cost").partition(COST)
    assert (before, found) == ("", COST)
    cells = row.partition("\n")[0].strip("|").split("|")
    assert len(cells) == 4
    assert all(cell.strip() for cell in cells)


@every_method
def test_a_page_leads_to_the_promises_and_the_planted_groups(method: Entry) -> None:
    assert "](../privacy.md)" in read_section(method, "What the server sees")
    searches = f"[`{method.name}`]" in (ROOT / "docs/planted.md").read_text("utf-8")
    assert ("](../planted.md)" in read_section(method, "Planted groups")) >= searches


def test_what_serves_every_method_names_none() -> None:
    """Neither the runtime nor the engines nor the exchange know a method; "halves" is a word beside."""
    names = {name for method in METHODS for name in (method.name, method.target.__name__)} - {"halves", "Halves"}
    named = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])", re.IGNORECASE)
    package = ROOT / "src/coterie"
    files = [*(package / "runtime").rglob("*.py"), *(package / "clients/engine").rglob("*.py")]
    files.append(package / "methods/exchange.py")
    assert len(files) > 30
    assert [(path.name, found[0]) for path in files for found in named.finditer(path.read_text("utf-8"))] == []
