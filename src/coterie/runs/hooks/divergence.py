"""Training that diverges: whose models give no numbers any more or ever larger losses, since when, what to try."""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.runs.folder.tables import NOT_EVALUATED
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult

if TYPE_CHECKING:
    from coterie.runs.session import Session

EXPLODED = 100.0
"""How many times a harmless loss makes one that has exploded."""

FAULTS = ("NaN or infinite", "= nan", "= inf", "= -inf")
"""In the reasons of clients that are left out: that their training gave no finite numbers."""

MOST_NAMES = 3
"""Clients that a sentence names."""


class Divergence(Hook):
    """What went wrong in the rounds so far, client by client; what came before a resumption the tables tell.

    A harmless loss is that of guessing among the classes, and where a target is no class, the client's own in the
    first evaluated round.
    """

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        self._names, self._classes = run.federation.names, run.federation.classes
        n = len(self._names)
        self._harmless = np.full(n, log(self._classes) if self._classes > 1 else np.nan)
        self._broken: dict[int, int] = {}
        self._exploded: dict[int, int] = {}
        self._left_out: dict[int, int] = {}
        self._last_left_out, self._last_answer = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._worst = 0.0
        self._tested = np.zeros(n, np.bool_)

    def round_ended(self, result: RoundResult) -> None:
        if (scores := result.scores) is not None:
            self.note_evaluation(result.number, scores.loss, scores.tested, result.took_part)
        self.note_failures(result.number, self.run.runtime.failures)

    def note_evaluation(
        self, number: int, loss: NDArray[np.float64], tested: NDArray[np.bool_], took_part: NDArray[np.bool_]
    ) -> None:
        """Note the losses `[n]` of an evaluated round; a client that was not `tested` stays as it was.

        Who took part in other rounds does not count: the tables would not tell it.
        """
        self._last_answer[took_part] = number
        self._tested |= tested
        finite = np.isfinite(loss)
        new = tested & np.isnan(self._harmless) & finite
        self._harmless[new] = loss[new]
        exploded = tested & finite & (loss > EXPLODED * self._harmless)
        self._broken = _since(self._broken, number, tested & ~finite, tested)
        self._exploded = _since(self._exploded, number, exploded, tested)
        self._worst = float(loss[exploded].max()) if exploded.any() else self._worst

    def note_failures(self, number: int, failures: Iterable[tuple[int, str]]) -> None:
        """Note who was left out of a round because training gave no finite numbers."""
        for client, reason in failures:
            if any(fault in reason for fault in FAULTS):
                self._left_out.setdefault(client, number)
                self._last_left_out[client] = number

    def read_tables(self, clients: pl.DataFrame, failures: pl.DataFrame) -> None:
        """Note all that the tables of a run's finished rounds tell, before the run goes on."""
        silent = failures.filter(pl.col("reason").str.starts_with(NOT_EVALUATED)).select("round", "client")
        tested = (pl.col("test_samples") > 0) & ~pl.struct("round", "client").is_in(silent.to_struct().implode())
        rounds = clients.sort("round", "client").with_columns(tested=tested).group_by("round", maintain_order=True)
        for (number,), rows in rounds:
            found = (rows[column].to_numpy() for column in ("loss", "tested", "took_part"))
            self.note_evaluation(int(str(number)), *found)
        for number, client, reason in failures.select("round", "client", "reason").sort("round").iter_rows():
            self.note_failures(number, [(client, reason)])

    @property
    def is_total(self) -> bool:
        """Whether training has diverged for every client that was ever tested, and none has recovered since."""
        left_out = (self._last_left_out > 0) & (self._last_left_out >= self._last_answer)
        diverged = {*self._broken, *self._exploded, *np.flatnonzero(left_out).tolist()}
        return bool(self._tested.any()) and diverged.issuperset(np.flatnonzero(self._tested).tolist())

    def sentences(self) -> list[str]:
        """Return one sentence for each way in which training has diverged; none where it has not."""
        of = "that of guessing" if self._classes > 1 else "that of the first evaluation"
        ways = (
            (self._broken, "the loss on held-out samples is not a finite number"),
            (
                self._exploded,
                f"the loss on held-out samples is over {EXPLODED:.0f} times {of}, up to {self._worst:.3g}",
            ),
            (self._left_out, "training gave NaN or infinite values, which were left out"),
        )
        return [
            f"training diverged for {self._who(since)}: {what}, since round {min(since.values())}; try "
            f"{self._remedy()}"
            for since, what in ways
            if since
        ]

    def _remedy(self) -> str:
        sizes, method = "features and targets of standard size", self.run.method
        if not method.uses_training:
            return sizes
        own = getattr(method, "lr", None)
        key, lr = ("training.lr", self.run.experiment.training.lr) if own is None else ("method.lr", own)
        return f"a smaller {key} (it is {lr:g}), and {sizes}"

    def _who(self, since: dict[int, int]) -> str:
        first = sorted(since, key=lambda client: (since[client], client))
        named = ", ".join(self._names[client] for client in first[:MOST_NAMES])
        more = f" and {len(first) - MOST_NAMES:,} more" if len(first) > MOST_NAMES else ""
        return f"{len(first):,} of {len(self._names):,} clients ({named}{more})"


def _since(
    before: dict[int, int], number: int, now: NDArray[np.bool_], tested: NDArray[np.bool_]
) -> dict[int, int]:
    """Return since which round each client is in a state: it leaves it by a test that finds it out of it."""
    kept = {client: first for client, first in before.items() if now[client] or not tested[client]}
    return {**{int(client): number for client in np.flatnonzero(now)}, **kept}
