"""Golden vectors of FedDANE from its authors (litian96/FedDANE, commit ca84760, MIT).

    git clone https://github.com/litian96/FedDANE
    git -C FedDANE checkout ca84760
    python -m venv old && old/bin/python -m pip install tensorflow-cpu tqdm
    old/bin/python -m tests.golden.from_feddane FedDANE

Runs their trainer (`feddane.py`) with their clients and their optimizer (`pggd.py`), on the part of today's
TensorFlow that speaks the language of version 1. What is handed to them instead of their own is the data, and a
tiny network as the graph of their logistic regression.

Three of eight clients take part. They draw both cohorts of a round from one seed, so that they are the same.

Their optimizer takes the second of a pair from `Client.get_grads`, which returns what the model does: for most of
theirs the gradients of all variables. Of a logistic regression, which has two, it takes that of the bias, and
larger networks fail. Here it is a pair, as their trainer's `show_grads` expects too.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.notes import pad_orders
from tests.golden.tensorflow_one import build_mlp, flat, note_batches, use_tensorflow_one
from tests.golden.vectors import BATCH, CLASSES, draw_federation, write

SIZES = (8, 20, 12, 32, 16, 24, 12, 28)
ROUNDS, USERS, TAKING_PART = 5, len(SIZES), 3


def main(checkout: Path) -> None:
    """Write one file."""
    tf = use_tensorflow_one()
    sys.path.insert(0, str(checkout.resolve()))
    theirs: Any = import_module("flearn.trainers.feddane")
    regression: Any = import_module("flearn.models.synthetic.mclr")
    clients: Any = import_module("flearn.models.client")

    inputs, labels, bounds = draw_federation(26, SIZES)
    names = [f"client {i}" for i in range(USERS)]
    rows = {row.tobytes(): number for a, b in bounds for number, row in enumerate(inputs[a:b])}
    own = {
        name: {"x": inputs[a:b].copy(), "y": labels[a:b].copy()} for name, (a, b) in zip(names, bounds, strict=True)
    }
    calls: list[dict[str, Any]] = []
    note_batches(regression, lambda: rows, lambda: calls[-1]["orders"])

    class Network(regression.Model):  # type: ignore[misc]  # it is what the checkout says
        def create_model(self, optimizer: Any) -> Any:
            features, labels, loss, guess = build_mlp(tf)
            found = optimizer.compute_gradients(loss)
            step, right = optimizer.apply_gradients(found), tf.count_nonzero(tf.equal(labels, guess))
            return features, labels, step, [gradient for gradient, _ in found], right, loss, guess

    their_gradient, their_training = clients.Client.solve_grad, clients.Client.solve_inner

    def noted_gradient(self: Any) -> Any:
        found = their_gradient(self)
        calls.append({"client": names.index(self.id), "gradient": flat(found[0][1]), "orders": []})
        return found

    def noted_training(self: Any, *given: Any, **others: Any) -> Any:
        calls.append({"client": names.index(self.id), "orders": []})
        found = their_training(self, *given, **others)
        calls[-1]["trained"] = flat(found[0][1])
        return found

    clients.Client.solve_grad, clients.Client.solve_inner = noted_gradient, noted_training
    clients.Client.get_grads = lambda self: (self.num_samples, self.model.get_gradients(self.train_data))
    centres: list[Any] = []
    their_mean = theirs.Server.aggregate

    def noted_mean(self: Any, uploads: Any) -> Any:
        centres.append(flat(found := their_mean(self, uploads)))
        return found

    theirs.Server.aggregate = noted_mean
    settings = {
        "learning_rate": 0.1, "mu": 0.5, "model_params": (CLASSES,), "seed": 1, "num_rounds": ROUNDS,
        "eval_every": ROUNDS, "clients_per_round": TAKING_PART, "num_epochs": 2, "batch_size": BATCH,
    }  # fmt: skip
    trainer = theirs.Server(settings, Network, (names, [], own, own))
    initial = flat(trainer.latest_model)
    trainer.train()

    cohort = np.zeros((ROUNDS, TAKING_PART), np.int8)
    gradients, trained = np.zeros((2, ROUNDS, USERS, len(initial)), np.float32)
    orders: list[list[Any]] = [[[] for _ in range(USERS)] for _ in range(ROUNDS)]
    for number in range(ROUNDS):
        some = calls[2 * TAKING_PART * number :][: 2 * TAKING_PART]
        cohort[number] = sorted({call["client"] for call in some})
        for call in some:
            client = call["client"]
            if "gradient" in call:
                gradients[number, client] = call["gradient"]
            else:
                trained[number, client], orders[number][client] = call["trained"], call["orders"]
    write(
        "feddane",
        {
            "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16),
            "initial": initial, "orders": pad_orders(orders), "cohort": cohort, "gradients": gradients,
            "mean": np.stack(centres[::2]), "clients": trained, "global": np.stack(centres[1::2]),
        },
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
