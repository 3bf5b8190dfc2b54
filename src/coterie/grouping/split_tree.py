"""A tree of clusters that are split in two, one leaf at a time (CFL, LayerCFL; docs/methods/layercfl.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.catalogue import state
from coterie.grouping.labels import relabel
from coterie.models.layout import Part

Floats = NDArray[np.float64]


@state("leaves")
@dataclass(frozen=True, eq=False)
class Leaves:
    """The tree: its leaves in the order of their smallest member, and what each remembers.

    Split i makes the nodes 2 i + 1 and 2 i + 2 out of one; node 0 is everybody.
    """

    models: Tensor  # [K, P], of each leaf
    groups: NDArray[np.int64]  # [n], the leaf of each client
    nodes: NDArray[np.int64]  # [K], which node of the tree a leaf is
    tops: Floats  # [K, C], the greatest norm so far of a leaf's mean update, for each of C parts
    until: NDArray[np.int64]  # [K], the round up to which a leaf is not tested
    splits: NDArray[np.int64]  # [I, 2], which node was split, and in which round
    before: Tensor  # [I, P], the model of that node then
    means: Tensor  # [I, 2, T], the mean update of either half


L = TypeVar("L", bound=Leaves)


@dataclass(frozen=True)
class Gates:
    """When a leaf has come to rest and its clients have not (LayerCFL, Eq. 27 and 28).

    `eps1` and `eps2` stand for the thresholds themselves where they are given. With `eps1_frac` the first is that
    share of the greatest norm of a mean update so far, and the second `ratio` times the first, taken on the tensors
    that it is a threshold of. With none of them the first is the longest update of now divided by `ratio`, which is
    what any two thresholds of this ratio ask at least (docs/methods/layercfl.md, D4 to D6).
    """

    eps1_frac: float | None
    ratio: float
    eps1: float | None
    eps2: float | None

    def thresholds(self, top: float, tested_top: float, longest: float) -> tuple[float, float]:
        """The thresholds.

        Args:
            top: the greatest norm of a mean update so far, on all tensors.
            tested_top: the same on the tensors that the second threshold is of.
            longest: the longest update of a member now, on all tensors.
        """
        if self.eps1 is not None:
            eps1 = tested = self.eps1
        elif self.eps1_frac is not None:
            eps1, tested = self.eps1_frac * top, self.eps1_frac * tested_top
        else:
            eps1, tested = longest / self.ratio if self.ratio else float("inf"), 0.0
        return eps1, self.ratio * tested if self.eps2 is None else self.eps2


def norms(updates: Tensor, parts: Sequence[Part]) -> Floats:
    """Norms of updates `[m, T]` on each of C parts, `[m, C]`, in float64."""
    columns = [torch.linalg.vector_norm(part.take(updates), dim=1, dtype=torch.float64) for part in parts]
    return np.asarray(torch.stack(columns, 1).numpy())


def separation(similarities: Floats, sides: NDArray[np.int64]) -> float:
    """`sqrt((1 - a) / 2)`, a being the greatest similarity across the sides (CFL, Theorem 1; D9).

    Args:
        similarities: cosines `[m, m]`.
        sides: 0 and 1 `[m]`, each of them at least once.
    """
    return separation_at(float(similarities[np.ix_(sides == 0, sides == 1)].max()))


def separation_at(across: float) -> float:
    """The same, given the greatest similarity across the sides."""
    return float(np.sqrt(max(1.0 - across, 0.0) / 2))


def born(leaves: Leaves) -> NDArray[np.int64]:
    """The round in which each leaf was made `[K]`, 0 for the first."""
    made = leaves.splits[(np.maximum(leaves.nodes, 1) - 1) // 2, 1] if len(leaves.splits) else leaves.nodes
    return np.where(leaves.nodes > 0, made, 0)


def row_of(leaves: Leaves, node: int) -> int:
    """Which leaf a node of the tree is."""
    return int(np.flatnonzero(leaves.nodes == node)[0])


def split(leaves: L, row: int, sides: NDArray[np.int64], means: Tensor, round: int) -> L:
    """The tree with one leaf split in two; both halves start with its model and remember nothing yet.

    Args:
        leaves: the tree.
        row: which leaf.
        sides: of its members in ascending id, 0 and 1, the first of them 0 `[m]`.
        means: the mean update of either half `[2, T]`.
        round: in which this happens.
    """
    groups, leaf = leaves.groups.copy(), int(leaves.nodes[row])
    groups[np.flatnonzero(groups == row)[sides == 1]] = len(leaves.nodes)
    node = 2 * len(leaves.splits) + 1
    nodes = np.append(leaves.nodes, node + 1)
    nodes[row] = node
    fresh = np.zeros((1, leaves.tops.shape[1]))
    tops, until = np.concatenate([leaves.tops, fresh]), np.append(leaves.until, 0)
    tops[row], until[row] = fresh, 0
    # Leaves are numbered by their smallest member, after every split anew.
    order = np.argsort(np.unique(groups, return_index=True)[1])
    models = torch.cat([leaves.models, leaves.models[row : row + 1]])
    return replace(
        leaves,
        models=models[torch.from_numpy(order)],
        groups=relabel(groups),
        nodes=nodes[order],
        tops=tops[order],
        until=until[order],
        splits=np.concatenate([leaves.splits, [[leaf, round]]]),
        before=torch.cat([leaves.before, leaves.models[row : row + 1]]),
        means=torch.cat([leaves.means, means[None]]),
    )
