"""What a run tells those who watch it: a round that ended, a remark, the result."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from coterie.catalogue import Catalog
from coterie.errors import BadInput, escape
from coterie.runs.folder.metrics import CLASSIFICATION, RunMetrics

if TYPE_CHECKING:
    import numpy as np
    import polars
    from numpy.typing import NDArray

    from coterie.runs.schema.experiment import Experiment

Status = Literal["finished", "interrupted"]


@dataclass(frozen=True)
class Round:
    """One round after its aggregation and, where it was due, its evaluation."""

    number: int
    """1, 2, … `planned`."""
    planned: int
    """Rounds of the whole run."""
    metrics: Mapping[str, Any]
    """The round's row of the run's table of rounds; a metric that was not evaluated is None or absent."""
    group_sizes: list[int] = field(default_factory=list)
    """Clients in each group, by group number; 0 for one that is empty, none at all for a method without groups."""
    up_bytes_total: int = 0
    """Bytes sent by clients since the run began."""
    down_bytes_total: int = 0
    """Bytes sent to clients since the run began."""
    seconds_total: float = 0.0
    """Wall-clock seconds of training and evaluation since the run began, pauses left out."""
    failures: list[tuple[int, str]] = field(default_factory=list)
    """(client, reason) for each client that was left out of this round."""
    groups: NDArray[np.int64] | None = None
    """The group of each client, -1 where it has none; None for a run without."""
    names: Sequence[str] = ()
    """What the clients are called."""
    measured: RunMetrics = CLASSIFICATION
    """The run's metrics: which columns of `metrics` say how well it goes, and how they read."""
    scores: NDArray[np.float64] | None = None
    """Each client's score `[n]` by the first metric, NaN where it has none; None where no evaluation was due."""


@dataclass(frozen=True, repr=False)
class Result:
    """A run that ended, and its tables as they lie in its folder."""

    folder: Path
    """Where all of it lies; `RunFolder(folder)` reads it."""
    experiment: Experiment
    """What was run, every default written out."""
    rounds: polars.DataFrame
    """One row a round."""
    clients: polars.DataFrame
    """One row per round and client."""
    ledger: polars.DataFrame
    """One row a transfer: round, client, direction, what, scalars, bytes."""
    summary: Mapping[str, Any]
    """The final metrics of the whole run."""
    status: Status
    """`finished`, or `interrupted`, from where `coterie.resume` goes on."""
    measured: RunMetrics = CLASSIFICATION
    """The run's metrics, the first of which decides."""

    def __repr__(self) -> str:
        value, title = self.summary.get(self.measured.headline), self.measured.deciding.title
        reached = "" if value is None else f", {title} {value:.3f}"
        return f"<Result {str(self.folder)!r}: {self.status} after round {self.rounds.height}{reached}>"


@runtime_checkable
class Observer(Protocol):
    """Watches a run. Called in the process that drives the run, between rounds; it never changes a result.

    A class that is derived from it overrides what it wants to be told of.
    """

    def started(self, experiment: Experiment, description_lines: Sequence[str]) -> None:
        """Before the first round, with the federation described in a few lines."""
        return

    def round(self, round: Round) -> None:
        """After each round."""
        return

    def note(self, text: str) -> None:
        """A remark that needs no answer, such as a checkpoint that had to be passed over."""
        return

    def finished(self, result: Result) -> None:
        """After the last round, or after an interruption once its state is on disk."""
        return


class LoggedNotes(Observer):
    """Writes the notes of a run that nobody watches to the log `coterie`, which Python shows on standard error."""

    def note(self, text: str) -> None:
        logging.getLogger("coterie").warning("note: %s", escape(text))


OBSERVERS = Catalog("observer", group="coterie.observers")
"""Observers by name, which an experiment can ask for (`run.observers`): classes with keyword settings."""

_CALLED = re.compile(r"(?P<name>[^(]+?)\s*(?P<arguments>\(.*\))?\s*", re.DOTALL)


def read_observer(text: str) -> Callable[[], Observer]:
    """Return what makes the observer that `name` or `name(setting=value)` means.

    Raises:
        BadInput: there is none, or it has no such settings.
    """
    from coterie.clients.data.divide.split import arguments_of

    match = _CALLED.fullmatch(text.strip())
    if match is None:
        raise BadInput(f"observer {text!r} cannot be read; write it as in printer or printer(every=5)")
    entry = OBSERVERS[match["name"]]
    given = arguments_of(match["name"], match["arguments"] or "()", [s.name for s in entry.settings])
    return partial(entry.target, **entry.bind(given, match["name"]))


def make_observers(texts: Sequence[str] | None) -> list[Observer]:
    """Return the observers that an experiment asks for.

    Raises:
        BadInput: one cannot be made, or lacks a function of `Observer`.
    """
    made = {text: read_observer(text)() for text in texts or ()}
    if wrong := [text for text, observer in made.items() if not isinstance(observer, Observer)]:
        raise BadInput(f"observer {wrong[0]!r} lacks functions; derive its class from coterie.Observer")
    return list(made.values())


@runtime_checkable
class EndObserver(Protocol):
    """What an observer may do beside: hear of what takes time after the last round."""

    def phase(self, text: str) -> None:
        """Before each such thing, and every few seconds of it; `text` says what it is and how far it has got."""
        return


PROGRESS_SECONDS = 5.0
"""Between two messages on how far something has got."""


def tell_regularly(tell: Callable[[str], object], text: str) -> Callable[[int, int], None]:
    """Return what is told how much of something is done, of how much, and passes it on every few seconds.

    Args:
        tell: is called with `text` and the numbers, at most every `PROGRESS_SECONDS`.
        text: what is being done.
    """
    begun = last = time.monotonic()

    def on_answers(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_SECONDS:
            last = now
            tell(f"{text} ({done:,} of {total:,} done, {now - begun:.0f} s)")

    return on_answers
