"""The text of a split: what it means, and one sentence for everything that is wrong with it."""

from __future__ import annotations

import sys

import pytest

from coterie.clients.data import SPLITS, check_split, parse_split
from coterie.clients.data.divide.skew import SKEWS
from coterie.errors import BadInput

FEW_SHOT: dict[str, object] = {
    "share": 0.3,
    "classes": 5,
    "few_classes": 2,
    "samples_per_class": None,
    "sets": "balanced",
    "held_out": "own",
}


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("  by-user ", [("by-user", {})]),
        ("dirichlet(0.6, equal)", [("dirichlet", {"alpha": 0.6, "sizes": "equal"})]),
        (
            "rotated(2)+classes(per_client=3)",
            [("classes", {"per_client": 3, "sets": "balanced"}), ("rotated", {"groups": 2, "sizes": None})],
        ),
        ("rotated(2, sizes=[3, 1])", [("iid", {}), ("rotated", {"groups": 2, "sizes": (3, 1)})]),
        ("primary-secondary(level='low')", [("primary-secondary", {"level": "low"})]),
        (
            "few-shot(0.3, 5, samples_per_class=120)",
            [("few-shot", FEW_SHOT | {"samples_per_class": 120})],
        ),
        (
            "permuted-labels(3) + rotated(2)",
            [
                ("iid", {}),
                ("permuted-labels", {"groups": 3, "sizes": None}),
                ("rotated", {"groups": 2, "sizes": None}),
            ],
        ),
    ],
)
def test_parse(text: str, calls: list[tuple[str, dict[str, object]]]) -> None:
    assert parse_split(text) == calls
    assert check_split(text) == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("iid +", "an empty part"),
        ("dirichlet 0.5", "'dirichlet 0.5' in it is not of the form"),
        ("dirichlet(0.5))", "dirichlet(0.5)) cannot be read"),
        (f"dirichlet({'[' * 9999}{']' * 9999})", "cannot be read"),
        ("dirchlet(0.5)", "split 'dirchlet' is unknown; did you mean dirichlet?"),
        ("dirichlet(-1)", "dirichlet.alpha = -1 is not possible; it must be greater than 0"),
        ("dirichlet(1+1)", "dirichlet.alpha = 1 + 1 is not possible; it must be a number"),
        ("dirichlet(print(1))", "dirichlet.alpha = print(1) is not possible; it must be a number"),
        ("dirichlet(0.1, equal, 0.2)", "has too many settings; dirichlet takes only alpha, sizes"),
        ("dirichlet(0.1, alpha=0.2)", "sets alpha twice"),
        ("dirichlet(**{})", "unpacks a dictionary; write each setting as setting=value"),
        ("dirichlet(alfa=0.2)", "dirichlet.alfa is not a setting; did you mean alpha?"),
        ("iid + classes", "has 2 partitions (iid, classes); keep one"),
        ("rotated + rotated(2)", "has rotated 2 times; keep one of them"),
        ("few-shot(classes=2, few_classes=3)", "few_classes = 3 is not possible; it must be at most classes = 2"),
    ],
)
def test_what_is_wrong(text: str, part: str) -> None:
    (problem,) = check_split(text)
    assert "\n" not in problem
    assert part in problem
    with pytest.raises(BadInput):
        parse_split(text)


def test_all_at_once() -> None:
    assert len(check_split("dirichlet(0) + rotated(5) + sharts")) == 3


def test_every_entry_has_help_for_every_setting() -> None:
    assert set(SPLITS.names()) >= SKEWS
    for entry in SPLITS:
        assert entry.summary.endswith(".") or entry.summary.endswith(")."), entry.name
        assert all(setting.help for setting in entry.settings)
        assert check_split(entry.name) == []


def test_flower_partitioners_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    assert check_split("flwr:IidPartitioner + rotated(2)") == [
        "split = 'flwr:IidPartitioner' needs the flwr-datasets library; install coterie[hub]"
    ]
