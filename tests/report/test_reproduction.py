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
from coterie.report.reproduction import document
from coterie.report.reproduction.words import anchor, mean_and_interval
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
@pytest.mark.parametrize("page", ["docs/claims.md", "README.md"])
def test_pages_have_the_main_claims_of_the_results(page: str) -> None:
    written = (DOCS.parent / page).read_text("utf-8")
    assert written == document.put_headlines(written, DOCS / "reproduction")


@pytest.mark.medium
def test_what_does_not_hold_is_explained() -> None:
    """In the committed results: by a finding on the claim, or by one on all claims of the scale.

    What is outdated is to be run again, and its findings are then written anew.
    """
    items = [load_item(name) for name in list_items()]
    kept = document.read_results(DOCS / "reproduction", items)
    bare = [
        f"{item.id}, {scale}: {claim.text}"
        for item in items
        for scale, found in kept[item.id].items()
        if not found.is_stale(item)
        for claim, judged in zip(item.claims, result.judge_claims(item, found), strict=True)
        if judged.verdict == "does not hold" and scale not in claim.finding and scale not in item.findings
    ]
    assert bare == []


def test_one_item() -> None:
    item = read_item("a-table1", ITEM)
    text = document.render_one(item, made(item))
    lines = text.splitlines()
    assert lines[0] == "# a-table1"
    assert "| setting | method | published | small |" in lines
    assert "| IID | IFCA | 70.1 | 80.75 ± 1.06 |" in lines
    assert "| β = 0.2 | FedAvg | 60 | 50.00 |" in lines
    assert "| β = 0.2 | IFCA | – | 60.50 ± 0.71 |" in lines
    # Nobody has a number of it, here or in the paper.
    assert not any("FedTSDP" in line for line in lines if line.startswith("|"))
    assert "holds: +2.75 | holds, also corrected: +10.2 [+7.1, +13.4] |" in text
    assert "1. `accuracy['IFCA', 'IID'] > accuracy['FedAvg', 'IID']`" in lines
    assert "- **2** (small): Few rounds." in lines
    assert "Stand-in: digits for the images. Reduced: 6 clients instead of 100, 2 rounds instead of 100." in text
    assert "Claims: holds 1, undecided 1, not run 1." in text
    assert "What we make of it (small): Two seeds decide little." in lines
    assert "Finished: 7 of 8 runs. Failed: β = 0.2, FedAvg, seed 1 failed: too few samples." in text
    assert "Again: `coterie reproduce a-table1 --scale small`" in text


def test_without_results_every_item_is_to_be_run(tmp_path: Path) -> None:
    page = document.render(tmp_path / "nowhere")
    for name in list_items():
        assert f"### {name}\n" in page
        assert f"It is still to be run: `coterie reproduce {name} --scale small`" in page
    assert page.count("| to be run | to be run |") == len(list_items())
    assert "| claim |" not in page
    assert "| paper |" not in page


@pytest.mark.medium
def test_a_stale_result_is_said_to_be_stale(tmp_path: Path) -> None:
    item = load_item(list_items()[0])
    kept = _empty(item.id, item.digest("small"))
    result.write(tmp_path / f"{item.id}-small.json", item, kept)
    fresh = document.render(tmp_path)
    assert f", {document.STALE}" not in fresh
    assert "Outdated, for" not in fresh
    path = tmp_path / f"{item.id}-small.json"
    table = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**table, "digest": "0" * 16}), "utf-8")
    page = document.render(tmp_path)
    assert page.count(f", {document.STALE} |") == 1
    assert "Outdated, for the items' settings have changed since: 1 of 1 results." in page
    assert (
        "**Outdated: the settings of the item have changed since; these numbers are of the former ones.**" in page
    )


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
        assert f"Still to be run: {name}. Again:" in line
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
    assert any("**Outdated: the settings of IFCA have changed since;" in line for line in lines)


HEADLINE = ITEM.replace(
    'where = "section 5.1"', 'where = "section 5.1"\nheadline = true\nwhy = "Skew parts the clients"'
)


def test_main_claims_at_the_front(own: Callable[..., Item], tmp_path: Path) -> None:
    item = own(HEADLINE)
    text = "With skew FedAvg loses, and stays above one per cent"
    none = document.put_headlines("\n".join(document.HEADLINES), tmp_path)
    assert (
        f"| A Paper, Table 1 | {text} | +7.35 (IID \\> β = 0.2) | – | to be run | Skew parts the clients. |" in none
    )
    lines = _kept(tmp_path, item, made(item), _medium(item))
    # The largest scale that has the claim is small.
    told = "+20, n = 1 (IID \\> β = 0.2) (small, 2 seeds) | undecided | Skew parts the clients. |"
    (line,) = (line for line in lines if line.startswith("| A Paper, Table 1 |"))
    assert line.endswith(told)
    first, last = document.HEADLINES
    other = f"Before.\n\n{first}\nold\n{last}\n\nAfter.\n"
    table = document.put_headlines(other, tmp_path)
    assert table.startswith(f"Before.\n\n{first}\n\n| paper |")
    assert line in table
    assert table.endswith(f"|\n\n{last}\n\nAfter.\n")
    assert document.put_headlines(table, tmp_path) == table
    brief = document.put_headlines(f"{document.HEADLINES_IN_BRIEF}\n{last}", tmp_path)
    assert line.removesuffix("| Skew parts the clients. |") + "|" in brief
    assert "| verdict |\n" in brief
    with pytest.raises(BadInput, match="there is no place for the main claims"):
        document.put_headlines("Before.", tmp_path)


def test_a_scale_that_is_outdated_or_at_which_a_main_claim_is_vacuous_gives_way(
    own: Callable[..., Item], tmp_path: Path
) -> None:
    item = own(ITEM.replace('where = "Figure 2"', 'where = "Figure 2"\nheadline = true\nwhy = "Skew shows"'))
    medium = _medium(item)
    small = replace(made(item), values=dict(made(item).values))
    apart = {Reference("hop", "FedTSDP", "IID"): (0.5, 0.6), Reference("hop", "FedTSDP", "β = 0.2"): (0.7, 0.9)}
    row = "| A Paper, Table 1 | The statistic of IID data is lower | – |"
    alone = _kept(tmp_path, item, small, medium)
    assert any(line.startswith(f"{row} +0.25 in every seed (medium, 3 seeds) | vacuous |") for line in alone)
    lines = _kept(tmp_path, item, replace(small, values={**small.values, **apart}), medium)
    (line,) = (line for line in lines if line.startswith(row))
    assert "(small, 2 seeds) | undecided |" in line
    # So does an outdated one, however much of the paper it ran.
    lines = _kept(
        tmp_path, item, replace(small, values={**small.values, **apart}), replace(medium, digest="former")
    )
    assert line in lines
    lines = _kept(tmp_path, item, replace(small, digest="former"), replace(medium, digest="former"))
    assert any(line.startswith(row) and "(medium, 3 seeds, outdated)" in line for line in lines)


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


def test_the_page_on_one_item(own: Callable[..., Item], tmp_path: Path) -> None:
    item = own()
    lines = _kept(tmp_path, item, made(item), _medium(item))
    # The larger scale comes first everywhere.
    assert "| [A Paper](#a-paper) | medium | 1 of 1 | 0 (0) | 1 (1) | 0 | 1 | 1 |" in lines
    assert "| [A Paper](#a-paper) | small | 1 of 1 | 1 (1) | 0 (0) | 1 | 0 | 1 |" in lines
    assert "| all | medium | 1 of 1 | 0 (0) | 1 (1) | 0 | 1 | 1 |" in lines
    row = "| [a-table1](#a-table1) | Table 1: Two methods on two splits | 3 | 0 / 1 / 0 | 1 / 0 / 1 |"
    assert row in lines
    small = next(line for line in lines if line.startswith("- **small**: 2 seeds, 8 runs of 12 s in all."))
    assert small.endswith("Again: `coterie reproduce a-table1 --scale small`.")
    assert "Failed: β = 0.2, FedAvg, seed 1 failed: too few samples." in small
    # Claims that the larger scale judges come before the others, though the item has them in another order.
    start = lines.index("|  | claim | published | medium | small |")
    assert lines[start + 2 : start + 6] == [
        "| 1 | IFCA is above FedAvg (section 5) | holds: +2.75 "
        "| **does not hold**, also corrected: -1.17 [-1.88, -0.45] | holds, also corrected: +10.2 [+7.1, +13.4] |",
        "| 2 | The statistic of IID data is lower (Figure 2) | – | vacuous: +0.25 in every seed | – |",
        "| 3 | With skew FedAvg loses, and stays above one per cent (section 5.1) | holds: +7.35 (IID \\> β = 0.2) "
        "| – | undecided: +20, n = 1 (IID \\> β = 0.2) |",
        "",
    ]
    assert "- **3** (small): Few rounds." in lines
    assert "| IID | IFCA | 70.1 | 70.83 ± 0.76 | 80.75 ± 1.06 |" in lines
    assert "<details><summary>hop: log 'hopkins', highest value</summary>" in lines
    assert "| β = 0.2 | FedTSDP | – | 0.750 ± 0.000 | – |" in lines
    assert not any("accuracy['" in line for line in lines)
    assert not any(line.startswith(("Not judged", "Left out")) for line in lines)


def test_what_no_result_has_is_counted(own: Callable[..., Item], tmp_path: Path) -> None:
    item = own()
    kept = made(item)
    some = {r: numbers for r, numbers in kept.values.items() if r.setting == "IID"}
    lines = _kept(tmp_path, item, replace(kept, values=some))
    assert sum(line.startswith("| 1 |") for line in lines) == 1
    assert not any(line.startswith("| 2 |") for line in lines)
    why = "on methods, settings or quantities that no result here has"
    assert f"Not judged here: 2 claims, {why}; see `src/coterie/studies/papers/items/a-table1.toml`." in lines
    assert "Left out: 1 printed number, of methods or settings that no result here has." in lines
    assert not any("β = 0.2 | FedAvg" in line for line in lines)
    # A finding on a claim that no result judges is left out with it.
    assert not any("Few rounds" in line for line in lines)


def test_one_finding_on_several_claims_is_said_once(own: Callable[..., Item], tmp_path: Path) -> None:
    said = "Five | six_seven\nseeds would decide"
    third = ITEM.index('[[claims]]\ntext = "The statistic')
    text = ITEM[:third].replace(
        "FedAvg', 'IID']\"\n\n", f"FedAvg', 'IID']\"\nfinding = {{ small = {json.dumps(said)} }}\n\n", 1
    )
    text = text.replace('finding.small = "Few rounds."', f"finding.small = {json.dumps(said)}")
    item = own(text + ITEM[third:])
    lines = _kept(tmp_path, item, made(item))
    assert [line for line in lines if "seven" in line] == [
        "- **1 and 2** (small): Five \\| six\\_seven seeds would decide."
    ]


def test_failed_runs_beyond_the_first_are_counted(own: Callable[..., Item], tmp_path: Path) -> None:
    item = own()
    failed = tuple(f"IID, IFCA, seed {i} failed: no" for i in range(5))
    found = replace(made(item), failed=failed, finished=3)
    (line,) = (line for line in _kept(tmp_path, item, found) if line.startswith("- **small**"))
    assert line.count("seed") - line.count("seeds") == document.MOST_FAILURES
    assert "Failed too: 2 more." in line
    assert document.render_one(item, found).count("failed: no.") == 5


def test_tables_have_as_many_cells_as_columns(own: Callable[..., Item], tmp_path: Path) -> None:
    item = own(ITEM.replace('text = "IFCA is above FedAvg"', 'text = "IFCA | a_b *c* [d] is above"'))
    lines = _kept(tmp_path, item, made(item), _medium(item))
    assert any(r"| 1 | IFCA \| a\_b \*c\* \[d\] is above (section 5) |" in line for line in lines)
    width = 0
    for line in lines:
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not width or not cells or cells == width, line
        width = cells


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
    assert any("| holds, also corrected: at least +13.8 [+10.6, +16.9] |" in line for line in lines)
    assert "| IID | FedAvg | – | never, so at least 21 |" in lines
    assert "| β = 0.2 | IFCA | – | 12.0, 1 of 2 never |" in lines
    # The file says it too.
    written = (tmp_path / "a-table1-small.json").read_text("utf-8")
    assert '"FedAvg": [">=21.0",' in written
    assert result.read(tmp_path / "a-table1-small.json").values.items() >= values.items()


def test_the_anchor_of_a_heading() -> None:
    assert anchor("DC-PFL") == "dc-pfl"
    assert anchor("A (second) Paper, 2.0: β_1") == "a-second-paper-20-β_1"


def test_margins() -> None:
    assert mean_and_interval(4.72, 2.66, 6.78) == "+4.7 [+2.7, +6.8]"
    assert mean_and_interval(-0.001, -0.012, 0.01) == "-0.001 [-0.012, +0.010]"
    assert mean_and_interval(-12000.0, -24000.0, -0.4) == "-12,000 [-24,000, +0]"
    assert mean_and_interval(1e-9, -1e-9, 3e-9) == "+1e-09 [-1e-09, +3e-09]"
    assert mean_and_interval(0.0, 0.0, 0.0) == "0 in every seed"
    assert mean_and_interval(-0.5, -0.5 - 1e-16, -0.5) == "-0.5 in every seed"


@pytest.mark.parametrize(
    ("holds", "cell"),
    [
        # 10 and 10.5 points above: the bound that is nearer, or that fails, is named.
        (
            "7 < accuracy['IFCA', 'IID'] - accuracy['FedAvg', 'IID'] < 20",
            "holds, also corrected: +3.2 [+0.1, +6.4] (\\> 7)",
        ),
        (
            "0 <= accuracy['IFCA', 'IID'] - accuracy['FedAvg', 'IID'] <= 5",
            "**does not hold**, corrected undecided: -5.2 [-8.4, -2.1] (\\<= 5)",
        ),
        # What is claimed to be less is above zero where it is less.
        ("accuracy['FedAvg', 'IID'] < accuracy['IFCA', 'IID']", "holds, also corrected: +10.2 [+7.1, +13.4]"),
        # Without a value nothing is decided, however close another link is.
        (
            "accuracy['IFCA', 'IID'] > accuracy['FedAvg', 'IID'] > hop['FedAvg', 'IID']",
            "undecided: no value (accuracy \\> hop)",
        ),
        # Two links of one name, and sides of several quantities: no name says which.
        (
            "0 < accuracy['IFCA', 'IID'] - accuracy['FedAvg', 'IID'] > 0",
            "holds, also corrected: +10.2 [+7.1, +13.4]",
        ),
        ("hop['FedAvg', 'IID'] < hop['FedAvg', 'IID']", "undecided: no value"),
    ],
)
def test_the_deciding_link(holds: str, cell: str, own: Callable[..., Item], tmp_path: Path) -> None:
    item = own(ITEM.replace("accuracy['IFCA', 'IID'] > accuracy['FedAvg', 'IID']", holds))
    (line,) = (line for line in _kept(tmp_path, item, made(item)) if line.startswith("| 1 |"))
    assert line.endswith(f" | {cell} |")


def test_a_result_of_nothing_is_refused(tmp_path: Path) -> None:
    item = load_item(list_items()[0])
    result.write(tmp_path / "another.json", item, _empty(item.id, "0"))
    with pytest.raises(BadInput, match=r"another.json' is the result of no item and scale by that name; remove it"):
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
