"""Training that diverges: whose models give no numbers any more or ever larger losses, since when, what to try."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log

import numpy as np
import polars as pl
from numpy.typing import NDArray

EXPLODED = 100.0
"""How many times a harmless loss makes one that has exploded."""

FAULTS = ("NaN or infinite", "= nan", "= inf", "= -inf")
"""In the reasons of clients that are left out: that their training gave no finite numbers."""

NOT_EVALUATED = "not evaluated: "
"""The beginning of the reasons of clients that did not answer an evaluation."""

MOST_NAMES = 3
"""Clients that a sentence names."""


class Divergence:
    """What went wrong in the rounds so far, client by client.

    Args:
        names: of the `n` clients in training.
        classes: how many there are, 0 where a target is no class. A harmless loss is that of guessing among them,
            and without classes the client's own in the first evaluated round.
        lr: the learning rate, for the advice.
    """

    def __init__(self, names: Sequence[str], classes: int, lr: float) -> None:
        self._names, self._classes, self._lr = names, classes, lr
        self._harmless = np.full(len(names), log(classes) if classes > 1 else np.nan)
        self._broken: dict[int, int] = {}
        self._exploded: dict[int, int] = {}
        self._left_out: dict[int, int] = {}
        self._last_left_out, self._last_answer = (np.zeros(len(names), np.int64) for _ in range(2))
        self._worst = 0.0
        self._tested = np.zeros(len(names), np.bool_)

    def note_losses(self, number: int, loss: NDArray[np.float64], tested: NDArray[np.bool_]) -> None:
        """Note the losses `[n]` of an evaluated round; a client that was not `tested` stays as it was."""
        self._tested |= tested
        new = tested & np.isnan(self._harmless) & np.isfinite(loss)
        self._harmless[new] = loss[new]
        finite = np.isfinite(loss)
        exploded = finite & (loss > EXPLODED * self._harmless)
        self._broken = _since(self._broken, number, tested & ~finite, tested)
        self._exploded = _since(self._exploded, number, tested & exploded, tested)
        self._worst = float(loss[exploded & tested].max()) if (exploded & tested).any() else self._worst

    def note_answers(self, number: int, took_part: NDArray[np.bool_]) -> None:
        """Note who `[n]` took part in an evaluated round; of other rounds the tables do not tell it."""
        self._last_answer[took_part] = number

    def note_failures(self, number: int, failures: Iterable[tuple[int, str]]) -> None:
        """Note who was left out of a round because training gave no finite numbers."""
        for client, reason in failures:
            if any(fault in reason for fault in FAULTS):
                self._left_out.setdefault(client, number)
                self._last_left_out[client] = number

    def restore(self, clients: pl.DataFrame, failures: pl.DataFrame) -> None:
        """Note all that the tables of a run's finished rounds tell, before the run goes on."""
        silent = failures.filter(pl.col("reason").str.starts_with(NOT_EVALUATED)).select("round", "client")
        tested = (pl.col("test_samples") > 0) & ~pl.struct("round", "client").is_in(silent.to_struct().implode())
        for (number,), rows in (
            clients.sort("round", "client").with_columns(tested=tested).group_by("round", maintain_order=True)
        ):
            self.note_losses(int(str(number)), rows["loss"].to_numpy(), rows["tested"].to_numpy())
            self.note_answers(int(str(number)), rows["took_part"].to_numpy())
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
        found = []
        if self._broken:
            found.append(
                f"{self._who(self._broken)}: the loss on held-out samples is not a finite number, "
                f"{_from(self._broken)}"
            )
        if self._exploded:
            of = "that of guessing" if self._classes > 1 else "that of the first evaluation"
            found.append(
                f"{self._who(self._exploded)}: the loss on held-out samples is over {EXPLODED:.0f} times {of}, up "
                f"to {self._worst:.3g}, {_from(self._exploded)}"
            )
        if self._left_out:
            found.append(
                f"{self._who(self._left_out)}: training gave NaN or infinite values, which were left out, "
                f"{_from(self._left_out)}"
            )
        return [f"training diverged for {sentence}; {self._advice}" for sentence in found]

    @property
    def _advice(self) -> str:
        return f"try a smaller training.lr (it is {self._lr:g}), and features and targets of standard size"

    def _who(self, clients: dict[int, int]) -> str:
        first = sorted(clients, key=lambda client: (clients[client], client))
        named = ", ".join(self._names[client] for client in first[:MOST_NAMES])
        more = f" and {len(first) - MOST_NAMES:,} more" if len(first) > MOST_NAMES else ""
        return f"{len(first):,} of {len(self._names):,} clients ({named}{more})"


def _since(
    before: dict[int, int], number: int, now: NDArray[np.bool_], tested: NDArray[np.bool_]
) -> dict[int, int]:
    """Return since which round each client is in a state: it leaves it by a test that finds it out of it."""
    kept = {client: first for client, first in before.items() if now[client] or not tested[client]}
    return {**{int(client): number for client in np.flatnonzero(now)}, **kept}


def _from(clients: dict[int, int]) -> str:
    return f"since round {min(clients.values())}"
