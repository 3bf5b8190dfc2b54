"""The page on all items, and one item as Markdown."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.errors import BadInput
from coterie.report.numbers import MISSING
from coterie.report.reproduction import document, front
from coterie.report.reproduction.words import anchor
from coterie.studies.papers import result
from coterie.studies.papers.claims import Reference
from coterie.studies.papers.item import Item, list_items, load_item, read_item
from coterie.studies.papers.quantities import AtLeast
from coterie.studies.papers.result import Result
from tests.studies.papers.items import ITEM
from tests.studies.papers.test_result import made

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.medium
def test_the_committed_page_is_that_of_the_committed_results() -> None:
    written = (DOCS / "reproduction.md").read_text("utf-8")
    assert written == document.render(DOCS / "reproduction")
    lines = written.splitlines()
    headings = {anchor(line.lstrip("# ")) for line in lines if line.startswith("#")}
    links = {link for line in lines for link in re.findall(r"\]\(#([^)]*)\)", line)}
    assert set(list_items()) <= links <= headings


@pytest.mark.medium
def test_the_committed_results_have_the_verdicts_on_the_claims_as_they_are(tmp_path: Path) -> None:
    kept = tmp_path / "reproduction"
    shutil.copytree(DOCS / "reproduction", kept)
    document.judge_again(kept)
    for path in sorted(kept.glob("*.json")):
        assert path.read_text("utf-8") == (DOCS / "reproduction" / path.name).read_text("utf-8"), path.name


@pytest.mark.medium
def test_the_page_of_claims_has_the_main_claims_of_the_results() -> None:
    written = (DOCS / "claims.md").read_text("utf-8")
    assert written == document.put_headlines(written, DOCS / "reproduction")


@pytest.mark.medium
def test_what_does_not_hold_is_explained() -> None:
    """In the committed results: by a finding on the claim, or by one on all claims of the scale.

    What is outdated is to be run again, and its findings are then written anew.
    """
    items = [load_item(name) for name in list_items()]
    kept = document.read_results(DOCS / "reproduction", items)
    assert all("commit" in found.versions for scales in kept.values() for found in scales.values())
    bare = [
        f"{item.id}, {scale}: {claim.text}"
        for item in items
        for scale, found in kept[item.id].items()
        if not found.is_stale(item)
        for claim, judged in zip(item.claims, result.judge_claims(item, found), strict=True)
        if judged.verdict == "does not hold"
        and not {scale, scale.removesuffix(", seeds added")} & {*claim.finding, *item.findings}
    ]
    assert bare == []


def test_without_results_every_item_is_to_be_run(tmp_path: Path) -> None:
    page = document.render(tmp_path / "nowhere")
    for name in list_items():
        assert f"### {name}\n" in page
        assert f"`coterie reproduce {name} --scale small`" in page
    assert "| claim |" not in page
    assert "| paper |" not in page


@pytest.mark.medium
def test_a_stale_result_is_said_to_be_stale(tmp_path: Path) -> None:
    item = load_item(list_items()[0])
    kept = _empty(item.id, item.digest("small"))
    result.write(tmp_path / f"{item.id}-small.json", item, kept)
    fresh = document.render(tmp_path)
    assert f", {document.STALE}" not in fresh
    assert "Outdated," not in fresh
    path = tmp_path / f"{item.id}-small.json"
    table = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**table, "digest": "0" * 16}), "utf-8")
    page = document.render(tmp_path)
    assert page.count(f", {document.STALE} |") == 1
    assert re.search("^Outdated,.* 1 of 1 ", page, re.MULTILINE)
    assert "**Outdated:" in page


def test_a_row_that_is_new_is_to_be_run_and_leaves_the_others_valid(
    own: Callable[..., Item], tmp_path: Path
) -> None:
    kept = made(read_item("a-table1", ITEM))
    for text in (
        ITEM.replace("[methods.IFCA]", '[methods."FedAvg+FT"]\nmethod.name = "fedavg"\n\n[methods.IFCA]').replace(
            '["FedAvg", "IFCA"]', '["FedAvg", "FedAvg+FT", "IFCA"]'
        ),
        ITEM.replace("keep_methods", "# keep_methods"),
    ):
        item = own(text)
        name = "FedAvg+FT" if "FedAvg+FT" in text else "FedTSDP"
        lines = _kept(tmp_path, item, kept)
        assert not any("Outdated:" in line for line in lines)
        (line,) = (line for line in lines if line.startswith("- **small**"))
        assert re.search(f"to be run: {re.escape(name)}", line)
        assert any("| IID | IFCA | 70.1 | 80.75 ± 1.06 |" in line for line in lines)
    # What the numbers that are there depend on is another matter.
    item = own(ITEM.replace("methods.IFCA.method.clusters = 2", "methods.IFCA.method.clusters = 4"))
    assert any("Outdated:" in line for line in _kept(tmp_path, item, kept))


def test_another_default_of_a_method_outdates_its_row(own: Callable[..., Item], tmp_path: Path) -> None:
    item = own()
    now = item.method_settings("small")
    assert (now["IFCA"]["name"], now["IFCA"]["clusters"]) == ("ifca", 2)
    kept = replace(made(item), methods=now)
    assert not kept.is_stale(item)
    # A setting that is new since leaves the numbers as they were.
    (new,) = [key for key in now["IFCA"] if key not in ("name", "clusters")][:1]
    before = {**now, "IFCA": {key: value for key, value in now["IFCA"].items() if key != new}}
    assert not replace(kept, methods=before).is_stale(item)
    other = replace(kept, methods={**now, "IFCA": {**now["IFCA"], new: "a former default"}})
    assert (other.is_stale(item), other.changed(item)) == (True, ["IFCA"])
    lines = _kept(tmp_path, item, other)
    assert any(re.search(r"\*\*Outdated:.* IFCA ", line) for line in lines)


HEADLINE = ITEM.replace(
    'where = "section 5.1"',
    'where = "section 5.1"\nheadline = true\nbrief = "skew costs"\nwhy = "Skew parts the clients"',
)


def test_main_claims_at_the_front(own: Callable[..., Item], tmp_path: Path) -> None:
    item = own(HEADLINE)
    text = "With skew FedAvg loses, and stays above one per cent"
    none = document.put_headlines("\n".join(document.HEADLINES), tmp_path)
    assert (
        f"| A Paper, Table 1 | {text} | +7.35 (IID \\> β = 0.2) | – | – | to be run | Skew parts the clients. |"
        in none
    )
    lines = _kept(tmp_path, item, made(item), _medium(item))
    # The largest scale that has the claim is small.
    told = "+20, n = 1 (IID \\> β = 0.2) (small, 2 seeds) | – | undecided | Skew parts the clients. |"
    (line,) = (line for line in lines if line.startswith("| A Paper, Table 1 |"))
    assert line.endswith(told)
    first, last = document.HEADLINES
    other = f"Before.\n\n{first}\nold\n{last}\n\nAfter.\n"
    table = document.put_headlines(other, tmp_path)
    assert table.startswith(f"Before.\n\n{first}\n\n| paper |")
    assert line in table
    assert table.endswith(f"|\n\n{last}\n\nAfter.\n")
    assert document.put_headlines(table, tmp_path) == table
    with pytest.raises(BadInput, match="main claims"):
        document.put_headlines("Before.", tmp_path)


def test_the_first_sentences_are_those_of_the_results(own: Callable[..., Item], tmp_path: Path) -> None:
    """A sentence a paper and one over all, whose numbers, verdicts and counts are read off the results."""
    ours, printed, none = (
        f"{{{scale}|accuracy['FedAvg', 'IID']|{form}}}"
        for scale, form in (("small", ".1f"), ("published", ".2f"), ("medium", ".1f"))
    )
    why = f"FedAvg has {ours} % where {printed} are printed ({none})"
    item = own(HEADLINE.replace("Skew parts the clients", why))
    page = "\n\n".join([*document.SUMMARY, *document.HEADLINES])
    text = document.put_headlines(page, tmp_path)
    assert re.search(r"\*\*A Paper\*\*.* skew costs\..*to be run", text)
    assert "FedAvg has – % where 67.35 are printed (–)." in text
    _kept(tmp_path, item, made(item))
    text = document.put_headlines(page, tmp_path)
    assert re.search(r"\*\*A Paper\*\*.* skew costs\..*undecided", text)
    assert "undecided 1" in text
    assert "FedAvg has 70.5 % where 67.35 are printed (–)." in text
    assert document.put_headlines(text, tmp_path) == text
    # Other numbers, other sentences.
    values = {**made(item).values, Reference("accuracy", "FedAvg", "β = 0.2"): (50.0, 50.5)}
    values[Reference("accuracy", "FedAvg", "IID")] = (48.0, 48.4)
    _kept(tmp_path, item, replace(made(item), values=values))
    text = document.put_headlines(page, tmp_path)
    assert "not hold" in text
    assert re.search(r" 1 of them .* in 1\.", text)
    assert "(1 at small)" in text
    assert "FedAvg has 48.2 % where" in text


NUMBER = re.compile(r"(?<![\w.(-])\d+(?:[.,]\d+)*(?![\w)])")


def test_what_is_said_first_of_the_papers_has_no_number_of_its_own() -> None:
    """A number there is read off a result, is printed in the paper, or is a setting in the item's own words."""
    items = {name: load_item(name) for name in list_items()}
    for paper, because in front.BECAUSE.items():
        assert NUMBER.findall(front.PLACE.sub("", because)) == [], paper
    for item in items.values():
        texts = [item.title, item.says, *item.methods, *item.settings, *(claim.text for claim in item.claims)]
        texts += [text for scale in item.scales.values() for text in (scale.reduces, scale.stand_in)]
        known = {number for text in texts for number in re.findall(r"\d+(?:[.,]\d+)*", text)}
        known |= {f"{number:g}" for number in item.published.values()}
        for claim in item.claims:
            said = front.PLACE.sub("", claim.why + claim.brief)
            assert set(NUMBER.findall(said)) - known <= {"0"}, (item.id, claim.text)
    # And each place has a number in the committed results.
    kept = document.read_results(DOCS / "reproduction", [*items.values()])
    for item in items.values():
        for claim in item.claims:
            assert MISSING not in front.fill(claim.why, item, items, kept), claim.text
    for because in front.BECAUSE.values():
        assert MISSING not in front.fill(because, None, items, kept)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Item]:
    """Makes an item of a text the only one there is."""

    def only(text: str = ITEM) -> Item:
        item = read_item("a-table1", text)
        monkeypatch.setattr(document, "list_items", lambda: [item.id])
        monkeypatch.setattr(document, "load_item", lambda _: item)
        return item

    return only


def _kept(folder: Path, item: Item, *results: Result) -> list[str]:
    """The page on these results, line by line."""
    for found in results:
        result.write(folder / f"{item.id}-{found.scale}.json", item, found)
    page = document.render(folder)
    assert page == document.render(folder)
    return page.splitlines()


def _medium(item: Item) -> Result:
    """A second scale, which has the third claim's quantity but not the second one's skewed FedAvg."""
    values: dict[Reference, tuple[float | AtLeast | None, ...]] = {
        Reference("accuracy", "FedAvg", "IID"): (71.0, 72.0, 73.0),
        Reference("accuracy", "IFCA", "IID"): (70.0, 71.0, 71.5),
        Reference("hop", "FedTSDP", "IID"): (0.5, 0.5, 0.5),
        Reference("hop", "FedTSDP", "β = 0.2"): (0.75, 0.75, 0.75),
    }
    digest = item.digest("medium")
    return replace(
        made(item), scale="medium", digest=digest, seeds=(0, 1, 2), values=values, finished=8, failed=(), notes=()
    )


def test_rounds_that_were_never_reached(own: Callable[..., Item], tmp_path: Path) -> None:
    holds = "rounds_to_target['IFCA', 'IID'] < rounds_to_target['FedAvg', 'IID']"
    text = ITEM.replace("accuracy['IFCA', 'IID'] > accuracy['FedAvg', 'IID']", holds)
    item = own(text.replace('shows = ["accuracy"', 'shows = ["rounds_to_target", "accuracy"'))
    values: dict[Reference, tuple[float | AtLeast | None, ...]] = {
        Reference("rounds_to_target", "FedAvg", "IID"): (AtLeast(21.0), AtLeast(21.0)),
        Reference("rounds_to_target", "IFCA", "IID"): (7.0, 7.5),
        Reference("rounds_to_target", "IFCA", "β = 0.2"): (12.0, AtLeast(21.0)),
    }
    kept = made(item)
    lines = _kept(tmp_path, item, replace(kept, values={**kept.values, **values}))
    assert any(re.search(r"\| holds,.* \+13\.8 \[\+10\.6, \+16\.9\] \|", line) for line in lines)
    assert any(re.search(r"^\| IID \| FedAvg \| – \| never,.* 21 \|", line) for line in lines)
    assert any(re.search(r"^\| β = 0\.2 \| IFCA \| – \| 12\.0, 1 of 2 ", line) for line in lines)
    # The file says it too.
    written = (tmp_path / "a-table1-small.json").read_text("utf-8")
    assert '"FedAvg": [">=21.0",' in written
    assert result.read(tmp_path / "a-table1-small.json").values.items() >= values.items()


def test_a_result_of_nothing_is_refused(tmp_path: Path) -> None:
    item = load_item(list_items()[0])
    result.write(tmp_path / "another.json", item, _empty(item.id, "0"))
    with pytest.raises(BadInput, match=r"another\.json'.*remove"):
        document.render(tmp_path)


def _empty(name: str, digest: str) -> Result:
    """A result of which no run has finished."""
    item = load_item(name)
    tables = item.tables["small"]
    values = {
        Reference(quantity, method, setting): (None,)
        for quantity in item.wanted_quantities()
        for method in tables["methods"]
        for setting in tables.get("settings", {"": {}})
    }
    return Result(name, "small", digest, (0,), values, 0, 0, 0.0, (), (), {})
