"""Baselines beside a run: what the same clients score with one model for all, fine-tuned or not, and each alone.

They are ordinary runs in `baselines/` of the run's folder, with the run's own seed, clients, rounds and training.
They are as deterministic as any run, and one that was interrupted goes on. Nothing of the run itself is altered.
FedAvg with fine-tuning is FedAvg's own run, scored after an adaptation (`evaluation.adapt`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coterie.errors import BadInput
from coterie.runs import loop
from coterie.runs.events import Observer, Result, Round, tell_regularly
from coterie.runs.folder.baselines import FEDAVG, FOLDER, LOCAL, TITLES, write_refusals
from coterie.runs.folder.lock import lock_run
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment

CHEAP_SECONDS = 30.0
"""`coterie run` trains baselines beside a run whose own rounds took at most so many seconds of wall time."""


@dataclass(frozen=True)
class BaselinePlan:
    """Which baselines are run beside a run."""

    experiments: dict[str, Experiment]
    """By the name of the folder in `baselines/`."""
    refused: dict[str, str]
    """Why the others are not, by the same names."""


class _RoundsOnly(Observer):
    """Watches the rounds of a baseline, whose notes are those of the run."""

    def __init__(self, on_round: Callable[[int, int], object]) -> None:
        self._on_round = on_round

    def round(self, round: Round) -> None:
        self._on_round(round.number, round.planned)


def run_baselines(
    folder: RunFolder, always: bool = False, progress: Callable[[str], object] = lambda text: None
) -> BaselinePlan:
    """Train the baselines that are cheap, or go on with interrupted ones, and keep why others are not run.

    Args:
        folder: a finished run of `coterie run`.
        always: train them whatever they cost.
        progress: is told which baseline is trained, and every few seconds how many of its rounds are done.

    Raises:
        BadInput: the folder is no run, or another process writes into it.
        KeyboardInterrupt: a baseline was interrupted; its state is saved.
    """
    plan = plan_baselines(folder, always)
    with lock_run(folder):
        for name, experiment in list(plan.experiments.items()):
            beside = RunFolder(folder.path / FOLDER / name)
            if not (beside.status == "finished" and _is_of(beside, experiment)):
                progress(f"training {TITLES[name]} to compare with")
            try:
                if _train(folder, name, experiment, progress).status == "interrupted":
                    raise KeyboardInterrupt
            except BadInput as problem:
                del plan.experiments[name]
                plan.refused[name] = str(problem).splitlines()[0]
        write_refusals(folder, plan.refused)
    return plan


def plan_baselines(folder: RunFolder, always: bool = False) -> BaselinePlan:
    """Say which baselines would be run beside a finished run, and why others would not.

    Raises:
        BadInput: the folder is no run.
    """
    experiment = Experiment.from_toml(folder.experiment_text() + "\n")
    names = [name for name in (FEDAVG, LOCAL) if name == FEDAVG or experiment.method.name != LOCAL]
    seconds = float(folder.rounds()["seconds"].sum())
    why = ""
    if experiment.data.is_remote:
        why = "clients who hold their own data train only for the run itself"
    elif experiment.privacy.kind:
        why = "each further run would spend a privacy budget of its own"
    elif seconds > CHEAP_SECONDS and not always:
        why = (
            f"the rounds of the run took {seconds:,.0f} s, more than {CHEAP_SECONDS:.0f} s; "
            "coterie run --baselines all runs it whatever it costs"
        )
    if why:
        return BaselinePlan({}, dict.fromkeys(names, why))
    experiments, refused = {}, {}
    for name in names:
        try:
            experiments[name] = _make_experiment(experiment, folder, name)
        except BadInput as problem:
            beside = RunFolder(folder.path / FOLDER / name)
            if not (beside.status == "finished" and _is_of(beside, experiment)):
                refused[name] = str(problem).splitlines()[0]
    return BaselinePlan(experiments, refused)


def _make_experiment(experiment: Experiment, folder: RunFolder, name: str) -> Experiment:
    """Return the run's experiment with another method; it is evaluated in its last round alone.

    Raises:
        BadInput: the method does not go together with the rest of the experiment.
    """
    changes: dict[str, Any] = {
        "method": {"name": name},
        "evaluation.every": experiment.run.rounds,
        "evaluation.last": 1,
        "evaluation.evaluated": None,
        "evaluation.adapt": None,
        "run.name": name,
        "run.folder": str(folder.path / FOLDER),
        "run.observers": None,
    }
    if name == FEDAVG:
        changes["evaluation.adapt"] = experiment.evaluation.adapt or {"epochs": max(experiment.training.epochs, 1)}
    else:
        changes["aggregation"] = {}  # it averages nothing
    found = experiment.updated(changes)
    found.check()
    return found


def _is_of(baseline: RunFolder, experiment: Experiment) -> bool:
    """Whether a baseline that began is as long as the experiment beside which it lies."""
    progress = baseline.progress()
    return progress is not None and (progress.rounds == experiment.run.rounds or experiment.run.passes is not None)


def _train(folder: RunFolder, name: str, experiment: Experiment, tell: Callable[[str], object]) -> Result:
    """Run a baseline, or go on with it; one of other rounds, or killed before it began, is begun anew."""
    path = folder.path / FOLDER / name
    observers = [_RoundsOnly(tell_regularly(tell, f"rounds of {TITLES[name]}"))]
    if path.exists():
        if _is_of(RunFolder(path), experiment):
            return loop.resume(path, observers=observers)
        shutil.rmtree(path)
    return loop.run(experiment, observers=observers)
