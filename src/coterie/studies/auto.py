"""Choose what to train for whom: one model, models of groups, personal ones, or everybody alone.

The question is answered by training: each candidate is trained on the clients' training samples at several learning
rates, and scored on their validation samples, inside the federation. Test samples are never looked at.

Of the candidates the simplest is taken that is within one standard error of the best (Breiman, Friedman, Olshen and
Stone, Classification and Regression Trees, 1984, section 3.4.3): the best of several is partly lucky, and a simpler
model is easier to run and to explain. The standard error is that of the difference between the two, paired by
client. What is chosen is an ordinary experiment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from coterie.clients.data.read.preparation import advise_standardising
from coterie.errors import BadInput, unknown
from coterie.grouping.gains import choose_option
from coterie.runs.folder.metrics import RunMetric
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment, apply_changes, check, prepare
from coterie.runs.schema.sections import make_name
from coterie.runs.setup import load_federation
from coterie.studies.compare.compare import Compared
from coterie.studies.compare.spec import Comparison, shared_tables
from coterie.studies.compare.table import interval
from coterie.studies.compare.tuning import find_edges, grid_of, look_up

Floats = NDArray[np.float64]

VALIDATION = 0.2
"""The share of a client's samples for validation, where the experiment says none: a tenth of few is noise."""

ADAPT = {"epochs": 1}
"""How each client trains the common model on, where that is a candidate."""


@dataclass(frozen=True)
class Candidate:
    """What may be trained for whom."""

    label: str
    """Its name in tables."""
    kind: str
    """Who gets which model, in a few words."""
    tables: Mapping[str, Mapping[str, Any]]
    """The tables of an experiment that do it."""
    tuned: tuple[str, ...] = ("training.lr", "method.lr")
    """The settings of which the best value is looked for, by dotted key."""
    is_adapted: bool = False
    """Whether each client trains what it gets a little further before it uses it."""
    ungrouped: str = ""
    """The label of the candidate that it is where all clients are one group."""

    def experiment(self, asked: Experiment) -> Experiment:
        """Return an experiment by this candidate in the place of its own method.

        Raises:
            BadInput: the method does not take these settings.
        """
        tables = asked.tables()
        tables |= {title: dict(table) for title, table in self.tables.items()}
        tables.get("evaluation", {}).pop("adapt", None)
        found = Experiment.from_tables(tables)
        return found.updated({"evaluation.adapt": ADAPT}) if self.is_adapted else found


ONE = "fedavg"
"""The label of one model for all, over which gains are told."""
CANDIDATES = (
    Candidate(
        "linear",
        "one linear model for all",
        {"method": {"name": "lbfgs"}, "network": {"name": "linear"}},
        ("method.l2",),
    ),
    Candidate(ONE, "one model for all", {"method": {"name": ONE}}),
    Candidate(
        f"{ONE}+FT",
        "one model, which each client trains a little further",
        {"method": {"name": ONE}},
        is_adapted=True,
    ),
    Candidate(
        "halves",
        "a model for each group, found by a test on halves",
        {"method": {"name": "halves"}},
        ungrouped=ONE,
    ),
    Candidate("cfl", "a model for each group, found while training", {"method": {"name": "cfl"}}, ungrouped=ONE),
    Candidate(
        "partial-pooling",
        "one model, and a shrunken deviation for each client",
        {"method": {"name": "partial-pooling", "shrink": "tensor"}},
    ),
    Candidate(
        "pooled-groups",
        "a model for each group, and a shrunken deviation for each client",
        {"method": {"name": "pooled-groups", "shrink": "tensor"}},
        ungrouped="partial-pooling",
    ),
    Candidate(
        "em-groups",
        "a model for each group, mixed for each client by how likely it belongs to each",
        {"method": {"name": "em-groups"}},
        ("training.lr", "method.clusters"),
    ),
    Candidate("fedrep", "a common body, and a head for each client", {"method": {"name": "fedrep"}}),
    Candidate("ditto", "a model for each client, pulled to a common one", {"method": {"name": "ditto"}}),
    Candidate(
        "local-only", "a model of its own for each client, trained alone", {"method": {"name": "local-only"}}
    ),
)
"""What is tried, the simplest first, to which ties go: that in which most samples decide each number of a model."""


def select(labels: Sequence[str]) -> tuple[Candidate, ...]:
    """Return the candidates of these labels, and one model for all, over which gains are told.

    Raises:
        BadInput: there is no such candidate.
    """
    known = [candidate.label for candidate in CANDIDATES]
    if wrong := [unknown("candidate", label, known) for label in labels if label not in known]:
        raise BadInput(wrong)
    return tuple(candidate for candidate in CANDIDATES if candidate.label in (*labels, ONE))


@dataclass(frozen=True)
class Scored:
    """What came of a candidate on validation samples.

    Attributes:
        candidate: which.
        tuned: the settings that were tuned, with the values that did best, by dotted key.
        edge: says where one of these is the lowest or highest that was tried; else empty.
        value: the mean over clients and seeds; NaN where its runs failed or diverged.
        behind: how far it is behind the best, the mean over clients, in the metric's unit; 0 for the best itself.
        error: the standard error of that; 0 for a single client.
    """

    candidate: Candidate
    tuned: Mapping[str, Any]
    edge: str
    value: float
    behind: float = 0.0
    error: float = 0.0

    @property
    def ties(self) -> bool:
        """Whether it is within one standard error of the best."""
        return self.behind <= self.error


@dataclass(frozen=True)
class Constant:
    """What each client's own best constant answer comes to.

    Attributes:
        name: what it is called, by the metric.
        value: the mean over clients.
        gain: of the choice over it, over clients: mean, and its 95 % interval; positive is better.
    """

    name: str
    value: float
    gain: tuple[float, float, float]

    @property
    def is_beaten(self) -> bool:
        """Whether the choice is clearly better; otherwise it may have learnt nothing. One client says nothing."""
        return not self.gain[1] <= 0


@dataclass(frozen=True, eq=False)
class Choice:
    """What to train for whom, and why.

    Attributes:
        experiment: what was chosen, to be run, changed or moved to a real federation; it trains on the validation
            samples, too.
        chosen: the candidate with its score.
        scored: all candidates that were tried, in the order of `CANDIDATES`.
        metric: in which they are scored.
        gain: of the choice over one model for all, over clients: mean, and its 95 % interval; positive is better.
        constant: the floor, which needs no features: each client's own best constant answer.
        clients: how many were scored.
        seeds: from how many each candidate was trained.
        left_out: a sentence for each candidate that could not be tried, or diverged.
        folder: where the comparison lies, with a page of all runs.
        runs: how many the search took.
        bytes: that crossed in them, up and down.
        seconds: that they took, added up.
    """

    experiment: Experiment
    chosen: Scored
    scored: Sequence[Scored]
    metric: RunMetric
    gain: tuple[float, float, float]
    constant: Constant | None
    clients: int
    seeds: int
    left_out: Sequence[str]
    folder: Path
    runs: int
    bytes: int
    seconds: float

    @property
    def kind(self) -> str:
        """Who gets which model, in a few words."""
        return self.chosen.candidate.kind

    @property
    def best(self) -> Scored:
        """The candidate with the best mean, which a simpler one may tie with."""
        return next(one for one in self.scored if one.behind == 0 and not np.isnan(one.value))


def bring_to_one_scale(asked: Experiment) -> tuple[Experiment, list[str]]:
    """Return an experiment that standardises inputs of very unequal scale, and what is to be known of the data.

    A table's columns are in units of their own, and training by gradients hardly hears the small ones. What says
    itself whether inputs are standardised, hides what it learns, or has no data here stays as it is.
    """
    if asked.data.is_remote:
        return asked, []
    (one_model,) = select([ONE])
    federation = load_federation(prepare(one_model.experiment(asked)))
    notes, is_fixed = list(federation.notes), asked.data.standardise is not None or bool(asked.privacy.kind)
    if is_fixed or federation.inputs.dtype != torch.float32:
        return asked, notes
    advice = advise_standardising(federation.inputs.numpy(), federation.preparation)
    if not advice:
        return asked, notes
    said = f"{advice[0].partition(';')[0]}, so all inputs are brought to one scale (data.standardise = global)"
    return asked.updated({"data.standardise": "global"}), [*(n for n in notes if n not in advice), said]


def plan(
    asked: Experiment, *, candidates: Sequence[Candidate] = CANDIDATES, seeds: int = 3, name: str | None = None
) -> tuple[Comparison, list[str]]:
    """Return the comparison that has to be run, and a sentence for each candidate that is not possible here.

    It is to be tuned by `count_trials` trials: nothing varies but what a candidate has in `tuned`.

    Args:
        asked: data, network and training; its method is not looked at.
        candidates: what is tried, the simplest first; `fedavg` must be among them.
        seeds: how often each is trained once its rate is known.
        name: of the comparison.

    Raises:
        BadInput: the experiment has no validation samples, holds data elsewhere, or `fedavg` is not possible.
    """
    if asked.data.is_remote:
        raise BadInput(
            "data.name = 'remote' is not possible with coterie auto, which trains on this machine; choose a method "
            "on data of the same kind here, and run the experiment that it writes on the real clients"
        )
    if "validation" not in asked.tables().get("data", {}):
        asked = asked.updated({"data.validation": VALIDATION})
    if not asked.data.validation:
        raise BadInput(
            "data.validation = 0 is not possible with coterie auto, which scores on validation samples; set it to "
            "0.1 or more, or leave it out"
        )
    methods: dict[str, dict[str, Any]] = {}
    left_out = []
    for candidate in candidates:
        if candidate.is_adapted:
            continue  # another score of the same runs
        try:
            experiment = candidate.experiment(asked)
            check(experiment)
        except BadInput as problem:
            if candidate.label == ONE:
                raise
            left_out.append(f"{candidate.label} was not tried: {problem.problems[0]}")
            continue
        methods[candidate.label] = _pin(experiment, candidate)
    common, first = shared_tables(asked), asked.run.seed
    # Seeds share clients and test samples, at which nobody looks; each draws validation samples of its own.
    common["data"] = {"split_seed": asked.split_seed, **common.get("data", {})}
    adapted = {candidate.label: ONE for candidate in candidates if candidate.is_adapted}
    common["evaluation"] = {**common.get("evaluation", {}), "on": "validation"}
    common["evaluation"] |= {"adapt": ADAPT} if adapted else {}
    split = "" if asked.data.split == "auto" else f"-{asked.data.split}"
    words = f"auto-{Path(asked.data.name).stem}{split}".replace("_", "-")
    comparison = Comparison.from_tables(
        {
            "name": name or make_name(words, otherwise="auto"),
            "seeds": [first + offset for offset in range(seeds)],
            "experiment": common,
            "methods": methods,
            "adapted": adapted,
        }
    )
    return comparison, left_out


def count_trials(comparison: Comparison, candidates: Sequence[Candidate] = CANDIDATES) -> int:
    """Return how many trials the candidate with the longest grid has."""
    tuned = {candidate.label: candidate.tuned for candidate in candidates}
    cells = {cell.method: cell.experiment for cell in comparison.cells() if not cell.is_adapted}
    grids = (
        {key: len(of) for key, of in grid_of(one).items() if key in tuned[label]} for label, one in cells.items()
    )
    return max(prod(grid.values()) for grid in grids)


def choose(
    compared: Compared,
    asked: Experiment,
    left_out: Sequence[str] = (),
    *,
    candidates: Sequence[Candidate] = CANDIDATES,
    constants: tuple[str, Mapping[str, float]] | None = None,
    refit: bool = True,
) -> Choice:
    """Return what to train, from a comparison that `plan` made and that has been run.

    Args:
        compared: what the candidates came to.
        asked: the experiment that `plan` was given.
        left_out: what `plan` said of candidates that are not possible.
        candidates: those that `plan` was given.
        constants: what the best constant answer is called, and what it scores for each client; None if not known.
        refit: whether the chosen experiment trains on the validation samples, too.

    Raises:
        BadInput: one model for all has no score.
    """
    frames, comparison = compared.frames, compared.comparison
    assert frames is not None
    metric, lost = frames.metrics.deciding, [*left_out]
    # Each client's mean over the seeds by method, a row for every client that all methods score.
    means = frames.clients.group_by("client", "method").agg(pl.col(metric.name).mean())
    table = means.pivot("method", index="client", values=metric.name).drop_nulls().sort("client")
    tried = [candidate for candidate in candidates if candidate.label in comparison.rows]
    # Without one model for all there is nothing to gain over.
    done = compared.folder.done(comparison.cells())
    diverged = {
        cell.method for cell in comparison.cells() if cell.key in done and done[cell.key].diverged_for_all()
    }
    sound = [
        one
        for one in tried
        if one.label in table.columns
        and table[one.label].is_finite().all()
        and (one.label == ONE or one.label not in diverged)
    ]
    lost += [f"{one.label} was left out: its runs failed, or diverged" for one in tried if one not in sound]
    # What most seeds leave in one group is the simpler one there, and would win by its rate or by chance.
    groups = dict(frames.cells.group_by("method").agg(pl.col("groups").median()).iter_rows())
    alike = [one for one in sound if one.ungrouped in [s.label for s in sound] and groups[one.label] < 1.5]
    often = "with most seeds " if len(comparison.seeds) > 1 else ""
    lost += [
        f"{one.label} was left out: {often}it found one group, and then it is {one.ungrouped}" for one in alike
    ]
    sound = [one for one in sound if one not in alike]
    if not table.height or ONE not in [one.label for one in sound]:
        raise BadInput(
            "one model for all has no score, because its runs failed or diverged, or because no client has a "
            "validation sample; try a smaller network, or a larger data.validation"
        )
    values = table.select(one.label for one in sound).to_numpy()
    sign = -1.0 if metric.less_is_better else 1.0
    one_model = [one.label for one in sound].index(ONE)
    chosen = choose_option(values, sign, tuple(range(len(sound))))
    best = int((sign * values).mean(0).argmax())
    behind = sign * (values[:, [best]] - values)
    errors = behind.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros(len(sound))
    scored = [
        Scored(
            one, *_picked(comparison, one), float(values[:, i].mean()), float(behind[:, i].mean()), float(errors[i])
        )
        for i, one in enumerate(sound)
    ]
    floor = None
    if constants is not None:
        name, by_client = constants
        known = [i for i, client in enumerate(table["client"]) if client in by_client]
        level = np.array([by_client[table["client"][i]] for i in known])
        if known:
            floor = Constant(name, float(level.mean()), interval(sign * (values[known, chosen] - level)))
    experiment = scored[chosen].candidate.experiment(asked).updated(scored[chosen].tuned)
    if refit:
        experiment = experiment.updated({"data.validation": 0.0, "evaluation.on": "test"})
    runs = [RunFolder(path).rounds() for path in sorted(compared.folder.pool.iterdir()) if path.is_dir()]
    return Choice(
        experiment,
        scored[chosen],
        scored,
        metric,
        interval(sign * (values[:, chosen] - values[:, one_model])),
        floor,
        len(values),
        len(comparison.seeds),
        lost,
        compared.folder.path,
        len(runs),
        sum(int((rounds["up_bytes"] + rounds["down_bytes"]).sum()) for rounds in runs),
        sum(float(rounds["seconds"].sum()) for rounds in runs),
    )


def _picked(comparison: Comparison, candidate: Candidate) -> tuple[dict[str, Any], str]:
    """Return the settings of a candidate that were tuned, with the values that did best, and which is an end."""
    method = comparison.adapted.get(candidate.label, candidate.label)
    experiment = next(cell.experiment for cell in comparison.cells() if cell.method == method)
    tables = experiment.resolved().tables()
    grid = {key: values for key, values in grid_of(experiment).items() if key in candidate.tuned}
    picked = {key: look_up(tables, key) for key in grid}
    return picked, find_edges(grid, picked)


def _pin(experiment: Experiment, candidate: Candidate) -> dict[str, dict[str, Any]]:
    """Return a candidate's tables with every setting that tuning would change, but for those to be tuned."""
    now = experiment.resolved().tables()
    pinned = {key: look_up(now, key) for key in grid_of(experiment) if key not in candidate.tuned}
    return apply_changes(candidate.tables, pinned)
