"""Updates that a client hides itself, before anything leaves it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from coterie.clients.rules.rule import Answer, Order
from coterie.grouping.noise import hide_update
from coterie.randomness import PrivateRandomness

NOT_OF_SAMPLES = ("trained_samples",)
"""Measurements that a client may report: how many samples it has is known."""


@dataclass(frozen=True)
class UploadNoise:
    """What a client does to the model that it sends, so that nothing of its data shows (docs/privacy.md).

    Attributes:
        clip_norm: length to which the update is cut.
        multiplier: deviation of the noise in each number, in units of what it hides: two updates of that length may
            be twice as far apart.
        randomness: where the noise comes from; without a secret, it is new each time.
    """

    clip_norm: float
    multiplier: float
    randomness: PrivateRandomness = field(default_factory=PrivateRandomness)

    def hide(self, order: Order, answer: Answer) -> Answer:
        """Return the answer with noise in the model, and without what training reported.

        What a client measures on its held-out samples, and sends nothing besides, stays as it is.

        Raises:
            ValueError: the answer holds numbers or other vectors, which noise in a model does not hide.
        """
        if not order.rule.uploads and not answer.numbers:
            return answer
        if answer.numbers or set(answer.uploads) != {"model"}:
            raise ValueError(f"{type(order.rule).__name__} sends more than a model, which noise does not hide")
        report = {name: value for name, value in answer.report.items() if name in NOT_OF_SAMPLES}
        rng = self.randomness.stream("upload noise", order.client, order.round)
        model, part, sent = answer.uploads["model"], order.upload_part.get("model"), order.items["model"]
        start = sent.onto(torch.zeros_like(model))
        deviation = 2 * self.clip_norm * self.multiplier
        if part is None:
            hidden = hide_update(model, start, self.clip_norm, deviation, rng)
        else:
            some = hide_update(part.take(model), part.take(start), self.clip_norm, deviation, rng)
            hidden = part.put(model.clone(), some)
        return replace(answer, uploads={"model": hidden}, report=report)
