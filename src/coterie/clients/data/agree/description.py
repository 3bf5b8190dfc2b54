"""What a federation looks like in numbers: sizes, labels, how different the clients are, true groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coterie.errors import count_of
from coterie.grouping.label_divergence import SMOOTHING, label_divergence

if TYPE_CHECKING:
    from coterie.clients.data.agree.population import Population


@dataclass(frozen=True)
class Description:
    """A federation in numbers.

    `sizes` is `[n, 3]` (training, validation, test samples), `histograms` `[n, classes]` (training labels),
    `divergence` the mean pairwise symmetric KL divergence of the training labels (see `label_divergence`), both
    None where clients do not tell; `group_sizes` the clients in each true group, or None.
    """

    name: str
    """What the data are called."""
    features: tuple[int, ...]
    """Shape of a sample, as it is stored."""
    classes: int
    sizes: NDArray[np.int64]
    histograms: NDArray[np.int64] | None
    divergence: float | None
    group_sizes: NDArray[np.int64] | None
    few_shot: int | None
    """How many clients are few-shot; None where none was made so."""
    public: int | None
    """How many unlabelled samples the server holds; None where it holds none."""
    task: str = "classification"
    """What is learnt."""
    outputs: int = 0
    """Numbers that a network gives for a prediction; told where there are no classes."""

    @property
    def _learnt(self) -> str:
        if self.classes:
            return f"{self.classes} classes"
        return f"{self.task} with {self.outputs} output{'s' * (self.outputs != 1)}"

    def lines(self) -> list[str]:
        """The description as lines of text for printing."""
        n = len(self.sizes)
        shape = " x ".join(map(str, self.features)) + (" inputs" if len(self.features) == 1 else "")
        lines = [
            f"{self.name}: {count_of(n, 'client')}, {count_of(self.sizes.sum(), 'sample')} of {shape}, "
            f"{self._learnt}"
        ]
        for column, split in enumerate(("training", "validation", "test")):
            own = self.sizes[:, column]
            lines.append(
                f"{split}: {count_of(own.sum(), 'sample')}; per client {own.min()} to {own.max()}, median "
                f"{np.median(own):g}"
            )
        if self.histograms is not None:
            held = np.count_nonzero(self.histograms, axis=1)
            lines.append(f"classes per client: {held.min()} to {held.max()}, mean {held.mean():.1f}")
        if self.divergence is not None:
            lines.append(
                f"label divergence: {self.divergence:.4f} nats "
                f"(mean pairwise symmetric KL, {SMOOTHING:g} added per class)"
            )
        if self.group_sizes is not None:
            lines.append(
                f"true groups: {len(self.group_sizes)}, of {', '.join(map(str, self.group_sizes))} clients"
            )
        if self.few_shot is not None:
            lines.append(f"few-shot clients: {self.few_shot}")
        if self.public is not None:
            lines.append(f"public unlabelled samples: {self.public}")
        return lines


def describe(federation: Population) -> Description:
    """Count what each client holds; nothing but label counts is looked at."""
    histograms = federation.histograms
    return Description(
        name=federation.name,
        features=federation.features,
        classes=federation.classes,
        sizes=np.diff(federation.bounds, axis=1),
        histograms=histograms,
        divergence=None if histograms is None else label_divergence(histograms),
        group_sizes=None if federation.true_groups is None else np.bincount(federation.true_groups),
        few_shot=None if federation.few_shot is None else int(federation.few_shot.sum()),
        public=None if federation.public is None else len(federation.public),
        task=federation.task.name,
        outputs=federation.outputs,
    )
