"""One result of an item, published beside measured: its numbers, and a few notes for its comparison's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.errors import count_of
from coterie.report.comparison.page import Published
from coterie.report.drawing.figure import Figure
from coterie.report.numbers import MISSING, capital, duration, join_words
from coterie.report.reproduction.claims import claims_table, count_verdicts
from coterie.report.reproduction.words import mean_and_sd, sentence
from coterie.report.tables import Table
from coterie.studies.papers.claims import VERDICTS, Reference
from coterie.studies.papers.item import Item
from coterie.studies.papers.result import Result

NAMED = ("coterie", "torch", "numpy")
"""Packages whose versions the documents name; a result holds all."""


def notes(item: Item, found: Result) -> list[str]:
    """Describe one result for its comparison's page, a sentence each: the item, what was run, and the verdicts."""
    run = describe_run(item, found, len(found.failed))
    return [
        f"{heading(item)}. The paper: {sentence(item.says)}",
        f"Run here at scale {run['scale']}: {run['what']}",
        "Each claim as a comparison is in table.md beside this page.",
    ]


def published(item: Item, found: Result, figures: Sequence[Figure]) -> Published:
    """Return what the page of a result's comparison shows first: the paper's figures, its claims and its
    numbers."""
    claims, _ = claims_table(item, {found.label: found})
    plain = [[text.replace("**", "").replace("\\", "") for text in row] for row in claims.rows]  # it is Markdown
    numbers = [(title_of(item, q, [found.scale]), numbers_of(item, {found.label: found}, q)) for q in item.shows]
    return Published(
        f"The paper's claims: {count_claims(item, found)}.",
        figures,
        [
            ("The paper's claims", replace(claims, rows=plain)),
            *((capital(t), table) for t, table in numbers if table.rows),
        ],
    )


def heading(item: Item) -> str:
    """Say which table or figure it is."""
    return f"{item.paper}, {item.place}: {item.title}"


def describe_run(item: Item, found: Result, most: int) -> dict[str, Any]:
    """Say what a result comes from, for a line of a document; failed runs are told one by one up to `most`.

    Returns:
        Of a result that is stale, `changed` has the rows that have other settings now, where these are what has
        changed; `missing` has what the item has at this scale and the result lacks, for it is new.
    """
    what = " ".join([f"{_runs(found)}.", *_differences(item, found.scale), *_trouble(found, most)])
    there = found.scale in item.scales
    return {
        "scale": found.label,
        "what": what,
        "stale": found.is_stale(item),
        "changed": join_words(found.changed(item) if there else []),
        "missing": join_words(found.missing(item) if there else []),
        "command": found.command,
    }


def versions(results: Sequence[Result]) -> str:
    """Name what the results were made with; of a package with several versions, all of them."""
    found = {name: {one.versions[name] for one in results if name in one.versions} for name in NAMED}
    return join_words(f"{name} {join_words(sorted(those))}" for name, those in found.items() if those)


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


def count_claims(item: Item, found: Result) -> str:
    """Say how many claims have which verdict."""
    counts = count_verdicts(item, found)
    return ", ".join(f"{verdict} {counts[verdict]}" for verdict in VERDICTS if counts[verdict])


def _runs(found: Result) -> str:
    made = f", at commit {found.versions['commit']}" if "commit" in found.versions else ""
    runs = f"{count_of(found.runs, 'run')} of {duration(found.seconds)} in all"
    return f"{count_of(len(found.seeds), 'seed')}, {runs}{made}"


def _differences(item: Item, scale: str) -> Iterator[str]:
    """What a scale replaces and reduces."""
    if item.scales[scale].stand_in:
        yield f"Stand-in: {sentence(item.scales[scale].stand_in)}"
    if item.scales[scale].reduces:
        yield f"Reduced: {sentence(item.scales[scale].reduces)}"


def _trouble(found: Result, most: int) -> Iterator[str]:
    """What is missing from a result; failed runs told one by one up to `most`."""
    if found.finished < found.runs:
        yield f"Finished: {found.finished} of {count_of(found.runs, 'run')}."
    yield from (f"Failed: {sentence(text)}" for text in found.failed[:most])
    if len(found.failed) > most:
        yield f"Failed too: {len(found.failed) - most} more."
    yield from (f"Note: {sentence(note)}" for note in found.notes)
