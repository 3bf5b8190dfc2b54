"""Samplers of tuning: which settings are tried next. Optuna (extra coterie[tune]) searches the ranges of the grids.

`grid` draws points of the grid and needs no library. `random` draws from the ranges that the grids span, `tpe`
where earlier trials did well, by a tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.errors import BadInput, unknown
from coterie.runs.schema.toml import literal

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

GRID = "grid"
SAMPLERS = (GRID, "random", "tpe")

LOG_FROM = 10
"""A range whose ends are so many times apart is searched on a log scale."""
DIGITS = 3
"""Significant digits of a number that is drawn from a range."""
STARTUP = 4
"""Trials before TPE uses what the earlier ones came to."""


def check_sampler(sampler: str) -> None:
    """Refuse a sampler that there is not.

    Raises:
        BadInput: it is unknown, or its library is not installed.
    """
    if sampler not in SAMPLERS:
        raise BadInput(unknown("sampler", sampler, SAMPLERS))
    if sampler != GRID and importlib.util.find_spec("optuna") is None:
        raise BadInput(f"sampler = {sampler!r} needs optuna; install coterie[tune], or take sampler = 'grid'")


@dataclass(frozen=True)
class Range:
    """What a setting may be: numbers from `low` to `high`, or one of `choices`."""

    low: float = 0
    high: float = 0
    is_log: bool = False
    is_whole: bool = False
    choices: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        """Whether a value lies in the range."""
        if self.choices:
            return value in self.choices
        is_number = isinstance(value, int if self.is_whole else int | float) and not isinstance(value, bool)
        return bool(is_number and self.low <= value <= self.high)

    def __str__(self) -> str:
        if self.choices:
            return f"in {', '.join(map(literal, self.choices))}"
        return f"{literal(self.low)} to {literal(self.high)}{' (log)' * self.is_log}"


def range_of(values: tuple[Any, ...]) -> Range:
    """Return the range that the values of a grid span.

    Where the positive ones are ten times apart or more, the scale is logarithmic, and a 0 beside them is left out.
    Values that are not all numbers are choices.
    """
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return Range(choices=values)
    positive = [value for value in values if value > 0]
    is_log = min(values) >= 0 and len(positive) > 1 and max(positive) >= LOG_FROM * min(positive)
    is_whole = all(isinstance(value, int) for value in values)
    return Range(min(positive) if is_log else min(values), max(values), is_log, is_whole)


def describe_ranges(ranges: Mapping[str, Range]) -> str:
    """Say what is searched."""
    return "; ".join(f"{key} {span}" for key, span in ranges.items())


def describe_grid(grid: Mapping[str, tuple[Any, ...]]) -> str:
    """Say what is searched."""
    return "; ".join(f"{key} in {', '.join(map(literal, values))}" for key, values in grid.items())


class Proposals:
    """A study of Optuna's, asked for points and told how they did. The greatest value is the best.

    It is kept in memory: the same seed and the same values, told in the same order, give the same points.

    Args:
        ranges: what is searched, by dotted key; may be empty.
        sampler: `random` or `tpe`.
        seed: of the sampler.
    """

    def __init__(self, ranges: Mapping[str, Range], sampler: str, seed: int) -> None:
        import optuna

        self.ranges = ranges
        chosen: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
        if sampler == "tpe":
            chosen = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
        former = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._study = optuna.create_study(
                direction="maximize", sampler=chosen, pruner=optuna.pruners.NopPruner()
            )
        finally:
            optuna.logging.set_verbosity(former)
        self._distributions = {key: _distribution(span) for key, span in ranges.items()}

    def start_with(self, now: Mapping[str, Any]) -> Proposal | None:
        """Return the proposal of the settings as they are; None where a range does not hold them."""
        if not self.ranges or not all(span.holds(now[key]) for key, span in self.ranges.items()):
            return None
        given = {
            key: span.choices.index(now[key]) if span.choices else now[key] for key, span in self.ranges.items()
        }
        self._study.enqueue_trial(given)
        return Proposal(self, self._study.ask(self._distributions), {})

    def ask(self) -> Proposal:
        """Return the next point."""
        trial = self._study.ask(self._distributions)
        return Proposal(self, trial, {key: _value(span, trial.params[key]) for key, span in self.ranges.items()})

    def tell(self, trial: Trial, value: float | None, is_pruned: bool) -> None:
        """Tell what a point came to."""
        from optuna.trial import TrialState

        if value is None:
            self._study.tell(trial, state=TrialState.FAIL)
        elif is_pruned:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, value)


@dataclass(frozen=True)
class Proposal:
    """A point that is to be tried."""

    study: Proposals
    trial: Trial
    changes: dict[str, Any]
    """Settings by dotted key."""

    def report(self, value: float, round: int) -> None:
        """Say what it has come to after a round."""
        self.trial.report(value, round)

    def tell(self, value: float | None, is_pruned: bool) -> None:
        """Say what it came to in the end; None for a run that broke off."""
        self.study.tell(self.trial, value, is_pruned)


def _distribution(span: Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if span.choices:
        return CategoricalDistribution(range(len(span.choices)))
    if span.is_whole:
        return IntDistribution(int(span.low), int(span.high), log=span.is_log)
    return FloatDistribution(span.low, span.high, log=span.is_log)


def _value(span: Range, drawn: Any) -> Any:
    """Return the setting that is drawn; a number keeps as many digits as a reader wants to copy."""
    if span.choices:
        return span.choices[drawn]
    if span.is_whole:
        return int(drawn)
    return min(max(float(f"{drawn:.{DIGITS}g}"), float(span.low)), float(span.high))
