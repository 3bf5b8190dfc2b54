"""A network as a chain of links: logits, and gradients of the mean cross-entropy, without a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from coterie.clients.engine.layer_gradients import Link, Use, link
from coterie.clients.rules.training import Precision
from coterie.models.gaussian import gaussian_dim
from coterie.models.layout import Layout
from coterie.models.networks import has_hooks


class Chain:
    """Any network, bound to a flat vector. An `nn.Sequential` is its members; what is none is one opaque link.

    Args:
        network: its parameters are views of `vector`.
        layout: of the network.
        vector: `[P]`.
        precision: of the gradients' arithmetic. In bf16 the activations and a copy of the parameters are bfloat16;
            `vector`, dense layers of few samples, the loss and the gradients that come back are float32.
    """

    def __init__(self, network: nn.Module, layout: Layout, vector: Tensor, precision: Precision = "fp32") -> None:
        places = {e.name: number for number, e in enumerate(layout.tensors)}
        places |= {other: places[name] for other, name in layout.tied}
        paths = {m: path for path, m in network.named_modules()}
        self._links: list[Link] = []
        # Stochastic features are trained as a whole elsewhere too, and to the same bits.
        for module in [network] if gaussian_dim(network) is not None else _members(network):
            own = [
                f"{paths[module]}.{name}".lstrip(".") for name, p in module.named_parameters() if p.requires_grad
            ]
            self._links.append(link(module, [places[name] for name in own]))
        self._is_opaque = self.has_opaque_links
        self._layout = layout
        self._vector = vector
        self._whole = [e.view(vector) for e in layout.tensors]
        self._bf16 = [t.to(torch.bfloat16) for t in self._whole] if precision == "bf16" else []

    @property
    def has_opaque_links(self) -> bool:
        """Whether any module's gradients are autograd's business."""
        return not all(each.kinds for each in self._links)

    def load(self, model: Tensor) -> list[Tensor]:
        """The trainable tensors of `model` `[P]`, for `logits`: where it lies, if every link is written out.

        Any other link has the parameters and buffers of its module: then the model is copied into the vector. So it
        is where the model's place in a cache line is another, of which a kernel's last digits may depend.
        """
        alike = (model.data_ptr() - self._vector.data_ptr()) % 64 == 0
        if alike and not self._is_opaque:
            return [e.view(model) for e in self._layout.tensors]
        self._vector.copy_(model)
        return self._whole

    @torch.no_grad()
    def logits(self, x: Tensor, tensors: Sequence[Tensor] | None = None) -> Tensor:
        """Logits `[B, C]` of inputs as the network takes them, in float32; of the vector, or of what was loaded."""
        tensors, free = self._whole if tensors is None else tensors, False
        for each in self._links:
            x, _ = each.forward(
                x,
                [tensors[p] for p in each.places],
                Use(keep_activations=False, needs_input_grad=False, may_overwrite_input=free),
            )
            free = each.output_is_free
        return x

    @torch.no_grad()
    def gradients(
        self, x: Tensor, y: Tensor, wanted: Sequence[int], exact: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """The mean cross-entropy, and its gradients in the trainable tensors with the numbers `wanted`, in float32.

        Args:
            x: inputs as the network takes them.
            y: their labels `[B]`.
            wanted: ascending.
            exact: compute in float32 whatever the precision is.
        """
        tensors = self._whole
        if self._bf16 and not exact:
            # Whole numbers, as tokens, are names: rounded to eight binary digits they would be others.
            tensors, x = self._in_bf16(len(y)), x.to(torch.bfloat16) if x.is_floating_point() else x
        asked = set(wanted)
        lowest = next((i for i, each in enumerate(self._links) if asked & set(each.places)), len(self._links))
        saved, free = [], False
        for i, each in enumerate(self._links):
            use = Use(keep_activations=i >= lowest, needs_input_grad=i > lowest, may_overwrite_input=free)
            x, needed = each.forward(x, [tensors[p] for p in each.places], use)
            saved.append(needed)
            free = each.output_is_free
        log = x.float().log_softmax(1)
        loss = nll_loss(log, y)
        delta = torch.zeros_like(log).scatter_(1, y.unsqueeze(1), -1 / len(y))
        delta = torch.ops.aten._log_softmax_backward_data(delta, log, 1, log.dtype).to(x.dtype)
        found: dict[int, Tensor] = {}
        for i in range(len(self._links) - 1, lowest - 1, -1):
            each = self._links[i]
            own_wanted = [p in asked for p in each.places]
            into, gradients = each.backward(delta, saved.pop(), own_wanted, needs_input_grad=i > lowest)
            for place, gradient in zip(each.places, gradients, strict=True):
                if gradient is not None:
                    # A module that stands in the chain twice has one gradient.
                    found[place] = found[place] + gradient.float() if place in found else gradient.float()
            delta = delta if into is None else into
        return loss, [found[place] for place in wanted]

    def _in_bf16(self, samples: int) -> list[Tensor]:
        """The trainable tensors in bfloat16 as they are now, but for those of links that lose by it."""
        tensors = list(self._whole)
        for place in {p for each in self._links if each.gains_by_bf16(samples) for p in each.places}:
            tensors[place] = self._bf16[place].copy_(self._whole[place])
        return tensors


def _members(network: nn.Module) -> Iterator[nn.Module]:
    if type(network) is nn.Sequential and not has_hooks(network):
        for module in network:
            yield from _members(module)
    else:
        yield network
