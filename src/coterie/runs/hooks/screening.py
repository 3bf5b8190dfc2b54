"""Updates that are out of all proportion to those of the cohort count for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.starting_point import find_start
from coterie.methods.exchange import Exchange, Ids, Replies, Summed
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult

if TYPE_CHECKING:
    from coterie.runs.session import Session

LEAST = 3
"""Answers below which nobody can say whose update is out of proportion."""


NEAR = 0.1
"""The share of the bound above which an update is looked at by itself, by the median of the round before."""


class Screening(Hook):
    """Leaves out what is out of proportion, weighs by trust, and caps what a client counts (`[aggregation]`).

    Whose update might be out of proportion, by the last round's median, does not go into sums. So sums seldom hold
    one that is to be left out; where one does, the clients are asked again, and give the same bits.
    """

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        # Whether it is allowed to sum changes no bit, so that no checkpoint needs to hold this.
        self._usual: dict[str, float] = {}

    @property
    def _bound(self) -> float | Literal["off"]:
        # Whether one client counts may not depend on how long the others' updates are; theirs are clipped anyway.
        return "off" if self.run.adds_noise else self.run.experiment.aggregation.norm_bound

    def row_limit(self, exchange: Exchange, name: str, number: int) -> float:
        if self.run.trusted is not None:
            return 0.0
        return inf if self._bound == "off" else max(1.0, NEAR * self._bound) * self._usual.get(name, inf)

    def reply(self, exchange: Exchange, replies: Replies, result: RoundResult) -> Replies:
        run, earlier, bound = self.run, result.exchanges, self._bound
        if len(replies):
            self._usual |= {name: float(np.median(replies.update_lengths[name])) for name in exchange.reduce}
        if replies.sums and bound != "off" and has_added_too_long(replies, bound):
            replies = self._ask_for_rows(exchange, replies)
        kept = screen_updates(exchange, replies, bound, earlier)
        if run.trusted is not None:
            kept = weigh_by_trust(exchange, kept, run.trusted, earlier)
        return replace(kept, samples=run.server.samples[kept.clients])

    def _ask_for_rows(self, exchange: Exchange, replies: Replies) -> Replies:
        """Return the replies with rows in place of sums, from the same clients asked once more."""
        again = self.run.runtime.repeat(replace(exchange, reduce={}), replies.clients)
        gone = {i: again.missing[c] for i, c in enumerate(replies.clients.tolist()) if c in again.missing}
        rows = {name: again.uploads[name] for name in replies.sums}
        kept = leave_out(replace(replies, sums={}), gone)
        return replace(kept, uploads={**kept.uploads, **rows})


def has_added_too_long(replies: Replies, bound: float) -> bool:
    """Return whether sums may hold an update that is to be left out."""
    if len(replies) < LEAST:
        return True
    is_left_out = np.zeros(len(replies), dtype=bool)  # by any upload, whether it is summed or not
    for lengths in replies.update_lengths.values():
        usual = float(np.median(lengths))
        is_left_out |= (lengths > bound * usual) & (usual > 0)
    return any(np.delete(is_left_out, summed.rows).any() for summed in replies.sums.values())


def find_starts(
    exchange: Exchange, replies: Replies, rows: NDArray[np.int64], earlier: Sequence[Exchange] = ()
) -> Tensor:
    """Return what some clients were sent and trained, `[len(rows), P]`; NaN in columns that were not sent.

    Of several models it is the one that `coterie.clients.rules.starting_point` takes.

    Args:
        exchange: by which they were asked.
        replies: with an upload called `model`.
        rows: of the replies.
        earlier: the exchanges of the round before that one; a client may be sent a model in one of them.
    """
    starts = torch.full((len(rows), replies.models.shape[1]), torch.nan)
    sent = [{order.client: order.items for order in one.orders(0)} for one in (*earlier, exchange)]
    choices = replies.numbers.get("choice")
    for i, row in enumerate(rows.tolist()):
        client = int(replies.clients[row])
        choice = None if choices is None or np.isnan(choices[row]) else float(choices[row])
        start = find_start([items[client] for items in sent if client in items], replies.models[row], choice)
        if start is not None:
            starts[i] = start
    return starts


def find_all_starts(
    exchange: Exchange, replies: Replies, name: str, values: Tensor, usual: Tensor, earlier: Sequence[Exchange]
) -> Tensor:
    """Return what the `values` `[r, ...]` of an upload began as: 0 where it is no model.

    Where it is not known, it is the mean of the rows `usual`, or without any the values themselves.
    """
    if name != "model":
        return torch.zeros_like(values)
    starts = find_starts(exchange, replies, np.arange(len(replies)), earlier).to(values.dtype)
    return torch.where(starts.isnan(), values[usual].nanmean(0) if len(usual) else values, starts)


def measure_updates(
    exchange: Exchange, replies: Replies, rows: NDArray[np.int64], earlier: Sequence[Exchange] = ()
) -> dict[str, NDArray[np.float64]]:
    """Return the lengths of all updates `[r]` by upload, those of some `rows` measured again.

    A length that float32 does not hold is infinite.
    """
    lengths = {name: np.zeros(len(replies)) for name in replies.uploads}
    lengths |= {name: values.copy() for name, values in replies.update_lengths.items()}
    for name, values in replies.uploads.items():
        updates = values[torch.from_numpy(rows)].flatten(1)
        if name == "model":
            updates = updates - find_starts(exchange, replies, rows, earlier).nan_to_num(0.0)
        # What did not cross is NaN.
        lengths[name][rows] = updates.nan_to_num(0.0, torch.inf, -torch.inf).norm(dim=1).numpy()
    return lengths


def screen_updates(
    exchange: Exchange, replies: Replies, bound: float | Literal["off"], earlier: Sequence[Exchange] = ()
) -> Replies:
    """Leave out answers with an update more than `bound` times as long as the median of all.

    An update is what a client uploads, less the model that it was sent where it uploads a model. Where fewer than
    `LEAST` answered, models are held against the length of those that were sent. What was left out stands among the
    missing, with the reason.
    """
    if bound == "off" or not len(replies):
        return replies
    reasons: dict[int, str] = {}
    for name, lengths in sorted(replies.update_lengths.items()):  # so that the reason does not depend on sums
        if len(replies) >= LEAST:
            usual, of = float(np.median(lengths)), "the median of the cohort"
        elif name == "model":
            starts = find_starts(exchange, replies, np.arange(len(replies)), earlier).nan_to_num(0.0)
            usual, of = float(np.median(starts.norm(dim=1).numpy())), "the model that was sent"
        else:
            continue
        for row in np.flatnonzero(lengths > bound * usual) if usual > 0 else ():
            finite = np.isfinite(lengths[row])
            length = f"{lengths[row] / usual:.3g} times as long as {of}" if finite else "of infinite length"
            reasons[int(row)] = f"sent a {name} with an update {length}"
    return leave_out(replies, reasons) if reasons else replies


def weigh_by_trust(exchange: Exchange, replies: Replies, trusted: Ids, earlier: Sequence[Exchange] = ()) -> Replies:
    """Weigh each update by how far it points where that of a trusted client does (FLTrust: Cao et al., NDSS 2021).

    An update is cut or stretched to the length of the trusted one that it is most like, and counts as the cosine
    between them, relative to the mean of those that are held against the same one; so the plain mean of what is
    returned is FLTrust's. One that points away from all is left out, and so is everybody where no trusted client
    answered. In the paper the server trains on data of its own; here trusted clients do, and count with the others.
    Where nobody knows what a column began as, it is the mean of the trusted.

    Args:
        exchange: by which clients were asked.
        replies: what came.
        trusted: the ids of the trusted clients.
        earlier: the exchanges of the round before that one.
    """
    uploads, reasons = dict(replies.uploads), dict[int, str]()
    known = np.flatnonzero(np.isin(replies.clients, trusted))
    for name, values in replies.uploads.items():
        if values.dim() != 2 or not len(replies):
            continue
        if not len(known):
            reasons |= dict.fromkeys(range(len(replies)), f"sent a {name} when no trusted client answered")
            continue
        weighed, found = _weigh(exchange, replies, name, known, earlier)
        uploads[name] = weighed
        reasons |= dict.fromkeys(found, f"sent a {name} with an update that points away from all trusted ones")
    replies = replace(replies, uploads=uploads)
    return leave_out(replies, reasons) if reasons else replies


def _weigh(
    exchange: Exchange, replies: Replies, name: str, known: Ids, earlier: Sequence[Exchange]
) -> tuple[Tensor, list[int]]:
    """Return an upload `[r, P]` whose updates are weighed by trust, and the rows that deserve none.

    `known` are the rows of the trusted clients.
    """
    values = replies.uploads[name].double()
    starts = find_all_starts(exchange, replies, name, values, torch.from_numpy(known), earlier)
    updates = (values - starts).nan_to_num(0.0)
    lengths = updates.norm(dim=1).numpy()
    sure = updates[torch.from_numpy(known)]
    cosines = (updates @ sure.T).numpy() / np.maximum(np.outer(lengths, lengths[known]), 1e-300)
    cosines[known] = np.eye(len(known))
    like, trust = cosines.argmax(1), np.maximum(cosines.max(1), 0.0)
    weights = np.zeros(len(replies))
    for k in range(len(known)):
        some = (like == k) & (trust > 0)
        weights[some] = trust[some] / trust[some].mean() * lengths[known[k]] / np.maximum(lengths[some], 1e-300)
    # What did not cross is NaN, and stays it.
    weighed = starts + (values - starts) * torch.from_numpy(weights)[:, None]
    return weighed.float(), np.flatnonzero(trust == 0).tolist()


def leave_out(replies: Replies, reasons: dict[int, str]) -> Replies:
    """Return the replies without some rows, whose clients are then missing for the reasons given."""
    kept = np.setdiff1d(np.arange(len(replies)), list(reasons))
    rows = torch.from_numpy(kept)
    missing = {int(replies.clients[row]): reason for row, reason in reasons.items()}
    return replace(
        replies,
        clients=replies.clients[kept],
        samples=replies.samples[kept],
        uploads={name: values[rows] for name, values in replies.uploads.items()},
        numbers={name: values[kept] for name, values in replies.numbers.items()},
        report={name: [values[row] for row in kept.tolist()] for name, values in replies.report.items()},
        missing=dict(sorted({**replies.missing, **missing}.items())),
        sketches=None if replies.sketches is None else replies.sketches[rows],
        update_lengths={name: values[kept] for name, values in replies.update_lengths.items()},
        sums={name: _only(summed, kept, len(replies)) for name, summed in replies.sums.items()},
    )


def _only(summed: Summed, kept: NDArray[np.int64], count: int) -> Summed:
    """Return an upload that was added up, for some of the replies.

    Raises:
        RuntimeError: one of the others is in the sums.
    """
    here = np.isin(summed.rows, kept)
    if len(kept) - here.sum() < count - len(summed.rows):
        raise RuntimeError("a client was left out whose upload has been added up; its hook must ask for rows")
    return Summed(summed.sums, np.searchsorted(kept, summed.rows[here]), summed.models[torch.from_numpy(here)])
