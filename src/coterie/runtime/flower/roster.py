"""Which node is which client, which clients are connected, and when each answered last.

A SuperLink that authenticates nodes knows each by its key. The name that the key was registered with is the only
one under which that node takes part.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from flwr.serverapp import Grid

from coterie.clients.data.agree.population import ClientInfo
from coterie.errors import BadInput, count_of
from coterie.runtime.flower.transport import QUERY, send_and_wait
from coterie.runtime.remote.handshake import REGISTERED, is_name, unpack_hello
from coterie.runtime.remote.message import Message
from coterie.runtime.runtime import Failure

HELLO_SECONDS = 120.0
"""For a node to say who it is: its first message loads all that its app needs."""

MAX_PAUSE = 16
"""Refreshes for which a node that was turned away is not asked again, at most."""

REFRESH_SECONDS = 1.0
"""Between two refreshes while the server waits for clients at the start."""


@dataclass
class LastAnswer:
    """The last round in which a client answered and when that was, and why it gave no answer since."""

    round: int | None = None
    at: datetime | None = None
    problem: str | None = None


@dataclass
class _Refusal:
    """Why a node cannot take part, and for how many refreshes it is not asked again."""

    reason: str
    pause: int
    refreshes_left: int


class Roster:
    """The nodes of a federation and the clients behind them.

    Args:
        grid: reaches the nodes.
        hello: the message that asks a node who it is.
        check: returns why a client cannot take part, in a sentence; None where it can.
        bind_names: whether clients bear the names that their keys were registered with. In a rehearsal they bear
            those of the simulated clients.
    """

    def __init__(
        self, grid: Grid, hello: Message, check: Callable[[ClientInfo], str | None], *, bind_names: bool
    ) -> None:
        self.grid = grid
        self.names: tuple[str, ...] = ()
        """The clients of the run in the order of their ids; empty before the run has begun."""
        self.names_are_bound = False
        """Whether the key of any node so far was registered with a name. Then a node without one takes no part."""
        self._bind_names = bind_names
        self._hello = hello
        self._check = check
        self._online: dict[int, str] = {}
        """The nodes that are connected, each with the name that its key was registered with; "" without one."""
        self._clients: dict[int, ClientInfo] = {}
        """By node, whether it is online or not."""
        self._nodes: dict[str, int] = {}
        """The online node of each client, by name."""
        self._refusals: dict[int, _Refusal] = {}
        """By node; only of online ones."""
        self._last_answers: dict[str, LastAnswer] = {}

    @property
    def anyone_present(self) -> bool:
        """Whether any client of the run is connected."""
        return any(name in self._nodes for name in self.names)

    def node(self, client: int) -> int | None:
        """Return the node behind a client; None while none is connected."""
        return self._nodes.get(self.names[client])

    def digest(self, client: int) -> str:
        """Return the digest of the data that a connected client said it holds."""
        return self._clients[self._nodes[self.names[client]]].digest

    def last_answer(self, client: int) -> LastAnswer:
        """Return when a client answered last."""
        return self._last_answers.setdefault(self.names[client], LastAnswer())

    def record_answer(self, client: int, round: int, problem: str | None) -> None:
        """Note that a client answered in a round, or why it did not."""
        last = self.last_answer(client)
        last.problem = problem
        if problem is None:
            last.round, last.at = round, datetime.now(UTC)

    def refresh(self) -> list[str]:
        """Ask every new node who it is.

        A node that gave no answer or was turned away is asked again after 1, 2, 4, … further refreshes: its trouble
        may have been mended, but a node that stays mute must not hold up every round.

        Returns:
            A sentence for each client that came, came back or was turned away.
        """
        before = self._online
        self._online = {node.node_id: node.name if self._bind_names else "" for node in self.grid.get_nodes()}
        if any(self._online.values()):
            self.names_are_bound = True
            # A node without a name may have come before the first one with a name, and have taken it.
            self._clients = {n: client for n, client in self._clients.items() if self._online.get(n) != ""}
        self._refusals = {node: refusal for node, refusal in self._refusals.items() if node in self._online}
        for refusal in self._refusals.values():
            refusal.refreshes_left -= 1
        # A node that was offline may hold other data now, so it is asked again.
        settled = (self._clients.keys() & before) | {n for n, r in self._refusals.items() if r.refreshes_left > 0}
        new = sorted(self._online.keys() - settled)
        notes = self._ask(new) if new else []
        self._nodes = {client.name: node for node, client in self._clients.items() if node in self._online}
        return notes

    def _ask(self, nodes: Sequence[int]) -> list[str]:
        """Ask nodes who they are; returns a sentence for each of which there is something new to say."""
        replies = send_and_wait(
            self.grid, {node: self._hello_to(node) for node in nodes}, QUERY, "hello", HELLO_SECONDS
        )
        notes = []
        for node in nodes:
            former = self._refusals.pop(node, None)
            try:
                notes.append(self._admit(node, replies[node]))
            except BadInput as error:
                (reason,) = error.problems
                pause = 1 if former is None else min(2 * former.pause, MAX_PAUSE)
                self._refusals[node] = _Refusal(reason, pause, pause)
                if former is None or reason != former.reason:
                    notes.append(reason)
        return notes

    def _hello_to(self, node: int) -> Message:
        """Return the message that asks a node who it is, with its own name where its key has one."""
        name = self._online[node]
        return Message({**self._hello.values, REGISTERED: name}, self._hello.body) if name else self._hello

    def _check_name(self, node: int, said: object) -> None:
        """Check that a node calls itself what its key was registered with, whatever else it answers.

        Raises:
            BadInput: it calls itself otherwise.
        """
        registered = self._online[node]
        if not self.names_are_bound or not is_name(said) or said == registered:
            return
        key = f"with the name {registered}" if registered else "without a name"
        raise BadInput(f"node {node} calls itself {said}, and its key was registered {key}; it takes no part")

    def _admit(self, node: int, reply: Message | Failure) -> str:
        """Take a node in by its answer.

        Returns:
            A sentence that says so.

        Raises:
            BadInput: it is turned away; the sentence says why.
        """
        if isinstance(reply, Message):
            self._check_name(node, reply.values.get("name"))
        client = _read_hello(node, reply)
        former = [n for n, other in self._clients.items() if other.name == client.name]
        if any(n != node and n in self._online for n in former):
            raise BadInput(f"client {client.name} cannot take part twice; give node {node} another name")
        if (problem := self._check(client)) is not None:
            raise BadInput(f"client {client.name} cannot take part: {problem}")
        if former and self._clients[former[-1]].digest != client.digest:
            raise BadInput(
                f"client {client.name} cannot take part any more: its data have changed since the run began"
            )
        for old in former:
            del self._clients[old]
        self._clients[node] = client
        if not self.names:
            return f"client {client.name} is here with {count_of(sum(client.sizes), 'sample')}"
        if client.name in self.names:
            return f"client {client.name} is back" if former else f"client {client.name} is here"
        return f"client {client.name} came after the run began, and takes no part in it"

    def wait_for_clients(
        self, wanted: int, enough: int, seconds: float, say: Callable[[str], None]
    ) -> dict[str, ClientInfo]:
        """Wait until `wanted` clients are connected, or until the time is over and `enough` of them are.

        Returns:
            Them by name, in natural order.

        Raises:
            BadInput: too few came in time, or what they hold is not what the experiment says.
        """
        deadline = time.monotonic() + seconds
        while True:
            for note in self.refresh():
                say(note)
            clients = {
                name: self._clients[self._nodes[name]]
                for name in sorted(self._nodes, key=natural_order)
                if not self.names or name in self.names
            }
            if len(clients) >= wanted or time.monotonic() >= deadline:
                break
            time.sleep(REFRESH_SECONDS)
        if len(clients) < enough:
            came = ", ".join(clients) or "nobody"
            raise BadInput(
                [
                    f"{len(clients)} of {wanted} clients can take part after {seconds:g} s ({came}); start the "
                    "missing nodes, or lower data.clients",
                    *(refusal.reason for refusal in self._refusals.values()),
                ]
            )
        return clients


def _read_hello(node: int, reply: Message | Failure) -> ClientInfo:
    """Read who a node says it is.

    Raises:
        BadInput: it gave no answer, refused, or said what is not possible; the sentence names the node.
    """
    if isinstance(reply, Failure):
        raise BadInput(f"node {node} {reply.reason}")
    try:
        if reply.refusal is not None:
            raise BadInput(reply.refusal)
        return unpack_hello(reply)
    except Exception as error:  # whatever a node answers, the others go on
        name = reply.values.get("name")
        who = f"client {name} (node {node})" if is_name(name) else f"node {node}"
        raise BadInput(f"{who} cannot take part: {str(error)[:300]}") from error


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which client-2 comes before client-10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]
