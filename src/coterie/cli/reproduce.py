"""`coterie reproduce`: published tables and figures, run again, beside what was printed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.compare import FAILED
from coterie.cli.options import Jobs, parse_whole_number
from coterie.errors import BadInput, count_of, print_escaped, unknown

if TYPE_CHECKING:
    from coterie.studies.compare.spec import Comparison
    from coterie.studies.papers.item import Item
    from coterie.studies.papers.result import Result

HELP = """
Run a published table or figure again, and compare the results with the paper,
claim by claim.

Examples:

  coterie reproduce --list                        all tables and figures
  coterie reproduce dcpfl-fig5 --scale small      one, in less than a minute
  coterie reproduce all --scale medium --jobs 8   all of them
  coterie reproduce dcpfl-fig5 --decide 0.5       seeds until it is decided

--decide runs only the methods of an item's main claims, all with the same
draws, from 4, 6, 8, 11, 14, 18, 24 and 32 seeds. After each of these numbers
the claims are tested at 1 %, so that over all tests together a verdict is
wrong in 5 % of the cases. Seeds are added until each claim is decided, or its
interval excludes the published difference.

Finished runs are never repeated: the same command continues where it was
stopped, or prints the results at once. With --keep, all leaves out items
whose kept result is up to date; an item that is named always runs.
"""

DEFAULT_SCALE = "small"
ALL = "all"

REPOSITORY_RESULTS = "docs/reproduction"
"""The folder of a checkout in which Coterie keeps the results of its own page."""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(reproduce)


def reproduce(
    items: Annotated[
        list[str] | None, typer.Argument(metavar="ITEM...|all", help="Tables or figures, as --list names them.")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(metavar="small|medium|large|full", help=f"How large the runs are; default {DEFAULT_SCALE}."),
    ] = None,
    jobs: Jobs = None,
    decide: Annotated[
        float | None,
        typer.Option(
            metavar="HOURS",
            min=0,
            help="Add seeds until the main claims are decided, for at most this many hours.",
        ),
    ] = None,
    folder: Annotated[str, typer.Option(metavar="DIR", help="Where results and runs are.")] = "reproductions",
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Copy each result there, as ITEM-SCALE.json."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md",
            help="Write a page on all items from the results in the folder FILE, and judge their claims anew.",
        ),
    ] = None,
    front: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.md",
            help="With --write: also put the table of main claims between the marks in this page; repeatable.",
        ),
    ] = None,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", help="List all items, or those named, and the results that --folder and --keep hold."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print where the results are, and nothing else.")
    ] = False,
) -> None:
    """Run published tables and figures again, or list them."""
    from coterie.cli.live import exit_on_interrupt

    if write is not None and write.suffix != ".md":
        raise BadInput(f"--write {str(write)!r} is not possible; its name must end in .md")
    if front and write is None:
        raise BadInput("--front is not possible alone; it goes with --write, whose table it repeats")
    given = {"--scale": scale, "--jobs": jobs, "--decide": decide, **({} if list_ else {"--keep": keep})}
    if not items and (idle := [option for option, value in given.items() if value is not None]):
        raise BadInput(f"{', '.join(idle)} needs an item to run; name one, or all")
    if list_ or (not items and write is None):
        _print_items(items or [], Path(folder), keep)
        return
    scale = scale or DEFAULT_SCALE
    failed = 0
    if items:
        adding = [] if decide is None else ["--decide", f"{decide:g}"]
        again = shlex.join(["coterie", "reproduce", *items, "--scale", scale, *adding, "--folder", folder])
        with exit_on_interrupt(f"interrupted; what is finished is kept, go on with: {again}"):
            count = parse_whole_number("jobs", jobs)
            chosen = _choose_items(items, scale)
            if ALL in items and decide is None:
                chosen = _leave_out_kept(chosen, scale, keep)
            if decide is None:
                failed = _run_items(chosen, scale, count, Path(folder), keep, quiet)
            else:
                from coterie.cli.decide import decide_items
                from coterie.cli.printing import say

                failed, suffice = decide_items(chosen, scale, decide, count, Path(folder), keep, quiet)
                if not suffice:
                    say(f"what is finished is kept, go on with: {again}")
    if write is not None:
        from coterie.cli.printing import say
        from coterie.report.reproduction.document import judge_again, put_headlines, render
        from coterie.runs.folder.files import write_whole

        judge_again(write.with_suffix(""))
        texts = {write: render(write.with_suffix(""))}
        for page in front or ():
            if not page.is_file():
                raise BadInput(f"--front {str(page)!r} is not possible; there is no such file")
            texts[page] = put_headlines(page.read_text("utf-8"), write.with_suffix(""))
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
            print_escaped(path)
        results = write.with_suffix("")
        if not quiet and not any(results.glob("*.json")):
            say(f"note: no results were found in {results}, so the page says of every item that it is to be run")
    if failed:
        raise typer.Exit(FAILED)


def _print_items(asked: Sequence[str], folder: Path, keep: Path | None) -> None:
    """Print a line on each item, or on those asked for, with how it stands; then refuse those with mistakes."""
    from coterie.cli.printing import say
    from coterie.report.numbers import duration
    from coterie.report.reproduction.one_result import heading
    from coterie.studies.papers.item import list_items, load_item
    from coterie.studies.papers.standing import assess, read_last_results

    problems: list[str] = []
    names = list_items() if not asked or ALL in asked else list(dict.fromkeys(asked))
    items = []
    for name in names:
        try:
            items.append(load_item(name))
        except BadInput as error:
            problems += error.problems
    margin = max(map(len, names), default=0)
    results = read_last_results(items, folder, keep)
    for item in items:
        told = []
        for scale in item.scales:
            found = results.get((item.id, scale))
            took = f", {duration(found.seconds)}" if found else ""
            told.append(f"{scale}: {assess(item, found)}{took}")
        say(f"{item.id:<{margin}}  {heading(item)} ({'; '.join(told)})")
    if problems:
        raise BadInput(problems)
    if keep is None:
        say(
            f"these are the results in {folder}; --keep {REPOSITORY_RESULTS} adds those of Coterie's repository, "
            "with the time each took"
        )
    else:
        say(f"these are the results in {keep} and {folder}")
    say(f"run one with: coterie reproduce ITEM --scale {DEFAULT_SCALE}")


def _choose_items(names: Sequence[str], scale: str) -> list[Item]:
    """Return the items that are named, each once; for `all`, every item that has the scale.

    Raises:
        BadInput: there is no such scale or item, or an item does not have the scale.
    """
    from coterie.studies.papers.item import SCALES, list_items, load_item

    if scale not in SCALES:
        raise BadInput(unknown("scale", scale, SCALES))
    problems: list[str] = []
    items: list[Item] = []
    everything = list_items() if ALL in names else []
    for name in dict.fromkeys([*everything, *(name for name in names if name != ALL)]):
        try:
            item = load_item(name)
            if ALL not in names:
                item.require_scale(scale)
        except BadInput as error:
            problems += error.problems
        else:
            items += [item] if scale in item.scales else []
    if not items and not problems:
        problems = [f"no item has the scale {scale}"]
    if problems:
        raise BadInput(problems)
    return items


def _run_items(
    items: Sequence[Item], scale: str, jobs: int | None, folder: Path, keep: Path | None, quiet: bool
) -> int:
    """Check all items, run them one after the other, and return how many runs failed.

    Runs that two items have in common are run once.
    """
    from rich.markdown import Markdown

    from coterie.cli.printing import make_console, say
    from coterie.report.reproduction.document import render_one
    from coterie.runs.folder.files import refuse_links

    comparisons = _make_comparisons(items, scale, folder)
    for directory in (keep, folder):
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)  # if it cannot be made, nothing runs
    refuse_links(folder, [folder / "cells", *(folder / f"{item.id}-{scale}" for item in items)])
    if len(items) > 1 and not quiet:
        _print_plan(items, comparisons, folder)
    failed = 0
    for item, comparison in zip(items, comparisons, strict=True):
        try:
            result, paths = _run_item(item, scale, comparison, jobs, folder, keep, quiet)
        except BadInput as error:
            if len(items) == 1:
                raise
            failed += len(error.problems)
            for problem in error.problems:  # the others go on
                print_escaped(f"coterie: {problem}", file=sys.stderr)
            continue
        failed += len(result.failed)
        for sentence in result.failed:
            print_escaped(f"coterie: {item.id}: {sentence}", file=sys.stderr)
        if quiet:
            print_escaped(paths["result"])
            continue
        make_console().print(Markdown(render_one(item, result)))
        for name, path in paths.items():
            say(f"{name:<8}{path}")
    return failed


def _leave_out_kept(items: Sequence[Item], scale: str, keep: Path | None) -> list[Item]:
    """Return the items whose kept result is not up to date, and say how many are."""
    from coterie.cli.printing import say
    from coterie.studies.papers.standing import assess, read_last_results

    if keep is None:
        return list(items)
    results = read_last_results(items, None, keep)
    left = [item for item in items if assess(item, results.get((item.id, scale))) != "up to date"]
    if len(left) < len(items):
        say(f"{len(items) - len(left)} of {count_of(len(items), 'item')} are up to date at scale {scale} in {keep}")
    return left


def _print_plan(items: Sequence[Item], comparisons: Sequence[Comparison], folder: Path) -> None:
    """Print how many runs are to be done."""
    from coterie.cli.printing import say
    from coterie.studies.compare.folder import find_finished

    seen: set[str] = set()
    left = 0
    for item, comparison in zip(items, comparisons, strict=True):
        cells = {cell.key: cell for cell in comparison.cells()}
        mine = [cell for key, cell in cells.items() if key not in seen]
        todo = len(mine) - len(find_finished(mine, folder / "cells"))
        seen |= set(cells)
        say(f"{item.id}: {todo} of {count_of(len(cells), 'run')} to do")
        left += todo
    say(f"{count_of(left, 'run')} to do in all")


def _make_comparisons(items: Sequence[Item], scale: str, folder: Path) -> list[Comparison]:
    """Return the items as comparisons, checked.

    Raises:
        BadInput: everything that is wrong with any of them.
    """
    problems: list[str] = []
    comparisons = []
    for item in items:
        try:
            comparisons.append(item.comparison(scale))
            comparisons[-1].check(folder)
        except BadInput as error:
            problems += [f"{item.id}: {problem}" for problem in error.problems]
    if problems:
        raise BadInput(problems)
    return comparisons


def _run_item(
    item: Item, scale: str, comparison: Comparison, jobs: int | None, folder: Path, keep: Path | None, quiet: bool
) -> tuple[Result, dict[str, Path]]:
    """Run an item's cells; write the result, the tables and the page, and return the result and their paths.

    Raises:
        BadInput: every run has failed.
        KeyboardInterrupt: a run was interrupted.
    """
    from coterie.cli.live_cells import watch_cells
    from coterie.cli.printing import say
    from coterie.report.comparison import page
    from coterie.report.reproduction import one_result
    from coterie.report.reproduction.document import render_one
    from coterie.report.reproduction.figures import draw_item
    from coterie.runs.folder.files import write_whole
    from coterie.studies.compare import measures, table
    from coterie.studies.compare.cells import run_cells
    from coterie.studies.compare.folder import find_finished
    from coterie.studies.papers import result

    if not quiet:
        say(f"{item.id}, scale {scale}: {one_result.heading(item)}")
    cells, pool = comparison.cells(), folder / "cells"
    with watch_cells(quiet) as observer:
        outcomes = run_cells(cells, pool, jobs, observer)
    done = find_finished(cells, pool)
    if any(outcome.status == "interrupted" for outcome in outcomes.values()):
        say(f"{item.id}: {len(done)} of {count_of(len(outcomes), 'run')} are finished")
        raise KeyboardInterrupt
    labels = {cell.key: cell.label for cell in reversed(cells)}
    failed = [f"{labels[k]} failed: {o.sentence}" for k, o in outcomes.items() if o.status == "failed"]
    if not done:
        raise BadInput([f"{item.id}: {sentence}" for sentence in failed])
    frames = measures.measure_cells(comparison, done)
    found = result.measure_item(item, scale, comparison, frames, done, failed)
    place = folder / f"{item.id}-{scale}"
    paths = {"result": place / "result.json", "table": place / "table.md"}
    result.write(paths["result"], item, found)
    write_whole(paths["table"], render_one(item, found).encode())
    summary = table.summarise(comparison, frames)
    drawn = one_result.published(item, found, draw_item(item, found, comparison, done))
    notes = one_result.notes(item, found)
    paths["page"] = page.build(place, comparison, frames, summary, notes, pool, published=drawn)
    if keep is not None:
        paths["kept"] = keep / f"{item.id}-{scale}.json"
        write_whole(paths["kept"], paths["result"].read_bytes())
    return found, paths
