"""LayerCFL: CFL that compares clients by the updates of selected layers (Yuan et al., Cybersecurity 6, 2023).

https://doi.org/10.1186/s42400-023-00172-x. CFL's recursion (see `cfl.py`), but for three things:
    1. Cosines are taken of the layers in `layers` alone: a convolution where clients differ in features, a dense
       layer where they differ in labels. `auto` takes the layer that parts the clients most clearly and steadily in
       the rounds before `t_min`, as the paper leaves the choice open (D2).
    2. eps2 is held against the updates of these layers (Eq. 28); by default it is 0, which is no condition.
    3. Members count by their samples.
Decisions where the paper is silent, and cost: docs/methods/layercfl.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.grouping.layers import AUTO
from coterie.methods.cfl import CFL, Layers, Weights
from coterie.methods.registry import METHODS


@METHODS.add("layercfl")
@dataclass(frozen=True)
class LayerCFL(CFL):
    """Recursive bipartition of the clients by the cosine of the updates of selected layers (Yuan et al., 2023).

    Per round: bytes as for CFL. The selection saves computation at the server, not traffic.
    """

    family = "clustered, hierarchical"

    layers: Layers = AUTO
    weights: Weights = "samples"

    eps2_is_of_selected: ClassVar[bool] = True
