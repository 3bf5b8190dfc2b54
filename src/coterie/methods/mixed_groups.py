"""How a mixed method looks for groups: what is compared, whether it is time, and what is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.exchange import Log, LogGap, Outputs, Replies, Round
from coterie.grouping import layers as looking
from coterie.grouping.affinity import (
    cosines,
    gram_coordinates,
    js_divergences,
    pairwise_distances,
    scaled_l1,
    squared_distances,
)
from coterie.grouping.cluster import bipartition, cut, dendrogram, kmeans, nearest_group, threshold, within
from coterie.grouping.rapid_decrease import decrease_ended
from coterie.grouping.splitting import separation
from coterie.grouping.trigger import hopkins
from coterie.labels import canonical
from coterie.methods.method import UNKNOWN, Cohort, People
from coterie.methods.mixed_state import MixedState
from coterie.methods.parts import Parts
from coterie.models.layout import Layout, Part

Labels = NDArray[np.int64]
Matrix = NDArray[np.float64]

WINDOW, OBSERVED = 5, 3
"""Losses in a mean, and rounds that the radius must stay larger (DC-PFL)."""


def looked_at(parts: Parts, state: MixedState, layout: Layout) -> Part:
    """The columns that distances see: of the layers asked for, those that every group shares."""
    names, chosen = looking.candidates(layout, parts.layers)
    if chosen < 0:
        chosen = state.chosen if state.chosen >= 0 else len(names) - 1
    part = list(names.values())[chosen]
    always = (state.periods == 1).all(0)
    for shared in parts.map.shared(layout, state.depth, always[None]):
        part = part & shared
    return part


def signals(parts: Parts, state: MixedState, seen: Tensor, people: People) -> Round[Tensor]:
    """What is compared of models or updates `[r, P]`: rows `[r, size]`, or outputs `[r, samples, classes]`."""
    if parts.signal != "outputs":
        return looked_at(parts, state, people.layout).take(seen)
    assert people.public is not None
    found: Tensor = yield Outputs(seen, people.public)
    return found


def distances(parts: Parts, rows: Tensor, others: Tensor | None = None) -> Matrix:
    """Distances `[r, r]` between signals, or `[r, s]` to others."""
    if parts.measure == "js":
        return js_divergences(rows, others)
    if parts.measure == "l1":
        return scaled_l1(rows, others)
    both = rows if others is None else torch.cat([rows, others])
    found = 1.0 - cosines(both) if parts.measure == "cosine" else pairwise_distances(gram_coordinates(both))
    return found if others is None else found[: len(rows), len(rows) :]


def searched(parts: Parts, state: MixedState, cohort: Cohort) -> Round[tuple[Labels | None, MixedState]]:
    """New groups `[n]`, -1 for who is unknown, where it is time to look and others were found; else None."""
    members = np.flatnonzero(state.known)
    if parts.cluster == "none" or len(members) < 2:
        return None, state
    state = watched(parts, state, cohort)
    rows = yield from signals(parts, state, state.seen[members], cohort.people)
    matrix = distances(parts, rows)
    yield LogGap("signal", members, matrix, "distance")
    fired = yield from _fired(parts, state, rows, cohort)
    yield Log("fired", float(fired.any()))
    if not fired.any():
        return None, state
    labels, refused = _found(parts, state, fired, matrix, rows, cohort)
    if parts.map.kind == "moving":
        state = replace(state, depth=state.depth * parts.psi)
        yield Log("shared layers", state.depth)
    state = replace(state, rest=cohort.round + 1 + parts.wait if refused else state.rest)
    labels = canonical(labels)
    if np.array_equal(labels, canonical(state.groups[members])):
        return None, state
    groups = np.full(cohort.people.n, UNKNOWN, np.int64)
    groups[members] = labels
    return groups, state


def watched(parts: Parts, state: MixedState, cohort: Cohort) -> MixedState:
    """One more look at every layer until groups are looked for; then the one that parts clients best (LayerCFL)."""
    if parts.layers != looking.AUTO or state.chosen >= 0:
        return state
    if state.known.all():
        names, _ = looking.candidates(cohort.people.layout, parts.layers)
        seen = [cosines(part.take(state.seen)) for part in names.values()]
        state, _ = looking.looked(state, seen, "complete")
    return looking.decided(state) if cohort.round >= parts.after and state.looks else state


def _fired(parts: Parts, state: MixedState, rows: Tensor, cohort: Cohort) -> Round[NDArray[np.bool_]]:
    """In which groups `[K]` it is time to look for finer ones, or anew."""
    everybody = np.ones(len(state.models), np.bool_)
    if parts.trigger == "hopkins":
        points = rows.flatten(1).double().numpy() if parts.measure == "js" else gram_coordinates(rows)
        value = hopkins(points, cohort.people.stream("hopkins", cohort.round))
        yield Log("hopkins", value)
        yield Log("hopkins threshold", parts.threshold)
        everybody &= value > parts.threshold and len(rows) >= 3
    if parts.trigger == "rapid_decrease":
        everybody &= decrease_ended(state.losses, WINDOW, OBSERVED)
    if parts.trigger == "once":
        everybody &= cohort.round == parts.after
    if parts.trigger == "stationary":
        everybody = state.resting
    return everybody & (cohort.round >= max(parts.after, state.rest))


def _found(
    parts: Parts, state: MixedState, fired: NDArray[np.bool_], matrix: Matrix, rows: Tensor, cohort: Cohort
) -> tuple[Labels, bool]:
    """Groups of the known clients `[r]`, and whether any were refused."""
    now, layout = state.groups[state.known], cohort.people.layout
    if parts.cluster == "bipartition":
        return _halved(parts, now, fired, matrix)
    if parts.cluster == "dbscan":
        return within(matrix, threshold(parts.eps, matrix)), False
    if parts.cluster == "nearest" and len(state.models) > 1:
        centres = looked_at(parts, state, layout).take(state.models)
        return np.asarray(squared_distances(rows, centres).argmin(1), np.int64), False
    if parts.cluster in ("kmeans", "nearest"):
        return kmeans(rows, parts.clusters, 20, cohort.people.stream("kmeans", cohort.round)), False
    tree = dendrogram(matrix)
    if parts.cut is not None:
        return cut(tree, parts.cut * float(tree[-1, 2])), False
    clusters = min(parts.clusters, len(matrix))
    height = float(tree[-clusters, 2]) if clusters > 1 else float(tree[-1, 2])
    return cut(tree, height), False


def _halved(parts: Parts, now: Labels, fired: NDArray[np.bool_], matrix: Matrix) -> tuple[Labels, bool]:
    labels, refused = now.copy(), False
    for group in np.flatnonzero(fired):
        members = np.flatnonzero(now == group)
        if len(members) < 3:
            continue
        own = matrix[np.ix_(members, members)]
        sides = bipartition(own)
        if parts.accept == "separation" and separation(1.0 - own, sides) <= parts.gamma_max:
            refused = True
            continue
        labels[members[sides == 1]] = labels.max() + 1
    return labels, refused


def rested(parts: Parts, state: MixedState, replies: Replies, layout: Layout) -> MixedState:
    """With the norms of this round's updates: which groups' mean update is short while a member's is long."""
    if not len(replies) or parts.trigger != "stationary":
        return state
    groups = state.groups[replies.clients]
    part = layout.trainable
    crossed = part.take(replies.models)
    moved = (crossed - part.take(state.starts)[torch.from_numpy(state.rows(replies.clients))]).double()
    moved = moved.nan_to_num(0.0)
    tops, resting = state.tops.copy(), np.zeros(len(state.models), np.bool_)
    for group in range(len(state.models)):
        members = groups == group
        if members.sum() < 3:
            continue
        own = moved[torch.from_numpy(members)]
        share = torch.from_numpy(replies.samples[members] / replies.samples[members].sum())
        short = float((own * share[:, None]).sum(0).norm())
        tops[group] = max(tops[group], short)
        limit = parts.eps1_frac * tops[group]
        resting[group] = short < limit and float(own.norm(dim=1).max()) >= parts.ratio * limit
    return replace(state, tops=tops, resting=resting)


def placed(parts: Parts, state: MixedState, people: People) -> Round[MixedState]:
    """Whoever was seen for the first time after the others were grouped joins the nearest group."""
    new = np.flatnonzero(state.known & (state.groups == UNKNOWN))
    old = np.flatnonzero(state.known & (state.groups != UNKNOWN))
    if not len(new) or not len(old):
        return state
    mine = yield from signals(parts, state, state.seen[new], people)
    theirs = yield from signals(parts, state, state.seen[old], people)
    groups = state.groups.copy()
    at, labels = np.unique(groups[old], return_inverse=True)
    groups[new] = at[nearest_group(distances(parts, mine, theirs), labels)]
    return replace(state, groups=groups)
