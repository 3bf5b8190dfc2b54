"""Orders and answers as bytes: what goes in comes out, and what is damaged is refused in one sentence."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from coterie.clients.data.federation import build as federation_of
from coterie.clients.rules import Answer, ChooseThenTrain, Evaluate, Item, LocalUpdate, Order, Rule, Scored, rule
from coterie.errors import BadInput
from coterie.models.layout import Part
from coterie.models.networks import build
from coterie.runtime.remote.codec import VERSION, pack_answer, pack_order, unpack_answer, unpack_order

FEATURES = federation_of("digits", "iid", 2, seed=0).features
_, LAYOUT = build("mlp", {"hidden": "4"}, FEATURES, 10, 0)
P = LAYOUT.size


@rule("test-settings")
@dataclass(frozen=True)
class Settings(Rule):
    """Settings of every plain kind."""

    words: str = ""
    count: int = 0
    share: float = 0.0
    often: bool = False
    limit: float | None = None
    layers: tuple[int, ...] = ()
    uploads = ("model",)


floats = st.floats(width=32)
names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")


@st.composite
def parts(draw: Any) -> Part:
    edges = sorted(draw(st.lists(st.integers(0, P), max_size=8, unique=True)))
    return Part.of(zip(edges[::2], edges[1::2], strict=False))


def vector(draw: Any, size: int) -> Tensor:
    few = draw(st.lists(floats, max_size=4))
    values = torch.randn(size, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    values[: len(few)] = torch.tensor(few)[:size] if size else values
    return values


@st.composite
def items(draw: Any) -> Item:
    part = draw(st.none() | parts())
    size = P if part is None else part.size
    rows = draw(st.none() | st.integers(0, 3))
    if rows is None:
        return Item(vector(draw, size), part)
    return Item(torch.stack([vector(draw, size) for _ in range(rows)]) if rows else torch.empty(0, size), part)


@st.composite
def rules(draw: Any) -> Rule:
    any_settings = st.builds(
        Settings,
        words=st.text(max_size=5),
        count=st.integers(-(2**53), 2**53),
        share=st.floats(allow_nan=False, allow_infinity=False),
        often=st.booleans(),
        limit=st.none() | st.floats(-1, 1),
        layers=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    )
    found: Rule = draw(
        st.one_of(
            st.just(LocalUpdate()),
            st.just(ChooseThenTrain()),
            st.just(Evaluate("validation", "model")),
            any_settings,
        )
    )
    return found


orders = st.builds(
    Order,
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    rules(),
    st.dictionaries(names, items(), max_size=3),
    st.dictionaries(names, st.floats(), max_size=3),
    st.dictionaries(names, parts(), max_size=3),
)


def identical(one: Tensor, other: Tensor) -> bool:
    """The same shape and bits, NaN included."""
    return one.shape == other.shape and torch.equal(
        one.contiguous().view(torch.int32), other.contiguous().view(torch.int32)
    )


def alike(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@pytest.mark.medium
@given(orders)
@settings(max_examples=60)
def test_an_order_comes_back_as_it_was(order: Order) -> None:
    back = unpack_order(pack_order(order))
    assert (back.client, back.round, back.rule) == (order.client, order.round, order.rule)
    assert type(back.rule) is type(order.rule)
    assert back.items.keys() == order.items.keys()
    for name, item in order.items.items():
        assert identical(back.items[name].values, item.values)
        assert back.items[name].part == item.part
    assert back.settings.keys() == order.settings.keys()
    assert all(alike(back.settings[name], value) for name, value in order.settings.items())
    assert dict(back.upload_part) == dict(order.upload_part)


@pytest.mark.medium
@given(st.data())
@settings(max_examples=60)
def test_an_answer_comes_back_as_it_was_and_nothing_more_crosses(data: Any) -> None:
    part = data.draw(st.none() | parts())
    counts = st.lists(st.integers(0, 2**40), min_size=3, max_size=3).map(lambda n: np.array(n, np.int64))
    scored = data.draw(st.builds(Scored, st.floats(), counts, counts, counts))
    numbers = data.draw(st.dictionaries(names, st.floats(), max_size=3))
    report = {"score": scored, "choice": None, "loss": data.draw(st.floats()), "steps": np.float32(0.1)}
    order = Order(3, 1, Settings(), {}, upload_part={} if part is None else {"model": part})
    model = vector(data.draw, P)
    message = pack_answer(order, Answer({"model": model}, numbers, {"model": model + 1}, report))
    back = unpack_answer(order, message, LAYOUT)
    crossing = LAYOUT.everything if part is None else part
    assert back.uploads.keys() == {"model"}
    assert identical(crossing.take(back.uploads["model"]), crossing.take(model))
    assert (LAYOUT.everything - crossing).take(back.uploads["model"]).isnan().all()
    assert len(load(message)["model"]) == crossing.size
    assert back.client_state == {}
    assert back.numbers.keys() == numbers.keys()
    assert all(alike(back.numbers[name], value) for name, value in numbers.items())
    found = back.report["score"]
    assert isinstance(found, Scored)
    assert alike(found.loss, scored.loss)
    for field in ("actual", "predicted", "correct"):
        assert getattr(found, field).dtype == np.int64
        assert getattr(found, field).tolist() == getattr(scored, field).tolist()
    assert back.report["choice"] is None
    assert alike(back.report["loss"], report["loss"])
    assert back.report["steps"] == float(np.float32(0.1))


def test_two_items_may_be_one_row() -> None:
    matrix = torch.randn(3, P)
    order = Order(0, 1, LocalUpdate(), {"all": Item(matrix), "one": Item(matrix[1]), "again": Item(matrix[1])})
    back = unpack_order(pack_order(order))
    assert all(identical(back.items[name].values, order.items[name].values) for name in order.items)


# ---- what is refused


def an_order(**changes: Any) -> bytes:
    """A small order, with other entries in its header."""
    message = pack_order(
        Order(3, 2, Settings("a"), {"model": Item(torch.zeros(6), Part.of([(2, 8)]))}, {"mu": 0.1}, {})
    )
    return altered(message, **changes)


def altered(message: bytes, **changes: Any) -> bytes:
    size = int.from_bytes(message[:8], "little")
    meta = json.loads(message[8 : 8 + size])["__metadata__"]
    header = json.loads(meta["header"])
    tensors = changes.pop("tensors", None) or load(message)
    meta["version"] = changes.pop("version", meta["version"])
    for name in changes.pop("without", []):
        del header[name]
    return save(tensors, {**meta, "header": json.dumps(header | changes)})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": "coterie-message/9"}, f"'coterie-message/9'; .*{VERSION!r}"),
        ({"version": "m" * 9000}, f"'{'m' * 99}…; .*{VERSION!r}"),
        ({"rule": "lokal-update"}, r"'lokal-update' .*local-update\?"),
        ({"rule_settings": {"wrods": "a"}}, r"words\?"),
        ({"rule_settings": {"count": "x"}}, r"settings\.count = 'x' .*integer"),
        ({"tensors": {"model": torch.zeros(5)}}, r"model .*\(5,\); .*\(6,\) or \(k, 6\)"),
        ({"tensors": {"model": torch.zeros(1, 1, 6)}}, r"\(1, 1, 6\); .*\(6,\) or \(k, 6\)"),
        ({"tensors": {"model": torch.zeros(6).long()}}, r"model .*torch\.int64; .*torch\.float32"),
        ({"tensors": {"other": torch.zeros(6)}}, r"\(KeyError: 'other'\)"),
        ({"without": ["rule"]}, r"\(KeyError: 'rule'\)"),
        ({"parts": {"model": "all"}}, "read"),
        ({"parts": [1]}, "read"),
        ({"settings": {"mu": "much"}}, "read"),
        ({"upload_part": {"model": None}}, "read"),
        ({"client": None}, "read"),
    ],
)
def test_a_wrong_order_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=f"^.*{says}.*$"):
        unpack_order(an_order(**changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensors": {"model": torch.zeros(P - 1)}}, rf"\({P - 1},\); .*\({P},\)"),
        ({"tensors": {"model": torch.zeros(1, P)}}, rf"\(1, {P}\); .*\({P},\)"),
        ({"tensors": {"model": torch.zeros(P).double()}}, r"model .*torch\.float64; .*torch\.float32"),
        ({"numbers": {"loss": None}}, "read"),
        ({"numbers": 3}, "read"),
        ({"report": {"score": {"scored": 1.0}}}, r"\(KeyError: 'actual'\)"),
        ({"without": ["report"]}, "read"),
        ({"version": "x"}, "version 'x'"),
    ],
)
def test_a_wrong_answer_is_refused(changes: dict[str, Any], says: str) -> None:
    order = Order(3, 2, Settings(), {})
    message = pack_answer(order, Answer({"model": torch.zeros(P)}, {"loss": 1.0}))
    with pytest.raises(BadInput, match=f"^.*{says}.*$"):
        unpack_answer(order, altered(message, **changes), LAYOUT)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(BadInput, match="read"):
        unpack_order(noise)
    with pytest.raises(BadInput, match="read"):
        unpack_answer(Order(0, 1, Settings(), {}), noise, LAYOUT)


@pytest.mark.medium
@given(st.data())
@settings(max_examples=150)
def test_a_damaged_message_is_read_or_refused_in_one_sentence(data: Any) -> None:
    """Bits in a tensor cannot be told from others; whatever else changes, no other error gets out."""
    message = bytearray(an_order())
    for place in data.draw(st.lists(st.integers(0, len(message) - 1), min_size=1, max_size=3)):
        message[place] = data.draw(st.integers(0, 255))
    with suppress(BadInput):
        assert isinstance(unpack_order(bytes(message)), Order)


@given(st.integers(0, 10**6))
def test_a_cut_message_is_refused(length: int) -> None:
    whole = an_order()
    with pytest.raises(BadInput, match="read"):
        unpack_order(whole[: length % len(whole)])
