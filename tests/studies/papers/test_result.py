"""Results: kept in a file and read back, judged again from it, and known to be stale."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.errors import BadInput
from coterie.studies.papers import result
from coterie.studies.papers.claims import Reference
from coterie.studies.papers.item import Item, read_item
from coterie.studies.papers.result import Result, judge_claims, judge_published

from .items import ITEM

VALUES: dict[tuple[str, str, str], tuple[float | None, ...]] = {
    ("accuracy", "FedAvg", "IID"): (70.0, 71.0),
    ("accuracy", "IFCA", "IID"): (80.0, 81.5),
    ("accuracy", "FedAvg", "β = 0.2"): (50.0, None),
    ("accuracy", "IFCA", "β = 0.2"): (60.0, 61.0),
    ("hop", "FedAvg", "IID"): (None, None),
    ("hop", "IFCA", "IID"): (None, None),
    ("hop", "FedAvg", "β = 0.2"): (None, None),
    ("hop", "IFCA", "β = 0.2"): (None, None),
}


def made(item: Item) -> Result:
    return Result(
        item=item.id,
        scale="small",
        digest=item.digest("small"),
        seeds=(0, 1),
        values={Reference(*key): numbers for key, numbers in VALUES.items()},
        runs=8,
        finished=7,
        seconds=12.5,
        failed=("β = 0.2, FedAvg, seed 1 failed: too few samples",),
        notes=("no run has hop; no method logs 'hopkins', logged is nothing",),
        versions={"python": "3.11.7", "torch": "2.6.0"},
    )


@pytest.fixture
def item() -> Item:
    return read_item("a-table1", ITEM)


def test_a_file_holds_all_of_a_result(item: Item, tmp_path: Path) -> None:
    path = tmp_path / "made/result.json"
    result.write(path, item, made(item))
    assert result.read(path) == made(item)
    first = path.read_bytes()
    result.write(path, item, result.read(path))
    assert path.read_bytes() == first
    table = json.loads(first)
    assert table["values"]["accuracy"]["IID"]["IFCA"] == [80.0, 81.5]
    assert table["published"]["accuracy"]["IID"] == {"FedAvg": 67.35, "IFCA": 70.1}
    assert table["command"] == "coterie reproduce a-table1 --scale small"
    assert [claim["verdict"] for claim in table["claims"]] == ["holds", "undecided", "not run"]
    assert table["claims"][1]["finding"] == "Few rounds."


def test_claims_are_judged_by_the_kept_values(item: Item) -> None:
    found = judge_claims(item, made(item))
    assert [claim.verdict for claim in found] == ["holds", "undecided", "not run"]
    # Differences 10 and 10.5: mean 10.25, standard error 0.25, t(1) = 12.7062.
    (link,) = found[0].links
    assert (link.mean, link.n) == (10.25, 2)
    assert link.low == pytest.approx(10.25 - 0.25 * 12.7062, abs=1e-5)
    # One seed has both sides; above one per cent there is only one seed as well.
    assert [(link.mean, link.n) for link in found[1].links] == [(20.0, 1), (49.0, 1)]


@pytest.mark.parametrize("kind", ["identity", "circular", "unstated"])
def test_what_no_number_decides_is_called_so(item: Item, kind: str, tmp_path: Path) -> None:
    said = f'where = "section 5"\n{kind} = "the learning rate"'
    other = read_item("a-table1", ITEM.replace('where = "section 5"', said))
    first, second, _ = judge_claims(other, made(other))
    assert (first.verdict, first.corrected, first.reason, first.p) == (kind, kind, "the learning rate", None)
    # What was measured stays, and what was not is still not run.
    measured, other_claim, _ = judge_claims(item, made(item))
    assert (first.links, second) == (measured.links, other_claim)
    nothing = replace(made(other), values={})
    assert {claim.verdict for claim in judge_claims(other, nothing)} == {"not run"}
    result.write(tmp_path / "result.json", other, made(other))
    (told, *_) = json.loads((tmp_path / "result.json").read_text("utf-8"))["claims"]
    assert (told["verdict"], told["reason"], told["published_size"]) == (kind, "the learning rate", "")


def test_a_claim_has_one_verdict_of_its_own_at_most() -> None:
    said = 'where = "section 5"\nidentity = "a ratio"\ncircular = "its own seconds"'
    with pytest.raises(BadInput, match="identity, circular and unstated"):
        read_item("a-table1", ITEM.replace('where = "section 5"', said))


def test_another_claim_needs_no_run(item: Item) -> None:
    other = read_item("a-table1", ITEM.replace("accuracy['IFCA', 'IID'] > ", "accuracy['IFCA', 'IID'] < "))
    kept = made(item)
    assert not kept.is_stale(other)
    assert judge_claims(other, kept)[0].verdict == "does not hold"


def test_a_result_is_stale_where_the_runs_or_the_quantities_are_others(item: Item) -> None:
    kept = made(item)
    assert not kept.is_stale(item)
    assert kept.is_stale(
        read_item("a-table1", ITEM.replace("experiment.run.rounds = 2", "experiment.run.rounds = 3"))
    )
    # A quantity that is new leaves the others valid.
    other = read_item("a-table1", ITEM.replace("> accuracy['FedAvg', 'IID']", "> worst10['FedAvg', 'IID']"))
    assert (kept.is_stale(other), kept.missing(other), kept.missing(item)) == (False, ["worst10"], [])
    assert replace(kept, scale="medium").is_stale(item)


def test_published_numbers_judge_claims_too(item: Item) -> None:
    rounded = [
        links and [(round(difference, 6), holds) for difference, holds in links] for links in judge_published(item)
    ]
    assert rounded == [[(2.75, True)], [(7.35, True), (59.0, True)], None]


def test_means_and_deviations(item: Item) -> None:
    kept = made(item)
    assert kept.mean_and_sd(Reference("accuracy", "IFCA", "IID")) == pytest.approx((80.75, math.sqrt(1.125)))
    one = kept.mean_and_sd(Reference("accuracy", "FedAvg", "β = 0.2"))
    assert one is not None
    assert one[0] == 50.0
    assert math.isnan(one[1])
    assert kept.mean_and_sd(Reference("hop", "IFCA", "IID")) is None
    assert kept.mean_and_sd(Reference("accuracy", "FedTSDP", "IID")) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "coterie reproduce --keep"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"item": "a"}', "damaged"),
        ('{"values": {"accuracy": 3}}', "damaged"),
    ],
)
def test_what_is_no_result(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(BadInput, match=said):
        result.read(path)
