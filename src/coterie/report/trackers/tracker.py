"""What every tracker tells: settings, each round's metrics, groups and clients, the files of a run that ended."""

from __future__ import annotations

import importlib.util
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import BadInput, escape
from coterie.report.tables import flatten
from coterie.runs.events import Result, Round
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment

QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
"""Of the clients' scores, that are told in each round with an evaluation."""

ARTEFACTS = (
    "report.html",
    "experiment.toml",
    "environment.json",
    "clients.parquet",
    "rounds.parquet",
    "ledger.parquet",
)
"""Files of a run's folder that are kept with it, as far as there are any."""


class Tracker(ABC):
    """An observer that tells another system of a run. A run never fails or changes for what its tracker does.

    What cannot be done before the first round is refused. From then on, the first thing that fails is said, and
    nothing more is told: the run's folder has it all.
    """

    library: str
    """The module that must be there."""
    extra: str
    """What installs it."""

    _is_telling = True

    def __post_init__(self) -> None:
        """Refuse a library that is not there, before a run has a folder.

        Raises:
            BadInput: it is missing.
        """
        if importlib.util.find_spec(self.library) is None:
            raise BadInput(f"tracking a run with {self.extra} needs {self.library}; install coterie[{self.extra}]")

    @abstractmethod
    def begin(self, folder: Path, settings: Mapping[str, str]) -> None:
        """Begin, or go on, with the run of a folder, whose settings are known by dotted keys."""

    @abstractmethod
    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Tell numbers of a round by their names, such as `accuracy` and `group 2/accuracy`."""

    @abstractmethod
    def keep(self, folder: Path, files: Sequence[Path], summary: Mapping[str, float]) -> None:
        """Keep the files of a run that ended, and what it came to."""

    @abstractmethod
    def end(self, status: str) -> None:
        """End; the status is finished or interrupted."""

    def started(self, experiment: Experiment, description_lines: Sequence[str]) -> None:
        """Begin with the run.

        Raises:
            BadInput: the other system cannot be told of the run.
        """
        if experiment.run.name is None:
            raise BadInput(f"a run without a folder, as of coterie.rounds, cannot be tracked with {self.extra}")
        folder = Path(experiment.run.folder) / experiment.run.name
        progress = RunFolder(folder).progress()
        settings = dict(flatten(experiment.tables(), "."))
        if progress is not None and progress.round:  # a run that goes on is not held up
            self._tell(lambda: self.begin(folder, settings))
            return
        try:
            self.begin(folder, settings)
        except Exception as error:  # whatever another system raises
            raise BadInput(
                f"the run cannot be tracked with {self.extra} ({_say(error)}); fix this, or leave --track out"
            ) from error

    def round(self, round: Round) -> None:
        """Tell a round's numbers."""
        self._tell(lambda: self.log(round.number, dict(numbers_of(round))))

    def note(self, text: str) -> None:
        """Tell nothing: notes stand in the run's log."""
        return

    def finished(self, result: Result) -> None:
        """Keep the page, the tables and the summary, and end."""
        self._tell(lambda: self._finish(result))

    def _finish(self, result: Result) -> None:
        if result.status == "finished":
            from coterie.report import run_page

            run_page.build(RunFolder(result.folder), None)
            summary = {name: float(value) for name, value in result.summary.items() if is_number(value)}
            files = [path for pattern in ARTEFACTS for path in sorted(result.folder.glob(pattern))]
            self.keep(result.folder, files, summary)
        self.end(result.status)

    def _tell(self, tell: Callable[[], None]) -> None:
        if not self._is_telling:
            return
        try:
            tell()
        except Exception as error:  # noqa: BLE001  # whatever another system raises
            self._is_telling = False
            logging.getLogger("coterie").warning(
                "note: %s gets nothing more of this run (%s); the run goes on", self.extra, escape(_say(error))
            )


def numbers_of(round: Round) -> Iterator[tuple[str, float]]:
    """Yield a round's metrics, those of each group, and the quantiles of the clients' scores, by name."""
    for name, value in round.metrics.items():
        if name != "round" and is_number(value):
            yield name, float(value)
    yield "up_megabytes_total", round.up_bytes_total / 1e6
    yield "down_megabytes_total", round.down_bytes_total / 1e6
    scores, deciding = round.scores, round.measured.of[0].name
    if scores is not None and np.isfinite(scores).any():
        known = scores[np.isfinite(scores)]
        for share in QUANTILES:
            yield f"clients/{deciding} {share:.0%}", float(np.quantile(known, share))
    for group, size in enumerate(round.group_sizes):
        yield f"group {group}/clients", float(size)
        if scores is not None and round.groups is not None:
            members = scores[(round.groups == group) & np.isfinite(scores)]
            if len(members):
                yield f"group {group}/{deciding}", float(members.mean())


def identify(folder: Path) -> str:
    """Return a short name of a run's folder that is the same when the run is resumed."""
    return blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()


def is_number(value: Any) -> bool:
    """Return whether a value is a number that other systems take: no flag, not infinite, and there."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _say(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
