"""Clients that fail round after round are not asked for a while, and so nobody waits for them.

After `after` rounds in a row without a sound answer a client sits out as many rounds. Then it is asked again. A
sound answer makes it a client like all others; another failure has it sit out twice as many rounds as last time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class _Record:
    """A client that failed in the last round in which it was asked."""

    failures: int = 0
    """Rounds in a row."""
    pause: int = 0
    """Rounds that it sat out last; 0 for none."""
    until: int = 0
    """The last of those rounds."""
    reason: str = ""
    """Of its last failure."""


class Quarantine:
    """Who is not asked, until when and why. A round counts when it is committed.

    Args:
        after: rounds in a row that a client may fail; None for any number.
    """

    def __init__(self, after: int | None) -> None:
        self._after = after
        self._round = 0
        self._records: dict[int, _Record] = {}
        self._failed: dict[int, str] = {}
        self._answered: set[int] = set()

    def begin_round(self, round: int) -> None:
        """Forget what was noted since the last commit."""
        self._round = round
        self._failed.clear()
        self._answered.clear()

    def reason(self, client: int) -> str | None:
        """Return why a client is not asked in this round, as the end of a sentence; None where it is asked."""
        record = self._records.get(client)
        if record is None or self._round > record.until:
            return None
        return f"is in quarantine until round {record.until}: {record.reason}"

    def note_answer(self, client: int) -> None:
        """Note a sound answer of this round."""
        self._answered.add(client)

    def note_failure(self, client: int, reason: str) -> None:
        """Note that a client gave no answer in this round, or none that is sound."""
        self._failed.setdefault(client, reason)

    def commit(self) -> dict[int, str]:
        """Count the round.

        Returns:
            By client, whose standing has changed, the end of a sentence that says how.
        """
        if self._after is None:
            return {}
        changes = {}
        for client, reason in sorted(self._failed.items()):
            record = self._records.setdefault(client, _Record())
            record.failures, record.reason = record.failures + 1, reason
            if record.pause or record.failures >= self._after:
                record.pause = 2 * record.pause or self._after
                record.until = self._round + record.pause
                changes[client] = (
                    f"gave no usable answer in {_rounds(record.failures)} and is not asked until round "
                    f"{record.until + 1}: {reason}"
                )
        for client in sorted(self._answered - self._failed.keys()):
            record = self._records.pop(client, _Record())
            if record.pause:
                changes[client] = "has answered again, and is asked as before"
        return changes

    def to_checkpoint(self) -> dict[str, dict[int, list[int | str]]]:
        """Return what a checkpoint holds of it; nothing where nobody has failed."""
        kept: dict[int, list[int | str]] = {
            client: [r.failures, r.pause, r.until, r.reason] for client, r in self._records.items()
        }
        return {"quarantine": kept} if kept else {}

    def restore(self, kept: Mapping[int, list[int | str]]) -> None:
        """Take up what a checkpoint holds under `quarantine`."""
        self._records = {}
        for client, (failures, pause, until, reason) in kept.items():
            self._records[client] = _Record(int(failures), int(pause), int(until), str(reason))


def _rounds(count: int) -> str:
    return f"{count} rounds in a row" if count > 1 else "one round"
