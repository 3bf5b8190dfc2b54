"""Tuning: every method of a comparison gets the same number of trials, and keeps what did best on validation data.

A trial is the cell's own run, from the comparison's first seed, with other settings and measured on the clients'
validation samples (`evaluation.on`). Test samples are never looked at: not for the choice, and not in the trials.
A method that looks at validation data in training still does, for that is its own rule: Ditto with `dynamic`,
FedCPS with `lambda_mode = "grid"`, DC-PFL with `trial_loss = "validation"`.

The settings as they are come first, then other learning rates alone, the same for all methods. After these, points
of rates and optimizers alone, again the same for all, take turns with points of the whole grid. Both are by default
drawn at random, by a seed and without replacement. The other samplers
(`coterie.studies.compare.samplers`) search the ranges that the grids span, by Optuna. All methods get the same
number of trials, and with pruning the same number of rounds: trials come in brackets of `BRACKET`, and at a
quarter and at half of the rounds the better half of a bracket goes on. Optuna's own pruners decide on each trial
as it comes in, so that a method's rounds would depend on the order of its values.

What is tried next depends on the values of ended trials alone, told in the order in which they were asked for. So
the runs in the pool are all that a search remembers: after a kill it asks again for the same trials, finds their
runs, and goes on to the same picks to the bit, whatever the number of processes.

The grid ends where the network does: settings that make another method of one (`Method.amounts_to`), such as FedRep
with all layers private, are no trials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice, pairwise
from math import ceil, inf, isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from coterie.catalogue import Setting
from coterie.errors import BadInput
from coterie.methods.method import Method
from coterie.models.layout import Layout
from coterie.randomness import stream
from coterie.runs.folder import metrics
from coterie.runs.folder.metrics import MACRO
from coterie.runs.folder.reading import RunResults
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment, Prepared, apply_changes
from coterie.runs.schema.names import build_method, build_task, catalog
from coterie.runs.schema.registry import section_settings
from coterie.runs.schema.toml import literal
from coterie.runs.setup import engine_spec, load_federation
from coterie.studies.compare.measures import shared_metrics
from coterie.studies.compare.samplers import (
    GRID,
    Proposals,
    check_sampler,
    describe_grid,
    describe_range,
    range_of,
)
from coterie.studies.compare.spec import Cell, Comparison, key_of
from coterie.studies.compare.table import interval

if TYPE_CHECKING:
    from optuna.trial import Trial as OptunaTrial

    from coterie.studies.compare.cells import CellOutcome

Grid = dict[str, tuple[Any, ...]]
"""Values to try, by dotted key."""

TUNING = pl.Schema(
    {
        "setting": pl.String(),
        "method": pl.String(),
        "trial": pl.Int32(),
        "key": pl.String(),
        "changes": pl.String(),
        "value": pl.Float64(),
        "picked": pl.Boolean(),
        "tied": pl.Boolean(),
        "points": pl.Int64(),
        "sampler": pl.String(),
        "rounds": pl.Int64(),
        "pruned": pl.Boolean(),
        "space": pl.String(),
        "edge": pl.String(),
    }
)
"""One row a trial, in the order of the comparison's cells and of the trials, which count from 1.

`changes` is empty for the settings as they were, which come first. `value` is the comparison's measure in the last
evaluated round, on validation samples; null where the run broke off, or has none. `tied` says that it cannot be
told from the pick: the 95 % interval of its difference to it, paired by client, holds 0. It is null for the pick
itself, for pruned trials, and where clients have no values of their own to pair. `points` is the size of the grid,
and null where ranges are searched. A pruned trial has played `rounds` rounds, and its value is of the last of them.
`space` says in words what is searched, and `edge` where the picked learning rate is an end of its grid.
"""

TUNED = ("training", "aggregation")
"""Sections with settings that are tuned, whatever the method."""

BRACKET = 4
"""Trials that are asked for together, and of which the better half goes on at each rung."""
ATTEMPTS = 25
"""Points that may be refused for each trial that is wanted, before a search of ranges ends."""


def tuned_settings(method: str) -> dict[str, Setting]:
    """Return the settings that tuning changes, by dotted key: the method's that have a grid, and the common ones.

    The common ones are the clients' learning rate, and the optimizers of clients and server.

    A method with a learning rate of its own (`method.lr`) has that one alone, and one whose clients do not train
    has none.

    Raises:
        BadInput: there is no such method.
    """
    entry: Any = catalog("method")[method]
    own = {f"method.{s.name}": s for s in entry.settings if s.grid}
    if not entry.target.uses_training:
        return own
    common = {f"{title}.{s.name}": s for title in TUNED for s in section_settings(title) if s.grid}
    return own | {key: s for key, s in common.items() if f"method.{s.name}" not in own}


def grid_of(experiment: Experiment) -> Grid:
    """Return the values that tuning tries, by dotted key.

    A setting is left out if the method accepts no other value of it, or takes no notice of it; a value if it alone
    makes another method of this one on the experiment's network.

    Raises:
        BadInput: there is no such method, or it refuses its settings.
    """
    now = experiment.resolved().tables()
    is_itself = not other_method(experiment)
    idle = _settings_without_use(build_method(experiment.method))
    grid = {}
    for key, setting in tuned_settings(experiment.method.name).items():
        if key in idle:
            continue
        present = look_up(now, key)
        others = {value for value in setting.grid if value != present and _accepts(experiment, key, value)}
        if not others:
            continue
        # What one value alone does can only be said of a method that is itself with the others.
        lost = {value for value in others if is_itself and other_method(experiment.updated({key: value}))}
        if {*setting.grid} - lost - {present}:
            grid[key] = tuple(value for value in setting.grid if value not in lost)
    return grid


def other_method(experiment: Experiment) -> str:
    """Return which other method an experiment's settings make of its own on its network; empty where none."""
    method = build_method(experiment.method)
    if type(method).amounts_to is Method.amounts_to:
        return ""
    # The network depends on no other section, and on nothing of the method but what it needs.
    sections = {title: getattr(experiment, title) for title in ("data", "task", "network")}
    others = {"method": experiment.method.name, "run": {"imports": experiment.run.imports}}
    needed = Experiment.from_tables({**sections, **others})
    layout = _layout_of(needed.to_toml())
    return "" if layout is None else method.amounts_to(layout, experiment.run.rounds)


@cache
def _layout_of(text: str) -> Layout | None:
    """Return the layout of an experiment's network; None where it cannot be built, which its run will explain."""
    try:
        experiment = Experiment.from_toml(text).resolved()
        prepared = Prepared(experiment, build_method(experiment.method), build_task(experiment.task))
        return engine_spec(prepared, load_federation(prepared)).build().layout
    except BadInput:
        return None


def check(comparison: Comparison, trials: int, pool: Path, sampler: str = GRID) -> None:
    """Refuse what cannot be tuned. Nothing is written.

    Raises:
        BadInput: `trials` is below 1, there is no such sampler or it is not installed, or a cell cannot be measured
            on validation samples; each sentence once.
    """
    check_sampler(sampler)
    if trials < 1:
        raise BadInput(f"tune = {trials} is not possible; it must be at least 1")
    if found := dict.fromkeys(
        sentence for cell in _first_cells(comparison) for sentence in _find_problems(cell, pool)
    ):
        raise BadInput(list(found))


def rungs(experiment: Experiment, prune: bool) -> tuple[int, ...]:
    """Return the rounds at which a bracket is halved, and the last round.

    These are a quarter and half of the rounds, or the next rounds in which the run is evaluated.
    """
    last, every = experiment.run.rounds, experiment.evaluation.every
    early = {ceil(ceil(last / part) / every) * every for part in (4, 2)} if prune else set()
    return (*sorted(number for number in early if number < last), last)


def tune(
    comparison: Comparison,
    trials: int,
    run: Callable[[list[Cell]], Mapping[str, CellOutcome]],
    pool: Path,
    sampler: str = GRID,
    prune: bool = False,
    tell_later: Callable[[int | None], None] | None = None,
) -> tuple[Comparison, pl.DataFrame]:
    """Return the comparison with the best settings of each method in each setting.

    It must have passed `check`. Every method has `trials` trials in every setting, or as many as its grid allows. A
    key that the table of a method or a setting sets is not changed. Points that cannot run are skipped and do not
    count; runs that break off do. Of equally good trials the first is picked, and a pruned one only where no other
    has a value.

    Args:
        comparison: what is to be tuned; its measure decides.
        trials: how many each method has in each setting.
        run: runs cells in the pool and says by key how each ended; what is finished there already is only read.
        pool: the folder of the cells' runs.
        sampler: one of `SAMPLERS`.
        prune: whether the worse half of each bracket ends at a quarter and at half of the rounds.
        tell_later: is told before each stage about how many rounds follow it, those of the runs included.

    Returns:
        The comparison with the picks in `tuned`, and the table `TUNING`.

    Raises:
        KeyboardInterrupt: cells were interrupted; the same call goes on with what is finished.
    """
    searches = plan_searches(comparison, pool, sampler, prune)
    # Where trials are scored as the runs are, the run from the first seed is a trial.
    tried = {cell.key for cell in _first_cells(comparison)}
    final = sum(
        {cell.key: cell.experiment.run.rounds for cell in comparison.cells() if cell.key not in tried}.values()
    )
    while sum(search.begin(trials) for search in searches):
        for rung in range(max(len(search.rungs) for search in searches)):
            batch = [(search, attempt) for search in searches for attempt in search.due(rung)]
            if not batch:
                continue
            if tell_later is not None:
                tell_later(final + sum(search.later(rung, trials) for search in searches))
            outcomes = run([search.cell_at(attempt, rung) for search, attempt in batch])
            if any(outcome.status == "interrupted" for outcome in outcomes.values()):
                raise KeyboardInterrupt
            for search, attempt in batch:
                search.record(attempt, outcomes[attempt.cell.key].status == "finished", rung, comparison)
            for search in searches:
                search.halve(rung)
        for search in searches:
            search.end()
    measured = shared_metrics(RunFolder(pool / trial.cell.key) for search in searches for trial in search.trials)
    comparison = comparison.measured_by(measured)
    tuned = {setting: dict(methods) for setting, methods in comparison.tuned.items()}
    rows: list[dict[str, Any]] = []
    for search in searches:
        picked = search.best(comparison.measure in measured.falling)
        rows += search.rows(picked, comparison.measure)
        if picked is not None and picked.changes:
            tuned.setdefault(search.cell.setting, {})[search.cell.method] = apply_changes({}, picked.changes)
    return replace(comparison, tuned=tuned), pl.DataFrame(rows, schema=TUNING)


def describe_shortfalls(comparison: Comparison, tuning: pl.DataFrame, trials: int) -> list[str]:
    """Return a sentence for each method with fewer trials than asked for, or with no trial that has a value."""
    found = []
    for cell in _first_cells(comparison):
        own = tuning.filter(setting=cell.setting, method=cell.method)
        said = list[str]()
        if not own.height and (other := other_method(cell.experiment)):
            said.append(f"not tuned, because every setting of its grid makes it {other}")
        elif own.height < trials:
            space = "grid" if own["points"].null_count() == 0 else "ranges"
            said.append(f"{own.height} of {trials} trials, because no other settings of its {space} can run")
        space, changed = " ".join(own["space"].unique()), ", ".join(own["changes"])
        keys = [key for key in tuned_settings(cell.experiment.method.name) if "method." in key]
        if untried := [key for key in keys if key in space and key not in changed]:
            rest = "trials change rates and optimizers first, so give more trials to reach "
            said.append(f"no trial changed {', '.join(untried)}; {rest}{'them' if untried[1:] else 'it'}")
        if tied := own["tied"].sum():
            others = own.filter(~pl.col("pruned"))["value"].count() - 1
            said.append(
                f"{tied} of the {others} other trials score{'s' * (tied == 1)} the same as the picked one within "
                "noise (on validation samples, paired by client)"
            )
        if lost := own["value"].null_count():
            some = f"{lost} of {own.height} trials diverged or broke off, and none of them was picked"
            said.append(some if lost < own.height else "no trial has a value, and the settings stay as they are")
        found += [f"{' in '.join(filter(None, [cell.method, cell.setting]))}: {sentence}" for sentence in said]
    for row, base in comparison.adapted.items():
        if tuning.filter(method=base).height > 1:
            found.append(f"{row}: it uses the settings picked for {base} by scores before adaptation")
    return found


def find_edges(grid: Grid, picked: Mapping[str, Any]) -> str:
    """Say of each picked learning rate, by dotted key, that it is the lowest or the highest of its grid."""
    found = []
    for key, values in grid.items():
        if key.endswith(".lr"):
            for word, end, further in (("lowest", min, "lower"), ("highest", max, "higher")):
                if picked[key] == end(values):
                    found.append(
                        f"{picked[key]:g} is the {word} {key} of the grid, and a {further} one may do better"
                    )
    return "; ".join(found)


def is_of(trials: pl.DataFrame, comparison: Comparison) -> bool:
    """Return whether the settings of a comparison are those that these trials have picked."""
    return set(trials.filter("picked")["key"]) <= {cell.key for cell in _first_cells(comparison)}


def _first_cells(comparison: Comparison) -> list[Cell]:
    """Return one cell per method and setting: its settings as they are, measured on validation samples."""
    cells = replace(comparison, seeds=comparison.seeds[:1], adapted={}, refit=False).cells()
    return [_change_cell(cell, {"evaluation.on": "validation"}) for cell in cells]


def plan_searches(comparison: Comparison, pool: Path, sampler: str = GRID, prune: bool = False) -> list[_Search]:
    """Return one search per method and setting."""
    settings, methods = ({v.name: v.tables for v in vs} for vs in (comparison.settings, comparison.methods))
    searches = []
    for start in _first_cells(comparison):
        parts = (settings[start.setting], methods[start.method])
        fixed = {f"{section}.{key}" for part in parts for section, table in part.items() for key in table}
        searches.append(_Search(start, fixed, pool, sampler, prune))
    return searches


@dataclass
class _Trial:
    """A trial from the first round that it is asked for to the last that it plays."""

    cell: Cell
    changes: dict[str, Any]
    proposal: OptunaTrial | None = None
    """What a sampler of ranges proposed; None for a point of the grid."""
    value: float | None = None
    rounds: int = 0
    is_over: bool = False
    is_pruned: bool = False


@dataclass
class _Search:
    """The trials of one method in one setting."""

    cell: Cell
    """The settings as they are, measured on validation samples."""
    fixed: set[str]
    """Dotted keys that the search does not change: the method or the setting sets them."""
    pool: Path
    sampler: str = GRID
    prune: bool = False
    trials: list[_Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        experiment = self.cell.experiment
        self.grid = grid = {key: vs for key, vs in grid_of(experiment).items() if key not in self.fixed}
        self.rungs = rungs(experiment, self.prune)
        self._keys: set[str] = set()
        self._open: list[_Trial] = []
        self._sign = 1
        if self.sampler == GRID:
            self.points: int | None = prod(len(values) for values in grid.values())
            self.space = describe_grid(grid)
            self._left = self._points_of_grid(grid)
        else:
            ranges = {key: range_of(values) for key, values in grid.items()}
            self.points = None
            self.space = "; ".join(f"{key} {describe_range(span)}" for key, span in ranges.items())
            seed = int(stream(experiment.run.seed, f"tuning {experiment.method.name}").integers(2**32))
            self._study = Proposals(ranges, self.sampler, seed)
            self._left = self._proposals()

    def begin(self, trials: int) -> int:
        """Ask for the next trials of `trials` in all; return how many there are."""
        left = trials - len(self.trials)
        if self.prune or self.sampler != GRID:
            left = min(left, BRACKET)
        self._open = list(islice(self._left, left))
        for number, trial in enumerate(self._open, start=len(self.trials) + 1):
            changes = ", ".join(f"{key} = {literal(value)}" for key, value in trial.changes.items())
            trial.cell = replace(trial.cell, trial=number, changes=changes)
        return len(self._open)

    def due(self, rung: int) -> list[_Trial]:
        """Return the trials that go on to a rung."""
        return [trial for trial in self._open if not trial.is_over] if rung < len(self.rungs) else []

    def later(self, rung: int, trials: int) -> int:
        """Return about how many rounds are played after a rung of the open trials, of `trials` in all."""
        most = trials if self.points is None else min(trials, self.points)
        left = max(0, most - len(self.trials) - len(self._open)) if self._open else 0
        brackets = [len(self._open), *[BRACKET] * (left // BRACKET), left % BRACKET]
        steps = [stop - start for start, stop in pairwise((0, *self.rungs))]
        return sum(
            ceil(size / 2**step) * rounds
            for number, size in enumerate(brackets)
            for step, rounds in enumerate(steps)
            if number or step > rung
        )

    def cell_at(self, trial: _Trial, rung: int) -> Cell:
        """Return a trial's cell, to be run as far as a rung."""
        is_last = rung == len(self.rungs) - 1
        return trial.cell if is_last else replace(trial.cell, until=self.rungs[rung])

    def record(self, trial: _Trial, finished: bool, rung: int, comparison: Comparison) -> None:
        """Record what a trial has come to at a rung. One without a finished round does not count as a trial."""
        folder = RunFolder(self.pool / trial.cell.key)
        rounds = folder.rounds()
        if rounds.height:
            rounds = rounds.filter(pl.col("round") <= self.rungs[rung])
            measured = comparison.measured_by(folder.metrics)
            self._sign = -1 if measured.measure in folder.metrics.falling else 1
            scored = metrics.summary(rounds, folder.metrics, trial.cell.experiment.evaluation.last)
            value = scored[measured.measure] if finished else None
            trial.value = value if value is not None and isfinite(value) else None
            trial.rounds = rounds.height
        trial.is_over = not finished or not rounds.height
        if trial.proposal is not None and trial.value is not None:
            trial.proposal.report(self._sign * trial.value, self.rungs[rung])

    def halve(self, rung: int) -> None:
        """End the worse half of the bracket before the last rung; of equally good trials the first go on."""
        if rung >= len(self.rungs) - 1:
            return
        # Every rung is reached by half as many, also where runs have broken off.
        kept = ceil(len(self._open) / 2 ** (rung + 1))
        alive = [trial for trial in self._open if not trial.is_over]
        worst = -inf
        alive.sort(key=lambda trial: worst if trial.value is None else self._sign * trial.value, reverse=True)
        for trial in alive[kept:]:
            trial.is_over = trial.is_pruned = True

    def end(self) -> None:
        """Count the open trials, and tell the sampler of them in the order in which it was asked.

        If no trial has finished a round so far, the search ends: then the settings are not the reason.
        """
        for trial in self._open:
            if trial.proposal is not None:
                value = None if trial.value is None else self._sign * trial.value
                self._study.tell(trial.proposal, value, trial.is_pruned)
            if trial.rounds:
                self.trials.append(trial)
        self._open = []
        if not self.trials:
            self._left = iter(())

    def best(self, falling: bool) -> _Trial | None:
        """Return the first of the best trials, of those that were not pruned if any of them has a value."""
        found = [trial for trial in self.trials if trial.value is not None]
        found = [trial for trial in found if not trial.is_pruned] or found
        sign = -1 if falling else 1
        return max(found, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def rows(self, picked: _Trial | None, measure: str) -> list[dict[str, Any]]:
        """Return the rows of the table `TUNING`."""
        edge = ""
        if picked is not None:
            tables = picked.cell.experiment.resolved().tables()
            edge = find_edges(self.grid, {key: look_up(tables, key) for key in self.grid})
        return [
            {
                "setting": self.cell.setting,
                "method": self.cell.method,
                "trial": number,
                "key": trial.cell.key,
                "changes": trial.cell.changes,
                "value": trial.value,
                "picked": trial is picked,
                "tied": self._is_tied(trial, picked, measure),
                "points": self.points,
                "sampler": self.sampler,
                "rounds": trial.rounds,
                "pruned": trial.is_pruned,
                "space": self.space,
                "edge": edge if trial is picked else "",
            }
            for number, trial in enumerate(self.trials, start=1)
        ]

    def _is_tied(self, trial: _Trial, picked: _Trial | None, measure: str) -> bool | None:
        """Return whether a trial cannot be told from the pick over the clients; None where that cannot be asked."""
        if picked is None or trial is picked or trial.value is None or trial.is_pruned or picked.is_pruned:
            return None
        keys = trial.cell.key, picked.cell.key
        own, best = (RunResults(RunFolder(self.pool / key), key).last for key in keys)
        column = measure.replace(MACRO, "")
        if column not in own.columns:
            return None
        pairs = own.select("client", own=column).join(best.select("client", best=column), on="client").drop_nulls()
        _, low, high = interval((pairs["own"] - pairs["best"]).to_numpy())
        return bool(low <= 0 <= high) if isfinite(low) else None

    def _points_of_grid(self, grid: Grid) -> Iterator[_Trial]:
        """Yield every trial that is possible, each once; the settings as they are come first."""
        start = self.cell.experiment
        rates = {key: values for key, values in grid.items() if key.endswith(".lr")}
        solvers = {key: values for key, values in grid.items() if key.endswith((".lr", ".optimizer"))}
        # One stream for all settings and labels of a method: they try the same points.
        first, *streams = (
            filter(None, map(self._try, draw_points(some, start.run.seed, name)))
            for some, name in ((rates, "rates"), (solvers, "solvers"), (grid, start.method.name))
        )
        if as_it_is := self._try({}):
            yield as_it_is
        yield from first  # rates matter most, and all methods try the same ones first
        while streams:
            drawn = streams.pop(0)
            if trial := next(drawn, None):
                yield trial
                streams.append(drawn)

    def _proposals(self) -> Iterator[_Trial]:
        """Yield the trials that a sampler of ranges proposes, each once; the settings as they are come first."""
        tables = self.cell.experiment.resolved().tables()
        study = self._study
        if first := self._try({}):
            now = {key: look_up(tables, key) for key in study.ranges}
            first.proposal = study.start_with(now)
            yield first
        refused = 0
        while study.ranges and refused < ATTEMPTS:
            proposal, changes = study.ask()
            trial = self._try(changes)
            if trial is None:
                study.tell(proposal, None, False)
                refused += 1
                continue
            trial.proposal, refused = proposal, 0
            yield trial

    def _try(self, changes: dict[str, Any]) -> _Trial | None:
        """Return the trial of other settings; None where they were tried, cannot run, or make another method."""
        try:
            cell = _change_cell(self.cell, changes)
        except BadInput:
            return None
        if cell.key in self._keys or (changes and _find_problems(cell, self.pool)):
            return None
        if other_method(cell.experiment):
            return None
        self._keys.add(cell.key)
        return _Trial(cell, changes)


def draw_points(grid: Grid, seed: int, method: str) -> Iterator[dict[str, Any]]:
    """Yield the points of a grid in random order, drawn one by one: the grid may be too large to list."""
    rng = stream(seed, f"tuning {method}")
    swapped: dict[int, int] = {}
    for left in range(prod(len(values) for values in grid.values()), 0, -1):
        drawn = int(rng.integers(left))
        number = swapped.get(drawn, drawn)
        swapped[drawn] = swapped.pop(left - 1, left - 1)
        point = {}
        for key, values in grid.items():
            number, which = divmod(number, len(values))
            point[key] = values[which]
        yield point


def _change_cell(cell: Cell, changes: Mapping[str, Any]) -> Cell:
    """Return the cell with other settings.

    Raises:
        BadInput: the method refuses them.
    """
    experiment = cell.experiment.updated(changes)
    return replace(cell, experiment=experiment, key=key_of(experiment))


def _find_problems(cell: Cell, pool: Path) -> list[str]:
    """Return what is wrong with a cell, as far as that is known before it runs."""
    try:
        cell.experiment.updated({"run.folder": str(pool)}).check()
    except BadInput as problem:
        return problem.problems
    return []


def _accepts(experiment: Experiment, key: str, value: Any) -> bool:
    """Whether the method accepts another value of one setting, the others being as they are."""
    try:
        build_method(experiment.updated({key: value}).method)
    except BadInput:
        return False
    return True


def _settings_without_use(method: Method[Any]) -> set[str]:
    """Return common settings, by dotted key, that the method takes no notice of, or refuses."""
    found = {"training.optimizer"} if method.needs.plain_sgd else set()
    return found | ({"aggregation.optimizer"} if method.own_aggregation or method.own_step else set())


def look_up(tables: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key; None where the tables have none."""
    section, _, name = key.partition(".")
    return tables[section].get(name)
