"""The text of a split: what it means, and one sentence for everything that is wrong with it."""

from __future__ import annotations

import re
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
    ("text", "says"),
    [
        ("iid +", "empty"),
        ("dirichlet 0.5", "'dirichlet 0.5'"),
        ("dirichlet(0.5))", r"dirichlet\(0\.5\)\)"),
        (f"dirichlet({'[' * 9999}{']' * 9999})", "dirichlet"),
        ("dirchlet(0.5)", "'dirchlet'.*dirichlet"),
        ("dirichlet(-1)", r"dirichlet\.alpha = -1 .* 0$"),
        ("dirichlet(1+1)", r"dirichlet\.alpha = 1 \+ 1 .*number"),
        ("dirichlet(print(1))", r"dirichlet\.alpha = print\(1\) .*number"),
        ("dirichlet(0.1, equal, 0.2)", "dirichlet .*alpha, sizes"),
        ("dirichlet(0.1, alpha=0.2)", "alpha twice"),
        ("dirichlet(**{})", "setting=value"),
        ("dirichlet(alfa=0.2)", r"dirichlet\.alfa .*alpha"),
        ("iid + classes", r"\(iid, classes\)"),
        ("rotated + rotated(2)", "rotated 2 times"),
        ("few-shot(classes=2, few_classes=3)", "few_classes = 3 .*classes = 2"),
    ],
)
def test_what_is_wrong(text: str, says: str) -> None:
    (problem,) = check_split(text)
    assert "\n" not in problem
    assert re.search(says, problem)
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
    (problem,) = check_split("flwr:IidPartitioner + rotated(2)")
    assert re.search(r"'flwr:IidPartitioner'.*coterie\[hub\]", problem)
