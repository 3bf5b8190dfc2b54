"""Carries messages to Flower's nodes and their answers back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

import flwr.app
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid

from coterie.errors import BadInput
from coterie.runtime.remote.message import Message
from coterie.runtime.runtime import Failure


class Absent(Failure):
    """Why a client gave no answer that is not connected, or hangs. It is not asked again in the same round."""


QUERY, TRAIN = "query", "train"
"""The kinds of messages that Flower hands to a client's app."""

SALT, SALT_BYTES = "salt", 16
"""The value of a message that nobody can guess, and its length."""

POLL_SECONDS = 0.2
"""Between two looks for answers."""

_ERRORS = {
    1: "its app cannot be loaded",
    3: "did not answer in time",
    4: "did not answer in time",
    5: "is not connected any more",
    8: "its process died",
}
"""The meaning of Flower's error codes (`flwr.common.constant.ErrorCode`)."""


def to_flower(message: Message) -> RecordDict:
    """Turn a message into the content of a Flower message.

    Its number at Flower is a digest of its content. Whoever knows that number may answer it, whichever node it was
    for, so the content has a part that nobody can guess.
    """
    content = RecordDict({"values": ConfigRecord({**message.values, SALT: secrets.token_hex(SALT_BYTES)})})
    if message.body:
        # As an array the bytes travel in pieces; in a ConfigRecord they would be compressed many times over.
        content["body"] = ArrayRecord({"body": Array(np.frombuffer(message.body, np.uint8))})
    return content


def from_flower(content: RecordDict) -> Message:
    """Read the content of a Flower message.

    Raises:
        BadInput: it is no message of coterie.
    """
    values, body = content.get("values"), content.get("body")
    if not isinstance(values, ConfigRecord) or not (body is None or isinstance(body, ArrayRecord)):
        raise BadInput("a message is not one of coterie; the other side must run an app of coterie")
    plain = {name: value for name, value in values.items() if isinstance(value, str | int | float | bool)}
    plain.pop(SALT, None)
    return Message(plain, b"" if body is None else body["body"].numpy().tobytes())


def send_and_wait(
    grid: Grid, messages: Mapping[int, Message], kind: str, group: str, seconds: float | None
) -> dict[int, Message | Failure]:
    """Send each node its message and wait for the answers.

    Args:
        grid: reaches the nodes.
        messages: by node.
        kind: of the messages.
        group: what they belong to, for Flower's own log.
        seconds: how long to wait; None for as long as the nodes are connected.

    Returns:
        By node its answer, or why there is none.
    """
    nodes = list(messages)
    outgoing = [
        flwr.app.Message(
            to_flower(messages[node]), dst_node_id=node, message_type=kind, group_id=group, ttl=seconds
        )
        for node in nodes
    ]
    # An error may come from another node than the one it is about; the message that it answers is always right.
    waiting = {str(key): node for key, node in zip(grid.push_messages(outgoing), nodes, strict=True) if key}
    answers: dict[int, Message | Failure] = {
        node: Absent("could not be sent a message") for node in nodes if node not in waiting.values()
    }
    deadline = None if seconds is None else time.monotonic() + seconds
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                answers[node] = _read(reply)
        if not waiting:
            break
        if deadline is not None and time.monotonic() >= deadline:
            answers |= {node: Absent(f"took longer than {seconds:g} s") for node in waiting.values()}
            break
        time.sleep(POLL_SECONDS)
    return answers


def _read(reply: flwr.app.Message) -> Message | Failure:
    if reply.has_error():
        reason = " ".join(str(reply.error.reason or "").split())[:300]
        known = _ERRORS.get(reply.error.code)
        return Absent(known) if known else Failure(f"failed in its app: {reason or f'error {reply.error.code}'}")
    try:
        return from_flower(reply.content)
    except BadInput as error:
        return Failure("; ".join(error.problems))
    except Exception as error:  # noqa: BLE001  # whatever a node sends, the round goes on
        return Failure(f"sent what cannot be read ({type(error).__name__}: {error})"[:300])
