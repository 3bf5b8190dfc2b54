"""The client's side: carries out orders with the client's own data and keeps its state on its own disk.

Every exchange that changes a client's state stores it under a new number, which the server chooses and names again
with the next order. So a client whose answer came too late, or whose server went back to a checkpoint, goes on from
the state that the server means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from coterie.clients.engine.engine import Engine
from coterie.clients.open_files import remove_when_unmapped
from coterie.clients.rules.requests import Request, Score
from coterie.clients.rules.rule import Order
from coterie.errors import BadInput
from coterie.models.layout import Layout
from coterie.runtime.remote.codec import VERSION, pack_answer, unpack_order
from coterie.runtime.remote.message import Message
from coterie.runtime.runtime import Failure, answer_orders
from coterie.runtime.tensor_file import Stacked, replace_file
from coterie.runtime.threads import one_thread

State = Mapping[str, Tensor]


class StateStore:
    """Stores a client's states by number: files, written whole or not at all, that their owner alone may read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, number: int) -> dict[str, Tensor] | None:
        """Return the state of that number; None where there is none that can be read."""
        try:
            return load_file(self._path(number))
        except (SafetensorError, OSError, ValueError):
            return None

    def save(self, number: int, state: State) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(
            self._path(number), {name: Stacked.of(values) for name, values in state.items()}, {}, private=True
        )

    def delete_before(self, number: int) -> None:
        """Delete all states with smaller numbers."""
        for path in self._folder.glob("*.safetensors*"):
            digits = path.name.removeprefix(".").partition(".")[0]  # a kill leaves `.NUMBER.safetensors.PID.new`
            if digits.isdigit() and int(digits) < number:
                remove_when_unmapped(path)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:09d}.safetensors"


class ClientRunner:
    """Answers the server's messages.

    Args:
        engine: works with this client's data.
        store: holds the client's states.
        on_evaluated: called with each model `[P]` that the client was evaluated with (no mixture), and its layout.
        check: raises `BadInput` for an order that the client does not carry out; None where it carries out all.
    """

    def __init__(
        self,
        engine: Engine,
        store: StateStore,
        on_evaluated: Callable[[Tensor, Layout], None] | None = None,
        check: Callable[[Order], None] | None = None,
    ) -> None:
        self._engine = engine
        self._check = check
        self._store = store
        self._on_evaluated = on_evaluated

    def answer(self, message: Message) -> Message:
        """Carry out the order in a message. Any error becomes a refusal of one sentence."""
        try:
            message.check_version()
            return self._run_order(message)
        except BadInput as error:
            return Message.refuse("; ".join(error.problems))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a rule does, the client answers
            return Message.refuse(f"{type(error).__name__}: {error}")

    def _run_order(self, message: Message) -> Message:
        order = unpack_order(message.body)
        if self._check is not None:
            self._check(order)
        number, next_number = message.number("state"), message.number("next_state")
        keep = message.values.get("keep") is True
        state = self._store.load(number) if number else {}
        if state is None:
            return Message({"version": VERSION, "lost_state": number})
        evaluated: list[Tensor] = []

        def watch(request: Request) -> None:
            if isinstance(request, Score) and request.shares is None and request.memory is None:
                evaluated.append(request.model)

        with one_thread():
            (answer,) = answer_orders(self._engine, [order], [state], watch)
        if isinstance(answer, Failure):
            return Message.refuse(answer.reason)
        if keep and answer.client_state:
            changed = {**state, **answer.client_state}  # None in the place of a vector deletes it
            self._store.save(next_number, {name: values for name, values in changed.items() if values is not None})
        if keep:
            self._store.delete_before(message.number("oldest_state"))
        if evaluated and self._on_evaluated is not None:
            self._on_evaluated(evaluated[-1], self._engine.layout)
        kept = bool(keep and answer.client_state)
        return Message({"version": VERSION, "kept": kept}, pack_answer(order, answer))
