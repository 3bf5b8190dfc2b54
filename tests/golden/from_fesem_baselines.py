"""Golden vectors of Robust-TKM and FedDist from FeSEM's authors (multi-center-fed-learning, commit e206681, BSD).

    git clone https://github.com/mingxuts/multi-center-fed-learning
    git -C multi-center-fed-learning checkout e206681
    python -m venv old && old/bin/python -m pip install tensorflow-cpu scikit-learn pandas
    old/bin/python -m tests.golden.from_fesem_baselines multi-center-fed-learning

No code of Robust-TKM's own authors is known; FeSEM's compare with it, and FedDist is theirs. Runs the clients, the
base of a model, the server and the trimmed K-means of `all_baselines/fed-robust`, on the part of today's TensorFlow
that speaks the language of version 1. What is handed to them instead of their own is the data and a tiny network.

Robust-TKM: all clients train alone, their trimmed K-means groups them once by their output layers, and in later
rounds their server takes the trimmed mean of each group. Their trainer lets all clients share one model, so that
all values of a coordinate that it trims are those of who trained last, and it groups anew. Here each client has a
model of its own, and groups stay. Their first groups are those of random points; here they are of models at once.

FedDist: two of five clients train in a round, and their server goes its step of 0.6.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.golden.notes import pad_orders
from tests.golden.tensorflow_one import build_mlp, flat, note_batches, use_tensorflow_one
from tests.golden.vectors import BATCH, CLASSES, FEATURES, HIDDEN, SIZES, draw_federation, write

MANY, GROUPS, ROUNDS, ALONE = 42, 2, 3, 6
"""Of Robust-TKM: clients, in groups large enough that 5 % of one are a client; rounds, passes of the first one."""

KERNEL = slice(FEATURES * HIDDEN + HIDDEN, FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES)
"""The place of the output layer's kernel in a model."""

Federation = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]


class Originals:
    """Their classes, and their clients over a federation of ours."""

    def __init__(self, checkout: Path) -> None:
        tf = self.tf = use_tensorflow_one()
        sys.path.insert(0, str((checkout / "all_baselines/fed-robust/models").resolve()))
        base: Any = import_module("model")
        self.server: Any = import_module("server")
        self.kmeans: Any = import_module("trim_kmean_model").TrimKmeanModel
        self.client: Any = import_module("client").Client
        self.passes: list[list[int]] = []
        note_batches(base, lambda: self.rows, lambda: self.passes)

        class Network(base.Model):  # type: ignore[misc]  # it is what the checkout says
            def create_model(self) -> Any:
                features, labels, loss, guess = build_mlp(tf)
                right = tf.count_nonzero(tf.equal(labels, guess))
                return features, labels, self.optimizer.minimize(loss), right, loss, guess, right

            def process_x(self, raw_x_batch: Any) -> Any:
                return np.array(raw_x_batch)

            def process_y(self, raw_y_batch: Any) -> Any:
                return np.array(raw_y_batch)

        self.network = Network

    def clients(self, federation: Federation, lr: float, shared: bool) -> list[Any]:
        """Return their clients, with one model that they share or each with its own."""
        inputs, labels, bounds = federation
        self.rows = {row.tobytes(): number for a, b in bounds for number, row in enumerate(inputs[a:b])}
        first = self.network(1, lr)
        own = [first] + [first if shared else self.network(1, lr) for _ in bounds[1:]]
        data = [{"x": inputs[a:b].copy(), "y": labels[a:b].copy()} for a, b in bounds]  # for they shuffle in place
        return [self.client(i, None, *(data[i], data[i]), own[i]) for i in range(len(bounds))]

    def train(self, server: Any, some: list[Any], epochs: int) -> list[tuple[NDArray[np.float32], list[list[int]]]]:
        """Let some clients train from the server's model; return what each reached, and its passes."""
        self.passes.clear()
        _, updates = server.train_model(num_epochs=epochs, batch_size=BATCH, clients=some)
        passes = [self.passes[i * epochs : (i + 1) * epochs] for i in range(len(some))]
        return [(flat(model), of) for (_, model), of in zip(updates, passes, strict=True)]


def write_feddist(theirs: Originals) -> None:
    federation = draw_federation(27)
    clients = theirs.clients(federation, 0.1, shared=True)
    server = theirs.server.TrimServer(clients[0].model)
    users, rounds = len(SIZES), 4
    initial = flat(server.model)
    cohort = np.array([(number % users, (number + 2) % users) for number in range(rounds)], np.int8)
    cohort.sort(axis=1)
    trained, means = np.zeros((rounds, users, len(initial)), np.float32), []
    orders: list[list[Any]] = [[[] for _ in range(users)] for _ in range(rounds)]
    for number, some in enumerate(cohort):
        found = theirs.train(server, [clients[i] for i in some], epochs=2)
        for i, (model, passes) in zip(some, found, strict=True):
            trained[number, i], orders[number][i] = model, passes
        server.update_model_dist()
        means.append(flat(server.model))
    write("fesem-feddist", describe(federation, initial, orders, cohort, trained) | {"global": np.stack(means)})


def write_robust_tkm(theirs: Originals) -> None:
    federation = draw_federation(28, [4 + 4 * (i % 3) for i in range(MANY)], groups=GROUPS)
    federation[0][:] *= 2
    clients = theirs.clients(federation, 0.1, shared=False)
    initial = flat(clients[0].model.get_params())
    heads = [theirs.server.TrimServer(clients[0].model) for _ in range(GROUPS)]
    trained = np.zeros((ROUNDS, MANY, len(initial)), np.float32)
    orders: list[list[Any]] = [[[] for _ in range(MANY)] for _ in range(ROUNDS)]
    for i, (model, passes) in enumerate(theirs.train(heads[0], clients, ALONE)):
        trained[0, i], orders[0][i] = model, passes
    points = trained[0][:, KERNEL]
    np.random.seed(2)
    kmeans = theirs.kmeans(MANY, points.shape[1], GROUPS)
    steps: list[tuple[Any, Any]] = []
    their_means = kmeans.get_mean

    def noted_means(data: Any, labels: Any, groups: int) -> Any:
        found = their_means(data, labels, groups)
        steps.append((labels.copy(), found))
        return found

    kmeans.get_mean = noted_means
    groups = kmeans.assign_clusters(points)
    members = [[clients[i] for i in np.flatnonzero(groups == k)] for k in range(GROUPS)]
    means = np.zeros((ROUNDS, GROUPS, len(initial)), np.float32)
    for number in range(ROUNDS):
        for k, (head, some) in enumerate(zip(heads, members, strict=True)):
            if number:
                for client, (model, passes) in zip(some, theirs.train(head, some, 2), strict=True):
                    trained[number, client.id], orders[number][client.id] = model, passes
            head.update_trimmean(some)
            means[number, k] = flat(head.model)
    cohort = np.tile(np.arange(MANY, dtype=np.int8), (ROUNDS, 1))
    write(
        "fesem-robust-tkm",
        describe(federation, initial, orders, cohort, trained)
        | {
            "groups": groups.astype(np.int8), "models": means,
            "steps": np.stack([labels for labels, _ in steps]).astype(np.int8),
            "centres": np.stack([found for _, found in steps]).astype(np.float32),
        },
    )  # fmt: skip


def describe(federation: Federation, initial: Any, orders: Any, cohort: Any, trained: Any) -> dict[str, Any]:
    inputs, labels, bounds = federation
    return {
        "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16), "initial": initial,
        "orders": pad_orders(orders), "cohort": cohort, "clients": trained,
    }  # fmt: skip


def main(checkout: Path) -> None:
    """Write two files."""
    theirs = Originals(checkout)
    write_feddist(theirs)
    write_robust_tkm(theirs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
