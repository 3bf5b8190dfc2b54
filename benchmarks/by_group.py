"""What it would win to hold each update against its own group's median too, not against the cohort's alone.

    python -m benchmarks.by_group [--smoke]

As in `benchmarks.attacks`, with the mean, `norm_bound = 3` and three seeds. A group is whom the method served one
model before the round; one with fewer than three answers is held against the cohort. Who goes to the bound knows of
both. It takes some minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.attacks import SEEDS, Cell, Strength
from benchmarks.kept_cells import play
from benchmarks.smoke import Arguments, shrink
from coterie.methods.exchange import Exchange, Replies
from coterie.runs import loop
from coterie.runs.attack import NEARLY, Attackers
from coterie.runs.schema.experiment import Experiment
from coterie.runs.screening import LEAST, find_starts, leave_out

WAYS = ("cohort", "cohort and group", "group alone")
METHODS = ("ifca", "fesem-5", "cfl", "flis")
ATTACKS: Sequence[tuple[str, Strength]] = (
    ("sign-flip", 2.9),
    ("ipm", "bound"),
    ("gaussian", "bound"),
)


def find_usual(lengths: NDArray[np.float64], groups: NDArray[np.int64], way: str) -> NDArray[np.float64]:
    """Return the length that each update is held against `[r]`; `groups` are those of who sent them."""
    usual = np.full(len(lengths), np.median(lengths))
    for group in np.unique(groups[groups >= 0]):
        if (rows := groups == group).sum() >= LEAST:
            own = np.median(lengths[rows])
            usual[rows] = own if way == "group alone" else np.minimum(usual[rows], own)
    return usual


def measure(experiment: Experiment, way: str) -> float:
    """Return the accuracy of the honest clients over all seeds, screened in one of the `WAYS`."""
    screen, strike, groups = loop.Session._screen, Attackers.strike, np.empty(0, np.int64)

    def note_groups(session: loop.Session, *asked: Any) -> Replies:
        nonlocal groups
        groups = session.method.serving(session.state, session.server).groups
        return screen(session, *asked)

    def strike_and_shrink(self: Attackers, exchange: Exchange, *asked: Any) -> Replies:
        struck = strike(self, exchange, *asked)
        rows = np.flatnonzero(np.isin(struck.clients, self.clients))
        if self.attack.strength != "bound" or not len(rows):
            return struck
        for name, lengths in struck.update_lengths.items():
            passing = NEARLY * 3 * find_usual(lengths, groups[struck.clients], way)[rows]
            factors = torch.from_numpy(np.minimum(passing / lengths[rows], 1.0)).float()[:, None]
            starts = find_starts(exchange, struck, rows).nan_to_num(0.0) if name == "model" else torch.tensor(0.0)
            values = struck.uploads[name]
            values[rows] = starts + (values[rows] - starts) * factors
            lengths[rows] = np.minimum(lengths[rows], passing)
        return struck

    def screen_updates(exchange: Exchange, replies: Replies, bound: float, earlier: Sequence[Exchange]) -> Replies:
        reasons: dict[int, str] = {}
        for name, lengths in replies.update_lengths.items() if len(replies) else ():
            usual = find_usual(lengths, groups[replies.clients], way)
            reasons |= {int(row): f"sent too long a {name}" for row in np.flatnonzero(lengths > bound * usual)}
        return leave_out(replies, reasons) if reasons else replies

    with ExitStack() as stack:
        if way != "cohort":
            stack.enter_context(patch.object(loop.Session, "_screen", note_groups))
            stack.enter_context(patch.object(Attackers, "strike", strike_and_shrink))
            stack.enter_context(patch.object(loop, "screen_updates", screen_updates))
        each = [play(experiment.updated({"run.seed": seed}))["accuracy"] for seed in SEEDS]
    return float(np.mean(each))


def main() -> None:
    """Print the table in Markdown."""
    smoke = Arguments("by_group", __doc__, {}).read().smoke
    logging.disable(logging.WARNING)
    print(f"| method | attack | {' | '.join(WAYS)} |\n{'|---' * 5}|")
    cells = [
        Cell(method, "mean", kind, strength=strength) for method, (kind, strength) in product(METHODS, ATTACKS)
    ]
    for cell in cells[:1] if smoke else cells:
        experiment = shrink(cell.experiment()) if smoke else cell.experiment()
        found = [f"{measure(experiment, way):.3f}" for way in WAYS]
        print(f"| `{cell.method}` | {cell.what} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
