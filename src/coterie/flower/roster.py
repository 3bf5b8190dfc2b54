"""Who is there: which node is which client, what each told of its data, and who was turned away."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from flwr.serverapp import Grid

from coterie.flower.transport import QUERY, sent
from coterie.problems import BadInput
from coterie.runtime.letter import Letter
from coterie.runtime.runtime import Failure

ASKED = 120.0
"""Seconds that a node has for saying who it is: its first message loads all that its app needs."""

PAUSE = 1.0
"""Seconds between two looks for nodes at the start."""


@dataclass(frozen=True)
class Guest:
    """What a node told of the client behind it."""

    name: str
    sizes: tuple[int, int, int]
    """Training, validation and test samples."""
    features: tuple[int, ...]
    classes: int
    digest: str
    """Of its samples."""

    @classmethod
    def of(cls, letter: Letter) -> Guest:
        """Read an answer.

        Raises:
            BadInput: something is missing in it.
        """
        letter.check()
        sizes = tuple(letter.number(name) for name in ("train", "validation", "test"))
        features = json.loads(letter.text("features"))
        return cls(
            letter.text("name"),
            (sizes[0], sizes[1], sizes[2]),
            tuple(int(length) for length in features),
            letter.number("classes"),
            letter.text("digest"),
        )


@dataclass
class Seen:
    """What is known of a client's connection."""

    round: int | None = None
    at: datetime | None = None
    problem: str | None = None


class Roster:
    """The nodes of a federation, by client.

    Args:
        grid: knows the nodes.
        hello: the letter that asks a node who it is.
        accepts: why a client cannot take part, in a sentence; None where it can.
    """

    def __init__(self, grid: Grid, hello: Letter, accepts: Callable[[Guest], str | None]) -> None:
        self.grid = grid
        self.names: tuple[str, ...] = ()
        """The clients of the run in the order of their ids, once it has begun."""
        self.seen: dict[str, Seen] = {}
        self._hello = hello
        self._accepts = accepts
        self._guests: dict[int, Guest] = {}
        self._refused: dict[int, str] = {}
        self._online: set[int] = set()

    def look(self) -> list[str]:
        """Ask every new node who it is; one sentence on each that came, or came back, or was turned away."""
        before, self._online = self._online, set(self.grid.get_node_ids())
        # Whoever was away may hold other data now, or the right ones at last.
        self._refused = {node: reason for node, reason in self._refused.items() if node in self._online}
        known = (set(self._guests) & before) | set(self._refused)
        fresh = sorted(self._online - known)
        if not fresh:
            return []
        notes = []
        for node, reply in sent(self.grid, dict.fromkeys(fresh, self._hello), QUERY, "hello", ASKED).items():
            sentence = self._welcomed(node, reply)
            if sentence is not None:
                notes.append(sentence)
        return notes

    def gathered(self, wanted: int, enough: int, seconds: float, say: Callable[[str], None]) -> dict[str, Guest]:
        """Wait until `wanted` clients are there, or until the time is over and `enough` of them are.

        Returns:
            Them by name, in natural order.

        Raises:
            BadInput: too few came in time, or what they hold is not what the experiment says.
        """
        deadline = time.monotonic() + seconds
        while True:
            for note in self.look():
                say(note)
            here = [guest for node, guest in self._guests.items() if node in self._online]
            guests = {guest.name: guest for guest in sorted(here, key=lambda guest: natural(guest.name))}
            if self.names:
                guests = {name: guest for name, guest in guests.items() if name in self.names}
            if len(guests) >= wanted or time.monotonic() >= deadline:
                break
            time.sleep(PAUSE)
        if len(guests) < enough:
            came = ", ".join(guests) or "nobody"
            raise BadInput(
                [
                    f"{wanted} clients are to take part, and {len(guests)} can after {seconds:g} s ({came}); start "
                    "the nodes that are missing, or lower data.clients",
                    *self._refused.values(),
                ]
            )
        return guests

    def expect(self, names: Sequence[str]) -> None:
        """Who takes part, in the order of their ids."""
        self.names = tuple(names)

    def node(self, client: int) -> int | None:
        """The node behind a client; None while none is connected."""
        found = [n for n, guest in self._guests.items() if guest.name == self.names[client] and n in self._online]
        return found[-1] if found else None

    def heard(self, client: int, round: int, problem: str | None) -> None:
        """Note how asking a client went."""
        seen = self.seen.setdefault(self.names[client], Seen())
        seen.problem = problem
        if problem is None:
            seen.round, seen.at = round, datetime.now(UTC)

    def _welcomed(self, node: int, reply: Letter | Failure) -> str | None:
        """Take a node in, or turn it away; a sentence on what happened."""
        if isinstance(reply, Failure):
            return f"node {node} {reply.reason}"  # it is asked again at the next look
        try:
            if reply.refused is not None:
                raise BadInput(reply.refused)
            guest = Guest.of(reply)
        except (BadInput, ValueError, TypeError) as error:
            name = reply.values.get("name")
            who = f"node {node}" if name is None else f"client {name}"
            return self._turned_away(node, f"{who} cannot take part: {error}")
        before = [n for n, other in self._guests.items() if other.name == guest.name]
        if any(n != node and n in self._online for n in before):
            return self._turned_away(
                node, f"client {guest.name} cannot take part twice; give node {node} another name"
            )
        if (reason := self._accepts(guest)) is not None:
            return self._turned_away(node, f"client {guest.name} cannot take part: {reason}")
        if before and self._guests[before[-1]].digest != guest.digest:
            return self._turned_away(
                node, f"client {guest.name} cannot take part any more: its data have changed since the run began"
            )
        for old in before:
            del self._guests[old]
        self._guests[node] = guest
        if not self.names:
            return f"client {guest.name} is here with {sum(guest.sizes):,} samples"
        if guest.name in self.names:
            return f"client {guest.name} is back" if before else f"client {guest.name} is here"
        return f"client {guest.name} came after the run began, and has no part in it"

    def _turned_away(self, node: int, sentence: str) -> str:
        self._refused[node] = sentence
        return sentence


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key by which client-2 comes before client-10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]
