"""What a hook of a run may do, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from coterie.methods import Cohort
from coterie.methods.exchange import Exchange, Replies
from coterie.runs.record import RoundResult

if TYPE_CHECKING:
    from coterie.runs.session import Session


class Hook:
    """Something that a run does beside its rounds. A subclass overrides what it needs of these functions.

    The loop calls them in the order in which they stand here, and the hooks in that of `hooks/order.py`. Whoever
    only wants to look at a run is an observer (`coterie.Observer`), which is told the same and can change nothing.

    Args:
        run: whose hook it is. What a hook reads there is the state after the last whole round.
    """

    def __init__(self, run: Session) -> None:
        self.run = run

    @classmethod
    def is_on(cls, run: Session) -> bool:
        """Whether the run has this hook; one that it has not costs nothing."""
        return True

    def server_view(self, cohort: Cohort) -> Cohort:
        """Return what the method sees of a round that begins: who takes part, and what the server knows."""
        return cohort

    def ask(self, exchange: Exchange) -> None:
        """Look at an exchange before any client hears of it.

        Raises:
            RuntimeError: the method must not ask for it.
        """

    def row_limit(self, exchange: Exchange, name: str, number: int) -> float:
        """Return the length of an update above which the hook must see the upload itself; 0 where it must see all.

        It is asked for each upload, by `name`, of which the method would do with sums. `number` is the round's.
        Whoever changes replies is taken to need all, and else nobody.
        """
        return inf if type(self).reply is Hook.reply else 0.0

    def reply(self, exchange: Exchange, replies: Replies, result: RoundResult) -> Replies:
        """Return what the method hears after an exchange. A client that is left out has failed in this round."""
        return replies

    def round_played(self, result: RoundResult) -> None:
        """Look at the state that the method's round returned, or replace it; what is logged is kept."""

    def round_ended(self, result: RoundResult) -> None:
        """Remember a round, which is in the run's tables now. What happened before this may have been cut off."""

    def describe_end(self) -> str:
        """Say what `run_ended` does where it takes time, for those who wait for it; empty where it takes none."""
        return ""

    def run_ended(self) -> Sequence[str]:
        """Write what is to be kept of the run; return one sentence for each thing that did not come about."""
        return ()

    def to_checkpoint(self) -> Mapping[str, Any]:
        """Return what is remembered between rounds, as tensors and plain values."""
        return {}

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Take up what `to_checkpoint` returned, which stands in `memory` beside what others remember."""
