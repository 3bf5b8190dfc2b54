"""What a server and a client on different machines send each other: a few plain values, and packed bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.errors import BadInput, escape, show_value
from coterie.runtime.remote.codec import VERSION

Value = str | int | float | bool


@dataclass(frozen=True, eq=False)
class Message:
    """Plain values by name, and bytes (see `codec`), which may be none."""

    values: Mapping[str, Value] = field(default_factory=dict)
    body: bytes = b""

    @classmethod
    def refuse(cls, reason: str) -> Message:
        """Make the answer of a client that cannot do what it is asked."""
        return cls({"version": VERSION, "refused": reason})

    @property
    def refusal(self) -> str | None:
        """Why the client did not do what it was asked, in at most 500 characters; None if it did."""
        reason = self.values.get("refused")
        return None if reason is None else escape(" ".join(str(reason).split()))[:500]

    def check_version(self) -> None:
        """Check that both sides speak the same version.

        Raises:
            BadInput: the other side speaks another one, or does not say which.
        """
        spoken = self.values.get("version")
        if spoken != VERSION:
            raise BadInput(
                f"the other side speaks {show_value(spoken)} and this one {VERSION!r}; install the same coterie on "
                "both"
            )

    def number(self, name: str) -> int:
        """Return a whole number that must be there.

        Raises:
            BadInput: it is missing, or something else.
        """
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadInput(f"a message says {name} = {show_value(value)}; it must be a whole number")
        return value

    def text(self, name: str) -> str:
        """Return a text that must be there.

        Raises:
            BadInput: it is missing, or something else.
        """
        value = self.values.get(name)
        if not isinstance(value, str):
            raise BadInput(f"a message says {name} = {show_value(value)}; it must be a text")
        return value
