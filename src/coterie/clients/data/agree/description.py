"""What a federation looks like in numbers: sizes, labels, how different the clients are, true groups."""

from __future__ import annotations

import numpy as np

from coterie.clients.data.agree.population import Population
from coterie.errors import count_of
from coterie.grouping.label_divergence import SMOOTHING, label_divergence


def describe(population: Population) -> list[str]:
    """Say in a few lines what clients hold, as far as they tell; nothing but label counts is looked at."""
    sizes, features, histograms = np.diff(population.bounds, axis=1), population.features, population.histograms
    shape = " x ".join(map(str, features)) + (" inputs" if len(features) == 1 else "")
    learnt = f"{population.classes} classes"
    if not population.classes:
        learnt = f"{population.task.name} with {count_of(population.outputs, 'output')}"
    clients, samples = count_of(len(sizes), "client"), count_of(sizes.sum(), "sample")
    lines = [f"{population.name}: {clients}, {samples} of {shape}, {learnt}"]
    for split, own in zip(("training", "validation", "test"), sizes.T, strict=True):
        each = f"per client {own.min()} to {own.max()}, median {np.median(own):g}"
        lines.append(f"{split}: {count_of(own.sum(), 'sample')}; {each}")
    if histograms is not None:
        held = np.count_nonzero(histograms, axis=1)
        lines.append(f"classes per client: {held.min()} to {held.max()}, mean {held.mean():.1f}")
        lines.append(
            f"label divergence: {label_divergence(histograms):.4f} nats "
            f"(mean pairwise symmetric KL, {SMOOTHING:g} added per class)"
        )
    if population.true_groups is not None:
        groups = np.bincount(population.true_groups)
        lines.append(f"true groups: {len(groups)}, of {', '.join(map(str, groups))} clients")
    if population.few_shot is not None:
        lines.append(f"few-shot clients: {population.few_shot.sum()}")
    if population.public is not None:
        lines.append(f"public unlabelled samples: {len(population.public)}")
    return lines
