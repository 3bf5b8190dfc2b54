"""Updates that are out of all proportion to those of the cohort count for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.methods.exchange import Exchange, Ids, Replies, Send
from coterie.models.layout import Part

LEAST = 3
"""Answers below which nobody can say whose update is out of proportion."""

TRAINED = ("initial", "models", "model", "base", "heads", "head")
"""Names under which methods send what clients then train; a later one lies over those before."""

_NUMBERS = 1 << 22
"""Numbers of models looked at together."""


def find_starts(
    exchange: Exchange, replies: Replies, rows: NDArray[np.int64], earlier: Sequence[Exchange] = ()
) -> Tensor:
    """Return what some clients were sent and trained, `[len(rows), P]`; NaN in columns that were not sent.

    Of several models it is the one that a client says it chose; where it says nothing, the one that is nearest to
    what it uploads.

    Args:
        exchange: by which they were asked.
        replies: with an upload called `model`.
        rows: of the replies.
        earlier: the exchanges of the round before that one; a client may be sent a model in one of them.
    """
    starts = torch.full((len(rows), replies.models.shape[1]), torch.nan)
    for one in (*earlier, exchange):
        _lay_sent(one, replies, rows, starts)
    return starts


def _lay_sent(exchange: Exchange, replies: Replies, rows: NDArray[np.int64], starts: Tensor) -> None:
    """Lay what an exchange sent to the clients of some rows over what they are known to have begun with."""
    ids = replies.clients[rows]
    asked = np.flatnonzero(np.isin(ids, exchange.clients))
    at = np.searchsorted(exchange.clients, ids[asked])
    choices = replies.numbers.get("choice")
    for name in TRAINED:
        if (send := exchange.send.get(name)) is None:
            continue
        sent = send.rows[at]
        if sent.ndim == 2 and choices is not None:
            chosen = np.clip(choices[rows[asked]], 0, sent.shape[1] - 1).astype(np.int64)
            sent = sent[np.arange(len(at)), chosen]
        elif sent.ndim == 2:
            models = replies.models[torch.from_numpy(rows[asked])]
            sent = np.array([_find_nearest(*pair, send) for pair in zip(models, sent, strict=True)], np.int64)
        there = np.flatnonzero(sent >= 0)
        if send.part is None:
            starts[torch.from_numpy(asked[there])] = send.matrix[torch.from_numpy(sent[there])]
            continue
        for i in there.tolist():
            part = send.part if isinstance(send.part, Part) else send.part[at[i]]
            part.copy(starts[asked[i]], send.matrix[sent[i]])


def _find_nearest(model: Tensor, rows: NDArray[np.int64], send: Send) -> int:
    """Return which of the rows that a client was sent is nearest to its model `[P]`; -1 where it was sent none."""
    there = rows[rows >= 0]
    if len(there) < 2:
        return int(there[0]) if len(there) else -1
    part = send.part if isinstance(send.part, Part) else None
    sent = send.matrix[torch.from_numpy(there)]
    away = (sent - model) if part is None else part.take(sent) - part.take(model)
    return int(there[int(away.nan_to_num(0.0).norm(dim=1).argmin())])


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
    for name, values in replies.uploads.items():
        lengths, starts = _measure_updates(exchange, replies, name, values, earlier)
        usual = float(np.median(lengths if len(replies) >= LEAST else starts))
        of = "the median of the cohort" if len(replies) >= LEAST else "the model that was sent"
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
    starts = torch.zeros_like(values)
    if name == "model":
        starts = find_starts(exchange, replies, np.arange(len(replies)), earlier).double()
        starts = torch.where(starts.isnan(), values[torch.from_numpy(known)].nanmean(0), starts)
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
    )


def _measure_updates(
    exchange: Exchange, replies: Replies, name: str, values: Tensor, earlier: Sequence[Exchange]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the length of each client's update, and of the model it began as `[r]`, 0 for what is none.

    A length that float32 does not hold is infinite.
    """
    lengths, begun = np.empty(len(replies)), np.zeros(len(replies))
    block = max(1, _NUMBERS // max(1, values[0].numel()))
    for first in range(0, len(replies), block):
        rows = np.arange(first, min(first + block, len(replies)))
        updates = values[first : first + block].flatten(1)
        if name == "model":
            starts = find_starts(exchange, replies, rows, earlier).nan_to_num_(0.0)
            begun[rows] = starts.norm(dim=1).numpy()
            updates = updates - starts
        # What did not cross is NaN.
        lengths[rows] = updates.nan_to_num(0.0, torch.inf, -torch.inf).norm(dim=1).numpy()
    return lengths, begun
