"""What each rule asks for and answers with, driven by hand: no engine, no data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clients.rules import (
    RULES,
    Answer,
    Choose,
    ChooseThenTrain,
    Client,
    Evaluate,
    Item,
    LocalUpdate,
    Losses,
    Order,
    Rule,
    Score,
    Scored,
    Train,
    Trained,
    Training,
    TrainOwn,
)
from coterie.errors import BadInput
from coterie.models.layout import Layout, Part

LAYOUT = Layout.of(torch.nn.Linear(3, 2))
P = LAYOUT.size
INITIAL = torch.linspace(-1.0, 1.0, P)
SCORED = Scored(0.5, np.array([1, 2]), np.array([2, 1]), np.array([1, 1]))


def carry_out(
    rule: Rule,
    items: Mapping[str, Item],
    told: Mapping[str, float] | None = None,
    state: Mapping[str, Tensor] | None = None,
    reply: Callable[[Any], Any] | None = None,
) -> tuple[list[Any], Answer]:
    """What the rule asks for, and its answer; training adds 1 to every number unless `reply` says otherwise."""
    me = Client(4, 2, 30, 0, LAYOUT, Training(), state or {}, INITIAL.clone)
    work = rule.run(me, Order(4, 2, rule, items, told or {}))
    asked: list[Any] = []
    result: Any = None
    while True:
        try:
            request = work.send(result)
        except StopIteration as end:
            answer: Answer = end.value
            return asked, answer
        asked.append(request)
        match request:
            case Train():
                result = Trained(request.start + 1, 0.25)
            case Losses():
                result = reply(request) if reply else torch.arange(float(len(request.models)))
            case Score():
                result = SCORED


def model(seed: int) -> Tensor:
    return torch.randn(P, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mu", [None, 0.0, 0.3])
def test_a_local_update_trains_what_it_got(mu: float | None) -> None:
    received = model(0)
    asked, answer = carry_out(LocalUpdate(), {"model": Item(received)}, {} if mu is None else {"mu": mu})
    (train,) = asked
    assert torch.equal(train.start, received)
    assert train.pull == (mu or 0.0)
    assert train.anchor is None  # which is the start
    assert torch.equal(answer.uploads["model"], received + 1)
    assert answer.report == {"train_loss": 0.25}
    assert (dict(answer.client_state), dict(answer.numbers)) == ({}, {})


def test_training_ones_own_model_starts_where_everybody_does_and_goes_on() -> None:
    (first,), answer = carry_out(TrainOwn(), {})
    assert torch.equal(first.start, INITIAL)
    kept = answer.client_state["model"]
    assert kept is not None
    assert torch.equal(kept, INITIAL + 1)
    assert dict(answer.uploads) == {}
    (second,), _ = carry_out(TrainOwn(), {}, state={"model": kept})
    assert torch.equal(second.start, INITIAL + 1)


@pytest.mark.parametrize(("losses", "choice"), [([3.0, 1.0, 2.0], 1), ([2.0, 1.0, 1.0], 1), ([0.0, 0.0, 0.0], 0)])
def test_the_smallest_loss_is_chosen_and_ties_go_to_the_first(losses: list[float], choice: int) -> None:
    models = torch.stack([model(k) for k in range(3)])
    items = {"models": Item(models)}
    (only,), answer = carry_out(Choose(), items, reply=lambda _: torch.tensor(losses))
    assert torch.equal(only.models, models)
    assert (only.split, only.samples) == ("train", None)
    assert dict(answer.numbers) == {"choice": float(choice)}
    assert dict(answer.uploads) == {}
    (_, train), answer = carry_out(ChooseThenTrain(), items, {"mu": 0.2}, reply=lambda _: torch.tensor(losses))
    assert torch.equal(train.start, models[choice])
    assert train.pull == 0.2
    assert dict(answer.numbers) == {"choice": float(choice)}
    assert torch.equal(answer.uploads["model"], models[choice] + 1)


def test_an_evaluation_scores_what_the_client_is_served() -> None:
    received, own = model(0), model(1)
    (score,), answer = carry_out(Evaluate(), {"model": Item(received)})
    assert torch.equal(score.model, received)
    assert score.split == "test"
    assert answer.report == {"score": SCORED, "choice": None}
    assert (dict(answer.uploads), dict(answer.client_state), dict(answer.numbers)) == ({}, {}, {})
    (score,), _ = carry_out(Evaluate("validation", own="model"), {}, state={"model": own})
    assert torch.equal(score.model, own)
    assert score.split == "validation"
    (score,), _ = carry_out(Evaluate(own="model"), {})
    assert torch.equal(score.model, INITIAL)


def test_an_evaluation_puts_the_received_part_over_the_own_model() -> None:
    part = Part.of([(0, 2), (5, 6)])
    own = model(1)
    before = own.clone()
    got = {"model": Item(torch.tensor([7.0, 8.0, 9.0]), part)}
    (score,), _ = carry_out(Evaluate(own="model"), got, state={"model": own})
    expected = before.clone()
    expected[[0, 1, 5]] = torch.tensor([7.0, 8.0, 9.0])
    assert torch.equal(score.model, expected)
    assert torch.equal(own, before)


def test_an_evaluation_lets_a_client_without_a_group_choose_by_its_training_data() -> None:
    models = torch.stack([model(k) for k in range(3)])
    (losses, score), answer = carry_out(
        Evaluate(), {"models": Item(models)}, reply=lambda _: torch.tensor([2.0, 0.5, 1.0])
    )
    assert losses.split == "train"
    assert torch.equal(score.model, models[1])
    assert answer.report["choice"] == 1


def test_an_item_without_a_part_is_a_model_of_its_own() -> None:
    received = model(0)
    copy = Item(received).onto(model(1))
    assert torch.equal(copy, received)
    copy[0] = 99.0
    assert received[0] != 99.0


def test_a_client_draws_from_its_own_address() -> None:
    def drawn(client: int, round: int, purpose: str, seed: int = 0) -> list[float]:
        me = Client(client, round, 30, seed, LAYOUT, Training(), {}, INITIAL.clone)
        return [float(x) for x in me.stream(purpose).random(3)]

    first = drawn(1, 1, "batches")
    assert first == drawn(1, 1, "batches")
    others = [drawn(2, 1, "batches"), drawn(1, 2, "batches"), drawn(1, 1, "losses"), drawn(1, 1, "batches", 1)]
    assert first not in others


def test_every_rule_can_be_built_from_its_name_and_settings() -> None:
    for rule in (LocalUpdate(), TrainOwn(), Choose(), ChooseThenTrain(), Evaluate("validation", own="model")):
        entry = RULES[rule.name]
        assert entry.target(**entry.bind(rule.settings(), "settings")) == rule
    with pytest.raises(BadInput, match=r"settings\.split = 'exam'.*'validation' or 'test'"):
        RULES["evaluate"].bind({"split": "exam"}, "settings")
    with pytest.raises(TypeError, match="Rule "):
        Rule().run(None, None)  # type: ignore[arg-type]  # it looks at neither


def test_the_learning_rate_of_a_round() -> None:
    training = Training(lr=0.4, lr_decay=0.5)
    assert [training.lr_at(r) for r in (0, 1, 2, 3)] == [0.4, 0.4, 0.2, 0.1]
