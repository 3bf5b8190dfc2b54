"""Samplers of tuning: which settings are tried next. Optuna (extra coterie[tune]) searches the ranges of the grids.

`grid` draws points of the grid and needs no library. `random` draws from the ranges that the grids span, `tpe`
where earlier trials did well, by a tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coterie.errors import BadInput, unknown
from coterie.runs.schema.toml import literal

if TYPE_CHECKING:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import Trial

    Range = CategoricalDistribution | IntDistribution | FloatDistribution

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


def range_of(values: tuple[Any, ...]) -> Range:
    """Return the range that the values of a grid span.

    Where the positive ones are ten times apart or more, the scale is logarithmic, and a 0 beside them is left out.
    Values that are not all numbers are choices.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return CategoricalDistribution(values)
    positive = [value for value in values if value > 0]
    is_log = min(values) >= 0 and len(positive) > 1 and max(positive) >= LOG_FROM * min(positive)
    low, high = min(positive) if is_log else min(values), max(values)
    kind = IntDistribution if all(isinstance(value, int) for value in values) else FloatDistribution
    return kind(low, high, log=is_log)


def holds(span: Range, value: Any) -> bool:
    """Whether a setting lies in a range."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if isinstance(span, CategoricalDistribution):
        return value in span.choices
    numbers = int if isinstance(span, IntDistribution) else int | float
    return isinstance(value, numbers) and not isinstance(value, bool) and span.low <= value <= span.high


def describe_range(span: Range) -> str:
    """Say what a setting may be."""
    from optuna.distributions import CategoricalDistribution

    if isinstance(span, CategoricalDistribution):
        return f"in {', '.join(map(literal, span.choices))}"
    return f"{literal(span.low)} to {literal(span.high)}{' (log)' * span.log}"


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

        self.ranges: dict[str, Any] = dict(ranges)
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

    def start_with(self, now: Mapping[str, Any]) -> Trial | None:
        """Return the trial of the settings as they are; None where a range does not hold them."""
        if not self.ranges or not all(holds(span, now[key]) for key, span in self.ranges.items()):
            return None
        self._study.enqueue_trial({key: now[key] for key in self.ranges})
        return self._study.ask(self.ranges)

    def ask(self) -> tuple[Trial, dict[str, Any]]:
        """Return the next trial, and its settings by dotted key."""
        trial = self._study.ask(self.ranges)
        return trial, {key: _shorten(span, trial.params[key]) for key, span in self.ranges.items()}

    def tell(self, trial: Trial, value: float | None, is_pruned: bool) -> None:
        """Tell what a trial came to; None for one that broke off."""
        from optuna.trial import TrialState

        if value is None:
            self._study.tell(trial, state=TrialState.FAIL)
        elif is_pruned:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, value)


def _shorten(span: Range, drawn: Any) -> Any:
    """Return what is drawn; a number with no more digits than a reader wants to copy."""
    from optuna.distributions import FloatDistribution

    if not isinstance(span, FloatDistribution):
        return drawn
    return min(max(float(f"{drawn:.{DIGITS}g}"), span.low), span.high)
