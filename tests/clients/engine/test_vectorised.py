"""Modules of somebody's own in one kernel: how many clients it takes, and what is not computed so, and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.clients.engine.batched import Batched, split_evenly
from coterie.clients.engine.choice import choose_engine
from coterie.clients.engine.sequential import Sequential
from coterie.clients.engine.vectorised import FEWEST, count_operations
from coterie.clients.rules import Training
from coterie.clients.rules.requests import Result
from coterie.errors import BadInput
from coterie.models.layout import Layout
from tests.clients.engine.networks import OWN, Attention, Branches
from tests.clients.engine.population import COUNTS, Population
from tests.clients.engine.test_engines import SOLVERS, numbers, people_of, trainings
from tests.own_networks import Frozen, Recurrent, ViT


def answers(population: Population, kind: str) -> list[Result]:
    return population.engine.answer(population.clients, trainings(population)[kind])


@pytest.mark.parametrize("name", OWN)
def test_the_same_again_and_few_as_one_by_one(name: str) -> None:
    training = SOLVERS["sgd"].updated(epochs=1)
    one, many = (people_of(kind, name, training, counts=COUNTS) for kind in (Sequential, Batched))
    expected, found, again = answers(one, "plain"), answers(many, "plain"), answers(many, "plain")
    assert all(torch.equal(numbers(a), numbers(b)) for a, b in zip(found, again, strict=True))
    moved = [not torch.equal(numbers(a)[:-1], m) for a, m in zip(found, many.models, strict=True)]
    assert all(moved)
    few = FEWEST - 1
    several = many.engine.answer(many.clients[:few], trainings(many)["plain"][:few])
    assert all(torch.equal(numbers(a), numbers(b)) for a, b in zip(several, expected, strict=False))
    assert many.engine.independent is False


@pytest.mark.parametrize(("most", "alone"), [(2, 5), (4, 1), (5, 0)])
def test_no_kernel_takes_fewer_than_are_worth_it(most: int, alone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a network is so large that a chunk is small, what is left over is answered one by one."""
    name, training = next(iter(OWN)), SOLVERS["sgd"].updated(epochs=1)
    monkeypatch.setattr("coterie.clients.engine.batched.chunk_size", lambda *_, **__: most)
    one, many = (people_of(kind, name, training) for kind in (Sequential, Batched))
    clients = [0, 1, 2, 0, 1]
    asked = trainings(one)["plain"]
    expected, found = (
        p.engine.answer([p.clients[i] for i in clients], [asked[i] for i in clients]) for p in (one, many)
    )
    same = [torch.equal(numbers(a), numbers(b)) for a, b in zip(found, expected, strict=True)]
    assert sum(same) == alone


@pytest.mark.parametrize(("most", "fewest"), [(1, 1), (3, 1), (4, 4), (5, 4), (9, 4), (3, 4)])
def test_chunks_are_neither_too_large_nor_too_small(most: int, fewest: int) -> None:
    for count in range(30):
        chunks = split_evenly(count, most, fewest)
        sizes = [rows.stop - rows.start for rows in chunks]
        assert all(fewest <= size <= most for size in sizes)
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        assert [rows.start for rows in chunks] == [sum(sizes[:k]) for k in range(len(sizes))]
        left = count if most < fewest else max(0, count - most * (count // fewest))
        assert count - sum(sizes) == left


class Odd(nn.Module):
    """A dense layer, and something that many models at once cannot have."""

    def __init__(self, then: Callable[[Odd, Tensor], Tensor]) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 3)
        self.aside = [self.dense.weight]
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self._then = then

    def forward(self, x: Tensor) -> Tensor:
        return self._then(self, torch.tanh(self.dense(x)))


def counting(module: Odd, x: Tensor) -> Tensor:
    module.seen = module.seen + 1
    return x


@pytest.mark.parametrize(
    ("network", "features", "says"),
    [
        (ViT(4, dropout=0.1), (8, 8, 1), "random"),
        (Frozen(4), (8, 8, 1), "body.1 .*BatchNorm2d"),
        (Recurrent(4), (8, 8, 1), "lstm .*LSTM"),
        (nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.BatchNorm1d(3)), (4,), "2 .*BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Dropout(0.5)), (4,), r"2 .*0\.5"),
        (nn.Sequential(nn.Linear(5, 3), nn.GELU()), (4,), "zeros"),
        (Odd(lambda m, x: functional.dropout(x)), (4,), "random"),
        (Odd(lambda m, x: x if x.sum() > 0 else -x), (4,), "data-dependent"),
        (Odd(lambda m, x: x * float(x.abs().max())), (4,), r"item\(\)"),
        (Odd(counting), (4,), "changes"),
        (Odd(lambda m, x: x - x.mean(0)), (4,), "minibatch"),
        (Odd(lambda m, x: x @ m.aside[0]), (4,), "something"),
    ],
)
def test_what_is_refused(network: nn.Module, features: tuple[int, ...], says: str) -> None:
    layout = Layout.of(network)
    assert choose_engine(network, layout, Training(), features, "sequential") == ("sequential", "as asked")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(BadInput, match=f"^engine = 'batched' .*{says}") as error:
        choose_engine(network, layout, Training(), features, "batched")
    assert len(error.value.problems) == 1
    engine, reason = choose_engine(network, layout, Training(), features, "auto")
    assert engine == "sequential"
    assert reason in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize(("width", "engine"), [(8, "batched"), (128, "sequential")])
def test_large_ones_keep_a_core_busy(width: int, engine: str) -> None:
    network = Attention(width)
    layout = Layout.of(network)
    assert choose_engine(network, layout, Training(batch_size=32), (5, 3), "auto")[0] == engine
    assert choose_engine(network, layout, Training(), (5, 3), "batched") == ("batched", "as asked")


def test_operations_are_counted_without_views() -> None:
    network = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.Tanh(), nn.Sigmoid())
    assert vars(count_operations(network, (6,))) == {"operations": 2, "written": 12}


def test_the_head_may_be_anywhere() -> None:
    """What a perceptron's kernel takes by its place, a module is given by its name."""
    network = Branches()
    layout = Layout.of(network, ("images", "norm"))
    assert [e.name for e in layout.tensors] != [n for n, p in network.named_parameters() if p.requires_grad]
    assert choose_engine(network, layout, Training(), (8, 8, 1), "auto")[0] == "batched"
