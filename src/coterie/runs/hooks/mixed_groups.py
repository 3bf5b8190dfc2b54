"""Says which groups hold clients that still differ, where a method was given the number of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.methods.split_halves import warn_of_mixed_groups
from coterie.runs.hooks.hook import Hook
from coterie.runtime.runtime import drive
from coterie.runtime.threads import one_thread

if TYPE_CHECKING:
    from coterie.runs.session import Session


class MixedGroups(Hook):
    """Asks clients of each group once more at the end; of it nothing is counted or kept.

    Real clients are not asked to train once more for it, nor are those who were promised privacy.
    """

    @classmethod
    def is_on(cls, run: Session) -> bool:
        return run.is_simulated and run.promise is None and run.method.is_given_groups

    def run_ended(self) -> Sequence[str]:
        run = self.run
        if run.groups is None:
            return ()
        assignment = run.method.assignment(run.state, run.server)
        run.runtime.begin_round(run.done)
        with one_thread(blas=True):
            asked = warn_of_mixed_groups(assignment.models, assignment.groups, run.groups, run.server, run.done)
            found: list[str] = drive(asked, run.runtime.answer)
        run.runtime.states.roll_back()
        return found
