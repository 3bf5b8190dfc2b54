"""The workload in Flower's simulation: its FedAvg on Ray actors, evaluated centrally after each round.

An actor works for one client at a time: one actor a core, or one actor with all cores. Clients map the data from
the files, and each actor builds its network once.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.drivers.workload import Pace, Workload, arguments, load, network, parameters


@cache
def held(folder: Path, threads: int) -> tuple[Workload, nn.Module, Tensor, Tensor]:
    """What an actor keeps from client to client."""
    torch.set_num_threads(threads)
    work = Workload.read(folder)
    return work, network(work), load(folder, "train_x", True), load(folder, "train_y", True)


def client(folder: Path, threads: int) -> Any:
    """The app of every client: one local training."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        work, model, x, y = held(folder, threads)
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        model.load_state_dict(arrays.to_torch_state_dict())
        model.train()
        mine = int(context.node_config["partition-id"])
        optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
        for _ in range(work.epochs):
            for rows in torch.split(torch.randperm(work.samples), work.batch_size):
                optimizer.zero_grad()
                loss = cross_entropy(model(x[mine][rows]), y[mine][rows])
                torch.autograd.backward(loss)
                optimizer.step()
        told = MetricRecord({"num-examples": work.epochs * work.samples})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": told})
        return Message(content=content, reply_to=message)

    return app


def server(args: argparse.Namespace, pace: Pace) -> Any:
    """The server's app: FedAvg over the cohort, then the central evaluation."""
    from flwr.app import ArrayRecord, Context, MetricRecord
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    app = ServerApp()
    work = Workload.read(args.folder)
    test_x, test_y = load(args.folder, "test_x"), load(args.folder, "test_y")
    model = network(work)
    trained = 0

    def total(replies: list[Any], weighted_by_key: str) -> MetricRecord:
        nonlocal trained
        trained = sum(int(reply["metrics"][weighted_by_key]) for reply in replies)
        return MetricRecord({weighted_by_key: trained})

    @torch.no_grad()
    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number == 0:
            pace.begin(parameters(model))
            return MetricRecord()
        model.load_state_dict(arrays.to_torch_state_dict())
        model.eval()
        parts = zip(torch.split(test_x, 500), torch.split(test_y, 500), strict=True)
        loss = sum(float(cross_entropy(model(a), b, reduction="sum")) for a, b in parts) / len(test_y)
        pace.end(trained, loss, last=number == args.rounds)
        return MetricRecord({"loss": loss})

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(args.processes * args.threads)
        torch.manual_seed(work.seed)
        strategy = FedAvg(
            fraction_train=(work.cohort + 0.5) / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,
            min_available_nodes=work.clients,
            train_metrics_aggr_fn=total,
        )
        start = ArrayRecord(network(work).state_dict())
        strategy.start(grid, start, num_rounds=args.rounds, evaluate_fn=evaluate)

    return app


def main() -> None:
    """Train and evaluate, one round a line."""
    args, pace = arguments(), Pace()
    from flwr.simulation import run_simulation

    args.folder = args.folder.resolve()
    run_simulation(
        server(args, pace),
        client(args.folder, args.threads),
        num_supernodes=Workload.read(args.folder).clients,
        backend_config={
            "client_resources": {"num_cpus": args.threads, "num_gpus": 0.0},
            "init_args": {"num_cpus": args.processes * args.threads, "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    from benchmarks.drivers import flower_driver

    flower_driver.main()  # under its own name, by which the actors import it
