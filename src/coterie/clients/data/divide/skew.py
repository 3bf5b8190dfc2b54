"""Skews: what each group's data look like, applied on top of any partition.

A skew rewrites each client's samples in place and says which group it put each client in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coterie.clients.data.divide.partition import Groups, split
from coterie.errors import BadInput
from coterie.randomness import stream

SKEWS = frozenset({"rotated", "permuted-labels"})
"""The entries of `SPLITS` that are skews; any number of them goes with one partition."""


GroupSizes = Annotated[
    tuple[Annotated[int, Field(ge=1)], ...] | None,
    Field(description="clients in each group, the first clients in group 0; unset, client i is in i mod groups"),
]


@dataclass(frozen=True)
class Rows:
    """The reorganised data that a skew rewrites: client i's samples are rows `runs[i, 0]` to `runs[i, 1]`.

    `inputs` is `[N, *features]`, `labels` `[N]`, `runs` `[n, 2]`.
    """

    name: str
    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: int
    runs: NDArray[np.int64]
    seed: int


@split("rotated")
def rotated(
    rows: Rows,
    *,
    groups: Annotated[
        Literal[1, 2, 4], Field(description="number of true groups; client i is in group i mod groups")
    ] = 4,
    sizes: GroupSizes = None,
) -> NDArray[np.int64]:
    """Images of group g are turned by g * 360 / groups degrees, counter-clockwise (LayerCFL)."""
    shape = rows.inputs.shape[1:]
    if len(shape) != 3 or shape[0] != shape[1]:
        raise BadInput(
            f"split = 'rotated({groups})' needs square images and the inputs of {rows.name} have shape {shape}; "
            "leave rotated out, as in --split iid, or --split by-user where the data name their users"
        )
    group = assign_groups(len(rows.runs), groups, sizes, "rotated")
    for (start, stop), number in zip(rows.runs, group, strict=True):
        if number:
            images = rows.inputs[start:stop]
            images[:] = np.rot90(images, int(number) * (4 // groups), axes=(1, 2)).copy()
    return group


@split("permuted-labels", by_class=True)
def permuted_labels(rows: Rows, *, groups: Groups = 2, sizes: GroupSizes = None) -> NDArray[np.int64]:
    """Every group has its own permutation of the labels, group 0 the identity (incongruent groups).

    The permutations of two groups differ in every label.
    """
    if groups > rows.classes:
        raise BadInput(
            f"permuted-labels.groups = {groups} is not possible; {rows.name} has {rows.classes} classes, and at "
            f"most {rows.classes} permutations can differ in every label"
        )
    permutation = permutations(groups, rows.classes, rows.seed)
    group = assign_groups(len(rows.runs), groups, sizes, "permuted-labels")
    for (start, stop), number in zip(rows.runs, group, strict=True):
        rows.labels[start:stop] = permutation[number][rows.labels[start:stop]]
    return group


def assign_groups(clients: int, groups: int, sizes: tuple[int, ...] | None, skew: str) -> NDArray[np.int64]:
    """Return each client's group `[clients]`: i mod groups, or runs of `sizes`.

    Raises:
        BadInput: the sizes are not of so many groups, or not of so many clients.
    """
    if sizes is None:
        return np.arange(clients) % groups
    if len(sizes) != groups or sum(sizes) != clients:
        raise BadInput(
            f"{skew}.sizes = {list(sizes)} is not possible; "
            f"it must be {groups} sizes that sum to the {clients} clients"
        )
    return np.repeat(np.arange(groups), sizes)


def permutations(groups: int, classes: int, seed: int) -> NDArray[np.int64]:
    """`[groups, classes]` label permutations, pairwise different in every label, the first the identity.

    They are cyclic shifts along one random circle of the classes, by distinct numbers of places.
    """
    rng = stream(seed, "permuted labels")
    circle = rng.permutation(classes)
    place = np.argsort(circle)
    shifts = np.concatenate([[0], 1 + rng.permutation(classes - 1)])[:groups]
    shifted: NDArray[np.int64] = circle[(place[None, :] + shifts[:, None]) % classes]
    return shifted
