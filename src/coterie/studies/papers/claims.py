"""Claims of a paper as comparisons between quantities, and whether they hold over the seeds.

A claim is a chain of `<`, `<=`, `>` or `>=` over expressions of quantities and numbers:
`accuracy['FedTSDP', 'IID'] - 1 > accuracy['FedAvg', 'IID'] > 50`. It is read, never executed.

A value may be known from one side only: a round that was never reached lies beyond the last one. Expressions are
therefore of intervals, and a claim is decided where the bounds that are known decide it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.errors import BadInput

Floats = NDArray[np.float64]
Verdict = Literal["holds", "does not hold", "undecided", "vacuous", "not run"]

VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "undecided", "vacuous", "not run")

LEVEL = 0.05
"""Two-sided error of a verdict; of all verdicts of an item together where they are corrected."""

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_FUNCTIONS = ("abs", "min", "max")
_ORDERS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


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


@dataclass(frozen=True)
class Link:
    """One comparison of a chain: `left`, `order` (one of < <= > >=) and `right`."""

    left: ast.expr
    order: str
    right: ast.expr

    def __str__(self) -> str:
        return f"{_format_expression(self.left)} {self.order} {_format_expression(self.right)}"


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


@dataclass(frozen=True)
class JudgedClaim:
    """A claim over the seeds: its verdict, and those of its links."""

    verdict: Verdict
    links: tuple[JudgedLink, ...]
    corrected: Verdict
    """The verdict after Holm's correction for the number of claims of the item; see `correct`."""

    @property
    def p(self) -> float | None:
        """The two-sided p value in the verdict's direction, in the likelier one where undecided; None for none."""
        holds = [link.p_holds for link in self.links if link.p_holds is not None]
        fails = [link.p_fails for link in self.links if link.p_fails is not None]
        if self.verdict in ("vacuous", "not run") or not holds or not fails:
            return None
        # All links must hold, so the weakest counts; one that fails is enough, and it is the best of several.
        all_hold = max(holds) if len(holds) == len(self.links) else 1.0
        one_fails = min(1.0, len(self.links) * min(fails))
        return {"holds": all_hold, "does not hold": one_fails}.get(self.verdict, min(all_hold, one_fails))


def parse_claim(text: str) -> tuple[Link, ...]:
    """Parse a claim into its links.

    Raises:
        BadInput: the text is no chain of comparisons between quantities; one sentence says why.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise BadInput(f"it cannot be read: {reason}") from None
    if not isinstance(tree, ast.Compare):
        raise BadInput("it compares nothing; write a chain of <, <=, > or >=")
    if wrong := [order for order in tree.ops if type(order) not in _ORDERS]:
        sign = "==" if isinstance(wrong[0], ast.Eq) else type(wrong[0]).__name__
        raise BadInput(f"{sign} is not possible; write <, <=, > or >=, and equality within 1 as -1 < x - y < 1")
    sides = [tree.left, *tree.comparators]
    for side in sides:
        _check_expression(side)
    if not any(isinstance(node, ast.Subscript) for side in sides for node in ast.walk(side)):
        raise BadInput("it names no quantity; write one as quantity['method', 'setting']")
    return tuple(
        Link(left, _ORDERS[type(order)], right)
        for left, order, right in zip(sides[:-1], tree.ops, sides[1:], strict=True)
    )


def references(links: Sequence[Link]) -> list[Reference]:
    """Return every quantity that a claim names, in the order written, each once."""
    nodes = [node for link in links for side in (link.left, link.right) for node in ast.walk(side)]
    return list(dict.fromkeys(_parse_reference(node) for node in nodes if isinstance(node, ast.Subscript)))


def judge_claim(links: Sequence[Link], *lookups: Lookup, exact: bool = False) -> JudgedClaim:
    """Judge a claim over the seeds.

    Let d = left - right, one number per seed. `left > right` holds if the 95 % interval of the mean of d lies above
    zero. It does not hold if the interval lies at or below zero. It is undecided otherwise, and with fewer than two
    seeds. For `>=`, zero counts as above. A link is not run if one of its sides was not.

    A link is vacuous if d is the same in every seed, as for two methods that are the same run: no interval follows.
    One number held against a constant is no such case: what is 0 in every seed is 0, but has no p value. A link is
    vacuous too if both sides are beyond what was run in every seed. Such seeds count as missing otherwise; of a
    value that is bounded on one side, the bound stands for it in the direction in which that is safe.

    The claim does not hold if one link does not. Otherwise it is undecided, else vacuous, if one link is; it is not
    run if one link was not.

    Args:
        links: the claim.
        lookups: one for each setting. Of several, d is the mean over those that have both sides, and at least two
            must; settings in which d is the same in every seed are left out of it.
        exact: d may be the same in every seed, as counts and bytes are. Methods that are equal may then refute a
            claim, as one that promises to save bytes, and never bear one out.
    """
    judged = tuple(_judge_link(link, lookups, exact) for link in links)
    found = Counter(link.verdict for link in judged)
    verdict: Verdict
    for verdict in ("not run", "does not hold", "undecided", "vacuous"):
        if found[verdict]:
            return JudgedClaim(verdict, judged, verdict)
    return JudgedClaim("holds", judged, "holds")


def correct(judged: Sequence[JudgedClaim]) -> list[JudgedClaim]:
    """Correct verdicts for the number of claims, by Holm's method on their p values.

    The smallest p value is held against 0.05 / n, the next one against 0.05 / (n - 1), and so on, until one is too
    large; that one and those after it become undecided. The chance of any wrong verdict is then at most 5 %,
    however the claims depend on each other. Vacuous claims and those that were not run do not count. Nor do those
    that hold or do not by seeds that coincide, which have no p value and become undecided.
    """
    judged = [
        replace(c, corrected="undecided") if c.p is None and c.verdict in ("holds", "does not hold") else c
        for c in judged
    ]
    ordered = sorted((found.p, place) for place, found in enumerate(judged) if found.p is not None)
    corrected = list(judged)
    for rank, (p, _) in enumerate(ordered):
        if p > LEVEL / (len(ordered) - rank):
            for _, later in ordered[rank:]:
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
        each = [_subtract(link, {r: _one(numbers[r]) for r in meant}).low[0] for numbers in complete]
        difference = float(np.mean(each))
        found.append((difference, _sign(link) * difference > 0 or ("=" in link.order and difference == 0)))
    return found


class _Compared(NamedTuple):
    """Left minus right in one setting, and what is known beyond it."""

    difference: Span
    constant: bool
    """Whether it was measured in two seeds or more, and is the same in all of them."""
    equal: bool
    """Whether the methods compared have equal values in all of them."""
    beyond: bool
    """Whether in some seed every quantity lies beyond what was run."""


def _judge_link(link: Link, lookups: Sequence[Lookup], exact: bool) -> JudgedLink:
    meant = references([link])
    run = [spans for lookup in lookups if len(spans := _spans(lookup, meant)) == len(meant)]
    if len(run) < min(2, len(lookups)):
        return JudgedLink(str(link), "not run")
    compared = [_compare(link, spans) for spans in run]
    alone = len(meant) == 1 and not exact
    exact = exact or alone
    telling = [c for c in compared if exact or not c.constant]
    difference = _average([c.difference for c in telling or compared])
    low, high = (bound[~np.isnan(difference.low)] for bound in difference)
    if not telling or (not low.size and any(c.beyond for c in compared)):
        return _describe(link, "vacuous", low, high)
    if low.size < 2:
        return _describe(link, "undecided", low, high)
    least, most = (low, high) if _sign(link) > 0 else (-high, -low)
    zero = "=" in link.order
    p_holds, p_fails = _p_above(least, zero), _p_above(-most, not zero)
    lowest, highest = _interval(least)[1], _interval(most)[2]
    verdict: Verdict = "undecided"
    if lowest > 0 or (zero and lowest == 0):
        verdict = "vacuous" if all(c.constant and c.equal for c in telling) else "holds"
    elif highest < 0 or (not zero and highest == 0):
        verdict = "does not hold"
    found = _describe(link, verdict, low, high)
    if verdict == "vacuous" or (alone and all(c.constant for c in telling)):
        return found
    return replace(found, p_holds=p_holds, p_fails=p_fails)


def _one(number: float) -> Span:
    return Span(np.array([number]), np.array([number]))


def _spans(lookup: Lookup, meant: Sequence[Reference]) -> dict[Reference, Span]:
    """Return what is there of the quantities."""
    found = {reference: lookup(reference) for reference in meant}
    return {r: v if isinstance(v, Span) else Span(v, v) for r, v in found.items() if v is not None}


def _compare(link: Link, spans: Mapping[Reference, Span]) -> _Compared:
    low, high = _subtract(link, spans)
    unknown = ~(np.isfinite(low) | np.isfinite(high))
    beyond = np.zeros(low.shape, bool)
    if len(spans) > 1:
        beyond = np.logical_and.reduce([np.isfinite(span.low) & np.isinf(span.high) for span in spans.values()])
    low, high = (np.where(unknown | beyond, np.nan, bound) for bound in (low, high))
    known = ~np.isnan(low)
    measured = bool((low[known] == high[known]).all()) and known.sum() > 1
    constant = measured and bool(np.ptp(low[known]) <= 1e-9 * np.abs(low[known]).max())
    by_quantity: dict[str, list[Floats]] = {}
    for reference, span in spans.items():
        by_quantity.setdefault(reference.quantity, []).append(span.low[known])
    several = [values for values in by_quantity.values() if len(values) > 1]
    equal = bool(several) and all((value == values[0]).all() for values in several for value in values[1:])
    return _Compared(Span(low, high), constant, equal, bool(beyond.any()))


def _average(spans: Sequence[Span]) -> Span:
    """Return the mean over the settings, seed by seed, of those that are known there."""
    if len(spans) == 1:
        return spans[0]
    known = ~np.isnan([span.low for span in spans])
    count = np.where(known.any(axis=0), known.sum(axis=0), np.nan)
    low, high = (np.where(known, [getattr(s, end) for s in spans], 0.0).sum(axis=0) / count for end in Span._fields)
    return Span(low, high)


def _describe(link: Link, verdict: Verdict, low: Floats, high: Floats) -> JudgedLink:
    """Return a link with the mean and the interval of what is known of left minus right."""
    if np.isfinite(low).all():
        values = low
        bound: Literal["", "at least", "at most"] = "" if np.array_equal(low, high) else "at least"
    else:
        values, bound = high, "at most"
    if not values.size or not np.isfinite(values).all():
        return JudgedLink(str(link), verdict, n=int(low.size))
    if values.size == 1:
        return JudgedLink(str(link), verdict, float(values[0]), n=1, bound=bound)
    mean, least, most = _interval(values)
    return JudgedLink(str(link), verdict, mean, least, most, int(values.size), bound)


def _interval(values: Floats) -> tuple[float, float, float]:
    """Return mean and 95 % interval of values that may be infinite: nothing is known then."""
    from coterie.studies.compare.table import interval

    return interval(values) if np.isfinite(values).all() else (np.nan, np.nan, np.nan)


def _p_above(values: Floats, zero_counts: bool) -> float:
    """Return the two-sided p value by Student's t for a mean above zero: 1 and less where it lies below."""
    from scipy.special import stdtr

    if not np.isfinite(values).all():
        return 1.0
    mean, error = float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))
    if error <= 1e-12 * abs(mean):
        return 0.0 if mean > 0 or (zero_counts and mean == 0) else 1.0
    return min(1.0, 2 * float(stdtr(values.size - 1, -mean / error)))


def _sign(link: Link) -> int:
    return 1 if ">" in link.order else -1


def _subtract(link: Link, spans: Mapping[Reference, Span]) -> Span:
    with np.errstate(all="ignore"):  # a division by zero gives no finite number, and the seed counts as missing
        (a, b), (c, d) = _evaluate(link.left, spans), _evaluate(link.right, spans)
        return Span(np.atleast_1d(a - d), np.atleast_1d(b - c))


def _evaluate(node: ast.expr, spans: Mapping[Reference, Span]) -> Span:
    """Return the bounds of an expression, by the arithmetic of intervals."""
    if isinstance(node, ast.Subscript):
        return spans[_parse_reference(node)]
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int | float)
        return Span(np.asarray(node.value, np.float64), np.asarray(node.value, np.float64))
    if isinstance(node, ast.UnaryOp):
        value = _evaluate(node.operand, spans)
        return Span(-value.high, -value.low) if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        (a, b), (c, d) = _evaluate(node.left, spans), _evaluate(node.right, spans)
        if isinstance(node.op, ast.Add):
            return Span(a + c, b + d)
        if isinstance(node.op, ast.Sub):
            return Span(a - d, b - c)
        return _multiply(a, b, c, d) if isinstance(node.op, ast.Mult) else _divide(a, b, c, d)
    assert isinstance(node, ast.Call)
    values = [_evaluate(argument, spans) for argument in node.args]
    if (name := ast.unparse(node.func)) == "abs":
        low, high = values[0]
        inside = (low <= 0) & (high >= 0)
        ends = np.abs(low), np.abs(high)
        return Span(np.where(inside, 0.0, np.minimum(*ends)), np.maximum(*ends))
    reduce = np.minimum if name == "min" else np.maximum
    lows, highs = (np.broadcast_arrays(*(value[end] for value in values)) for end in (0, 1))
    return Span(reduce.reduce(lows), reduce.reduce(highs))


def _multiply(a: Floats, b: Floats, c: Floats, d: Floats) -> Span:
    corners = np.array(np.broadcast_arrays(a * c, a * d, b * c, b * d))
    return Span(np.fmin.reduce(corners), np.fmax.reduce(corners))  # 0 times infinity counts as nothing known


def _divide(a: Floats, b: Floats, c: Floats, d: Floats) -> Span:
    corners = np.array(np.broadcast_arrays(a / c, a / d, b / c, b / d))
    corners[:, np.broadcast_to((c <= 0) & (d >= 0), corners.shape[1:])] = np.nan
    return Span(np.fmin.reduce(corners), np.fmax.reduce(corners))


def _check_expression(node: ast.expr) -> None:
    """Refuse everything but expressions of quantities and numbers."""
    if isinstance(node, ast.Subscript):
        _parse_reference(node)
        return
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and type(node.value) is not bool
        and abs(node.value) < np.inf
    ):
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        parts = [node.operand]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Call) and not node.keywords and (name := ast.unparse(node.func)) in _FUNCTIONS:
        least, most = (1, 1) if name == "abs" else (2, None)
        if len(node.args) < least or (most is not None and len(node.args) > most):
            wanted = "one argument" if most else "two arguments or more"
            raise BadInput(f"{ast.unparse(node)} is not possible; {name} takes {wanted}")
        parts = node.args
    else:
        raise BadInput(
            f"{ast.unparse(node)} is not possible; write numbers, quantity['method', 'setting'], + - * /, "
            "parentheses, abs, min and max"
        )
    for part in parts:
        _check_expression(part)


def _parse_reference(node: ast.Subscript) -> Reference:
    names = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    words = [name.value for name in names if isinstance(name, ast.Constant) and isinstance(name.value, str)]
    if not isinstance(node.value, ast.Name) or len(words) != len(names) or len(words) not in (1, 2):
        raise BadInput(f"{ast.unparse(node)} is no quantity; write quantity['method', 'setting']")
    return Reference(node.value.id, words[0], words[1] if len(words) == 2 else "")


def _format_expression(node: ast.expr) -> str:
    return re.sub(r"\s+", " ", ast.unparse(node))
