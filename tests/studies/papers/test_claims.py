"""Claims over seeds, each verdict by numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import BadInput
from coterie.studies.papers.claims import (
    Floats,
    JudgedClaim,
    Lookup,
    Reference,
    Span,
    correct,
    find_published_size,
    judge_claim,
    judge_printed,
    parse_claim,
    references,
)

NAN = math.nan

VALUES = {
    # Differences 10, 11, 12: mean 11, standard error 1 / sqrt(3), t(2) = 4.302653, so 11 -+ 2.4841.
    ("q", "high", "s"): [60.0, 62.0, 64.0],
    ("q", "low", "s"): [50.0, 51.0, 52.0],
    # Differences to high: 2, -1, 2; mean 1, sd sqrt(3), half width 4.302653.
    ("q", "close", "s"): [58.0, 63.0, 62.0],
    ("q", "same", "s"): [50.0, 51.0, 52.0],
    ("q", "partly", "s"): [40.0, NAN, 44.0],
    ("q", "once", "s"): [NAN, 70.0, NAN],
    ("q", "never", "s"): [NAN, NAN, NAN],
    ("q", "zero", "s"): [0.0, 0.0, 0.0],
    ("mb", "low", "s"): [100.0, 100.0, 100.0],
    ("mb", "high", "s"): [38.0, 38.0, 38.0],
}


def lookup(reference: Reference) -> Floats | None:
    values = VALUES.get((reference.quantity, reference.method, reference.setting or "s"))
    return None if values is None else np.array(values)


def judge(text: str, *, exact: bool = False) -> JudgedClaim:
    return judge_claim(parse_claim(text), lookup, exact=exact)


def test_the_interval_is_that_of_the_paired_differences() -> None:
    found = judge("q['high', 's'] > q['low', 's']")
    assert found.verdict == "holds"
    (link,) = found.links
    assert link.link == "q['high', 's'] > q['low', 's']"
    assert (link.mean, link.n) == (11.0, 3)
    assert link.low == pytest.approx(8.51586, abs=1e-5)
    assert link.high == pytest.approx(13.48414, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("q['low'] > q['high']", "does not hold"),
        ("q['low'] < q['high']", "holds"),
        ("q['high'] > q['close']", "undecided"),
        ("q['high'] < q['close']", "undecided"),
        ("q['high'] - q['low'] > 8.5", "holds"),
        ("q['high'] - q['low'] > 13.5", "does not hold"),
        # A difference that is the same in every seed decides nothing; a single number is no such difference.
        ("-1 < q['same'] - q['low'] < 1", "identity"),
        ("q['zero'] <= 0", "holds"),
        ("-1 < q['high'] - q['low'] < 1", "does not hold"),
    ],
)
def test_a_link_against_the_interval(text: str, verdict: str) -> None:
    assert judge(text).verdict == verdict


@pytest.mark.parametrize(
    ("text", "mean", "n"),
    [("q['once'] > q['low']", 19.0, 1), ("q['never'] > q['low']", None, 0), ("1 / q['zero'] > 0", None, 0)],
)
def test_fewer_than_two_seeds_decide_nothing(text: str, mean: float | None, n: int) -> None:
    (link,) = judge(text).links
    assert (link.verdict, link.mean, link.low, link.high, link.n) == ("undecided", mean, None, None, n)


def test_seeds_that_coincide_bear_a_claim_out_and_are_no_test_of_it() -> None:
    found = judge("q['zero'] <= 0")
    assert (found.verdict, found.p) == ("holds", None)
    tested = judge("q['high'] > q['low']")
    assert tested.p is not None
    assert [claim.corrected for claim in correct([found, tested, found])] == ["undecided", "holds", "undecided"]
    assert [claim.corrected for claim in correct([found])] == ["holds"]  # alone there is nothing to correct for
    assert judge("q['zero'] <= 0", exact=True).p == 0


@pytest.mark.parametrize(
    ("text", "verdict", "links"),
    [
        ("q['high'] > q['low'] > 10", "holds", ["holds", "holds"]),
        ("q['high'] > q['close'] > q['low']", "undecided", ["undecided", "holds"]),
        ("q['high'] > q['close'] > 90", "does not hold", ["undecided", "does not hold"]),
        ("q['low'] > q['high'] > q['absent']", "not run", ["does not hold", "not run"]),
        ("q['high'] > q['once'] > 0", "undecided", ["undecided", "undecided"]),
        ("q['high'] > q['same'] >= q['low']", "identity", ["holds", "identity"]),
        ("q['high'] > q['close'] > q['low'] >= q['same']", "undecided", ["undecided", "holds", "identity"]),
    ],
)
def test_a_chain(text: str, verdict: str, links: list[str]) -> None:
    found = judge(text)
    assert found.verdict == verdict
    assert [link.verdict for link in found.links] == links


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        # A count or bytes may be the same in every seed; against a number the interval may be the point 0.
        ("q['zero'] <= 0", "holds"),
        ("q['zero'] >= 0", "holds"),
        ("q['zero'] > 0", "does not hold"),
        ("q['zero'] < 0", "does not hold"),
        ("1 - mb['high'] / mb['low'] > 0.5", "holds"),
        ("1 - mb['high'] / mb['low'] > 0.7", "does not hold"),
        # Two methods that are the same run bear no claim out, but a difference that was claimed is not there.
        ("q['same'] - q['low'] < 2", "identity"),
        ("q['same'] >= q['low']", "identity"),
        ("q['same'] > q['low']", "does not hold"),
        ("1 - q['same'] / q['low'] > 0.6", "does not hold"),
    ],
)
def test_an_exact_claim(text: str, verdict: str) -> None:
    assert judge(text, exact=True).verdict == verdict


@given(
    values=st.lists(st.floats(-100, 100), min_size=2, max_size=5),
    margin=st.floats(-50, 50),
    order=st.sampled_from(["<", "<=", ">", ">="]),
)
def test_two_methods_that_are_the_same_run_decide_nothing(values: list[float], margin: float, order: str) -> None:
    links = parse_claim(f"q['a'] - q['b'] {order} {margin!r}")
    found = judge_claim(links, lambda _: np.array(values))
    assert (found.verdict, found.corrected, found.p) == ("identity", "identity", None)
    # That bytes are equal bears no claim on them out.
    assert judge_claim(links, lambda _: np.array(values), exact=True).verdict != "holds"


def test_the_same_run_behind_a_maximum_is_an_identity() -> None:
    assert judge("q['same'] > max(q['low'], q['zero'])").verdict == "identity"
    # Numbers that are cut off at the same one are none.
    assert judge("max(q['zero'], 0) >= max(mb['low'] - 200, 0)").verdict == "cannot be tested"


@pytest.mark.parametrize(
    ("text", "spread", "verdict"),
    [
        ("q['a'] > q['b']", 0.2, "equal within a point"),
        ("q['a'] < max(q['b'], q['b'])", 0.2, "equal within a point"),
        ("q['a'] > q['b']", 1.0, "undecided"),
        # With a margin the interval is not one of the difference itself; and what is in no per cent has no points.
        ("q['a'] + 0.1 > q['b']", 0.2, "undecided"),
        ("rounds['a'] > rounds['b']", 0.2, "undecided"),
    ],
)
def test_accuracies_that_differ_by_less_than_a_point_are_equal(text: str, spread: float, verdict: str) -> None:
    b = np.array([50.0, 55.0, 60.0, 65.0])
    values = methods(a=b + spread * np.array([-1.0, 1.0, 1.0, -1.0]), b=b)
    found = judge_claim(parse_claim(text), values, in_points=["q"])
    assert (found.verdict, found.corrected) == (verdict, verdict)


@pytest.mark.parametrize(
    ("text", "printed", "size"),
    [
        # The interval of high less low is 11 -+ 2.48.
        ("q['high'] > q['low']", 13.0, "inside"),
        ("q['high'] > q['low']", 8.0, "excluded, more here"),
        ("q['high'] > q['low']", 14.0, "excluded, less here"),
        ("q['low'] < q['high']", -14.0, "excluded, less here"),
        ("q['low'] < q['high']", -13.0, "inside"),
        ("q['high'] > q['close']", 6.0, "excluded, less here"),
        ("q['high'] > q['close']", 5.0, "inside"),
        # Nothing to hold it against: one seed, or the same run.
        ("q['once'] > q['low']", 5.0, ""),
        ("q['same'] > q['low']", 5.0, ""),
    ],
)
def test_whether_the_published_size_is_excluded(text: str, printed: float, size: str) -> None:
    found = judge(text)
    assert find_published_size(found, [(printed, True)]) == size
    assert find_published_size(found, None) == ""


def beyond(values: list[float], bound: float) -> Span:
    """Values of which those above the bound are known only to be beyond it."""
    low = np.minimum(np.array(values), bound)
    return Span(low, np.where(np.array(values) > bound, np.inf, low))


def methods(**values: Span | Floats) -> Lookup:
    return lambda reference: values[reference.method]


NEVER = beyond([99.0] * 3, 21)
"""Never within 20 rounds, in three seeds."""


@pytest.mark.parametrize(
    ("text", "verdict", "bound", "n"),
    [
        # Rounds 12, 14 and 13 against never: at least 7 to 9 rounds fewer.
        ("r['quick'] < r['never']", "holds", "at most", 3),
        ("r['never'] > r['quick']", "holds", "at least", 3),
        ("r['never'] < r['quick']", "does not hold", "at least", 3),
        # Twice as many could be so, and need not.
        # Both sides are beyond what was run.
        ("r['never'] < r['never_too']", "cannot be tested", "", 0),
        # Against a number a bound decides what it can.
        ("r['never'] < 15", "does not hold", "at least", 3),
        ("r['never'] < 50", "undecided", "at least", 3),
        # Within one seed both sides are never reached: it counts as missing.
        ("r['once_never'] > r['last_never']", "undecided", "", 2),
        ("1 - r['quick'] / r['never'] > 0.2", "holds", "at least", 3),
    ],
)
def test_rounds_never_reached(text: str, verdict: str, bound: str, n: int) -> None:
    known = methods(
        quick=np.array([12.0, 14.0, 13.0]),
        never=NEVER,
        never_too=NEVER,
        once_never=Span(np.array([10.0, 12.0, 21.0]), np.array([10.0, 12.0, np.inf])),
        last_never=Span(np.array([9.0, 13.0, 21.0]), np.array([9.0, 13.0, np.inf])),
    )
    found = judge_claim(parse_claim(text), known)
    (link,) = found.links
    assert (found.verdict, link.bound, link.n) == (verdict, bound, n)


@given(
    left=st.lists(st.floats(1, 60), min_size=4, max_size=4),
    right=st.lists(st.floats(1, 60), min_size=4, max_size=4),
    text=st.sampled_from(
        ["r['a'] > r['b']", "r['a'] < r['b']", "2 * r['a'] - r['b'] > 3", "r['a'] / r['b'] < 0.7"]
    ),
)
def test_a_bound_decides_only_what_the_true_rounds_bear_out(
    left: list[float], right: list[float], text: str
) -> None:
    links = parse_claim(text)
    hidden = judge_claim(links, methods(a=beyond(left, 20), b=beyond(right, 20)))
    seen = [not (a > 20 and b > 20) for a, b in zip(left, right, strict=True)]
    true = judge_claim(links, methods(a=np.array(left)[seen], b=np.array(right)[seen]))
    (link,) = true.links
    if hidden.verdict in ("holds", "does not hold"):
        assert link.mean is not None
        assert (link.mean > 0) == ((hidden.verdict == "holds") == (">" in text))


def test_a_pool_is_the_mean_over_settings_seed_by_seed() -> None:
    def level(*gains: float) -> Lookup:
        base = np.array([50.0, 52.0, 54.0])
        return lambda reference: base + (np.array(gains) if reference.method == "new" else 0.0)

    links = parse_claim("q['new'] > q['old']")
    low, mid, high = level(1, -0.5, 1), level(-0.5, 1.5, 0.5), level(2, 2, 1)
    assert [judge_claim(links, one).verdict for one in (low, mid, high)] == ["undecided", "undecided", "holds"]
    pooled = judge_claim(links, low, mid)
    # Per seed 0.25, 0.5 and 0.75: mean 0.5, standard error 0.25 / sqrt(3), t(2) = 4.302653.
    (link,) = pooled.links
    assert link.mean == pytest.approx(0.5)
    assert (link.n, pooled.verdict) == (3, "undecided")
    assert link.low == pytest.approx(0.5 - 4.302653 * 0.25 / math.sqrt(3), abs=1e-5)
    assert judge_claim(links, low, mid, high).verdict == "holds"
    # A setting in which the methods are the same run is left out of the mean, and two settings are needed.
    same = level(0, 0, 0)
    assert judge_claim(links, same, high).links[0].mean == pytest.approx(5 / 3)
    assert judge_claim(links, same, same).verdict == "identity"
    assert judge_claim(links, high, lambda _: None).verdict == "not run"
    assert judge_claim(links, high, low, lambda _: None).links[0].mean == pytest.approx(13 / 12)


def judged_by(p_values: list[float]) -> list[JudgedClaim]:
    """Claims of one link over three seeds, with these two-sided p values."""
    from scipy.special import stdtrit

    spread = np.array([-1.0, 0.0, 1.0])
    links = parse_claim("q['a'] > 0")
    means = [-float(stdtrit(2, p / 2)) / math.sqrt(3) for p in p_values]
    return [judge_claim(links, methods(a=mean + spread)) for mean in means]


def test_corrected_for_the_number_of_claims() -> None:
    judged = judged_by([0.04, 0.011, 0.2, 0.016])
    assert [found.p for found in judged] == pytest.approx([0.04, 0.011, 0.2, 0.016])
    assert [found.verdict for found in judged] == ["holds", "holds", "undecided", "holds"]
    # 0.011 <= 0.05 / 4 and 0.016 <= 0.05 / 3, but 0.04 > 0.05 / 2.
    assert [found.corrected for found in correct(judged)] == ["undecided", "holds", "undecided", "holds"]
    # One that is not significant stops all that follow, even where these would pass alone.
    judged = judged_by([0.02, 0.02, 0.024])
    assert [found.corrected for found in correct(judged)] == ["undecided"] * 3
    # An identity, or what was not run, does not count.
    others = [judge("q['same'] > q['low']"), judge("q['absent'] > 0")]
    assert [found.corrected for found in correct([*judged_by([0.04]), *others])] == [
        "holds",
        "identity",
        "not run",
    ]


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("1 - mb['high'] / mb['low'] > 0", 0.62),
        ("-q['low'] * 2 < 0", -102.0),
        ("(q['high'] + q['low']) / 2 > 0", 56.5),
        ("max(q['high'], q['close']) > 0", (60 + 63 + 64) / 3),
        ("min(q['high'], q['close'], 61) > 0", (58 + 61 + 61) / 3),
    ],
)
def test_expressions(text: str, mean: float) -> None:
    assert judge(text).links[0].mean == pytest.approx(mean)


def test_references_in_the_order_written() -> None:
    links = parse_claim("max(a['x', 's'], b['y']) > a['x', 's'] > 2 * c['β = 0.2', 't']")
    assert references(links) == [Reference("a", "x", "s"), Reference("b", "y", ""), Reference("c", "β = 0.2", "t")]


def test_on_printed_numbers() -> None:
    numbers = {Reference("q", "a", ""): 70.0, Reference("q", "b", ""): 68.5, Reference("q", "c", ""): 68.5}
    assert judge_printed(parse_claim("q['a'] > q['b'] > q['c']"), numbers) == [(1.5, True), (0.0, False)]
    assert judge_printed(parse_claim("q['a'] > q['b'] >= q['c']"), numbers) == [(1.5, True), (0.0, True)]
    assert judge_printed(parse_claim("q['b'] <= q['a'] < 70"), numbers) == [(-1.5, True), (0.0, False)]
    assert judge_printed(parse_claim("q['a'] > q['unprinted']"), numbers) is None
    other = {Reference("q", "a", ""): 60.0, Reference("q", "b", ""): 61.0}
    assert judge_printed(parse_claim("q['a'] > q['b']"), numbers, other, {}) == [(0.25, True)]
    assert judge_printed(parse_claim("q['a'] > q['b']"), numbers, {}) is None


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        ("quantities", ("q['a'] + 1", "q['a'] == q['b']", "1 < 2", "1 < 2 < q['a']")),
        ("read", ("q['a'] >", "q > 1", "q['a', 'b', 'c'] > 1", "mean(q['a'], 1) > 1", "q['a'] > 'b'")),
    ],
)
def test_what_is_no_claim(said: str, texts: tuple[str, ...]) -> None:
    for text in texts:
        with pytest.raises(BadInput, match=said):
            parse_claim(text)
