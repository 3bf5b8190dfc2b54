"""Golden vectors of FeSEM from its authors (mingxuts/multi-center-fed-learning, commit e206681, BSD).

    git clone https://github.com/mingxuts/multi-center-fed-learning
    git -C multi-center-fed-learning checkout e206681
    python -m venv old && old/bin/python -m pip install tensorflow-cpu scikit-learn pandas
    old/bin/python -m tests.golden.from_fesem multi-center-fed-learning

Runs their trainer (`fedsem.py`) with their clients, their server, their base of a model and their K-means, on the
part of today's TensorFlow that speaks the language of version 1. What is handed to them instead of their own is the
data and a tiny network under the names of theirs, whose output layer is what they cluster.

Three clients of a group train in a round, as in their job file, and groups are made anew after each round instead
of after 150. Their trainer has no `clients`, which it asks for when groups are made anew; here it has.

Their first groups are K-means on random points. The first centres of K-means are its first points, and five
iterations follow; later on, it is one for each regrouping, from the last centres.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tests.golden.notes import pad_orders
from tests.golden.tensorflow_one import build_mlp, flat, note_batches, use_tensorflow_one
from tests.golden.vectors import BATCH, CLASSES, HIDDEN, draw_federation, write

SIZES = (8, 20, 12, 32, 16, 24, 12, 28)
ROUNDS, USERS, GROUPS, SEED = 6, len(SIZES), 2, 1
CONFIG = {
    "num-clusters": GROUPS, "update-center-every": 1, "num-rounds": ROUNDS + 1, "epochs": 2, "eval-every": 10,
    "clients-per-round": 3, "batch-size": BATCH, "lr": 0.1, "seed": SEED, "mode": "no_size",
}  # fmt: skip


ENDS = ("before", "after")
"""Of a step of K-means, for its centres."""


def turn(kernels: Any) -> Any:
    """Return kernels of the output layer `[rows, size]` in the order of PyTorch."""
    kernels = np.asarray(kernels, np.float32).reshape(-1, HIDDEN, CLASSES)
    return kernels.transpose(0, 2, 1).reshape(len(kernels), -1)


def network(tf: Any, base: Any) -> Any:
    """Return the class of the tiny network."""

    class ClientModel(base.Model):  # type: ignore[misc]  # it is what the checkout says
        def __init__(self, seed: int, lr: float, classes: int) -> None:
            super().__init__(seed, lr)

        def create_model(self) -> Any:
            features, labels, loss, guess = build_mlp(tf)
            step = self.optimizer.minimize(loss)
            return features, labels, step, tf.count_nonzero(tf.equal(labels, guess)), loss, guess, None

        def process_x(self, raw_x_batch: Any) -> Any:
            return np.array(raw_x_batch)

        def process_y(self, raw_y_batch: Any) -> Any:
            return np.array(raw_y_batch)

    return ClientModel


def main(checkout: Path) -> None:
    """Write one file."""
    tf = use_tensorflow_one()
    sys.path.insert(0, str(checkout.resolve() / "models"))
    sizes: Any = import_module("mh_constants")
    sizes.MODEL_PARAMS["femnist.cnn"] = (HIDDEN, CLASSES)
    base: Any = import_module("model")
    theirs: Any = import_module("fedsem")
    server: Any = import_module("server")
    kmeans: Any = import_module("kmean_model").KmeanModel
    sys.modules["femnist"], sys.modules["femnist.cnn"] = ModuleType("femnist"), ModuleType("femnist.cnn")
    vars(sys.modules["femnist.cnn"])["ClientModel"] = network(tf, base)

    inputs, labels, bounds = draw_federation(24, SIZES, groups=2)
    inputs *= 2
    names = [f"client {i}" for i in range(USERS)]
    rows = {row.tobytes(): number for a, b in bounds for number, row in enumerate(inputs[a:b])}

    def copies() -> dict[str, Any]:  # for they shuffle in place
        own = zip(names, bounds, strict=True)
        return {name: {"x": inputs[a:b].copy(), "y": labels[a:b].copy()} for name, (a, b) in own}

    calls: list[dict[str, Any]] = []
    centres: list[Any] = []
    steps: list[dict[str, Any]] = []
    first: list[Any] = []
    note_batches(base, lambda: rows, lambda: calls[-1]["orders"])

    class Noted(theirs.Client):  # type: ignore[misc]  # it is what the checkout says
        def train(self, *given: Any, **others: Any) -> Any:
            calls.append({"client": names.index(self.id), "start": flat(self.model.get_params()), "orders": []})
            found = super().train(*given, **others)
            calls[-1]["trained"] = flat(found[2])
            return found

    class NotedServer(server.Server):  # type: ignore[misc]  # it is what the checkout says
        def update_model_wmode(self) -> Any:
            found = super().update_model_wmode()
            centres.append(flat(found))
            return found

    their_assign = kmeans.assign_clusters

    def noted_assign(self: Any, points: Any) -> Any:
        (variable,) = (v for v in self.graph.get_collection("variables") if v.shape == (GROUPS, HIDDEN * CLASSES))
        before = None if self.first else self.sess.run(variable)
        found = their_assign(self, points)
        after = self.sess.run(variable)
        steps.append({"points": np.array(points), "groups": found, "before": before, "after": after})
        steps[-1] |= {"calls": calls[:], "centres": centres[:]}
        calls.clear()
        centres.clear()
        return found

    kmeans.assign_clusters = noted_assign
    theirs.Client, theirs.Server = Noted, NotedServer
    their_config = theirs.Fedsem_Trainer.model_config

    def noted_config(self: Any, *given: Any) -> Any:
        found = their_config(self, *given)
        self.clients = found[0]
        first.append(flat(found[2].get_params()))
        return found

    theirs.Fedsem_Trainer.model_config = noted_config
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        trainer = theirs.Fedsem_Trainer(names, [], copies(), copies())
        trainer.begins(CONFIG, SimpleNamespace(dataset="femnist"))
        os.chdir("/")
    places = [names.index(client.id) for client in trainer.mlhead_cluster.selected_clients]
    starts, trained = np.zeros((2, ROUNDS, USERS, len(first[0])), np.float32)
    means = np.full((ROUNDS, GROUPS, len(first[0])), np.nan, np.float32)
    cohort = np.full((ROUNDS, USERS), -1, np.int8)
    orders: list[list[Any]] = [[[] for _ in range(USERS)] for _ in range(ROUNDS)]
    for number, (before, step) in enumerate(pairwise(steps)):
        for call in step["calls"]:
            client = call["client"]
            starts[number, client], trained[number, client] = call["start"], call["trained"]
            orders[number][client] = call["orders"]
        some = sorted(call["client"] for call in step["calls"])
        cohort[number, : len(some)] = some
        there = [k for k in range(GROUPS) if (before["groups"] == k).sum() > 1]  # a lone client does not train
        means[number, there] = step["centres"]
    groups = np.zeros((len(steps), USERS), np.int8)
    points = np.zeros((len(steps), USERS, HIDDEN * CLASSES), np.float32)
    groups[:, places] = [step["groups"] for step in steps]
    points[:, places] = [turn(step["points"]) for step in steps]
    none = np.full((GROUPS, HIDDEN * CLASSES), np.nan)  # its centres were drawn anew, from its first points
    ends = {end: np.stack([turn(none if step[end] is None else step[end]) for step in steps]) for end in ENDS}
    write(
        "fesem",
        {
            "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16),
            "initial": first[0], "orders": pad_orders(orders), "cohort": cohort, "starts": starts,
            "clients": trained, "means": means, "points": points, "groups": groups, **ends,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
