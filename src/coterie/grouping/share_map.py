"""Which layers a client keeps, which its group shares and which everybody does, as a setting says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from coterie.errors import BadInput
from coterie.grouping.schedule import parts_of, whole_parts
from coterie.models.layout import Layout, Part

Kind = Literal["group", "global", "private", "common", "moving", "periodic"]


@dataclass(frozen=True)
class ShareMap:
    """Where each layer is averaged: among nobody, a group, or everybody.

    `group`: all layers in groups. `global`: all over everybody. `private LAYERS`: these stay with the client, the
    others are their group's (FedPer in groups). `common LAYERS`: these are everybody's, the others their group's
    (FedCPS). `moving`: in groups from the input up to a boundary that moves towards it at a regrouping
    (FedTSDP). `periodic`: in groups, layers in which members hardly differ only now and then (DC-PFL).
    """

    kind: Kind
    """One of the six."""
    layers: str = ""
    """Which layers are private or common."""

    @classmethod
    def read(cls, text: str) -> ShareMap:
        """The map that a setting names.

        Raises:
            ValueError: it names none.
        """
        kind, _, layers = text.strip().partition(" ")
        layers = layers.strip()
        if kind not in get_args(Kind) or (kind in ("private", "common")) != bool(layers):
            raise ValueError("write group, global, private LAYERS, common LAYERS, moving or periodic")
        return cls(kind, layers)  # type: ignore[arg-type]  # tested above

    @property
    def keeps(self) -> bool:
        """Whether clients keep a model of their own."""
        return self.kind in ("private", "moving", "periodic")

    def common(self, layout: Layout) -> Part:
        """What is averaged over everybody.

        Raises:
            BadInput: the network has no such layers.
        """
        if self.kind == "common" and self.layers == "all":
            raise BadInput("method.share = 'common all' leaves nothing to groups; write global")
        if self.kind == "common":
            return layout.select(self.layers, f"method.share = '{self.kind} …', in which layers")
        return layout.everything if self.kind == "global" else layout.nothing

    def shared(self, layout: Layout, depth: float, due: NDArray[np.bool_]) -> list[Part]:
        """What each of K groups shares now, with everybody's part in it.

        Args:
            layout: of the network.
            depth: how many layers are shared, from the input on (`moving`).
            due: the layers that are averaged in this round `[K, L]` (`periodic`).

        Raises:
            BadInput: the network has no such layers, or nothing would be left to share.
        """
        if self.kind == "periodic":
            return parts_of(due, whole_parts(layout))
        part = layout.everything
        if self.kind == "moving":
            part = layout.first_tensors(int(depth * len(layout.tensors) / len(layout.layers) + 1e-9))
        if self.kind == "private":
            part = part - layout.select(self.layers, f"method.share = '{self.kind} …', in which layers")
            if not part:
                raise BadInput(
                    f"method.share = 'private {self.layers}' keeps every layer; it must leave one to share"
                )
        return [part] * len(due)


def _share(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("write group, global, private LAYERS, common LAYERS, moving or periodic")
    ShareMap.read(value)
    return value


Share = Annotated[str, BeforeValidator(_share)]
"""A share map as a setting."""
