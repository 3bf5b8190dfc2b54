"""How fast modules of somebody's own train, beside a plain PyTorch loop over the same samples.

    python -m benchmarks.modules [--only vit] [--repeats 5] [--json FILE] [--smoke]

Both take the same steps of SGD from the same weights on one core: the loop with `torch.optim.SGD` on batches as
PyTorch people lay them out, the engine with whatever it does around a step, its copy of the model in and out
included. They are timed in turn. `of plain` is the seconds of the loop over those of the engine, the medians, with
the least and the most of any repeat.

    python -m benchmarks.modules --clients 16

times the engines instead, on tiny modules: so many clients one after the other, and in one kernel by `torch.func`.
`gain` is the seconds of the former over those of the latter. `touched` is how many scalars an operation touches on
average, which `OPERATION` in `clients/engine/choice.py` limits. `--wide` gives the same modules more and more units
and tells where the gain ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.engine import epoch, sgd
from benchmarks.measuring import arguments, measured, median, ratios, write
from coterie.clients.data.federation import Federation
from coterie.clients.engine.choice import choose_engine
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.vectorised import count_operations
from coterie.clients.rules import Client, Training
from coterie.clients.rules.local_update import LocalUpdate
from coterie.clients.rules.requests import Train, Trained
from coterie.clients.rules.rule import Order
from coterie.models.deep import resnet18 as coterie_resnet18
from coterie.models.networks import channels_first
from coterie.plugins import give
from coterie.runtime.local.runtime import EngineSpec
from coterie.runtime.threads import one_thread

CLASSES = 10


class ResNet18(nn.Module):
    """ResNet-18 for 32x32 images, as a module that nobody can look into."""

    def __init__(self) -> None:
        super().__init__()
        self.body = coterie_resnet18((32, 32, 3), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits


class ViT(nn.Module):
    """A vision transformer of 4 blocks, with a class token, on patches of 4x4."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        self.patches = nn.Conv2d(3, width, 4, 4)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        logits: Tensor = self.head(self.blocks(x)[:, 0])
        return logits


class LSTM(nn.Module):
    """Two layers of an LSTM over 128 time steps of 9 channels, which tell apart by the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(9, 64, 2, batch_first=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


class GPT(nn.Module):
    """A small GPT on 64 tokens of 80: 4 causal blocks, and an embedding tied to the output of the last token."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(80, width)
        self.positions = nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 80, bias=False)
        self.out.weight = self.tokens.weight
        self.register_buffer("causal", torch.full((64, 64), float("-inf")).triu(1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight
        x = self.blocks(x, mask=self.causal, is_causal=True)
        logits: Tensor = self.out(self.norm(x[:, -1]))
        return logits


class Attention(nn.Module):
    """A block of a transformer over 8 time steps of 6 channels, which come with the channels first."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Linear(6, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.enter(x.transpose(1, 2))).mean(1))
        return logits


class Branches(nn.Module):
    """A perceptron of two branches on 20 features."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.short = nn.Linear(20, width)
        self.long = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.LayerNorm(width))
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([self.short(x).tanh(), self.long(x).relu()], 1))
        return logits


class GRU(nn.Module):
    """A GRU over 12 tokens of 80."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(80, 8)
        self.body = nn.GRU(8, width, batch_first=True)
        self.head = nn.Linear(width, 80)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.tokens(tokens))[0][:, -1])
        return logits


class Residual(nn.Module):
    """Two convolutions on 8x8 images, one of them around a shortcut, with a group norm."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, 2, 1)
        self.second = nn.Conv2d(width, width, 3, 1, 1)
        self.norm = nn.GroupNorm(2, width)
        self.head = nn.Linear(16 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        logits: Tensor = self.head((x + self.norm(self.second(x)).relu()).flatten(1))
        return logits


@dataclass(frozen=True)
class Case:
    """A module, and what a client trains it on."""

    module: type[nn.Module]
    features: tuple[int, ...]
    batch: int
    steps: int
    classes: int = CLASSES
    tokens: bool = False


CASES = {
    "resnet18": Case(ResNet18, (32, 32, 3), 10, 3),
    "vit": Case(ViT, (32, 32, 3), 10, 10),
    "lstm": Case(LSTM, (128, 9), 10, 10),
    "gpt": Case(GPT, (64,), 10, 10, 80, tokens=True),
}
TINY = {
    "attention": Case(Attention, (8, 6), 10, 5),
    "branches": Case(Branches, (20,), 10, 5),
    "gru": Case(GRU, (12,), 10, 5, 80, tokens=True),
    "residual": Case(Residual, (8, 8, 1), 10, 5),
}
WIDTHS = (16, 64, 256)


def make_data(case: Case, clients: int) -> Federation:
    """Return clients with samples for an epoch each."""
    rng, count = np.random.default_rng(0), case.batch * case.steps
    shape = (clients * count, *case.features)
    drawn = rng.integers(0, 80, shape) if case.tokens else rng.normal(size=shape)
    inputs = torch.from_numpy(drawn) if case.tokens else torch.from_numpy(drawn.astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, case.classes, clients * count))
    first = count * np.arange(clients)
    bounds = np.stack([first, first + count, first + count, first + count], 1)
    names = tuple(f"client {i}" for i in range(clients))
    return Federation("modules", inputs, labels, case.classes, bounds, names, None, None, None)


def make_engine(case: Case, data: Federation, wanted: str, **settings: int) -> Engine:
    """Return an engine for the case's module."""
    training = Training(epochs=1, batch_size=case.batch, lr=0.01)
    name = f"{case.module.__module__}:{case.module.__qualname__}"
    give([name])
    return EngineSpec(name, settings, case.features, data, training, 0, wanted).build()


def make_ways(case: Case) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the plain loop and the engine, each of which trains one client for one epoch."""
    data = make_data(case, 1)
    inputs, labels = data.inputs, data.labels
    engine = make_engine(case, data, "auto")
    client = engine.client(Order(0, 1, LocalUpdate(), {}), {})
    start = engine.initial.clone()

    module = case.module()
    steps = [sgd(module)]
    # A signal reaches a module as it is stored, where that is what it takes; images with the channels first.
    laid_out = channels_first(inputs).contiguous() if len(case.features) > 2 else inputs

    def plain() -> None:
        module.train()
        epoch(steps, laid_out, labels, case.batch)

    def ours() -> None:
        (found,) = engine.answer([client], [Train(start)])
        assert isinstance(found, Trained)

    return plain, ours


def make_engine_ways(case: Case, clients: int, width: int) -> tuple[dict[str, Callable[[], None]], int, str]:
    """Return each engine's way to train all clients for one epoch, scalars touched, and what `auto` chooses."""
    data, ways = make_data(case, clients), dict[str, Callable[[], None]]()
    for wanted in ("sequential", "batched"):
        engine = make_engine(case, data, wanted, width=width)
        people = [engine.client(Order(i, 1, LocalUpdate(), {}), {}) for i in range(clients)]
        ways[wanted] = partial(_answer, engine, people, [Train(engine.initial)] * clients)
    found = count_operations(engine.network, case.features)
    touched = (engine.layout.size + case.batch * found.written) // found.operations
    chosen, _ = choose_engine(engine.network, engine.layout, engine.training, case.features, "auto")
    return ways, touched, chosen


def _answer(engine: Engine, people: list[Client], asked: list[Train]) -> None:
    engine.answer(people, asked)


def compare_engines(
    clients: int, wide: bool, only: Sequence[str], repeats: int
) -> tuple[Table, list[dict[str, Any]]]:
    """Time tiny modules one after the other and in one kernel."""
    table = Table(f"module, {clients} clients", "touched", "auto", "ms a step", "gain", "least", "most")
    rows: list[dict[str, Any]] = []
    for name, case in TINY.items():
        for width, batch in product(WIDTHS, (10, 32)) if wide else [(WIDTHS[0], case.batch)]:
            if only and name not in only:
                continue
            case = replace(case, batch=batch)
            ways, touched, chosen = make_engine_ways(case, clients, width)
            seconds = measured(ways, repeats)
            middle, least, most = ratios(seconds["sequential"], seconds["batched"])
            each = 1000 * median(seconds["sequential"]) / case.steps / clients
            row = {"module": name, "width": width, "batch": batch, "clients": clients, "touched": touched}
            rows.append({**row, "auto": chosen, "sequential_ms": each, "gain": middle})
            title = f"{name} {width}, batch {batch}"
            numbers = [f"{value:.2f}" for value in (each, middle, least, most)]
            table.add_row(title, f"{touched:,}", chosen, *numbers)
    return table, rows


def main() -> None:
    """Time all modules, print the table."""
    parser = arguments("modules", __doc__, {"only": "lstm,branches", "repeats": 1})
    parser.add_argument("--only", metavar="NAME,…", default="", help="these modules alone")
    parser.add_argument("--clients", type=int, help="compare the engines on tiny modules, with so many clients")
    parser.add_argument(
        "--wide", action="store_true", help="with --clients: wider ones too, in two sizes of batches"
    )
    given = parser.read()
    only = [name for name in given.only.split(",") if name]
    if given.clients:
        with one_thread():
            table, rows = compare_engines(given.clients, given.wide, only, given.repeats)
        Console().print(table)
        write(given.json, "modules", rows)
        return
    table = Table("module", "ms a step, plain", "ms a step, engine", "of plain", "least", "most")
    rows = []
    with one_thread():
        for name, case in CASES.items():
            if only and name not in only:
                continue
            plain, ours = make_ways(case)
            seconds = measured({"plain": plain, "engine": ours}, given.repeats)
            middle, least, most = ratios(seconds["plain"], seconds["engine"])
            each = [1000 * median(seconds[way]) / case.steps for way in ("plain", "engine")]
            row = {"module": name, "plain_ms": each[0], "engine_ms": each[1]}
            rows.append({**row, "of_plain": middle, "of_plain_least": least, "of_plain_most": most})
            table.add_row(name, f"{each[0]:.2f}", f"{each[1]:.2f}", f"{middle:.2f}", f"{least:.2f}", f"{most:.2f}")
    Console().print(table)
    write(given.json, "modules", rows)


if __name__ == "__main__":
    main()
