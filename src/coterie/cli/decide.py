"""`coterie reproduce --decide`: seeds are added to the methods of a claim until it is decided."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import BadInput, print_escaped
from coterie.studies.compare.cells import CellOutcome, Watcher, run_cells
from coterie.studies.compare.folder import find_finished
from coterie.studies.papers import result
from coterie.studies.papers.decide import LOOKS, Decision, Look

if TYPE_CHECKING:
    from coterie.runs.folder.metrics import RunMetric
    from coterie.studies.compare.spec import Cell
    from coterie.studies.papers.item import Item

HOUR = 3600.0


def decide_items(
    items: Sequence[Item], scale: str, hours: float, jobs: int | None, folder: Path, keep: Path | None, quiet: bool
) -> tuple[int, bool]:
    """Decide the claims of items, one item after the other, and write what is known after the last look of each.

    Returns:
        How many runs failed, and whether the hours sufficed.

    Raises:
        BadInput: no claim of any item can be decided at this scale, or none of an item's runs has finished.
        KeyboardInterrupt: a run was interrupted.
    """
    from coterie.cli.live_cells import watch_cells
    from coterie.report.reproduction.document import render_one
    from coterie.runs.folder.files import write_whole

    decisions, problems = list[Decision](), list[str]()
    for item in items:
        try:
            decisions.append(Decision.of(item, scale))
        except BadInput as problem:
            problems += problem.problems
    if not decisions:
        raise BadInput(problems)
    for problem_of_one in problems if not quiet else ():
        print_escaped(f"note: {problem_of_one}")
    for decision in decisions:
        decision.comparison(LOOKS[0]).check(folder)
    for directory in (keep, folder):
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)  # if it cannot be made, nothing runs
    until, count, suffice = time.monotonic() + hours * HOUR, 0, True
    for decision in decisions:
        with watch_cells(quiet) as watcher:
            search = _Search(decision, folder / "cells", jobs, until, watcher, quiet)
            ended = search.run()
        suffice &= ended
        count += len(search.failed)
        if search.found is None:
            continue
        name = f"{decision.item.id}-{scale}-decided"
        paths = {"result": folder / name / "result.json", "table": folder / name / "table.md"}
        result.write(paths["result"], decision.item, search.found)
        write_whole(paths["table"], render_one(decision.item, search.found).encode())
        if keep is not None:
            paths["kept"] = keep / f"{name}.json"
            write_whole(paths["kept"], paths["result"].read_bytes())
        for what, path in paths.items() if not quiet else [("", paths["result"])]:
            print_escaped(f"{what:<8}{path}" if what else path)
    return count, suffice


class _Search:
    """One item's claims, look after look."""

    def __init__(
        self, decision: Decision, pool: Path, jobs: int | None, until: float, watcher: Watcher, quiet: bool
    ) -> None:
        self._decision, self._pool, self._jobs, self._until = decision, pool, jobs, until
        self._watcher, self._quiet = watcher, quiet
        self.found: result.Result | None = None
        """What the last look that was reached has measured."""
        self.failed: dict[str, str] = {}

    def run(self) -> bool:
        """Run look after look until each claim has an end; False where the time was up before."""
        left = list(self._decision.claims)
        for number, seeds in enumerate(LOOKS, 1):
            if not left:
                break
            if not self._run_cells(left, seeds):
                self._say(f"the time was up before all runs with {seeds} seeds were finished")
                return False
            self.found = self._decision.measure(seeds, self._pool, self.failed)
            looks = dict(zip(self._decision.claims, self._decision.look(self.found), strict=True))
            self._say(f"test {number} of at most {len(LOOKS)}, with {seeds} seeds")
            for i in left:
                self._say(f"  {_describe(looks[i], seeds)}")
            left = [i for i in left if not looks[i].end]
        if left:
            self._say(f"not decided with {LOOKS[-1]} seeds, and no more are added")
        return True

    def _run_cells(self, claims: Sequence[int], seeds: int) -> bool:
        """Run what is missing for a look; False where the time was up before the last run had ended."""
        cells = self._decision.cells(claims, seeds)
        done = find_finished(cells, self._pool)
        todo = [cell for cell in cells if cell.key not in done and cell.key not in self.failed]
        if todo:
            watcher = _UntilTimeIsUp(self._watcher, self._until)
            outcomes = run_cells(todo, self._pool, self._jobs, watcher)
            labels = {cell.key: cell.label for cell in todo}
            for key, outcome in outcomes.items():
                if outcome.status == "failed":
                    self.failed[key] = f"{labels[key]} failed: {outcome.sentence}"
            if any(outcome.status == "interrupted" for outcome in outcomes.values()):
                if not watcher.is_up:
                    raise KeyboardInterrupt
                return False
        if self.failed.keys() >= {cell.key for cell in cells}:
            raise BadInput([f"{self._decision.item.id}: {sentence}" for sentence in self.failed.values()])
        return True

    def _say(self, text: str) -> None:
        from coterie.cli.printing import say

        if not self._quiet:
            say(text)


class _UntilTimeIsUp(Watcher):
    """Passes everything on to another watcher, and interrupts the runs when the time is up; they can be resumed."""

    def __init__(self, watcher: Watcher, until: float) -> None:
        self._watcher, self._until = watcher, until
        self.is_up = False

    def started(self, todo: Sequence[Cell], done: int) -> None:
        self._watcher.started(todo, done)

    def begun(self, cell: Cell) -> None:
        self._watcher.begun(cell)
        self._check()

    def round(self, cell: Cell, number: int, value: float | None, metric: RunMetric) -> None:
        self._watcher.round(cell, number, value, metric)
        self._check()

    def note(self, cell: Cell, text: str) -> None:
        self._watcher.note(cell, text)

    def ended(self, cell: Cell, outcome: CellOutcome) -> None:
        self._watcher.ended(cell, outcome)

    def _check(self) -> None:
        if time.monotonic() >= self._until:
            self.is_up = True
            raise KeyboardInterrupt


def _describe(look: Look, seeds: int) -> str:
    """A claim after a look, in a line."""
    from coterie.report.reproduction.claims import margin_of

    text = " ".join(look.claim.text.split()).removesuffix(".")
    size = f"; published size {look.size}" if look.size else ""
    futile = ", futile to go on" if look.end == "futile" else ""
    margin = margin_of(look.claim.links, look.judged, seeds).replace("\\", "")  # it is escaped for Markdown
    return f"{text}: {margin}{size}: {look.judged.verdict}{futile}"
