"""How near `coterie explain` comes to what runs then take.

    python -m benchmarks.explained [--json FILE] [--smoke]

Each of seven federations is explained, and then run. Two have a network of one's own: a small GPT and a ViT. A
prediction is right if it lies between half and twice the seconds of the run. If more than one is not, the benchmark
ends with 1. The seconds of a run are from the call of `coterie.run` to its end. Run it on an idle machine.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.measuring import arguments, write

FACTOR = 2.0
IMAGES = {"name": "fashion-mnist", "clients": 100, "samples_per_client": 120}
CASES: Mapping[str, Mapping[str, Any]] = {
    "perceptron": {"data": IMAGES, "network": "mlp", "training": {"batch_size": 10}, "run": {"rounds": 20}},
    "cnn": {"data": IMAGES, "network": "cnn", "run": {"rounds": 5, "participation": 0.3}},
    "fesem, warm-up": {"data": {"clients": 100}, "method": {"name": "fesem", "clusters": 4}},
    "ifca, many passes": {"data": {"clients": 40}, "method": "ifca", "training": {"epochs": 20}},
    "2,000 clients": {"data": {**IMAGES, "clients": 2000, "samples_per_client": 20}, "run": {"rounds": 10}},
    "gpt": {"task": {"name": "language"}, "network": "benchmarks.explained:GPT", "run": {"rounds": 3}},
    "vit": {"data": {"clients": 20}, "network": "benchmarks.explained:ViT", "run": {"rounds": 10}},
}


class GPT(nn.Module):
    """Two causal blocks over tokens."""

    def __init__(self, vocabulary: int = 96, width: int = 64, length: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, input_ids: Tensor) -> Tensor:
        steps = input_ids.shape[1]
        causal = torch.full((steps, steps), -math.inf).triu(1)
        x = self.tokens(input_ids) + self.places(torch.arange(steps))
        logits: Tensor = self.out(self.blocks(x, mask=causal))
        return logits


class ViT(nn.Module):
    """Two blocks over the patches of 8x8 images, and a mean of them."""

    def __init__(self, classes: int = 10, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.places = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        logits: Tensor = self.head(self.blocks(x).mean(1))
        return logits


def measure(case: str, folder: Path, smoke: bool) -> dict[str, Any]:
    """Explain a federation and run it; return what was predicted and what it took."""
    import coterie
    from coterie.advice.explain.explain import explain

    given = {"method": "fedavg", "data": {}, **CASES[case]}
    if case == "gpt":
        tokens = np.random.default_rng(0).integers(0, 96, (800, 65))
        np.savez(folder / "texts.npz", tokens=tokens[:, :-1], y=tokens[:, 1:], client=np.arange(800) % 10)
        given["data"] = {"name": str(folder / "texts.npz")}
    experiment = coterie.Experiment(**given).updated({"run.folder": str(folder), "run.name": "explained"})
    if smoke:
        few = {} if case == "gpt" else {"data.clients": 4, "data.samples_per_client": 40}
        experiment = experiment.updated({"run.rounds": 2, "training.epochs": 1, **few})
    predicted = explain(experiment).seconds
    begun = time.perf_counter()
    coterie.run(experiment)
    return {"case": case, "predicted": predicted, "seconds": time.perf_counter() - begun}


def main() -> int:
    """Print the table; return whether more than one prediction lies outside."""
    asked = arguments("explained", __doc__, {}, None).read()
    found = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(case, Path(folder), asked.smoke))
    table, outside = Table("case", "predicted, s", "took, s", "ratio"), 0
    for row in found:
        predicted, took = row["predicted"], row["seconds"]
        ratio = math.nan if predicted is None else predicted / took
        outside += not 1 / FACTOR <= ratio <= FACTOR
        table.add_row(row["case"], "–" if predicted is None else f"{predicted:.1f}", f"{took:.1f}", f"{ratio:.2f}")
    Console().print(table)
    write(asked.json, "explained", found)
    return int(outside > 1 and not asked.smoke)


if __name__ == "__main__":
    sys.exit(main())
