"""Golden vectors of ClusterFL from its authors (xmouyang/ClusterFL, commit 93639fa, MIT).

    git clone https://github.com/xmouyang/ClusterFL
    git -C ClusterFL checkout 93639fa
    python -m venv old && old/bin/python -m pip install tensorflow-cpu scikit-learn nest_asyncio matplotlib tqdm
    old/bin/python -m tests.golden.from_clusterfl ClusterFL

Runs their server (`server_cfmtl.py`) and seven processes of their client (`client_cfmtl.py`), which talk to each
other as they do, on the part of today's TensorFlow that speaks the language of version 1. What is handed to them
instead of their own is the data and a tiny network; and numbers at the head of their files are others: the width of
the network, epochs, rounds, the learning rate, and the three weights, for theirs are so small that two epochs would
not show them. Their decay of the learning rate begins after 100 steps, and never counts here.

Their client fetches the weights that it sends in the same step that changes them, so that the last change may or
may not be among them. Here they are read after it. It seeds a graph that it then throws away, so that every client
starts from a model of its own; the tiny network is seeded, and all start from one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import ModuleType
from typing import Any

import numpy as np

from tests.golden.notes import pad_orders
from tests.golden.tensorflow_one import flat
from tests.golden.vectors import CLASSES, FEATURES, HIDDEN, draw_federation, write

SIZES = (10, 25, 15, 20, 10, 25, 15)
ROUNDS, EPOCHS, USERS, WIDTH = 8, 2, len(SIZES), FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
WEIGHTS = {"alpha": 0.02, "beta": 0.05, "rho": 0.25}


def draw() -> tuple[Any, Any, Any]:
    """Return the federation; it is drawn again in each process."""
    return draw_federation(29, SIZES, groups=2)


def run_file(path: Path, numbers: dict[str, Any], name: str) -> dict[str, Any]:
    """Run a file of theirs with other numbers at its head; return its names."""
    source = path.read_text()
    for key, value in numbers.items():
        source, found = re.subn(rf"^{key} *=.*$", f"{key} = {value}", source, flags=re.MULTILINE)
        assert found == 1, f"{path.name} sets {key} {found} times"
    names: dict[str, Any] = {"__name__": name}
    exec(compile(source, path.name, "exec"), names)  # a program, not a module: it reads its arguments and runs
    return names


def run_client(checkout: Path, client: int, port: int) -> None:
    """Run their client, and write what it trained, in which order, to a file in the working folder."""
    tf: Any = import_module("tensorflow").compat.v1  # as their files import it
    tf.disable_v2_behavior()
    inputs, labels, bounds = draw()
    own = slice(*bounds[client])
    rows = {row.tobytes(): number for number, row in enumerate(inputs[own])}
    met: list[int] = []

    def model() -> Any:
        tf.set_random_seed(1)
        x, y = tf.placeholder(tf.float32, [None, FEATURES]), tf.placeholder(tf.float32, [None, CLASSES])
        shapes = ([FEATURES, HIDDEN], [HIDDEN], [HIDDEN, CLASSES], [CLASSES])
        weights = [tf.get_variable(f"weight{i}", shape) for i, shape in enumerate(shapes)]
        logits = tf.nn.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
        step = tf.Variable(0, trainable=False)
        return x, y, weights, logits, tf.argmax(logits, axis=1), step, tf.placeholder_with_default(True, ())

    starts: list[Any] = []
    their_run = tf.Session.run

    def noted_run(self: Any, fetches: Any, feed_dict: Any = None, **others: Any) -> Any:
        if not isinstance(fetches, list):  # it is a step of training if it is
            return their_run(self, fetches, feed_dict=feed_dict, **others)
        place = next(i for i, fetched in enumerate(fetches) if isinstance(fetched, list))
        if not starts:
            starts.append(their_run(self, fetches[place]))
        found = their_run(self, fetches, feed_dict=feed_dict, **others)
        found[place] = their_run(self, fetches[place])
        met.extend(rows[row.tobytes()] for row in next(iter(feed_dict.values())))
        return found

    tf.Session.run = noted_run
    numpy: Any = np
    numpy.int = int  # a name of older versions
    network, data = ModuleType("model_alex_full"), ModuleType("data_pre")
    vars(network)["model"] = model
    vars(data).update(
        load_data=lambda user: (None, None, FEATURES),
        generate_data=lambda *given: (inputs[own].copy(), inputs[own], labels[own].copy(), labels[own]),
        count_analysis=lambda given: "",
    )
    sys.modules.update(model_alex_full=network, data_pre=data)
    sys.path.insert(0, str(checkout / "client"))
    sys.argv = ["client", str(client)]
    Path("loss_record").mkdir(exist_ok=True)
    numbers = {"W_DIM": WIDTH, "local_iter": EPOCHS, "oueter_iter": ROUNDS, "initial_learning_rate": 0.1}
    run_file(checkout / "client" / "client_cfmtl.py", numbers | WEIGHTS | {"server_port": port}, "client")
    np.savez(f"{client}.npz", start=flat(starts[0]), orders=np.array(met).reshape(ROUNDS, EPOCHS, -1))


def split(model: Any) -> Any:
    """Return a model of theirs, as one vector, as its variables."""
    bounds = np.cumsum([FEATURES * HIDDEN, HIDDEN, HIDDEN * CLASSES])
    kernel, bias, last, last_bias = np.split(model, bounds)
    return kernel.reshape(FEATURES, HIDDEN), bias, last.reshape(HIDDEN, CLASSES), last_bias


def turn(models: Any) -> Any:
    """Return models of theirs `[n, P]` in the order and the shape of PyTorch."""
    return np.stack([flat(split(model)) for model in models])


def main(checkout: Path) -> None:
    """Write one file."""
    tf: Any = import_module("tensorflow").compat.v1  # as their files import it
    tf.disable_v2_behavior()
    inputs, labels, bounds = draw()
    public = np.random.default_rng(30).normal(size=(12, FEATURES)).astype(np.float32)

    def model(x: Any, weights: Any) -> Any:
        kernel, bias, last, last_bias = split(weights)
        return tf.nn.relu(x @ kernel + bias) @ last + last_bias

    network = ModuleType("server_model_alex_full")
    vars(network)["model"] = model
    sys.modules["server_model_alex_full"] = network
    rounds: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        here = Path.cwd()
        os.chdir(folder)
        np.savetxt("server_x_test.txt", public)
        np.savetxt("server_y_test.txt", np.zeros(len(public)))
        server = run_file(checkout / "server" / "server_cfmtl.py", {"W_DIM": WIDTH} | WEIGHTS, "server")
        their_update = server["server_update"]

        def noted_update() -> None:
            given = {"clients": turn(server["W"])}
            their_update()
            rounds.append(
                given | {"omega": turn(server["Omega"]), "dual": turn(server["U"]), "relation": server["F"].copy()}
            )

        server["server_update"] = noted_update
        server["barrier_update"]()  # the barrier at which it is called is made anew
        sockets: Any = import_module("socketserver")
        with sockets.ThreadingTCPServer(("127.0.0.1", 0), server["MyTCPHandler"]) as listening:
            Thread(target=listening.serve_forever, daemon=True).start()
            command = [sys.executable, "-m", "tests.golden.from_clusterfl", str(checkout)]
            port = str(listening.server_address[1])
            clients = [
                subprocess.Popen([*command, str(client), port], env={**os.environ, "PYTHONPATH": str(here)})
                for client in range(USERS)
            ]
            codes = [client.wait() for client in clients]
            assert not any(codes)
            listening.shutdown()
        found = [dict(np.load(f"{client}.npz")) for client in range(USERS)]
        os.chdir(here)
    assert len(rounds) == ROUNDS
    assert all((one["start"] == found[0]["start"]).all() for one in found)
    orders = [[[list(order) for order in one["orders"][number]] for one in found] for number in range(ROUNDS)]
    write(
        "clusterfl",
        {
            "inputs": inputs, "labels": labels.astype(np.int8), "bounds": bounds.astype(np.int16), "public": public,
            "initial": found[0]["start"], "orders": pad_orders(orders),
            "cohort": np.tile(np.arange(USERS, dtype=np.int8), (ROUNDS, 1)),
            **{key: np.stack([one[key] for one in rounds]).astype(np.float32) for key in rounds[0]},
        },
    )  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(Path(sys.argv[1]).resolve())
    else:
        run_client(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
