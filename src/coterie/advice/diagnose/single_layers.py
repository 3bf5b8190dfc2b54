"""Which layers tell clients apart, from the halves of their data and without planted groups (`--layers`).

LayerCFL compares clients by some layers only, which its authors choose "through statistics" on data whose groups
they know. Here the halves say it: in a layer that tells clients apart, updates of a client's own halves are
nearer to each other than those of strangers (the test of the diagnosis, layer by layer), and clients of one of
the groups that all layers together have found are more alike in it than clients of two. LayerCFL's Gap1 is of the
least similarity inside groups and the largest between them; here it is of the means, which a few clients do not
turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.advice.diagnose.signals import say_p
from coterie.errors import shorten
from coterie.grouping.halves import LEAST, PairingTest, client_distances, half_distances, pairing_test
from coterie.grouping.layers import every_layer
from coterie.methods.half_models import HalfModels
from coterie.models.layout import Layout

MOST_NAMED = 4
"""Layers that the sentence names of each kind."""


@dataclass(frozen=True)
class LayerSignal:
    """What the updates of one layer say of the clients."""

    name: str
    """As `method.layers` takes it; `all` for the whole network."""
    size: int
    """Its parameters."""
    test: PairingTest
    """Of the halves, in this layer alone."""
    contrast: float | None
    """Mean cosine of two clients of a group, less that of clients of two groups; None without groups."""


def compare_layers(
    halves: HalfModels,
    start: Tensor,
    layout: Layout,
    groups: NDArray[np.int64] | None,
    stream: Callable[[str], np.random.Generator],
    draws: int,
) -> tuple[LayerSignal, ...]:
    """Return what each layer says, the whole network last; nothing where too few clients are compared.

    Args:
        halves: models of the halves of `m` clients.
        start: the model that they started from `[P]`.
        layout: of the network.
        groups: of these clients `[m]`; None where none were found.
        stream: draws the pairings, by a purpose.
        draws: random pairings a test.
    """
    if len(halves.clients) < LEAST:
        return ()
    updates, found = (halves.models - start).double(), []
    for name, part in every_layer(layout).items():
        own = part.take(updates)
        if not bool((own != 0).any(1).all()):  # a frozen layer goes nowhere
            continue
        distances = half_distances((own @ own.T).numpy()[None])
        test = pairing_test(distances, stream(f"pairings in layer {name}"), draws)
        contrast = None if groups is None else _find_contrast(1 - client_distances(distances), groups)
        found.append(LayerSignal(name, part.size, test, contrast))
    return tuple(found)


def _find_contrast(similarity: NDArray[np.float64], groups: NDArray[np.int64]) -> float | None:
    """Return by how much clients of one group are more alike; None where no two share a group, or all do."""
    same = groups[:, None] == groups
    inside = same & ~np.eye(len(groups), dtype=bool)
    if not inside.any() or same.all():
        return None
    return float(similarity[inside].mean() - similarity[~same].mean())


def say_layers(layers: tuple[LayerSignal, ...], alpha: float, draws: int) -> tuple[str, ...]:
    """Return one sentence about the layers, those that tell clients apart best first; none where there are none."""
    single = [layer for layer in layers if layer.name != "all"]
    if not single:
        return ()
    telling = [layer for layer in single if layer.test.p <= alpha]
    if not telling:
        return ("Which layers? None tells clients apart by itself",)
    telling.sort(key=lambda one: one.test.own - one.test.random if one.contrast is None else -one.contrast)
    said = [
        f"{one.name} ({'' if one.contrast is None else f'{one.contrast:+.2f}, '}{say_p(one.test, draws)})"
        for one in telling
    ]
    rest = [layer.name for layer in single if layer not in telling][:MOST_NAMED]
    others = f"; not {', '.join(rest)}" if rest else ""
    advice = (
        ". In brackets: how much more alike two clients of one group are than two clients of different groups. For "
        f"layercfl write layers={telling[0].name}, the layer with the largest difference"
    )
    known = telling[0].contrast is not None
    return (f"Which layers? {shorten(said, MOST_NAMED)} tell clients apart{others}{advice if known else ''}",)
