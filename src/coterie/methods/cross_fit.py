"""How models are made without a part of every client's samples, and scored on it (`coterie diagnose`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.fold import FOLDS, OPTIONS, FoldScores, FoldUpdate, Kind
from coterie.clients.rules.rule import Rule
from coterie.grouping.aggregate import group_means
from coterie.grouping.gains import are_sound
from coterie.grouping.halves import half_distances
from coterie.grouping.robust import clip_updates
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.method import ServerView

ROUNDS = 10
"""Rounds in which a model is trained for all, or for a group."""

STEPS = 20
"""Steps of the median client in such a round, at least, as long as `MOST_PASSES` allows them."""

MOST_PASSES = 5
TUNING = 5
"""Passes of fine-tuning."""


@dataclass(frozen=True, eq=False)
class CrossFit:
    """What models score that had no part of the samples on which they are scored.

    Attributes:
        clients: `[r]`, ascending.
        options: names of the M models that each could have (`fold.OPTIONS`).
        moments: `[F, r, 1 + M, 1 + M]`, of each fold (`grouping.gains`); 0 where a client gave no sound answer.
        rounds: in which models for several clients were trained.
        passes: over a client's samples in each of them.
    """

    clients: Ids
    options: tuple[str, ...]
    moments: NDArray[np.float64]
    rounds: int
    passes: int


def place_by_other_half(products: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return of which group each client is `[2, n]`, by its second half alone and by its first half alone.

    So the group of a client that is scored on samples of one half is told by the other half: the one whose other
    members are nearest on average. A client alone in its group stays there.

    Args:
        products: `[V, 2 n, 2 n]` (`grouping.halves`).
        labels: of all clients by both halves `[n]`, canonical.
    """
    n = len(labels)
    apart = half_distances(products).reshape(n, 2, n, 2).mean(3)  # from halves to clients
    member = labels[:, None] == np.arange(int(labels.max(initial=0)) + 1)
    alone = member.sum(0)[labels] == 1
    found = np.empty((2, n), np.int64)
    for half in (0, 1):
        away = apart[:, half].copy()
        np.fill_diagonal(away, 0.0)
        others = member.sum(0)[None] - member
        means = np.where(others > 0, away @ member / np.maximum(others, 1), np.inf)
        found[1 - half] = np.where(alone, labels, means.argmin(1))
    return found


def choose_passes(samples: NDArray[np.int64], batch_size: int, epochs: int) -> int:
    """Return the passes of a round: the experiment's, or as many as make `STEPS` steps of the median client."""
    steps = -(-max(1, int(np.median(samples))) // batch_size) if len(samples) else STEPS
    return max(1, epochs, min(MOST_PASSES, -(-STEPS // steps)))


def cross_fit(
    clients: Ids,
    groups: NDArray[np.int64] | None,
    server: ServerView,
    size: int,
    passes: int,
    kind: Kind,
    rounds: int = ROUNDS,
    done: Callable[[int], None] = lambda fold: None,
) -> Exchanges[CrossFit]:
    """Train and score all options without each fold of the clients' samples.

    For each of four folds, `rounds` rounds train a model for all, and as many a model for each group. In one more,
    each client makes what it could have of these and scores everything on the fold. No update counts for more than
    one of the median length in its group does, so that nobody turns a mean by scaling.

    Args:
        clients: whom to ask `[m]`.
        groups: of each client `[2, m]`, for scores on the first half and on the second; None where there are none.
        server: what is known of them.
        size: samples in a half.
        passes: over a client's samples in a round.
        kind: what is scored.
        rounds: as above.
        done: is told each fold, 1, 2, …, when its answers are there.

    Costs `F (rounds + 1) m P b` bytes down and `F rounds m P b` up, and twice that where there are groups.
    """
    options = OPTIONS if groups is not None else OPTIONS[:-2]
    moments = np.zeros((FOLDS, len(clients), 1 + len(options), 1 + len(options)))
    start = server.initial(0)[None]
    for fold in range(FOLDS):
        rules = [FoldUpdate(size, fold, passes, number) for number in range(rounds)]
        all_one = np.zeros(len(clients), np.int64)
        whole = yield from train_clipped(rules, clients, all_one, start, server)
        send = {"model": Send.same(whole[0], clients)}
        if groups is not None:
            own = groups[fold // 2]
            models = yield from train_clipped(rules, clients, own, start.repeat(int(groups.max()) + 1, 1), server)
            send["group"] = Send(models, own)
        rule = FoldScores(size, fold, passes * rounds, TUNING, kind, groups is not None)
        replies: Replies = yield Exchange(clients, rule, send)
        if len(replies):
            found = replies.uploads["moments"].double().numpy()
            found = np.where(are_sound(found, size, kind == "accuracy")[:, None, None], found, 0.0)
            moments[fold, np.searchsorted(clients, replies.clients)] = found
        done(fold + 1)
    return CrossFit(clients, options, moments, rounds, passes)


def train_clipped(
    rules: Sequence[Rule], clients: Ids, groups: NDArray[np.int64], models: Tensor, server: ServerView
) -> Exchanges[Tensor]:
    """Return the models `[K, P]` of the groups `[m]` after one round for each rule, in which clients train theirs.

    No update counts for more than one of the median length in its group does.
    """
    for rule in rules:
        replies: Replies = yield Exchange(clients, rule, {"model": Send(models, groups)})
        if not len(replies):
            continue
        own = groups[np.searchsorted(clients, replies.clients)]
        starts = models[torch.from_numpy(own)]
        trained = replies.models.clone()
        lengths = torch.linalg.vector_norm(trained - starts, dim=1, dtype=torch.float64).numpy()
        for group in np.unique(own):
            rows = torch.from_numpy(np.flatnonzero(own == group))
            trained[rows] = clip_updates(trained[rows], starts[rows], float(np.median(lengths[own == group])))
        models = group_means(trained, own, models, server.samples[replies.clients])
    return models
