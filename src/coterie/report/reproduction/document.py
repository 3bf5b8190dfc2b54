"""The document on all items: which claims of the papers hold where they were run again, and the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.errors import BadInput, count_of
from coterie.report.numbers import MISSING
from coterie.report.rendering import render_document
from coterie.report.reproduction.claims import (
    PUBLISHED_SIZE,
    claims_table,
    count_verdicts,
    in_words,
    margin_of,
    margin_of_printed,
    remarks_on_claims,
)
from coterie.report.reproduction.front import fill, main_results, summarise
from coterie.report.reproduction.one_result import (
    count_claims,
    describe_run,
    heading,
    numbers_of,
    title_of,
    versions,
)
from coterie.report.reproduction.words import anchor, sentence
from coterie.report.tables import Markdown, Table, escape_markdown, to_markdown
from coterie.studies.papers import result
from coterie.studies.papers.claims import DECIDED, VERDICTS, find_published_size
from coterie.studies.papers.item import FULL, SCALES, Item, list_items, load_item
from coterie.studies.papers.result import Result

Results = Mapping[str, Mapping[str, Result]]
"""Results by item and label (`Result.label`), the largest scale first."""

IN_PARENTHESES: Mapping[str, str] = {
    **dict.fromkeys(DECIDED, "corrected"),
    "undecided": "published size excluded",
}
"""What the table of papers counts in parentheses beside a verdict."""

STALE = "outdated"
TO_RUN = "to be run"

MOST_FAILURES = 3
"""Sentences on failed runs that the document has for a result at most; the result has all."""


def render(folder: Path) -> str:
    """Write the whole document, from the results that are kept in `folder` and the items alone.

    Raises:
        BadInput: an item has mistakes, or a file in the folder is damaged or of no item or scale.
    """
    items = [load_item(name) for name in list_items()]
    kept = read_results(folder, items)
    results = [found for by_scale in kept.values() for found in by_scale.values()]
    papers = dict.fromkeys(item.paper for item in items)
    return render_document(
        "reproduction.md",
        headlines=headline_table(items, kept) if results else None,
        papers=_verdicts_by_paper(items, kept),
        items=_verdicts_by_item(items, kept),
        stale=sum(found.is_stale(item) for item in items for found in kept[item.id].values()),
        results=len(results),
        versions=versions(results),
        sections=[
            (paper, [_describe(item, kept[item.id]) for item in items if item.paper == paper]) for paper in papers
        ],
        alone=False,
    )


def render_one(item: Item, found: Result) -> str:
    """Write one result as Markdown, with every number, and the comparisons of its claims."""
    return render_document(
        "result.md",
        item=_describe(item, {found.label: found}, len(found.failed)),
        counts=count_claims(item, found),
        versions=versions([found]),
        alone=True,
    )


HEADLINES = ("<!-- main claims, written by coterie reproduce --front -->", "<!-- end of the main claims -->")
"""Lines between which another document has the table of headline claims."""

SUMMARY = ("<!-- what came out, written by coterie reproduce --front -->", "<!-- end of what came out -->")
"""Lines between which another document has a sentence a paper and one over all."""


def put_headlines(text: str, folder: Path) -> str:
    """Return a document with the table of headline claims between its two marks, from the results in `folder`.

    Between two further marks, if it has them, go the sentences on each paper.

    Raises:
        BadInput: the marks are not there, an item has mistakes, or a file in the folder is damaged or of no item.
    """
    items = [load_item(name) for name in list_items()]
    kept = read_results(folder, items)
    text = _put_between(text, *HEADLINES, to_markdown(headline_table(items, kept)))
    if SUMMARY[0] in text:
        said = "\n".join(f"- {sentence}" for sentence in summarise(items, kept))
        text = _put_between(text, *SUMMARY, said)
    return text


def _put_between(text: str, first: str, last: str, what: str) -> str:
    before, _, rest = text.partition(first)
    _, found, after = rest.partition(last)
    if not found:
        raise BadInput(f"there is no place for the main claims; put these two lines there: {first} {last}")
    return f"{before}{first}\n\n{what}\n\n{last}{after}"


def headline_table(items: Sequence[Item], kept: Results) -> Table:
    """Tabulate the papers' main claims: what was printed, and what came out, see `front.main_results`."""
    by_name = {item.id: item for item in items}
    rows = []
    for item in items:
        for claim, printed, found, judged in main_results(item, kept[item.id]):
            text = " ".join(claim.text.split()).removesuffix(".")
            end: list[str] = [MISSING, MISSING, TO_RUN]
            if found and judged:
                stale = f", {STALE}" * found.is_stale(item)
                seeds = count_of(len(found.seeds), "seed")
                ours = f"{margin_of(claim.links, judged, len(found.seeds))} ({found.scale}, {seeds}{stale})"
                size = find_published_size(judged, printed) or MISSING
                end = [Markdown(ours), size, Markdown(in_words(judged, found.adds_seeds))]
            place, why = f"{item.paper}, {item.place}", sentence(fill(claim.why, item, by_name, kept))
            rows.append([place, text, margin_of_printed(claim.links, printed), *end, why])
    return Table(["paper", "claim", "published", "here", PUBLISHED_SIZE, "verdict", "why"], rows, texts=7)


def read_results(folder: Path, items: Sequence[Item]) -> Results:
    """Read the results in a folder; none where there is no such folder.

    Raises:
        BadInput: a file in the folder is damaged, or of no item or scale.
    """
    found: dict[str, dict[str, Result]] = {item.id: {} for item in items}
    wrong = []
    for path in sorted(folder.glob("*.json")):
        one = result.read(path)
        if path.name != one.file or one.item not in found or one.scale not in SCALES:
            wrong.append(f"{str(path)!r} is the result of no item and scale by that name; remove it")
        else:
            found[one.item][one.label] = one
    if wrong:
        raise BadInput(wrong)
    return {id: dict(sorted(by.items(), key=lambda one: _rank(one[1]))) for id, by in found.items()}


def _rank(found: Result) -> tuple[int, bool]:
    """The larger scale first, and of one scale the result to which seeds were added."""
    return -SCALES.index(found.scale), not found.adds_seeds


def judge_again(folder: Path) -> None:
    """Write the results in a folder with the claims of their items as they are now, and the verdicts on these.

    Raises:
        BadInput: a file in the folder is damaged, or of no item or scale.
    """
    items = [load_item(name) for name in list_items()]
    for id, by in read_results(folder, items).items():
        for one in by.values():
            result.write(folder / one.file, load_item(id), one)


def _describe(item: Item, results: Mapping[str, Result], failures: int = MOST_FAILURES) -> dict[str, Any]:
    """What the document says of an item."""
    quantities = {quantity: numbers_of(item, results, quantity) for quantity in item.shows if results}
    scales = list(dict.fromkeys(found.scale for found in results.values()))
    measured = {
        quantity: replace(table, rows=[row for row in table.rows if {*row[-len(results) :]} != {MISSING}])
        for quantity, table in quantities.items()
    }
    claims, order = claims_table(item, results)
    current = {scale: found for scale, found in results.items() if not found.is_stale(item)}
    return {
        "id": item.id,
        "heading": heading(item),
        "says": sentence(item.says),
        "command": f"coterie reproduce {item.id} --scale {SCALES[0]}",
        "runs": [describe_run(item, found, failures) for found in results.values()],
        "claims": claims,
        "comparisons": [item.claims[i].holds for i in order],
        "remarks": remarks_on_claims(item, current, order),
        "unjudged": len(item.claims) - len(order),
        "findings": [(scale, sentence(item.findings[scale])) for scale in current if scale in item.findings],
        "tables": [(title_of(item, q, scales), table) for q, table in measured.items() if table],
        "left_out": sum(len(table.rows) - len(measured[q].rows) for q, table in quantities.items()),
    }


def _verdicts_by_paper(items: Sequence[Item], kept: Results) -> Table:
    """How many claims of each paper have which verdict at each scale, and of all papers."""
    scales = [scale for scale in reversed(SCALES) if any(scale in results for results in kept.values())]
    rows = []
    for paper in dict.fromkeys(item.paper for item in items):
        own = [item for item in items if item.paper == paper]
        run = [scale for scale in scales if any(scale in kept[item.id] for item in own)]
        rows += [[_link(paper, anchor(paper)), *_totals(own, kept, scale)] for scale in run]
    rows += [["all", *_totals(items, kept, scale)] for scale in scales]
    header = [f"{v} ({IN_PARENTHESES[v]})" if v in IN_PARENTHESES else str(v) for v in VERDICTS]
    return Table(["paper", "scale", "items run", *header], rows, texts=2)


def _totals(items: Sequence[Item], kept: Results, scale: str) -> list[str]:
    """The numbers of a row: a scale, how many items have a current result at it, and their claims' verdicts."""
    all_run = [(item, kept[item.id][scale]) for item in items if scale in kept[item.id]]
    run = [(item, one) for item, one in all_run if not one.is_stale(item)]
    judged = [claim for item, one in run for claim in result.judge_claims(item, one)]
    found = Counter(claim.verdict for claim in judged)
    found["not run"] += sum(len(item.claims) for item in items) - found.total()
    stay = Counter(claim.corrected for claim in judged)
    stay["undecided"] = sum(
        claim.verdict == "undecided" and find_published_size(claim, printed).startswith("excluded")
        for item, one in run
        for claim, printed in zip(result.judge_claims(item, one), result.judge_published(item), strict=True)
    )
    numbers = [f"{found[v]} ({stay[v]})" if v in IN_PARENTHESES else str(found[v]) for v in VERDICTS]
    return [scale, f"{len(run)} of {len(items)}", *numbers]


def _verdicts_by_item(items: Sequence[Item], kept: Results) -> Table:
    """How many claims of each item have which verdict at each scale, and which items are to be run."""
    full = any(FULL in results for results in kept.values())
    offered = {scale for item in items for scale in item.scales if scale != FULL or full}
    scales = [scale for scale in reversed(SCALES) if scale in offered]
    rows = [
        [
            _link(item.id, anchor(item.id)),
            f"{item.place}: {item.title}",
            str(len(item.claims)),
            *(_verdicts(item, kept[item.id].get(scale)) if scale in item.scales else MISSING for scale in scales),
        ]
        for item in items
    ]
    return Table(["item", "what", "claims", *scales], rows, texts=2)


def _verdicts(item: Item, found: Result | None) -> str:
    """What became of an item's claims at a scale, for a cell of a table."""
    if found is None:
        return TO_RUN
    counts = count_verdicts(item, found)
    shown = " / ".join(str(counts[v]) for v in (*DECIDED, "equal within a point", "undecided"))
    return shown + f", {STALE}" * found.is_stale(item)


def _link(text: str, to: str) -> Markdown:
    return Markdown(f"[{escape_markdown(text)}](#{to})")
