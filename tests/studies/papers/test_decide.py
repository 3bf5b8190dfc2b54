"""Claims that are decided by adding seeds: the level over all looks, when it is futile to go on, and the
command."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtrit

from coterie.errors import BadInput
from coterie.studies.papers import result
from coterie.studies.papers.claims import Reference
from coterie.studies.papers.decide import LEVEL_OF_A_LOOK, LOOKS, Decision, Look
from coterie.studies.papers.item import list_items, load_item, read_item
from tests.commandline import Terminal

from .items import ITEM
from .test_reproduce_command import coterie as coterie
from .test_result import made

MAIN = ITEM.replace(
    'where = "section 5"', 'where = "section 5"\nheadline = true\nbrief = "labels differ"\nwhy = "Labels differ"'
)
FIRST, SECOND = Reference("accuracy", "IFCA", "IID"), Reference("accuracy", "FedAvg", "IID")


def find_missed(differences: np.ndarray, level: float) -> float:
    """The share of rows `[n, seeds]` of which the interval at some look leaves out zero."""
    missed = np.zeros(len(differences), bool)
    for seeds in LOOKS:
        some = differences[:, :seeds]
        half = stdtrit(seeds - 1, 1 - level / 2) * some.std(axis=1, ddof=1) / np.sqrt(seeds)
        missed |= np.abs(some.mean(axis=1)) > half
    return float(missed.mean())


def test_the_level_over_all_looks() -> None:
    rng = np.random.default_rng(0)
    n = 100_000
    normal = rng.standard_normal((n, LOOKS[-1]))
    # Two standard errors of the simulation are 0.0014.
    assert 0.047 < find_missed(normal, LEVEL_OF_A_LOOK) < 0.051
    # Twice the level would be too much, as would be 5 % at every look.
    assert find_missed(normal, 2 * LEVEL_OF_A_LOOK) > 0.08
    assert find_missed(normal, 0.05) > 0.15
    # Heavier tails than normal ones make it stricter, and flat ones by two points laxer.
    assert find_missed(rng.laplace(size=(n, LOOKS[-1])), LEVEL_OF_A_LOOK) < 0.05
    assert find_missed(rng.random((n, LOOKS[-1])) - 0.5, LEVEL_OF_A_LOOK) < 0.075


def search(decision: Decision, difference: float, spread: float, rng: np.random.Generator) -> tuple[Look, int]:
    """Add seeds in which the methods differ by this, until the first claim has an end."""
    common = rng.normal(60, 5, LOOKS[-1])  # what a seed does to both
    values = {SECOND: common, FIRST: common + rng.normal(difference, spread, LOOKS[-1])}
    for seeds in LOOKS:
        there = {reference: tuple(map(float, numbers[:seeds])) for reference, numbers in values.items()}
        found = replace(made(decision.item), seeds=tuple(range(seeds)), values=there, level=LEVEL_OF_A_LOOK)
        (look,) = decision.look(found)
        if look.end:
            break
    return look, seeds


@pytest.mark.medium
def test_what_ends_a_search() -> None:
    """By the verdicts themselves: the printed difference is 2.75 points, and a seed scatters by 2."""
    decision = Decision.of(read_item("a-table1", MAIN), "small")
    rng, n = np.random.default_rng(1), 150
    ends: dict[float, Counter[str]] = {}
    needed: dict[float, float] = {}
    for true in (0.0, 2.75):
        found = [search(decision, true, 2.0, rng) for _ in range(n)]
        ends[true] = Counter(look.judged.verdict if look.end != "futile" else "futile" for look, _ in found)
        needed[true] = float(np.mean([seeds for _, seeds in found]))
    # Nothing is there: a verdict of either kind comes in 5 % at most, and most searches end early as futile.
    assert ends[0.0]["holds"] + ends[0.0]["does not hold"] <= 0.05 * n + 2 * np.sqrt(0.05 * 0.95 * n)
    assert ends[0.0]["futile"] + ends[0.0]["equal within a point"] > 0.8 * n
    # What is printed is there: found, and hardly ever given up.
    assert ends[2.75]["holds"] > 0.8 * n
    assert ends[2.75]["futile"] <= 0.05 * n + 2 * np.sqrt(0.05 * 0.95 * n)
    assert max(needed.values()) < 0.7 * LOOKS[-1]


def test_a_claim_on_the_size_itself_is_not_futile() -> None:
    item = read_item(
        "a-table1", MAIN.replace("accuracy['IFCA', 'IID'] >", "accuracy['IFCA', 'IID'] - 1 >").replace("70.1", "75")
    )
    decision = Decision.of(item, "small")
    values = {FIRST: (61.0, 62.5, 60.0, 62.0), SECOND: (60.0, 60.0, 60.0, 60.0)}
    found = replace(made(item), seeds=(0, 1, 2, 3), values=values, level=LEVEL_OF_A_LOOK)
    (look,) = decision.look(found)
    assert (look.judged.verdict, look.size, look.end) == ("undecided", "excluded, less here", "")


def test_only_what_the_claims_compare_is_run() -> None:
    decision = Decision.of(read_item("a-table1", MAIN), "small")
    cells = decision.cells(decision.claims, 4)
    assert {(cell.setting, cell.method) for cell in cells} == {("IID", "IFCA"), ("IID", "FedAvg")}
    assert [cell.seed for cell in cells] == [0, 0, 1, 1, 2, 2, 3, 3]
    # They are runs of the item itself.
    known = {cell.key for cell in decision.item.comparison("small").cells()}
    assert {cell.key for cell in cells if cell.seed < 2} <= known
    # Time to a target is held against what the baseline has in the end.
    to_target = MAIN.replace(
        "holds = \"accuracy['IFCA', 'IID'] > accuracy['FedAvg', 'IID']\"",
        "holds = \"rounds_to_target['IFCA', 'IID'] < 2\"",
    )
    with_baseline = Decision.of(read_item("a-table1", to_target), "small")
    assert {cell.method for cell in with_baseline.cells(with_baseline.claims, 1)} == {"IFCA", "FedAvg"}


@pytest.mark.parametrize(
    ("text", "scale", "said"),
    [
        (
            MAIN.replace("headline = true", 'circular = "its seconds"\nheadline = true'),
            "small",
            "no number",
        ),
        (
            MAIN.replace("accuracy['IFCA', 'IID'] >", "hop['FedTSDP', 'IID'] >"),
            "small",
            "the scale",
        ),
        (MAIN, "large", "a-table1 .*scale large"),
    ],
)
def test_what_cannot_be_decided(text: str, scale: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Decision.of(read_item("a-table1", text), scale)


@pytest.mark.parametrize("name", [name for name in list_items() if any(c.headline for c in load_item(name).claims)])
def test_main_claims_can_be_decided_at_medium(name: str) -> None:
    item = load_item(name)
    if any(claim.headline and claim.verdict is None for claim in item.claims):
        decision = Decision.of(item, "medium")
        assert all(item.claims[i].headline for i in decision.claims)
        assert decision.cells(decision.claims, 1)


QUICK = MAIN.replace("accuracy['IFCA', 'IID'] > accuracy['FedAvg', 'IID']", "accuracy['FedAvg', 'IID'] < 101")


@pytest.mark.slow
def test_from_the_command_to_the_front(coterie: Terminal, tmp_path: Path) -> None:
    for name in ("a-table1", "a-table2"):
        (tmp_path / f"papers/{name}.toml").write_text(QUICK, "utf-8")
    words = ("reproduce", "a-table1", "--scale", "small", "--jobs", "1")
    stopped = coterie(*words, "--decide", "0")
    assert stopped.code == 0
    assert "1 of" not in stopped.out
    go_on = "coterie reproduce a-table1 --scale small --decide 0 --folder reproductions"
    assert stopped.out.endswith(f"{go_on}\n")
    done = coterie(*words, "--decide", "1", "--keep", "kept")
    assert len(re.findall(r"^.*\d of .* 8\b.* 4 seeds\n", done.out, re.MULTILINE)) == 1
    assert ": holds\n" in done.out
    found = result.read(tmp_path / "kept/a-table1-small-decided.json")
    assert (found.adds_seeds, found.runs, found.finished, found.seeds) == (True, 4, 4, (0, 1, 2, 3))
    assert {*found.values} == {SECOND}
    # Again: nothing is run, and the same is found.
    again = coterie(*words, "--decide", "1", "--quiet")
    assert again.out == f"{Path('reproductions/a-table1-small-decided/result.json')}\n"
    kept = (tmp_path / "kept/a-table1-small-decided.json").read_bytes()
    assert (tmp_path / "reproductions/a-table1-small-decided/result.json").read_bytes() == kept
    # An item's own runs are shared, and its page has both results.
    assert len([*(tmp_path / "reproductions/cells").glob("*/experiment.toml")]) == 4
    coterie("reproduce", "--write", "kept.md")
    page = (tmp_path / "kept.md").read_text("utf-8")
    (front,) = [line for line in page.splitlines() if "| A Paper, Table 1 |" in line and "small, 4 seeds" in line]
    assert "| holds, seeds added" in front
    assert re.search(r"\*\*small, seeds added\*\*: 4 seeds, 4 runs", page)
    table = json.loads((tmp_path / "kept/a-table1-small-decided.json").read_text("utf-8"))
    assert (table["level"], table["claims"][0]["verdict"]) == (LEVEL_OF_A_LOOK, "holds")


@pytest.mark.medium
def test_an_item_that_cannot_be_decided_keeps_no_other_from_it(coterie: Terminal, tmp_path: Path) -> None:
    circular = MAIN.replace("headline = true", 'circular = "its seconds"\nheadline = true')
    for name, text in (("a-table1", circular), ("a-table2", QUICK)):
        (tmp_path / f"papers/{name}.toml").write_text(text, "utf-8")
    done = coterie("reproduce", "a-table1", "a-table2", "--scale", "small", "--jobs", "1", "--decide", "0")
    assert done.code == 0, done.err
    assert "a-table1" in next(line for line in done.out.splitlines() if line.startswith("note: "))
    assert "at most" not in done.out


def test_decide_is_refused_without_an_item(coterie: Terminal) -> None:
    done = coterie("reproduce", "--decide", "1")
    assert (done.code, "--decide" in done.err) == (2, True)
