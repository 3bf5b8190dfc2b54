"""How many samples went backwards through the network, counted for each order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from coterie.clients.engine.batched import Batched
from coterie.clients.engine.sequential import Sequential
from coterie.clients.rules import (
    Answer,
    ClassGaussians,
    Client,
    Evaluate,
    Gradients,
    Item,
    LocalUpdate,
    Losses,
    MetaTrain,
    Order,
    Request,
    Rule,
    Score,
    Train,
    Training,
)
from coterie.clients.rules.meta import group_minibatches
from coterie.clients.rules.minibatch import minibatch_ranges
from coterie.clients.rules.rule import Work
from tests.clients.engine.population import population

TEN = Training(epochs=3, batch_size=10)
W = torch.zeros(1)


@dataclass(frozen=True)
class Ask(Rule):
    """Ask for some work and answer with a report, or with none."""

    requests: tuple[Request, ...] = ()
    report: bool = True

    def run(self, client: Client, order: Order) -> Work:
        for request in self.requests:  # noqa: UP028  # a tuple cannot be sent the results
            yield request
        return Answer(report={"remark": 1}) if self.report else Answer()


SECOND_ORDER = MetaTrain(W, 0.1, 0.1, epochs=1, second_order=True)


@pytest.mark.parametrize(
    ("request_", "count", "expected"),
    [
        (Train(W), 47, 3 * 47),
        (Train(W, epochs=2), 47, 2 * 47),
        (Train(W, epochs=0), 47, 0),
        (Train(W, minibatches=7), 47, 47 + 20),
        (Train(W, objective=ClassGaussians(0.1, samples=12), extras={"reference": W}), 47, 3 * 47),
        (Gradients(W), 47, 47),
        (Gradients(W, batches=2), 47, 20),
        (Gradients(W, full=True), 47, 47),
        (MetaTrain(W, 0.1, 0.1), 47, 3 * 40),
        (MetaTrain(W, 0.1, 0.1, epochs=1), 4, 8),
        (SECOND_ORDER, 47, 10 + 10 + 2 * 10),
        (SECOND_ORDER, 14, 10 + 4 + 2 * 4),
        (SECOND_ORDER, 4, 4 * 4),
        (Losses(W), 47, 0),
        (Score(W), 47, 0),
    ],
)
def test_the_work_of_a_request(request_: Request, count: int, expected: int) -> None:
    assert request_.backpropagated(count, TEN, keep_single=True) == expected
    assert request_.backpropagated(0, TEN, keep_single=True) == 0


def test_ranges_and_groups() -> None:
    assert minibatch_ranges(21, 10, keep_single=True) == [(0, 10), (10, 20), (20, 21)]
    assert minibatch_ranges(21, 10, keep_single=False) == [(0, 10), (10, 20)]
    assert minibatch_ranges(0, 10, keep_single=True) == []
    assert group_minibatches("abcde", 2) == [["a", "b"], ["c", "d"]]
    assert group_minibatches("abcde", 3) == [["a", "b", "c"]]
    assert group_minibatches("ab", 3) == [["a", "b", "b"]]
    assert group_minibatches("a", 2) == [["a", "a"]]
    assert group_minibatches("", 2) == []


@pytest.mark.parametrize("kind", [Sequential, Batched])
def test_the_work_of_an_order_is_in_its_report(kind: type[Sequential] | type[Batched]) -> None:
    people = population(kind, TEN)
    counts = [len(people.data.slice(i, "train")[1]) for i in range(4)]
    w = people.models[0]
    rules: list[Rule] = [
        Ask((Train(w), Losses(w[None]), Gradients(w, batches=1))),
        Ask((MetaTrain(w, 0.1, 0.1, epochs=1), Train(w, epochs=1)), report=False),
        Ask(),
        LocalUpdate(),
        Evaluate(),
    ]
    orders = [Order(min(i, 3), 2, r, {"model": Item(w)}) for i, r in enumerate(rules)]
    answers = people.engine.run_rules(orders, [{}] * len(orders))
    found = [a.report["trained_samples"] for a in answers]
    assert found == [3 * counts[0] + 10, (10 + 10) + counts[1], 0.0, 3 * counts[3], 0.0]
    assert all(isinstance(value, float) for value in found)
    assert [a.report.get("remark") for a in answers[:3]] == [1, None, 1]
    assert "score" in answers[4].report


def test_a_batch_norm_network_trains_on_no_sample_alone() -> None:
    people = population(Sequential, TEN, "resnet18", counts=[21, 1], features=(8, 8, 1), width=2)
    orders = [Order(i, 2, LocalUpdate(), {"model": Item(m)}) for i, m in enumerate(people.models)]
    found = [a.report["trained_samples"] for a in people.engine.run_rules(orders, [{}, {}])]
    assert found == [60.0, 0.0], "21 samples in tens are 20 an epoch"


def test_what_is_no_answer_is_refused() -> None:
    people = population(Sequential, TEN)

    @dataclass(frozen=True)
    class Wrong(Rule):
        def run(self, client: Client, order: Order) -> Any:
            yield Losses(people.models[0][None])
            return "done"

    with pytest.raises(TypeError, match="Answer"):
        people.engine.run_rules([Order(0, 2, Wrong(), {})], [{}])
