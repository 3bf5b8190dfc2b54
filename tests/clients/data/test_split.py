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
        ("iid", [("iid", {})]),
        ("dirichlet", [("dirichlet", {"alpha": 0.5, "sizes": "vary"})]),
        ("dirichlet(0.1)", [("dirichlet", {"alpha": 0.1, "sizes": "vary"})]),
        ("  by-user ", [("by-user", {})]),
        (
            "dirichlet(0.5) + rotated(4)",
            [("dirichlet", {"alpha": 0.5, "sizes": "vary"}), ("rotated", {"groups": 4, "sizes": None})],
        ),
        (
            "rotated(2)+classes(per_client=3)",
            [("classes", {"per_client": 3, "sets": "balanced"}), ("rotated", {"groups": 2, "sizes": None})],
        ),
        ("rotated", [("iid", {}), ("rotated", {"groups": 4, "sizes": None})]),
        ("label-groups(2, share=0.8)", [("label-groups", {"groups": 2, "share": 0.8})]),
        ("classes(5, windows)", [("classes", {"per_client": 5, "sets": "windows"})]),
        ("dirichlet(0.6, equal)", [("dirichlet", {"alpha": 0.6, "sizes": "equal"})]),
        ("few-shot(held_out=regular)", [("few-shot", FEW_SHOT | {"held_out": "regular"})]),
        ("rotated(2, sizes=[3, 1])", [("iid", {}), ("rotated", {"groups": 2, "sizes": (3, 1)})]),
        ("primary-secondary(high)", [("primary-secondary", {"level": "high"})]),
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
    ("text", "parts"),
    [
        ("", ["split = ''", "an empty part"]),
        ("iid +", ["an empty part"]),
        ("dirichlet 0.5", ["'dirichlet 0.5' in it is not of the form"]),
        ("dirichlet(0.5", ["'dirichlet(0.5' in it is not of the form"]),
        ("dirichlet(0.5))", ["dirichlet(0.5)) cannot be read"]),
        (f"dirichlet({'[' * 9999}{']' * 9999})", ["cannot be read"]),
        ("dirchlet(0.5)", ["split 'dirchlet' is unknown; did you mean dirichlet?"]),
        ("dirichlet(-1)", ["dirichlet.alpha = -1 is not possible; it must be greater than 0"]),
        ("dirichlet(nan)", ["dirichlet.alpha = 'nan' is not possible"]),
        ("dirichlet('a'*9)", ["dirichlet.alpha = 'a' * 9 is not possible; it must be a number"]),
        ("dirichlet(print(1))", ["dirichlet.alpha = print(1) is not possible; it must be a number"]),
        (
            "dirichlet(0.1, equal, 0.2)",
            ["dirichlet(0.1, equal, 0.2) has too many settings; dirichlet takes only alpha, sizes"],
        ),
        ("iid(3)", ["iid(3) has too many settings; iid takes none"]),
        ("dirichlet(0.1, alpha=0.2)", ["sets alpha twice"]),
        ("dirichlet(**{})", ["unpacks a dictionary; write each setting as setting=value"]),
        ("dirichlet(alfa=0.2)", ["dirichlet.alfa is not a setting; did you mean alpha?"]),
        ("iid + classes", ["has 2 partitions (iid, classes); keep one"]),
        ("rotated(3)", ["rotated.groups = 3 is not possible; it must be 1, 2 or 4"]),
        ("few-shot(classes=2, few_classes=3)", ["few_classes = 3 is not possible; it must be at most classes = 2"]),
        ("primary-secondary(medium)", ["level = 'medium' is not possible; it must be 'low', 'mid' or 'high'"]),
    ],
)
def test_what_is_wrong(text: str, parts: list[str]) -> None:
    problems = check_split(text)
    assert len(problems) == 1
    assert "\n" not in problems[0]
    for part in parts:
        assert part in problems[0]
    with pytest.raises(BadInput):
        parse_split(text)


def test_all_at_once() -> None:
    problems = check_split("dirichlet(0) + rotated(5) + sharts")
    assert len(problems) == 3
    assert [any(word in p for p in problems) for word in ("alpha = 0", "groups = 5", "did you mean shards")] == [
        True
    ] * 3


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
