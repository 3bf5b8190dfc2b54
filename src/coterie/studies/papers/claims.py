"""Claims of a paper as comparisons between quantities, and whether they hold over the seeds.

A claim is a chain of `<`, `<=`, `>` or `>=`: `accuracy['FedTSDP', 'IID'] - 1 > accuracy['FedAvg', 'IID'] > 50`. Its
sides are Python, each a function of the numbers that one seed measured, so that every link of the chain has one
difference a seed, left minus right. The 95 % interval of their mean decides it. A margin is a number on one side;
that two methods are equal within 1 is `-1 < x - y < 1`, decided by both ends of the interval. More seeds may decide
what is undecided.

Some claims no number decides. One whose sides are the same run, or follow from the settings by arithmetic, is an
identity; one is circular where the numbers are computed from the paper's own; one is unstated where it depends on
what the paper does not say. The last three are known of a claim whatever was measured, and its item says so.

A number may be known from one side only: a round that was never reached lies beyond the last one. A difference is
then taken at both ends, and a claim is decided where the bounds that are known decide it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from statistics import median
from types import CodeType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from coterie.errors import BadInput
from coterie.studies.compare.table import interval

Floats = NDArray[np.float64]
Verdict = Literal[
    "holds",
    "does not hold",
    "equal within a point",
    "undecided",
    "identity",
    "circular",
    "unstated",
    "cannot be tested",
    "not run",
]

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

DECIDED: tuple[Verdict, ...] = ("holds", "does not hold")

LEVEL = 0.05
"""Two-sided error of a verdict; of all verdicts of an item together where they are corrected."""

EQUAL_WITHIN = 1.0
"""Points: accuracies whose difference has its interval between minus this and this are equal for us."""

_FUNCTIONS: dict[str, Any] = {
    "__builtins__": {},
    "min": min,
    "max": max,
    "median": lambda *v: median(v),
}
_ORDER = re.compile(r"(<=?|>=?)")


@dataclass(frozen=True)
class Reference:
    """One quantity of one method in one setting; the setting is "" if the item has only one."""

    quantity: str
    method: str
    setting: str


class Span(NamedTuple):
    """Values between bounds, one per seed: equal bounds for a measured value, NaN for a missing one.

    The upper bound is infinite where all that is known is that the value lies beyond the lower one.
    """

    low: Floats
    high: Floats


Lookup = Callable[[Reference], Floats | Span | None]
"""Returns the values of a quantity, one per seed, NaN for a missing one; None if it was not run."""

Numbers = Callable[[Reference], float]
"""Returns what one seed measured."""


@dataclass(frozen=True)
class Link:
    """One comparison of a chain: `left`, `order` (one of < <= > >=) and `right`, the sides in Python."""

    left: str
    order: str
    right: str

    def __str__(self) -> str:
        return f"{self.left} {self.order} {self.right}"

    @property
    def sign(self) -> int:
        """1 where left is claimed to be above right, else -1."""
        return 1 if ">" in self.order else -1

    @property
    def counts_equal(self) -> bool:
        """Whether it holds where both sides are equal."""
        return "=" in self.order

    @property
    def has_margin(self) -> bool:
        """Whether a number stands on one of its sides, so that it is not between two methods alone."""
        return any(isinstance(c, int | float) for side in (self.left, self.right) for c in _compile(side).co_consts)

    def subtract(self, numbers: Numbers) -> float:
        """Return left minus right; NaN where that is no number."""
        try:
            return evaluate(self.left, numbers) - evaluate(self.right, numbers)
        except ZeroDivisionError:
            return np.nan


@dataclass(frozen=True)
class JudgedLink:
    """A link over the `n` seeds that have both sides: the mean of left minus right and its 95 % interval.

    The mean is None for no seed, the bounds for fewer than two.
    """

    link: str
    verdict: Verdict
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    bound: Literal["", "at least", "at most"] = ""
    """Left minus right is at least or at most this, for in some seed one side was never reached."""
    p_holds: float | None = None
    """Two-sided p value for the claimed direction; None for fewer than two seeds, or where none count."""
    p_fails: float | None = None
    """The same for the other direction."""


PublishedSize = Literal["", "inside", "excluded, less here", "excluded, more here"]
"""Whether the interval of a difference has the printed one in it; "" where there is no such number or interval."""


@dataclass(frozen=True)
class JudgedClaim:
    """A claim over the seeds: its verdict, and those of its links."""

    verdict: Verdict
    links: tuple[JudgedLink, ...]
    corrected: Verdict
    """The verdict after Holm's correction for the number of claims of the item; see `correct`."""
    reason: str = ""
    """Why it is an identity, circular or unstated, where its item says so."""

    @property
    def p(self) -> float | None:
        """The two-sided p value in the verdict's direction, in the likelier one where undecided; None for none."""
        holds = [link.p_holds for link in self.links if link.p_holds is not None]
        fails = [link.p_fails for link in self.links if link.p_fails is not None]
        untested = ("identity", "circular", "unstated", "cannot be tested", "not run")
        if self.verdict in untested or not holds or not fails:
            return None
        # All links must hold, so the weakest counts; one that fails is enough, and it is the best of several.
        all_hold = max(holds) if len(holds) == len(self.links) else 1.0
        one_fails = min(1.0, len(self.links) * min(fails))
        return {"holds": all_hold, "does not hold": one_fails}.get(self.verdict, min(all_hold, one_fails))

    @property
    def deciding(self) -> int:
        """Which link decides it: of those with its verdict the one that holds least; of a claim whose item gives
        the verdict, the one that holds least of all. A link without a value counts as the least of all."""
        same = [i for i, link in enumerate(self.links) if link.verdict == self.verdict]
        return min(same or range(len(self.links)), key=lambda i: _claimed_mean(self.links[i]))


class _Quantity:
    """What `accuracy` is in `accuracy['FedAvg', 'IID']`."""

    def __init__(self, name: str, numbers: Numbers) -> None:
        self._name, self._numbers = name, numbers

    def __getitem__(self, place: str | tuple[str, str]) -> float:
        method, setting = (place, "") if isinstance(place, str) else place
        return self._numbers(Reference(self._name, method, setting))


def evaluate(side: str, numbers: Numbers) -> float:
    """Return what a side of a comparison is with these numbers."""
    code = _compile(side)
    names = {name: _Quantity(name, numbers) for name in code.co_names if name not in _FUNCTIONS}
    return float(eval(code, _FUNCTIONS, names))  # a claim is written in a file of this package


@cache
def _compile(side: str) -> CodeType:
    return compile(side, "<claim>", "eval")


@cache
def parse_claim(text: str) -> tuple[Link, ...]:
    """Return the links of a claim.

    Raises:
        BadInput: the text is no chain of comparisons between quantities; one sentence says why.
    """
    sides = [" ".join(part.split()) for part in _ORDER.split(text)]
    links = tuple(Link(*sides[i : i + 3]) for i in range(0, len(sides) - 2, 2))
    try:
        named = references(links)
    except (SyntaxError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"it cannot be read: {error}") from None
    if not named or not all(references([link]) for link in links):
        raise BadInput("it compares no quantities; write quantity['method', 'setting'] and <, <=, > or >=")
    return links


def references(links: Sequence[Link]) -> list[Reference]:
    """Return every quantity that a claim names, in the order written, each once."""
    return list(dict.fromkeys(r for link in links for side in (link.left, link.right) for r in named_in(side)))


def named_in(side: str) -> list[Reference]:
    """Return the quantities that one side of a comparison names."""
    found: list[Reference] = []

    def note(reference: Reference) -> float:
        found.append(reference)
        return np.nan

    evaluate(side, note)
    return found


def judge_claim(
    links: Sequence[Link],
    *lookups: Lookup,
    exact: bool = False,
    in_points: Collection[str] = (),
    level: float = LEVEL,
) -> JudgedClaim:
    """Judge a claim over the seeds.

    Let d = left - right, one number per seed. `left > right` holds if the 95 % interval of the mean of d lies above
    zero. It does not hold if the interval lies at or below zero. It is undecided otherwise, and with fewer than two
    seeds. For `>=`, zero counts as above. A link is not run if one of its sides was not.

    What is undecided between two accuracies without a margin is equal within a point if the interval lies within
    one point of zero.

    A link is an identity if both sides are the same in every seed, as for two methods that are the same run, and
    cannot be tested if d is the same in every seed otherwise: no interval follows. One number held against a
    constant is no such case: what is 0 in every seed is 0, but has no p value. A link cannot be tested either if
    both sides are beyond what was run in every seed. Such seeds count as missing otherwise; of a value that is
    bounded on one side, the bound stands for it in the direction in which that is safe.

    The claim is not run if one link was not, and does not hold if one link does not. Otherwise it is undecided if
    one link is, equal within a point if one link is, an identity if one link is, and cannot be tested if one link
    cannot.

    Args:
        links: the claim.
        lookups: one for each setting. Of several, d is the mean over those that have both sides, and at least two
            must; settings in which d is the same in every seed are left out of it.
        exact: d may be the same in every seed, as counts and bytes are. Methods that are equal may then refute a
            claim, as one that promises to save bytes, and never bear one out.
        in_points: the quantities that are in per cent.
        level: the two-sided error of each link, which the intervals have too.
    """
    judged = tuple(_judge_link(link, lookups, exact, in_points, level) for link in links)
    found = Counter(link.verdict for link in judged)
    verdict: Verdict
    for verdict in (
        "not run",
        "does not hold",
        "undecided",
        "equal within a point",
        "identity",
        "cannot be tested",
    ):
        if found[verdict]:
            return JudgedClaim(verdict, judged, verdict)
    return JudgedClaim("holds", judged, "holds")


def correct(judged: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    """Correct verdicts for the number of claims, by Holm's method on their p values.

    The smallest p value is held against 0.05 / n, the next one against 0.05 / (n - 1), and so on, until one is
    too large; that one and those after it become undecided. The chance of any wrong verdict is then at most 5 %,
    however the claims depend on each other. Claims without a test do not count. Nor do those that hold or do not
    by seeds that coincide, which have no p value and become undecided. That two methods are equal within a point
    is not corrected, nor is a claim that is alone.
    """
    if len(judged) == 1:
        return list(judged)
    judged = [replace(c, corrected="undecided") if c.p is None and c.verdict in DECIDED else c for c in judged]
    ordered = sorted((found.p, place) for place, found in enumerate(judged) if found.p is not None)
    corrected = list(judged)
    for rank, (p, _) in enumerate(ordered):
        if p > LEVEL / (len(ordered) - rank):
            for _, later in ordered[rank:]:
                if judged[later].verdict in DECIDED:
                    corrected[later] = replace(judged[later], corrected="undecided")
            break
    return corrected


def judge_printed(links: Sequence[Link], *settings: Mapping[Reference, float]) -> list[tuple[float, bool]] | None:
    """Return for each link left minus right of single numbers, and whether it holds; None if one is missing.

    Of several settings it is the mean over those that have all numbers, which at least two must.
    """
    meant = references(links)
    complete = [numbers for numbers in settings if all(reference in numbers for reference in meant)]
    if len(complete) < min(2, len(settings)):
        return None
    found = []
    for link in links:
        difference = float(np.mean([link.subtract(numbers.__getitem__) for numbers in complete]))
        found.append((difference, link.sign * difference > 0 or (link.counts_equal and difference == 0)))
    return found


class _Compared(NamedTuple):
    """Left minus right in one setting, and what is known beyond it."""

    difference: Span
    constant: bool
    """Whether it was measured in two seeds or more, and is the same in all of them."""
    equal: bool
    """Whether the methods compared, or two that decide between the sides, have equal values in all of them."""
    beyond: bool
    """Whether in some seed every quantity lies beyond what was run."""


def find_published_size(found: JudgedClaim, printed: Sequence[tuple[float, bool]] | None) -> PublishedSize:
    """Return whether the interval of the deciding link has the printed difference in it; "" where one is missing.

    Args:
        found: the claim over the seeds.
        printed: the same links of the printed numbers, as `judge_printed` gives them.
    """
    link = found.links[found.deciding]
    if printed is None or link.low is None or link.high is None or link.bound:
        return ""
    if found.verdict not in (*DECIDED, "equal within a point", "undecided"):
        return ""
    size = printed[found.deciding][0]
    if link.low - 1e-9 <= size <= link.high + 1e-9:
        return "inside"
    printed_size = size if ">" in link.link else -size
    return "excluded, less here" if _claimed_mean(link) < printed_size else "excluded, more here"


def _claimed_mean(link: JudgedLink) -> float:
    """The mean of left minus right, turned so that it is above zero where the link holds; least without one."""
    if link.mean is None:
        return -np.inf
    return link.mean if ">" in link.link else -link.mean


def _judge_link(
    link: Link, lookups: Sequence[Lookup], exact: bool, in_points: Collection[str], level: float
) -> JudgedLink:
    meant = references([link])
    run = [{r: values for r in meant if (values := lookup(r)) is not None} for lookup in lookups]
    run = [complete for complete in run if len(complete) == len(meant)]
    if len(run) < min(2, len(lookups)):
        return JudgedLink(str(link), "not run")
    compared = [_compare(link, complete) for complete in run]
    alone = len(meant) == 1 and not exact
    exact = exact or alone
    telling = [c for c in compared if exact or not c.constant]
    difference = _average([c.difference for c in telling or compared])
    low, high = (bound[~np.isnan(difference.low)] for bound in difference)
    if not telling or (not low.size and any(c.beyond for c in compared)):
        identical = not telling and all(c.equal for c in compared)
        return _describe(link, "identity" if identical else "cannot be tested", low, high, level)
    if low.size < 2:
        return _describe(link, "undecided", low, high, level)
    least, most = (low, high) if link.sign > 0 else (-high, -low)
    lowest, highest = interval(least, 1 - level)[1], interval(most, 1 - level)[2]
    verdict: Verdict = "undecided"
    if lowest > 0 or (link.counts_equal and lowest == 0):
        verdict = "identity" if all(c.constant and c.equal for c in telling) else "holds"
    elif highest < 0 or (not link.counts_equal and highest == 0):
        verdict = "does not hold"
    elif {r.quantity for r in meant} <= {*in_points} and not link.has_margin:
        verdict = "equal within a point" if -EQUAL_WITHIN < lowest <= highest < EQUAL_WITHIN else verdict
    found = _describe(link, verdict, low, high, level)
    if verdict == "identity" or (alone and all(c.constant for c in telling)):
        return found
    p_holds, p_fails = _p_above(least, link.counts_equal), _p_above(-most, not link.counts_equal)
    return replace(found, p_holds=p_holds, p_fails=p_fails)


def _compare(link: Link, values: Mapping[Reference, Floats | Span]) -> _Compared:
    spans = {r: value if isinstance(value, Span) else Span(value, value) for r, value in values.items()}
    lows, highs = (np.array([getattr(span, end) for span in spans.values()]) for end in Span._fields)
    unreached = np.isfinite(lows) & np.isinf(highs)
    beyond = unreached.all(axis=0) & (len(spans) > 1)
    bounds = [_bound(link, [*spans], *ends) for ends in zip(lows.T, highs.T, strict=True)]
    low, high = np.array(bounds, np.float64).reshape(-1, 2).T
    unknown = ~(np.isfinite(low) | np.isfinite(high)) | beyond
    low, high = (np.where(unknown, np.nan, bound) for bound in (low, high))
    known = ~np.isnan(low)
    measured = bool((low[known] == high[known]).all()) and known.sum() > 1
    constant = measured and bool(np.ptp(low[known]) <= 1e-9 * np.abs(low[known]).max())
    by_quantity: dict[str, list[Floats]] = {}
    for reference, span in spans.items():
        by_quantity.setdefault(reference.quantity, []).append(span.low[known])
    several = [values for values in by_quantity.values() if len(values) > 1]
    equal = bool(several) and all((value == values[0]).all() for values in several for value in values[1:])
    equal |= constant and not low[known].any() and _is_one_run(link, {r: s.low[known] for r, s in spans.items()})
    return _Compared(Span(low, high), constant, equal, bool(beyond.any()))


def _is_one_run(link: Link, values: Mapping[Reference, Floats]) -> bool:
    """Whether a method on the left has the values of one on the right in every seed, and these differ by seed."""
    return any(
        left.quantity == right.quantity and (values[left] == values[right]).all() and np.ptp(values[left]) > 0
        for left, right in product(named_in(link.left), named_in(link.right))
    )


def _bound(link: Link, named: Sequence[Reference], low: Floats, high: Floats) -> tuple[float, float]:
    """Return between what one seed's left minus right lies; NaN where a number is missing.

    The ends are those at the ends of the numbers, for every claim grows or falls all along with each of them.
    """
    if np.isnan(low).any():
        return np.nan, np.nan
    corners = product(*(dict.fromkeys(ends) for ends in zip(low.tolist(), high.tolist(), strict=True)))
    found = [link.subtract(dict(zip(named, corner, strict=True)).__getitem__) for corner in corners]
    return float(np.fmin.reduce(found)), float(np.fmax.reduce(found))


def _average(spans: Sequence[Span]) -> Span:
    """Return the mean over the settings, seed by seed, of those that are known there."""
    if len(spans) == 1:
        return spans[0]
    known = ~np.isnan([span.low for span in spans])
    count = np.where(known.any(axis=0), known.sum(axis=0), np.nan)
    low, high = (np.where(known, [getattr(s, end) for s in spans], 0.0).sum(axis=0) / count for end in Span._fields)
    return Span(low, high)


def _describe(link: Link, verdict: Verdict, low: Floats, high: Floats, level: float) -> JudgedLink:
    """Return a link with the mean and the interval of what is known of left minus right."""
    bound: Literal["", "at least", "at most"] = "at most"
    values = high
    if np.isfinite(low).all():
        values, bound = low, "" if np.array_equal(low, high) else "at least"
    if not values.size or not np.isfinite(values).all():
        return JudgedLink(str(link), verdict, n=int(low.size))
    if values.size == 1:
        return JudgedLink(str(link), verdict, float(values[0]), n=1, bound=bound)
    mean, least, most = interval(values, 1 - level)
    return JudgedLink(str(link), verdict, mean, least, most, int(values.size), bound)


def _p_above(values: Floats, zero_counts: bool) -> float:
    """Return the two-sided p value by Student's t for a mean above zero: 1 and less where it lies below."""
    from scipy.special import stdtr

    if not np.isfinite(values).all():
        return 1.0
    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))
    if error <= 1e-12 * abs(mean):
        return 0.0 if mean > 0 or (zero_counts and mean == 0) else 1.0
    return min(1.0, 2 * float(stdtr(values.size - 1, -mean / error)))
