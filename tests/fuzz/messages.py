"""What a server or a client may receive: messages of a real round in which something is other than it should be."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from coterie.clients.data.agree.population import ClientInfo
from coterie.clients.rules import Training
from coterie.errors import BadInput
from coterie.methods import Cohort, Method, ServerView
from coterie.models.origin import initialise
from coterie.runs.schema.names import catalog
from coterie.runtime.local.runtime import EngineSpec
from coterie.runtime.remote.client_runner import ClientRunner
from coterie.runtime.remote.handshake import pack_hello, unpack_hello
from coterie.runtime.remote.message import Message
from coterie.runtime.runtime import Failure, drive
from tests.federated import planted
from tests.fuzz.case import Case
from tests.fuzz.values import damage, damage_bytes, draw_json
from tests.loopback import LoopbackRuntime, MemoryStateStore

CLIENTS = 4
METHODS = (
    "fedavg",
    "fesem",
    "ifca",
    "cfl",
    "fedtsdp",
    "ditto",
    "local-only",
    "flis",
    "grouped-layers",
    "fedprox",
    "robust-tkm",
)
"""Those whose messages are damaged."""

LONGEST = 1000
"""Characters of a reason for which a client is left out, or of a client's refusal."""


def make_message(random: Random) -> Case:
    """Return a case with a damaged hello, order, or answers of one client in a round."""
    kind, method, seed = random.random(), random.choice(METHODS), random.randrange(2**32)

    def say_hello(folder: Path) -> None:
        sums = tuple(tuple(float(v) for v in row) for row in ([640] * 1, [64.0], [100.0]))
        info = ClientInfo("client 1", (20, 4, 4), (8, 8, 1), 10, "digest", 10, (), sums)
        message = pack_hello(info)
        unpack_hello(replace(message, values=_damage_values(message.values, Random(seed))))

    def carry_out(folder: Path) -> None:
        drawn = Random(seed)
        message = damage_message(drawn.choice(_orders(method)), drawn)
        answer = ClientRunner(_spec().build(), MemoryStateStore()).answer(message)
        if answer.refusal is not None:
            raise BadInput(answer.refusal)

    def play(folder: Path) -> None:
        runtime = _Tampering(Random(seed))
        for round in (1, 2):
            play_round(method, runtime, round)
            for _, reason in runtime.failures:
                if len(reason) > LONGEST:
                    raise AssertionError(f"a reason has {len(reason)} characters: {reason[:500]}")
                print(reason)

    return Case((say_hello if kind < 0.25 else carry_out if kind < 0.5 else play,))


class _Tampering(LoopbackRuntime):
    """Damages what client 1 answers, not always."""

    def __init__(self, random: Random) -> None:
        super().__init__(_spec().build(), _federation().bounds)
        self._random = random

    def post(self, messages: Mapping[int, Message]) -> Mapping[int, Message | Failure]:
        replies = dict(super().post(messages))
        reply = replies.get(1)
        if isinstance(reply, Message) and self._random.random() < 0.8:
            replies[1] = damage_message(reply, self._random)
        return replies


class _Recording(LoopbackRuntime):
    """Keeps the orders that are sent."""

    def __init__(self) -> None:
        super().__init__(_spec().build(), _federation().bounds)
        self.orders: list[Message] = []

    def post(self, messages: Mapping[int, Message]) -> Mapping[int, Message | Failure]:
        self.orders += messages.values()
        return super().post(messages)


@cache
def _federation() -> Any:
    return planted(clients=CLIENTS, samples=20, test=4, public=20)


@cache
def _spec() -> EngineSpec:
    federation = _federation()
    training = Training(epochs=1, batch_size=20, lr=0.1)
    return EngineSpec("planted-perceptron", {}, federation.features, federation, training, 0, "sequential")


@cache
def _orders(method: str) -> list[Message]:
    runtime = _Recording()
    play_round(method, runtime, 1)
    return runtime.orders


def play_round(name: str, runtime: LoopbackRuntime, round: int) -> None:
    """Play one round of a method from its start, and the evaluation behind it."""
    federation, engine = _federation(), runtime.engine
    method: Method[Any] = catalog("method")[name].target(**({"clusters": 2} if name in ("fesem", "ifca") else {}))
    server = ServerView(
        federation.samples,
        engine.layout,
        0,
        lambda variant: initialise(engine.network, engine.layout, 0, variant),
        federation.public,
    )
    runtime.begin_round(round)
    everyone = np.arange(CLIENTS)
    state = drive(method.round(method.start(server), Cohort(1, everyone, server)), runtime.answer)
    runtime.measure(method.evaluation(state, server, everyone))


# ---- damage


def damage_message(message: Message, random: Random) -> Message:
    """Return a message with other values, another body, or both."""
    if random.random() < 0.2:
        message = replace(message, values=_damage_values(message.values, random))
    if message.body and random.random() < 0.9:
        message = replace(message, body=_damage_body(message.body, random))
    return message


def _damage_values(values: Mapping[str, Any], random: Random) -> dict[str, Any]:
    changed = dict(values)
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice([*changed, "refused", "lost_state", "kept", "columns", "sums", "outputs"])
        odd = draw_json(random)
        if isinstance(changed.get(name), str) and random.random() < 0.4:
            changed[name] = damage(changed[name], random)
        elif isinstance(changed.get(name), str) and changed[name][:1] == "[" and random.random() < 0.7:
            with suppress(json.JSONDecodeError):  # it was damaged already
                changed[name] = json.dumps(_replace_somewhere(json.loads(changed[name]), random))
        else:
            changed[name] = odd if isinstance(odd, str | int | float | bool) else str(odd)
        if random.random() < 0.15:
            del changed[name]
    return changed


def _damage_body(body: bytes, random: Random) -> bytes:
    """Return the bytes of a safetensors file with another header, other tensors, or damaged anywhere."""
    if random.random() < 0.25:
        return damage_bytes(body, random, range(120))
    size = struct.unpack("<Q", body[:8])[0]
    header, tensors = json.loads(body[8 : 8 + size]), bytearray(body[8 + size :])
    what = random.random()
    if what < 0.55:
        inner = json.loads(header["__metadata__"]["header"])
        text = json.dumps(_replace_somewhere(inner, random))
        if random.random() < 0.1:
            text = damage(text, random)
        if random.random() < 0.03:
            text = "[" * 100_000
        header["__metadata__"]["header"] = text
    elif what < 0.75:
        header = _replace_somewhere(header, random)
    elif tensors:
        value = random.choice((3.4e38, -3.4e38, 1e30, 0.0, float("nan"), float("inf"), 1e-45, -1.0, 17.0))
        pieces = np.frombuffer(bytes(tensors[: len(tensors) // 4 * 4]), np.float32).copy()
        some = slice(None) if random.random() < 0.6 else slice(0, random.choice((1, 10)))
        pieces[some] = value
        tensors = bytearray(pieces.tobytes())
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    length = len(raw) if random.random() < 0.95 else random.choice((0, 2**63, 2**32, len(raw) + 1))
    return struct.pack("<Q", length) + raw + bytes(tensors)


def _replace_somewhere(value: Any, random: Random) -> Any:
    """Return what JSON holds with an odd value in the place of one of its parts, or without it."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(list(value))
        rest = {k: v for k, v in value.items() if k != name}
        how = random.random()
        if how < 0.1:
            return rest
        if how < 0.15:
            return {**rest, str(draw_json(random))[:50]: value[name]}
        return {**value, name: _replace_somewhere(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        place = random.randrange(len(value))
        return [*value[:place], _replace_somewhere(value[place], random), *value[place + 1 :]]
    return draw_json(random)
