"""Which layers tell the clients apart: presets, layers by name, and a choice made from the updates alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.catalogue import state
from coterie.errors import BadInput
from coterie.grouping.affinity import (
    cosines,
    cosines_from_products,
    distances_from_products,
    inner_products,
    model_distances,
)
from coterie.grouping.cluster import Linkage, dendrogram, mean_silhouette
from coterie.grouping.labels import relabel
from coterie.models.layout import Kind, Layout, Part

Measure = Literal["cosine", "l2"]

ALL = "all"
AUTO = "auto"
UNDECIDED = -1
"""The chosen layer's number before one is chosen."""

FEATURE_SKEW_CONVOLUTION = 3
"""The paper's convolution for clients that differ in features, counted from 0."""

NO_STRUCTURE = 0.25
"""Mean silhouettes up to here speak for no groups at all (Kaufman and Rousseeuw, 1990)."""

MOST_GROUPS = 16
"""Groups up to which a number of groups is looked for."""

_PRESETS: dict[str, Kind] = {"feature_skew": "conv", "label_skew": "dense"}


def every_layer(layout: Layout) -> dict[str, Part]:
    """Weights and bias of each layer by name, without norms; behind them `all`, everything trainable.

    A layer that is nothing but a norm is left out (docs/methods/layercfl.md, D1).
    """
    found = {name: _without_norms(layout, layout.of_layers([i])) for i, name in enumerate(layout.layers)}
    return {name: part for name, part in found.items() if part} | {ALL: layout.trainable}


def candidates(layout: Layout, layers: str) -> tuple[dict[str, Part], int]:
    """Every selection that may be looked at, by name, and the number of the one that decides, -1 for none yet.

    Args:
        layout: of the clients' network.
        layers: `auto`; `feature_skew`, the fourth convolution, or the last where there are fewer; `label_skew`, the
            first dense layer; or what `Layout.select` takes. Buffers never count, and norms only in `all` and
            `norm` (docs/methods/layercfl.md, D1).

    Returns:
        What `every_layer` gives, in front of `all` also the selection where it is none of them.

    Raises:
        BadInput: the network has no such layer.
    """
    parts = every_layer(layout)
    if layers == AUTO:
        return parts, UNDECIDED
    part = _selected(layout, layers)
    names = [name for name, other in parts.items() if other == part]
    if not names:
        everything = parts.pop(ALL)
        parts |= {layers: part, ALL: everything}
        names = [layers]
    return parts, list(parts).index(names[0])


def _selected(layout: Layout, layers: str) -> Part:
    if layers in _PRESETS:
        kind = _PRESETS[layers]
        numbers = sorted({e.layer for e in layout.tensors if e.kind == kind})
        if not numbers:
            raise BadInput(
                f"method.layers = {layers!r} is not possible: this network has no {kind} layer; write {AUTO}, "
                f"{ALL} or some of its layers: {', '.join(layout.layers)}"
            )
        first = FEATURE_SKEW_CONVOLUTION if kind == "conv" else 0
        return _without_norms(layout, layout.of_layers([numbers[min(first, len(numbers) - 1)]]))
    part = layout.select(layers, "method.layers")
    part = part & layout.trainable if layers in (ALL, "norm") else _without_norms(layout, part)
    if not part:
        raise BadInput(
            f"method.layers = {layers!r} selects norms alone; write norm to mean them, or name other layers"
        )
    return part


def _without_norms(layout: Layout, part: Part) -> Part:
    return part & layout.where(lambda e: e.role != "buffer" and e.kind != "norm")


def compare_signals(signals: Tensor, measure: Measure) -> NDArray[np.float64]:
    """How alike (`cosine`) or how far apart (`l2`) signals `[r, size]` are, `[r, r]` (LayerCFL, Eq. 23 to 26)."""
    return cosines(signals) if measure == "cosine" else model_distances(signals)


def compare_parts(signals: Tensor, parts: Sequence[Part]) -> list[dict[Measure, NDArray[np.float64]]]:
    """What `compare_signals` gives for each of some parts of signals `[r, P]`, by every measure.

    Products are taken once: those of a part that others make up, as layers do a model, are the sum of theirs. They
    are of the signals as they are, since cosines need them so; a squared distance is then wrong by some 1e-15 of
    the longest signal's square.
    """
    known: list[tuple[Part, NDArray[np.float64]]] = []
    found: dict[int, dict[Measure, NDArray[np.float64]]] = {}
    for number in sorted(range(len(parts)), key=lambda i: parts[i].size):
        rest, total = parts[number], np.zeros((len(signals), len(signals)))
        for part, own in reversed(known):
            if (part & rest) == part:
                rest, total = rest - part, total + own
        total = total + inner_products(rest.take(signals)) if rest else total
        known.append((parts[number], total))
        found[number] = {"cosine": cosines_from_products(total), "l2": distances_from_products(total)}
    return [found[number] for number in range(len(parts))]


def distances(matrix: NDArray[np.float64], measure: Measure) -> NDArray[np.float64]:
    """What `compare_signals` gives, `[n, n]`, as distances: 1 less a cosine (docs/methods/layercfl.md, D8)."""
    return 1.0 - matrix if measure == "cosine" else matrix


@state("layer-choice")
@dataclass(frozen=True, eq=False)
class LayerChoice:
    """Which layer is looked at, and what is known of each of C candidates while that is still to be decided."""

    chosen: int  # number of the candidate, -1 while undecided
    looks: int  # in how many rounds everybody could be compared
    silhouettes: NDArray[np.float64]  # [C], sum over the looks of the mean silhouette of the own grouping
    agreements: NDArray[np.float64]  # [C], sum of the adjusted Rand index of each look's grouping and the next one
    groupings: NDArray[np.int64]  # [C, n], the groupings of the last look


C = TypeVar("C", bound=LayerChoice)


def best_cut(apart: NDArray[np.float64], linkage: Linkage) -> tuple[NDArray[np.int64], float]:
    """The groups `[n]` at which the tree of distances `[n, n]` is best cut, and their mean silhouette.

    Two to n / 2 groups are tried, at most `MOST_GROUPS`. Where nobody is apart from anybody there is one group, and
    the silhouette is said to be -1.
    """
    from scipy.cluster.hierarchy import cut_tree

    tree, best, most = dendrogram(apart, linkage), np.zeros(len(apart), np.int64), -1.0
    if not apart.any():
        return best, most
    for count in range(2, max(2, min(len(apart) // 2, MOST_GROUPS)) + 1):
        groups = relabel(np.asarray(cut_tree(tree, [count])[:, 0], np.int64))
        found = mean_silhouette(apart, groups)
        if found > most:
            best, most = groups, found
    return best, most


def record_look(
    choice: C, clients: NDArray[np.int64], similarities: Sequence[NDArray[np.float64]], linkage: Linkage
) -> tuple[C, NDArray[np.float64]]:
    """One more look at the similarities of clients in each of C candidates (LayerCFL, D2).

    Args:
        choice: what was seen so far.
        clients: who is looked at `[r]`: all but those who never answer.
        similarities: between them `[r, r]`, one matrix a candidate.
        linkage: by which they are cut into groups.

    Returns:
        The choice, still to be decided, and the mean silhouettes of this look `[C]`.
    """
    from sklearn.metrics import adjusted_rand_score

    cuts = [best_cut(_without_diagonal(1.0 - s), linkage) for s in similarities]
    groupings, silhouettes = np.full_like(choice.groupings, -1), np.array([mean for _, mean in cuts])
    groupings[:, clients] = [groups for groups, _ in cuts]
    agreements = choice.agreements
    if choice.looks:
        both = ((choice.groupings >= 0) & (groupings >= 0)).all(0)
        pairs = zip(choice.groupings[:, both], groupings[:, both], strict=True)
        agreements = agreements + np.array([adjusted_rand_score(one, other) for one, other in pairs])
    return replace(
        choice,
        looks=choice.looks + 1,
        silhouettes=choice.silhouettes + silhouettes,
        agreements=agreements,
        groupings=groupings,
    ), silhouettes


def _without_diagonal(apart: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances with exact zeros on the diagonal and none below 0."""
    apart = np.maximum(apart, 0.0)
    np.fill_diagonal(apart, 0.0)
    return apart


def decide_layer(choice: C) -> C:
    """The layer with the highest score: mean silhouette times mean agreement, the latter at least 0.

    The earliest on ties; the last candidate, which is everything and no layer, where no layer's score is above
    `NO_STRUCTURE` (docs/methods/layercfl.md, D2).
    """
    silhouettes = choice.silhouettes / max(choice.looks, 1)
    agreements = choice.agreements / max(choice.looks - 1, 1)
    scores = (silhouettes * np.maximum(agreements, 0.0))[:-1]
    chosen = int(scores.argmax()) if (scores > NO_STRUCTURE).any() else len(scores)
    return replace(choice, chosen=chosen)
