"""AdaCFL: recursive bipartition by the distance between the clients' classifiers (Gong et al., 2022).

https://openreview.net/forum?id=2j6Te0XLvq. LayerCFL's authors compare with it as LayerCFL's recursion in which:
    1. Clients are compared by the l2 distance between the weights of their last dense layer.
    2. The norms are tested as in CFL, and the separation of a cut by the cosines of updates.
Neither local epochs nor the number of clusters adapt.
Decisions where the paper is silent, and cost: docs/methods/adacfl.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.methods.cfl import Distance, Layers, Signal
from coterie.methods.layercfl import LayerCFL
from coterie.methods.registry import METHODS


@METHODS.add("adacfl")
@dataclass(frozen=True)
class AdaCFL(LayerCFL):
    """Recursive bipartition by the l2 distance of the weights of the last dense layer (Gong et al., 2022).

    Per round: down and up `m P b` bytes.
    """

    family = "clustered, hierarchical"

    layers: Layers = "last:1"
    signal: Signal = "weights"
    distance: Distance = "l2"

    eps2_is_of_selected: ClassVar[bool] = False
