"""One model trained by a plain loop on as many samples as a cohort holds: a round without a federation."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from benchmarks.drivers.workload import Pace, Workload, arguments, load, network, parameters


def main() -> None:
    """Train and evaluate, one round a line."""
    args, pace = arguments(), Pace()
    work = Workload.read(args.folder)
    torch.set_num_threads(args.threads)
    torch.manual_seed(work.seed)
    x, y = load(args.folder, "train_x"), load(args.folder, "train_y")
    test_x, test_y = load(args.folder, "test_x"), load(args.folder, "test_y")
    model = network(work)
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    pace.begin(parameters(model))
    for number in range(args.rounds):
        cohort = torch.randperm(work.clients)[: work.cohort]
        mine, labels = x[cohort].flatten(0, 1), y[cohort].flatten()
        model.train()
        for _ in range(work.epochs):
            order = torch.randperm(len(labels))
            for a in range(0, len(order), work.batch_size):
                rows = order[a : a + work.batch_size]
                optimizer.zero_grad()
                loss = cross_entropy(model(mine[rows]), labels[rows])
                torch.autograd.backward(loss)
                optimizer.step()
        model.eval()
        with torch.no_grad():
            parts = zip(torch.split(test_x, 500), torch.split(test_y, 500), strict=True)
            held_out = sum(float(cross_entropy(model(a), b, reduction="sum")) for a, b in parts) / len(test_y)
        pace.end(work.epochs * len(labels), held_out, last=number == args.rounds - 1)


if __name__ == "__main__":
    main()
