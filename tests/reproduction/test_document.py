"""The page on all items, and one item as Markdown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.problems import BadInput
from coterie.reproduction import document, result
from coterie.reproduction.item import known, load, read

from .items import ITEM
from .test_result import made

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    if not (DOCS / "reproduction").is_dir():
        pytest.skip("no results are kept in docs/reproduction")
    written = (DOCS / "reproduction.md").read_text("utf-8")
    assert written == document.page(DOCS / "reproduction")


def test_one_item() -> None:
    item = read("a-table1", ITEM)
    text = document.section(item, made(item))
    lines = text.splitlines()
    assert lines[0] == "# a-table1"
    assert "| setting | method | published | small |" in lines
    assert "| IID | IFCA | 70.1 | 80.75 ± 1.06 |" in lines
    assert "| β = 0.2 | FedAvg | 60 | 50.00 |" in lines
    assert "| β = 0.2 | IFCA | – | 60.50 ± 0.71 |" in lines
    # Nobody has a number of it, here or in the paper.
    assert not any("FedTSDP" in line for line in lines if line.startswith("|"))
    assert "  - published: holds, +2.75" in lines
    told = "  - small: **holds**. `accuracy['IFCA', 'IID'] > accuracy['FedAvg', 'IID']` +10.2 [+7.07, +13.4], n = 2"
    assert told in lines
    assert "  - small, why: Few rounds." in lines
    assert "Stand-in: digits for the images. Reduced: 6 clients instead of 100, 2 rounds instead of 100." in text
    assert "Finished: 7 of 8 runs. Failed: β = 0.2, FedAvg, seed 1 failed: too few samples." in text
    assert "Again: `coterie reproduce a-table1 --scale small`" in text
    assert text.endswith("was not run\n")


def test_without_results_every_item_is_to_be_run(tmp_path: Path) -> None:
    page = document.page(tmp_path / "nowhere")
    for name in known():
        assert f"### {name}\n" in page
        assert f"`coterie reproduce {name} --scale small`" in page
    assert page.count("| to be run |") == sum(len([s for s in load(n).scales if s != "full"]) for n in known())


def test_a_stale_result_is_said_to_be_stale(tmp_path: Path) -> None:
    item = load(known()[0])
    kept = _empty(item.id, item.digest("small"))
    result.write(tmp_path / f"{item.id}-small.json", item, kept)
    fresh = document.page(tmp_path)
    assert document.STALE not in fresh
    path = tmp_path / f"{item.id}-small.json"
    table = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**table, "digest": "0" * 16}), "utf-8")
    page = document.page(tmp_path)
    assert page.count(f"| {document.STALE} |") == 1
    assert "**The item's settings have changed since; these numbers are of the former ones.**" in page


def test_a_result_of_nothing_is_refused(tmp_path: Path) -> None:
    item = load(known()[0])
    result.write(tmp_path / "another.json", item, _empty(item.id, "0"))
    with pytest.raises(BadInput, match=r"another.json' is the result of no item and scale by that name; remove it"):
        document.page(tmp_path)


def _empty(name: str, digest: str) -> result.Result:
    """A result of which no run has finished."""
    from coterie.reproduction.claims import Reference

    item = load(name)
    tables = item.tables["small"]
    values = {
        Reference(quantity, method, setting): (None,)
        for quantity in item.wanted()
        for method in tables["methods"]
        for setting in tables.get("settings", {"": {}})
    }
    return result.Result(name, "small", digest, (0,), values, 0, 0, 0.0, (), (), {})
