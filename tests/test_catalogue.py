"""Catalogues and problems: one signature is listing, validation and call; one sentence is the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coterie.catalogue import Catalog, Grid, Setting
from coterie.errors import BadInput, nearest, sentences

THINGS = Catalog("thing")


@THINGS.add("plain")
def plain(pool: int) -> int:
    """Takes no settings."""
    return pool


@THINGS.add("rich")
@dataclass(frozen=True)
class Rich:
    """First line of the summary.

    The second paragraph is no part of it.
    """

    count: Annotated[int, Field(ge=1, description="how many")] = 4
    rate: Annotated[float, Field(ge=0, description="how fast"), Grid(0.1, 0.5, 2.0)] = 0.5
    mode: Annotated[Literal["a", "b"], Field(description="which way")] = "a"
    widths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(description="how wide")] = (8,)
    limit: int | None = None
    level: float | Literal["auto"] = "auto"
    twice: bool = False


@THINGS.add("needs")
def needs(pool: int, *, share: Annotated[float, Field(gt=0, le=1)], seed: int = 0) -> tuple[int, float, int]:
    """Must be told its share."""
    return pool, share, seed


def refused(name: str, prefix: str = "", **settings: Any) -> list[str]:
    with pytest.raises(BadInput) as caught:
        THINGS[name].bind(settings, prefix)
    return caught.value.problems


def test_the_summary_is_the_first_line_of_the_docstring() -> None:
    assert [e.summary for e in THINGS] == [
        "Takes no settings.",
        "First line of the summary.",
        "Must be told its share.",
    ]


def test_settings_are_read_off_the_signature() -> None:
    count, rate, mode, widths, limit, level, twice = THINGS["rich"].settings
    assert count == Setting("count", 4, "how many")
    assert (rate.default, widths.default, limit.default, twice.default) == (0.5, (8,), None, False)
    assert mode == Setting("mode", "a", "which way", choices=("a", "b"))
    assert "a, b" in mode.meaning
    assert rate.grid == (0.1, 0.5, 2.0)
    assert count.grid == mode.grid == level.grid == ()
    assert level.choices == ("auto",)
    assert count.meaning == "how many"


def test_only_keyword_settings_of_a_function_count() -> None:
    assert THINGS["plain"].settings == []
    share, seed = THINGS["needs"].settings
    assert (share.required, share.default) == (True, None)
    assert (seed.required, seed.default) == (False, 0)


def test_what_is_bound_builds_the_thing() -> None:
    entry = THINGS["rich"]
    assert entry.target(**entry.bind({})) == Rich()
    assert entry.target(**entry.bind({"widths": [3, 4], "count": 2, "level": 1})) == Rich(
        2, widths=(3, 4), level=1.0
    )
    needed = THINGS["needs"]
    assert needed.target(7, **needed.bind({"share": 1})) == (7, 1.0, 0)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"'rihc' .*rich"):
        THINGS["rihc"]
    with pytest.raises(BadInput, match=r"'zzzzzz' .*: needs, plain, rich$"):
        THINGS["zzzzzz"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"count": 0}, "count = 0 .* 1"),
        ({"count": "4"}, "count = '4' .*integer"),
        ({"count": 4.0}, r"count = 4\.0 .*integer"),
        ({"count": True}, "count = True .*integer"),
        ({"twice": 1}, "twice = 1 .*boolean"),
        ({"rate": float("nan")}, "rate = nan .*finite"),
        ({"rate": float("inf")}, "rate = inf .*finite"),
        ({"mode": "c"}, "mode = 'c' .*'a' or 'b'"),
        ({"widths": [8, 0]}, r"widths\.1 = 0 .* 1"),
        ({"widths": 8}, r"widths = 8 .*\[8\]"),
        ({"limit": "x"}, "limit = 'x' .*integer"),
        ({"level": "x"}, "level = 'x' .*number or 'auto'"),
        ({"cuont": 1}, r"cuont .*rich; .*count\?"),
        ({"zz": 1}, "zz .*rich; .*: count, rate, mode, widths, limit, level, twice"),
    ],
)
def test_each_wrong_setting_gets_one_sentence(settings: dict[str, Any], says: str) -> None:
    (sentence,) = refused("rich", "method", **settings)
    assert re.search(rf"^method\.{says}", sentence)


def test_all_that_is_wrong_is_said_at_once() -> None:
    assert len(refused("rich", count=0, rate=-1, mode=3, colour="red")) == 4


def test_a_missing_setting_and_one_for_a_thing_without_any() -> None:
    for (sentence,), name in ((refused("needs", "split"), "split.share"), (refused("plain", share=1), "share")):
        assert sentence.startswith(f"{name} ")


@pytest.mark.parametrize(
    ("name", "close"),
    [("fesm", "fesem"), ("FESEM", "fesem"), ("local_only", "local-only"), ("qqq", None), ("", None)],
)
def test_nearest(name: str, close: str | None) -> None:
    assert nearest(name, iter(["fedavg", "fesem", "local-only"])) == close


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = Field("x", min_length=2)
    even: int = 2

    @field_validator("even")
    @classmethod
    def _is_even(cls, even: int) -> int:
        if even % 2:
            raise ValueError("take an even number")
        return even


class Outer(BaseModel):
    inner: Inner


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"text": "a"}, r"inner\.text = 'a' .* 2 characters"),
        ({"even": 3}, r"inner\.even = 3 .*even number"),
        ({"txt": 3}, r"inner\.txt .*text\?"),
        ({"odd": 3}, r"inner\.odd .*: text, even"),
    ],
)
def test_sentences_of_nested_models(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer(inner=given)
    (sentence,) = sentences(caught.value, "outer", ["text", "even"])
    assert re.search(rf"^outer\.{says}$", sentence)
