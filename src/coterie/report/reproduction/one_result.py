"""One result of an item, published beside measured: for a terminal, as Markdown, and for its comparison's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from coterie.report import tables
from coterie.report.numbers import MISSING, count_of, join_words, signed
from coterie.report.rendering import render_document
from coterie.report.reproduction.claims import in_words, turn_bound, turn_to_claim
from coterie.report.reproduction.words import duration, mean_and_sd, sentence
from coterie.report.tables import Table
from coterie.studies.papers.claims import VERDICTS, JudgedClaim, JudgedLink, Link, Reference, Verdict
from coterie.studies.papers.item import FULL, Claim, Item
from coterie.studies.papers.result import Result, judge_claims, judge_published

if TYPE_CHECKING:
    from rich.console import Group

NAMED = ("coterie", "torch", "numpy")
"""Packages whose versions the documents name; a result holds all."""


class Run(NamedTuple):
    """What a result comes from, for a line of a document."""

    scale: str
    what: str
    stale: bool
    changed: str
    """Rows that have other settings now, where these are what has changed."""
    missing: str
    """What the item has at this scale and this result lacks, for it is new."""
    command: str


class ClaimText(NamedTuple):
    """A claim and what became of it, in words."""

    text: str
    where: str
    verdict: Verdict
    corrected: str
    """What becomes of a verdict that is decided, when it is corrected for the number of claims."""
    links: list[tuple[str, str]]
    """Each comparison of the claim as it is written, and the difference of its two sides."""
    printed: str
    """What the printed numbers say of it; nothing where they are not complete."""
    exception: str
    """Why the printed numbers do not bear the claim out, where somebody has found out."""
    why: str
    """Why the measured ones do not."""


def to_markdown(item: Item, found: Result) -> str:
    """Write one result as Markdown, with every number and every comparison of its claims."""
    return render_document(
        "result.md",
        item=item.id,
        heading=heading(item),
        says=sentence(item.says),
        run=describe_run(item, found, len(found.failed)),
        versions=versions([found]),
        tables=[
            (title_of(item, q, [found.scale]), table) for q in item.shows if (table := table_of(item, found, q))
        ],
        claims=_claims(item, found),
        finding=sentence(item.findings[found.scale]) if found.scale in item.findings else "",
    )


def to_rich(item: Item, found: Result) -> Group:
    """Lay out one result for a terminal: what the paper says, what was run, the tables, the claims."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    parts: list[Text | RichTable | Padding] = [
        Text(heading(item), style="bold"),
        Text(f"The paper: {sentence(item.says)}"),
        *(Text(line) for line in _origin(item, found)),
    ]
    for quantity in item.shows:
        drawn = tables.to_rich(table_of(item, found, quantity))
        drawn.title, drawn.title_justify = title_of(item, quantity, [found.scale]), "left"
        parts.append(drawn)
    styles = dict(zip(VERDICTS, ("green", "red", "yellow", "dim", "dim"), strict=True))
    claims = _claims(item, found)
    for claim, given in zip(claims, item.claims, strict=True):
        head = Text(claim.verdict + claim.corrected, style=f"bold {styles[claim.verdict]}")
        parts.append(head.append(f"  {given.text} ({given.where})", style="not bold default"))
        lines = [f"{link}: {difference}" for link, difference in claim.links]
        lines += [claim.printed] if claim.printed else []
        lines += [f"why: {given.finding[found.scale]}"] if found.scale in given.finding else []
        parts += [Padding(Text(line), (0, 0, 0, 4), expand=False) for line in lines]
    if finding := item.findings.get(found.scale):
        parts.append(Text(f"What we make of it: {sentence(finding)}"))
    counts = Counter(claim.verdict for claim in claims)
    parts.append(Text(f"Claims: {', '.join(f'{v} {counts[v]}' for v in VERDICTS if counts[v])}."))
    return Group(*parts)


def notes(item: Item, found: Result) -> list[str]:
    """Describe one result for its comparison's page, a sentence each: the item, what was run, and the claims."""
    said = []
    for claim in _claims(item, found):
        parts = [f"{link}: {difference}" for link, difference in claim.links]
        parts += [claim.printed] if claim.printed else []
        said.append(f"Claim, {claim.verdict}{claim.corrected}: {claim.text} ({claim.where}) {'; '.join(parts)}.")
    return [
        f"{heading(item)}. The paper: {sentence(item.says)}",
        *_origin(item, found),
        *said,
        "What was printed and what was measured, side by side, is in table.md beside this page.",
    ]


def heading(item: Item) -> str:
    """Say which table or figure it is."""
    return f"{item.paper}, {item.place}: {item.title}"


def describe_run(item: Item, found: Result, most: int) -> Run:
    """Say what a result comes from; failed runs are told one by one up to `most`."""
    what = " ".join([f"{_runs(found)}.", *_differences(item, found.scale), *_trouble(found, most)])
    missing = found.missing(item) if found.scale in item.scales else []
    changed = found.changed(item) if found.scale in item.scales else []
    return Run(found.scale, what, found.is_stale(item), join_words(changed), join_words(missing), found.command)


def versions(results: Sequence[Result]) -> str:
    """Name what the results were made with; of a package with several versions, all of them."""
    found = {name: {one.versions[name] for one in results if name in one.versions} for name in NAMED}
    return join_words(f"{name} {join_words(sorted(those))}" for name, those in found.items() if those)


def table_of(item: Item, found: Result, quantity: str) -> Table:
    """Tabulate a quantity of one result beside what was printed."""
    return numbers_of(item, {found.scale: found}, quantity)


def numbers_of(item: Item, results: Mapping[str, Result], quantity: str) -> Table:
    """Tabulate, setting by setting and method by method, what was printed and what each scale measured.

    Rows for which there is no number at all are left out.
    """
    several = len(item.settings) > 1
    header = [*(["setting"] if several else []), "method", "published", *results]
    rows = []
    for setting in item.settings:
        for method in item.methods:
            reference = Reference(quantity, method, setting)
            printed = item.published.get(reference)
            numbers = [MISSING if printed is None else f"{printed:g}"]
            numbers += [_measured(found, reference, item.unit(quantity)) for found in results.values()]
            if any(number != MISSING for number in numbers):
                rows.append([*([setting] if several else []), method, *numbers])
    return Table(header, rows, texts=len(header) - 1 - len(results))


def _measured(found: Result, reference: Reference, unit: str) -> str:
    """Mean and deviation over the seeds that have a value, and in how many it lies beyond what was run."""
    count, bound = found.count_beyond(reference)
    text = mean_and_sd(found.mean_and_sd(reference), unit)
    if not count:
        return text
    return f"never, so at least {bound:g}" if text == MISSING else f"{text}, {count} of {len(found.seeds)} never"


def title_of(item: Item, quantity: str, scales: Sequence[str]) -> str:
    """Say what a quantity is and its unit; where that differs between the scales, of each."""
    meanings: dict[str, list[str]] = {}
    for scale in scales:
        meanings.setdefault(item.meaning(quantity, scale), []).append(scale)
    said = "; ".join(m if len(meanings) == 1 else f"{m} ({join_words(of)})" for m, of in meanings.items())
    unit = item.unit(quantity)
    return f"{quantity}: {said}" + (f", {unit}" if unit and not said.startswith(unit) else "")


def _claims(item: Item, found: Result) -> list[ClaimText]:
    def describe(claim: Claim, judged: JudgedClaim, printed: Sequence[tuple[float, bool]] | None) -> ClaimText:
        return ClaimText(
            sentence(claim.text),
            claim.where,
            judged.verdict,
            in_words(judged).replace("*", "").removeprefix(judged.verdict),
            [(one.link, _describe_margin(link, one)) for link, one in zip(claim.links, judged.links, strict=True)],
            "" if printed is None else _describe_printed(claim.links, printed),
            sentence(claim.published_exception) if claim.published_exception else "",
            sentence(claim.finding[found.scale]) if found.scale in claim.finding else "",
        )

    every = zip(item.claims, judge_claims(item, found), judge_published(item), strict=True)
    return [describe(*claim) for claim in every]


def _origin(item: Item, found: Result) -> Iterator[str]:
    """What a result comes from, a sentence a line: the runs, what was replaced and reduced, what failed."""
    name = "the paper's own setting" if found.scale == FULL else f"scale {found.scale}"
    yield f"Run here: {name}, {_runs(found)}."
    yield from _differences(item, found.scale)
    yield from _trouble(found, len(found.failed))


def _runs(found: Result) -> str:
    return (
        f"{count_of(len(found.seeds), 'seed')}, {count_of(found.runs, 'run')} of {duration(found.seconds)} in all"
    )


def _differences(item: Item, scale: str) -> Iterator[str]:
    """What a scale replaces and reduces."""
    if item.scales[scale].stand_in:
        yield f"Stand-in: {sentence(item.scales[scale].stand_in)}"
    if item.scales[scale].reduces:
        yield f"Reduced: {sentence(item.scales[scale].reduces)}"


def _trouble(found: Result, most: int) -> Iterator[str]:
    """What is missing from a result; failed runs told one by one up to `most`."""
    if found.finished < found.runs:
        yield f"Finished: {found.finished} of {found.runs} runs."
    yield from (f"Failed: {sentence(text)}" for text in found.failed[:most])
    if len(found.failed) > most:
        yield f"Failed too: {len(found.failed) - most} more."
    yield from (f"Note: {sentence(note)}" for note in found.notes)


def _describe_printed(links: Sequence[Link], printed: Sequence[tuple[float, bool]]) -> str:
    """What becomes of a claim with the printed numbers, and by how much each link holds."""
    verdict = "holds" if all(holds for _, holds in printed) else "does not hold"
    margins = (turn_to_claim(link, difference) for link, (difference, _) in zip(links, printed, strict=True))
    return f"published: {verdict}, {', '.join(map(signed, margins))}"


def _describe_margin(link: Link, judged: JudgedLink) -> str:
    """By how much a link holds over the seeds: above zero is what the paper claims."""
    if judged.verdict == "not run":
        return "was not run"
    if judged.mean is None:
        return "was never reached" if judged.verdict == "vacuous" else "has no value"
    mean = f"{turn_bound(link, judged.bound)} {signed(turn_to_claim(link, judged.mean))}".lstrip()
    if judged.low is None or judged.high is None:
        return f"{mean}, n = {judged.n}"
    low, high = sorted(turn_to_claim(link, end) for end in (judged.low, judged.high))
    return f"{mean} [{signed(low)}, {signed(high)}], n = {judged.n}"
