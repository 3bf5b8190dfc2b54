"""Published beside measured: the tables and claims of an item, for a terminal and as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.problems import BadInput
from coterie.report.comparison_table import MARKDOWN
from coterie.report.comparison_table import escaped as escape
from coterie.report.numbers import counted, significant
from coterie.reproduction import result
from coterie.reproduction.claims import VERDICTS, Judged, Reference
from coterie.reproduction.item import FULL, SCALES, Item, known, load
from coterie.reproduction.result import Result, claimed, published

if TYPE_CHECKING:
    from rich.console import Group

DASH = "–"
NAMED = ("coterie", "torch", "numpy")
"""Packages whose versions the page names; a result holds all."""

STALE = "stale"

INTRODUCTION = """\
# Published tables and figures, run again

Each item is a table or a figure of a paper. `coterie reproduce ITEM --scale small` runs it again: `small` takes a
minute or two on a laptop, `medium` some minutes on real images, and `full` is the paper's own setting. What a scale
replaces and reduces is said with each item, and the file of an item in `src/coterie/papers` holds every setting.

Numbers are mean ± standard deviation over seeds. A claim is a comparison that the paper makes. It **holds** where
the 95 % interval of the difference over the seeds (Student's t, paired by seed) lies on the claimed side of zero,
**does not hold** where it lies on the other side, and is **undecided** in between; with few seeds, many are.
With each comparison stand the mean of its left side minus its right one, that interval, and n, the number of seeds.
Intervals are not corrected for the number of claims. *Not run* means that a scale leaves out a method or a setting
of the claim. This page is written by `coterie reproduce --write docs/reproduction.md` from the kept results."""


def page(folder: Path) -> str:
    """The whole page, from the results that are kept in `folder` and the items alone.

    Raises:
        BadInput: an item has mistakes, or a file in the folder is damaged or of no item or scale.
    """
    items = [load(name) for name in known()]
    kept = kept_results(folder, items)
    parts = [INTRODUCTION, "## Overview", _overview(items, kept)]
    for paper in dict.fromkeys(item.paper for item in items):
        parts.append(f"## {escaped(paper)}")
        for item in items:
            if item.paper == paper:
                parts += [f"### {item.id}", *_item(item, kept[item.id])]
    return "\n\n".join(parts) + "\n"


def kept_results(folder: Path, items: Sequence[Item]) -> dict[str, dict[str, Result]]:
    """The results in a folder by item and scale; none where there is no such folder."""
    kept: dict[str, dict[str, Result]] = {item.id: {} for item in items}
    wrong = []
    for path in sorted(folder.glob("*.json")):
        found = result.read(path)
        if path.stem != f"{found.item}-{found.scale}" or found.item not in kept or found.scale not in SCALES:
            wrong.append(f"{str(path)!r} is the result of no item and scale by that name; remove it")
        else:
            kept[found.item][found.scale] = found
    if wrong:
        raise BadInput(wrong)
    return kept


def section(item: Item, found: Result) -> str:
    """One result as Markdown."""
    return "\n\n".join([f"# {item.id}", *_item(item, {found.scale: found})]) + "\n"


def heading(item: Item) -> str:
    """Which table or figure it is."""
    return f"{item.paper}, {item.place}: {item.title}"


def shown(item: Item, found: Result) -> Group:
    """One result for a terminal: what the paper says, what was run, the tables, the claims."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    parts: list[Text | Table | Padding] = [
        Text(heading(item), style="bold"),
        Text(f"The paper: {_sentence(item.says)}"),
        *(Text(line) for line in ran(item, found)),
    ]
    for quantity in item.shows:
        header, rows = table(item, {found.scale: found}, quantity)
        drawn = Table(title=_title(item, quantity, found.scale), title_justify="left")
        names = len(header) - 2
        for i, name in enumerate(header):
            drawn.add_column(name, justify="left" if i < names else "right", no_wrap=i >= names, overflow="fold")
        for row in rows:
            drawn.add_row(*map(Text, row))
        parts.append(drawn)
    styles = dict(zip(VERDICTS, ("green", "red", "yellow", "dim"), strict=True))
    for claim, judged, printed in zip(item.claims, claimed(item, found), published(item), strict=True):
        head = Text(judged.verdict, style=f"bold {styles[judged.verdict]}")
        parts.append(head.append(f"  {claim.text} ({claim.where})", style="not bold default"))
        lines = [f"{link.link}: {_told(link)}" for link in judged.links]
        if printed is not None:
            lines.append(_printed(printed))
        lines += [f"why: {claim.finding[found.scale]}"] if found.scale in claim.finding else []
        parts += [Padding(Text(line), (0, 0, 0, 4), expand=False) for line in lines]
    counts = Counter(judged.verdict for judged in claimed(item, found))
    parts.append(Text(f"Claims: {', '.join(f'{v} {counts[v]}' for v in VERDICTS if counts[v])}."))
    return Group(*parts)


def notes(item: Item, found: Result) -> list[str]:
    """One result for the page of its comparison, a sentence each: the item, what was run, and the claims."""
    told = []
    for claim, judged, printed in zip(item.claims, claimed(item, found), published(item), strict=True):
        parts = [f"{link.link}: {_told(link)}" for link in judged.links]
        parts += [] if printed is None else [_printed(printed)]
        told.append(f"Claim, {judged.verdict}: {_sentence(claim.text)} ({claim.where}) {'; '.join(parts)}.")
    return [
        f"{heading(item)}. The paper: {_sentence(item.says)}",
        *ran(item, found),
        *told,
        "What was printed and what was measured, side by side, is in table.md beside this page.",
    ]


def ran(item: Item, found: Result) -> Iterator[str]:
    """What a result comes from, a sentence a line: the runs, what was replaced and reduced, what failed."""
    name = "the paper's own setting" if found.scale == FULL else f"scale {found.scale}"
    yield f"Run here: {name}, {counted(len(found.seeds), 'seed')}, {counted(found.runs, 'run')} of " + (
        f"{_time(found.seconds)} in all."
    )
    yield from _differs(item, found.scale)
    if found.finished < found.runs:
        yield f"Finished: {found.finished} of {found.runs} runs."
    yield from (f"Failed: {_sentence(sentence)}" for sentence in found.failed)
    yield from (f"Note: {_sentence(note)}" for note in found.notes)


def table(item: Item, results: Mapping[str, Result], quantity: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows, setting by setting and method by method: what was printed, and what each scale measured.

    Rows for which there is no number at all are left out.
    """
    several = len(item.settings) > 1
    header = [*(["setting"] if several else []), "method", "published", *results]
    rows = []
    for setting in item.settings:
        for method in item.methods:
            reference = Reference(quantity, method, setting)
            printed = item.published.get(reference)
            numbers = [DASH if printed is None else f"{printed:g}"]
            numbers += [_measured(found.mean_and_sd(reference), item.unit(quantity)) for found in results.values()]
            if any(number != DASH for number in numbers):
                rows.append([*([setting] if several else []), method, *numbers])
    return header, rows


def escaped(text: str) -> str:
    """A text of an item in Markdown."""
    return escape(text, MARKDOWN)


def _overview(items: Sequence[Item], kept: Mapping[str, Mapping[str, Result]]) -> str:
    rows = []
    for item in items:
        for scale in item.scales:
            found = kept[item.id].get(scale)
            if found is None and scale == FULL and len(item.scales) > 1:
                continue  # the papers' own settings are for large machines; what is missing is said below
            row = [f"[{item.id}](#{item.id})", escaped(f"{item.paper}, {item.place}"), scale]
            if found is None:
                rows.append([*row, *[DASH] * len(VERDICTS), "to be run"])
                continue
            counts = Counter(judged.verdict for judged in claimed(item, found))
            rows.append([*row, *(str(counts[verdict]) for verdict in VERDICTS), STALE * found.stale(item)])
    return _markdown(["item", "what", "scale", *VERDICTS, ""], rows, 3)


def _item(item: Item, results: Mapping[str, Result]) -> Iterator[str]:
    """The paragraphs on an item: what the paper says, what was run, the tables, the claims."""
    results = {scale: results[scale] for scale in SCALES if scale in results}
    yield f"**{escaped(heading(item))}.** The paper: {escaped(_sentence(item.says))}"
    yield "\n".join(_scale(item, scale, results.get(scale)) for scale in item.scales)
    for quantity in item.shows:
        header, rows = table(item, results, quantity)
        if rows:
            yield f"{escaped(_title(item, quantity, next(iter(results), FULL)))}:"
            yield _markdown(
                header, [[escaped(text) for text in row] for row in rows], len(header) - 1 - len(results)
            )
    verdicts = {scale: claimed(item, found) for scale, found in results.items()}
    for i, (claim, printed) in enumerate(zip(item.claims, published(item), strict=True)):
        lines = [f"- {escaped(_sentence(claim.text))} ({escaped(claim.where)})"]
        if printed is not None:
            lines.append(f"  - {_printed(printed)}")
            if claim.published_exception:
                lines[-1] += f". {escaped(_sentence(claim.published_exception))}"
        for scale, judged in verdicts.items():
            links = "; ".join(f"`{link.link}` {_told(link)}" for link in judged[i].links)
            lines.append(f"  - {scale}: **{judged[i].verdict}**. {links}")
            if why := claim.finding.get(scale):
                lines.append(f"  - {scale}, why: {escaped(_sentence(why))}")
        yield "\n".join(lines)


def _scale(item: Item, scale: str, found: Result | None) -> str:
    """One scale of an item, as a point of a list."""
    command = f"`coterie reproduce {item.id} --scale {scale}`"
    if found is None:
        parts = ["not run."]
        parts += _differs(item, scale)
        return f"- **{scale}**: {escaped(' '.join(parts))} Run it: {command}"
    old = " **The item's settings have changed since; these numbers are of the former ones.**" * found.stale(item)
    versions = ", ".join(f"{name} {found.versions[name]}" for name in NAMED if name in found.versions)
    return (
        f"- **{scale}**: {escaped(' '.join([*ran(item, found), f'Versions: {versions}.']))} Again: {command}{old}"
    )


def _differs(item: Item, scale: str) -> Iterator[str]:
    """What a scale replaces and reduces."""
    if item.scales[scale].stand_in:
        yield f"Stand-in: {_sentence(item.scales[scale].stand_in)}"
    if item.scales[scale].reduces:
        yield f"Reduced: {_sentence(item.scales[scale].reduces)}"


def _title(item: Item, quantity: str, scale: str) -> str:
    unit = item.unit(quantity)
    return f"{quantity}: {item.meaning(quantity, scale)}{f', {unit}' if unit else ''}"


def _measured(found: tuple[float, float] | None, unit: str) -> str:
    """Mean and standard deviation with equally many decimals: two in per cent, else three digits of the mean."""
    if found is None:
        return DASH
    mean, sd = found
    size = abs(mean) or (0.0 if math.isnan(sd) else sd)
    count = 2 if unit == "%" or not size else max(0, 2 - math.floor(math.log10(size)))
    return f"{mean:,.{count}f}" if math.isnan(sd) else f"{mean:,.{count}f} ± {sd:,.{count}f}"


def _printed(links: Sequence[tuple[float, bool]]) -> str:
    """What becomes of a claim with the printed numbers, and the difference of each link's two sides."""
    verdict = "holds" if all(holds for _, holds in links) else "does not hold"
    return f"published: {verdict}, {', '.join(_signed(difference) for difference, _ in links)}"


def _told(link: Judged) -> str:
    """The difference of a link's two sides over the seeds."""
    if link.verdict == "not run":
        return "was not run"
    if link.mean is None:
        return "has no value"
    if link.low is None or link.high is None:
        return f"{_signed(link.mean)}, n = {link.n}"
    return f"{_signed(link.mean)} [{_signed(link.low)}, {_signed(link.high)}], n = {link.n}"


def _signed(value: float) -> str:
    text = significant(value)
    return text if text.startswith("-") or value == 0 else f"+{text}"


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _sentence(text: str) -> str:
    """The text with a full stop."""
    text = " ".join(text.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> str:
    """A table of Markdown, its first `names` columns of text and the others of numbers."""
    rule = [":---"] * names + ["---:"] * (len(header) - names)
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])
