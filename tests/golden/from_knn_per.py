"""Golden vectors of kNN-Per from its authors (https://github.com/omarfoq/knn-per, commit ee17520, Apache 2.0).

    git clone https://github.com/omarfoq/knn-per && git -C knn-per checkout ee17520
    python -m tests.golden.from_knn_per knn-per

Runs their client, which stores its training samples, searches them for those near its test samples, and is
evaluated at each weight of a grid, as in their `eval_knnper.py`. Their learner is stood in for by one that gives
features and probabilities of a model, and faiss by a search of all distances.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.golden.vectors import CLASSES, FEATURES, HIDDEN, draw_federation, flatten, write

TRAINED, TESTED, NEIGHBOURS, WEIGHTS = (12, 20, 16), 24, 4, np.linspace(0, 1, 11)


class Index:
    """What their store asks of faiss."""

    def __init__(self, _: int) -> None:
        self.stored: Any = None

    def add(self, vectors: Any) -> None:
        self.stored = vectors

    def search(self, vectors: Any, count: int) -> tuple[Any, Any]:
        apart = np.square(vectors[:, None].astype(np.float64) - self.stored).sum(2)
        nearest = np.argsort(apart, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(apart, nearest, 1), nearest


class Learner:
    """Gives features and outputs of a client's samples, as their learner does."""

    device = "cpu"

    def __init__(self, model: nn.Sequential) -> None:
        self.model = model

    def compute_embeddings_and_outputs(self, iterator: Any, apply_softmax: bool, **_: Any) -> Any:
        assert apply_softmax
        inputs, labels = iterator.dataset.tensors
        with torch.no_grad():
            features = self.model[:-1](inputs)
            outputs = self.model[-1](features).softmax(1)
        return features.numpy(), outputs.numpy(), labels.numpy()


def main(checkout: Path) -> None:
    """Write one file."""
    sys.path.insert(0, str(checkout.resolve()))
    sys.modules["faiss"] = ModuleType("faiss")
    vars(sys.modules["faiss"]).update(IndexFlatL2=Index, __spec__=ModuleSpec("faiss", None))
    client_of = import_module("client").KNNPerClient
    torch.manual_seed(41)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    inputs, labels, bounds = draw_federation(41, [count + TESTED for count in TRAINED])
    outputs, correct = [], []
    for (start, end), trained in zip(bounds.tolist(), TRAINED, strict=True):
        rows = slice(start, start + trained), slice(start + trained, end)
        train, test = (
            SimpleNamespace(dataset=TensorDataset(torch.from_numpy(inputs[some]), torch.from_numpy(labels[some])))
            for some in rows
        )
        client = client_of(
            *(Learner(model), train, None, test, None, None),
            k=NEIGHBOURS,
            interpolate_logits=False,
            features_dimension=HIDDEN,
            num_classes=CLASSES,
            capacity=-1,
            strategy="random",
            rng=np.random.default_rng(0),
        )
        client.compute_features_and_model_outputs()
        client.build_datastore()
        client.gather_knn_outputs()
        outputs.append(client.test_knn_outputs)
        correct.append([round(client.evaluate(weight) * TESTED) for weight in WEIGHTS])
    write(
        "knn-per",
        {
            "inputs": inputs,
            "labels": labels.astype(np.int8),
            "bounds": bounds.astype(np.int16),
            "initial": flatten(model.parameters()),
            "outputs": np.stack(outputs).astype(np.float32),
            "correct": np.array(correct, np.int8),
        },
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
