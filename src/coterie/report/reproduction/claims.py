"""The claims of an item on the page: one table over all scales, and below it what is known of single ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from coterie.report.numbers import MISSING, join_words, signed
from coterie.report.reproduction.words import mean_and_interval, sentence
from coterie.report.tables import Markdown, Table, escape_markdown
from coterie.studies.papers.claims import (
    DECIDED,
    JudgedClaim,
    Link,
    PublishedSize,
    Verdict,
    evaluate,
    find_published_size,
    named_in,
    references,
)
from coterie.studies.papers.item import Item
from coterie.studies.papers.result import Result, judge_claims, judge_published

PRINTED = "published"
PUBLISHED_SIZE = "published size"

DIGITS = 9
"""Decimals to which differences of printed numbers are exact; further ones are rounding."""


def count_verdicts(item: Item, found: Result) -> Counter[Verdict]:
    """Count the claims that have each verdict."""
    return Counter(judged.verdict for judged in judge_claims(item, found))


def claims_table(item: Item, results: Mapping[str, Result]) -> tuple[Table, list[int]]:
    """Tabulate the claims that a result judges: a row a claim, a column for the printed numbers and for each scale,
    and one that says at which scales the interval has the printed difference in it.

    Claims that the first of the results (by scale) judges come first, each group in the item's order.

    Returns:
        The table, and for each row which of the item's claims it is.
    """
    verdicts = {scale: judge_claims(item, found) for scale, found in results.items()}
    printed = judge_published(item)
    run = [[judged[i].verdict != "not run" for judged in verdicts.values()] for i in range(len(item.claims))]
    order = sorted((i for i, there in enumerate(run) if any(there)), key=lambda i: run[i].index(True))
    rows = []
    for number, i in enumerate(order, 1):
        claim = item.claims[i]
        text = f"{' '.join(claim.text.split()).removesuffix('.')} ({claim.where})"
        text += f", mean over {join_words(claim.pool, len(claim.pool))}" if claim.pool else ""
        cells = [verdict_cell(claim.links, verdicts[s][i], found) for s, found in results.items()]
        sizes = {s: find_published_size(verdicts[s][i], printed[i]) for s in results}
        rows.append([str(number), text, printed_cell(claim.links, printed[i]), *cells, size_cell(sizes)])
    header = ["", "claim", PRINTED, *results, PUBLISHED_SIZE]
    return Table(header, rows, texts=len(header)), order


def remarks_on_claims(
    item: Item, results: Mapping[str, Result], order: Sequence[int]
) -> list[tuple[list[tuple[str, str]], str]]:
    """Collect what is known of single claims; what several have in common is said once.

    Args:
        item: whose claims they are.
        results: by scale.
        order: the claims in the order of the table (`claims_table`).

    Returns:
        Each remark, with the numbers of the claims that it is on for each scale, or for the printed numbers.
    """
    verdicts = {scale: judge_claims(item, found) for scale, found in results.items()}
    said: dict[str, dict[str, list[int]]] = {}
    for number, i in enumerate(order, 1):
        claim, scales = item.claims[i], [s for s, found in verdicts.items() if found[i].verdict != "not run"]
        texts = {PRINTED: claim.published_exception, **{scale: claim.finding.get(scale) for scale in scales}}
        for place, text in texts.items():
            if text:
                said.setdefault(sentence(text), {}).setdefault(place, []).append(number)
    return [
        ([(join_words(numbers, len(numbers)), place) for place, numbers in places.items()], text)
        for text, places in said.items()
    ]


def verdict_cell(links: Sequence[Link], judged: JudgedClaim, found: Result) -> str:
    """The verdict on a claim, plain and corrected, and the margin of the link that decides it."""
    if judged.verdict == "not run":
        return MISSING
    return Markdown(f"{in_words(judged, found.adds_seeds)}: {margin_of(links, judged, len(found.seeds))}")


def size_cell(sizes: Mapping[str, PublishedSize]) -> str:
    """Whether the intervals have the printed difference in them; the scales are named where they differ in it."""
    known = {scale: size for scale, size in sizes.items() if size}
    if len({*known.values()}) == 1:
        return next(iter(known.values()))
    return "; ".join(f"{scale}: {size}" for scale, size in known.items()) or MISSING


def margin_of(links: Sequence[Link], found: JudgedClaim, seeds: int) -> Markdown:
    """By how much the link that decides a claim holds, or what is held against a number, and that number."""
    deciding = found.deciding
    link, judged = links[deciding], found.links[deciding]
    if judged.mean is None:
        text = "never reached" if found.verdict == "cannot be tested" else "no value"
    elif judged.low is None or judged.high is None:
        text = f"{signed(_shown(link, judged.mean))}, n = {judged.n}"
    else:
        ends = sorted(_shown(link, end) for end in (judged.low, judged.high))
        text = mean_and_interval(_shown(link, judged.mean), *ends) + f", n = {judged.n}" * (judged.n < seeds)
    text = f"{_turn_bound(link, judged.bound)} {text}".lstrip()
    return _with_name(_unsigned(text, link), links, deciding)


def in_words(found: JudgedClaim, adds_seeds: bool) -> str:
    """The verdict on a claim; one that is decided, with what becomes of it when corrected, or that seeds were
    added."""
    if found.verdict not in DECIDED:
        told = {"unstated": "depends on what the paper does not say"}.get(found.verdict, found.verdict)
        return f"{told}: {found.reason}" if found.reason else told
    shown = f"**{found.verdict}**" if found.verdict == "does not hold" else found.verdict
    if adds_seeds:
        return f"{shown}, seeds added until decided"
    return f"{shown}, " + ("also corrected" if found.corrected == found.verdict else "corrected undecided")


def printed_cell(links: Sequence[Link], printed: Sequence[tuple[float, bool]] | None) -> str:
    """What becomes of a claim with the printed numbers, by the margin of the link that decides it."""
    if printed is None:
        return MISSING
    verdict = "holds" if all(holds for _, holds in printed) else "**does not hold**"
    return Markdown(f"{verdict}: {margin_of_printed(links, printed)}")


def margin_of_printed(links: Sequence[Link], printed: Sequence[tuple[float, bool]] | None) -> str:
    """The margin of the link that decides a claim by the printed numbers."""
    if printed is None:
        return MISSING
    margins = [round(link.sign * d, DIGITS) for link, (d, _) in zip(links, printed, strict=True)]
    bad = [i for i, (_, holds) in enumerate(printed) if not holds]
    deciding = min(bad or range(len(links)), key=lambda i: margins[i])
    link = links[deciding]
    text = signed(round(_shown(link, printed[deciding][0]), DIGITS) + 0.0)
    return _with_name(_unsigned(text, link), links, deciding)


def _with_name(text: str, links: Sequence[Link], deciding: int) -> Markdown:
    """A margin with what it is held against; of several links the deciding one by its name, if no other has it."""
    bound = _bound_in_words(links, deciding)
    names = [_name(link) for link in links]
    name = names[deciding] if len(links) > 1 and names.count(names[deciding]) == 1 else ""
    return Markdown(text + (f" ({escape_markdown(bound or name)})" if bound or name else ""))


def _bound(link: Link) -> float | None:
    """The number that one side of a link is; None where both name quantities."""
    for side in (link.right, link.left):
        if not named_in(side):
            return evaluate(side, lambda _: 0.0)
    return None


def _bound_in_words(links: Sequence[Link], deciding: int) -> str:
    """The number that the deciding link is held against, or both where its measured side lies between two."""
    link = links[deciding]
    if (bound := _bound(link)) is None:
        return ""
    bounds = [number for other in links if (number := _bound(other)) is not None]
    if len(bounds) == 2 == len(links):
        low, high = sorted(bounds)
        return f"margin ±{high:g}" if low == -high else f"between {low:g} and {high:g}"
    order = link.order if not named_in(link.right) else link.order.translate(_MIRRORED)
    return f"claimed {order} {bound:g}"


_MIRRORED = str.maketrans("<>", "><")


def _shown(link: Link, difference: float) -> float:
    """What is shown of left minus right: the measured side where the other is a number, else what is above zero
    where the link holds."""
    bound = _bound(link)
    if bound is None:
        return link.sign * difference + 0.0
    return bound + difference if not named_in(link.right) else bound - difference


def _unsigned(text: str, link: Link) -> str:
    """A measured number or ratio has no plus sign, as a difference has."""
    sides = [side for side in (link.left, link.right) if named_in(side)]
    return text.replace("+", "") if len(sides) == 1 and " - " not in _IN_BRACKETS.sub("", sides[0]) else text


_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")


def _turn_bound(link: Link, bound: str) -> str:
    """What is known of left minus right, turned like what is shown of it."""
    turned = {"at least": "at most", "at most": "at least"}
    keeps = link.sign > 0 if _bound(link) is None else not named_in(link.right)
    return bound if keeps else turned.get(bound, "")


def _name(link: Link) -> str:
    """A link in few words, by what its sides differ in; empty where that takes more than two names."""
    if not all(_ONE_QUANTITY.fullmatch(side) for side in (link.left, link.right)):
        return ""
    for field in ("method", "setting", "quantity"):
        names = dict.fromkeys(getattr(reference, field) for reference in references([link]))
        if len(names) == 2:
            return f" {link.order} ".join(names)
    return ""


_ONE_QUANTITY = re.compile(r"\w+\[[^\[\]]*\]")
"""A side that is a quantity and nothing else."""
