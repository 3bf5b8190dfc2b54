"""`coterie.auto`: try what may be trained for whom, choose by validation, and write the choice as an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from coterie.errors import count_of
from coterie.report.comparison.compare import compare
from coterie.report.each_client import find_constant
from coterie.report.gains import write_gain
from coterie.report.numbers import measured, versus, volume
from coterie.report.tables import Table
from coterie.runs.folder.reading import RunResults
from coterie.runs.schema import toml
from coterie.runs.schema.experiment import Experiment
from coterie.studies.auto import (
    CANDIDATES,
    ONE,
    Choice,
    Scored,
    bring_to_one_scale,
    choose,
    count_trials,
    plan,
    select,
)
from coterie.studies.compare.cells import Watcher
from coterie.studies.compare.compare import Compared
from coterie.studies.compare.folder import choose_free_name
from coterie.studies.compare.spec import Comparison

CHOSEN = "experiment.toml"
"""The file in the folder of the comparison that holds the chosen experiment."""


def auto(
    experiment: Experiment,
    *,
    only: Sequence[str] = (),
    seeds: int = 3,
    name: str | None = None,
    folder: Path | str = "comparisons",
    jobs: int | None = None,
    observer: Watcher | None = None,
) -> Choice:
    """Choose what to train for whom: one model, models of groups, personal ones, or everybody alone.

    Every candidate is trained at several learning rates, and then from several seeds, and scored on the clients'
    validation samples; see `coterie.studies.auto`. The choice is written into the comparison's folder as
    experiment.toml, and trains on the validation samples, too. `coterie.run(choice.experiment)` runs it.

    In a script, call it under `if __name__ == "__main__":`, for the processes that it starts read the script again.

    Args:
        experiment: data, network and training. Its method is not looked at, nor is a learning rate.
        only: labels of the candidates that are tried; all without it. `fedavg` always is.
        seeds: how often each candidate is trained at its best learning rate.
        name: of the comparison; None makes one of the data and the split.
        folder: where the comparison's folder is made; runs that are finished there are not run again.
        jobs: runs at a time; None for one a core.
        observer: is told how the runs get on.

    Raises:
        BadInput: the experiment cannot run or has no validation samples, or no candidate has a score.
        KeyboardInterrupt: it was interrupted; the same call goes on.
    """
    candidates = select(only) if only else CANDIDATES
    experiment, _ = bring_to_one_scale(experiment)
    comparison, left_out = plan(experiment, candidates=candidates, seeds=seeds, name=name)
    return run_plan(comparison, experiment, left_out, folder=folder, jobs=jobs, observer=observer)


def run_plan(
    comparison: Comparison,
    experiment: Experiment,
    left_out: Sequence[str],
    *,
    folder: Path | str = "comparisons",
    jobs: int | None = None,
    observer: Watcher | None = None,
) -> Choice:
    """Run what `plan` returned, choose, and write the choice; see `auto`."""
    comparison = choose_free_name(comparison, folder)
    trials = count_trials(comparison)
    compared = compare(comparison, folder=folder, jobs=jobs, tune=trials, prune=True, observer=observer)
    if compared.status == "interrupted":
        raise KeyboardInterrupt
    choice = choose(compared, experiment, left_out, constants=_score_constants(compared))
    compared.folder.write_text(CHOSEN, to_toml(choice))
    return choice


def describe(choice: Choice) -> Iterator[str]:
    """Yield what was chosen, why, by how much it is better than one model for all, and what the search took."""
    chosen, metric = choice.chosen, choice.metric
    yield f"train   {chosen.candidate.label}: {choice.kind}"
    yield f"why     {_give_reason(choice)}"
    if chosen.edge:
        yield f"tuned   {chosen.edge}"
    if chosen.candidate.label != ONE:
        yield f"gain    {_describe_gain(choice)}"
    if (constant := choice.constant) is not None:
        ahead = f"{_signed(choice, constant.gain[0])}{_unit(choice)}"
        doubt = "" if constant.is_beaten else "; it may have learnt nothing from the inputs"
        yield f"floor   {ahead} over a constant answer ({constant.name}, {measured(metric, constant.value)}){doubt}"
    if choice.seeds == 1:
        yield "doubt   each candidate trained from one seed, which does not tell luck from merit; try more seeds"
    yield (
        f"search  {count_of(choice.runs, 'run')}, {volume(choice.bytes)} up and down, "
        f"{choice.seconds:,.0f} s of training; scored by {metric.title} on validation samples alone"
    )


def table(choice: Choice) -> Table:
    """Tabulate the candidates: who gets which model, tuned settings, score, and how far each is behind the best."""
    metric = choice.metric
    behind = f"behind{' (points)' if metric.is_share else ''}"
    header = ["candidate", "who gets what", "tuned", metric.title, behind, ""]
    rows = [
        [
            one.candidate.label,
            one.candidate.kind,
            ", ".join(f"{key.partition('.')[2]} = {toml.literal(value)}" for key, value in one.tuned.items()),
            measured(metric, one.value),
            _behind(choice, one),
            "chosen" if one is choice.chosen else "ties" if one.ties else "",
        ]
        for one in choice.scored
    ]
    return Table(header, rows, texts=3)


def to_toml(choice: Choice) -> str:
    """Return the chosen experiment as TOML, with the reasons above it."""
    scores = [f"{one.candidate.label}: {measured(choice.metric, one.value)}" for one in choice.scored]
    said = [*describe(choice), f"scores  {', '.join(scores)}", *choice.left_out]
    return f"{toml.comment(said)}\n{choice.experiment.to_toml()}"


def _score_constants(compared: Compared) -> tuple[str, dict[str, float]] | None:
    """Return what the best constant answer is called, and each client's mean over the seeds; None if not known."""
    cells = [cell for cell in compared.comparison.cells() if cell.method == ONE and not cell.is_adapted]
    runs = [RunResults(run, key) for key, run in compared.folder.done(cells).items()]
    known = [(run.last["client"], found) for run in runs if (found := find_constant(run)) is not None]
    if not known:
        return None
    table = pl.concat(pl.DataFrame({"client": clients, "score": found.scores}) for clients, found in known)
    means = table.fill_nan(None).group_by("client").agg(pl.col("score").mean()).drop_nulls()
    return known[0][1].name, dict(means.iter_rows())


def _give_reason(choice: Choice) -> str:
    chosen, best = choice.chosen, choice.best
    if chosen is not best:
        ahead = f"{best.candidate.label} is {_difference(choice, chosen, best)} ahead"
        return f"{ahead}, which is within one standard error, and {chosen.candidate.label} is simpler"
    others = [one for one in choice.scored if one is not best]
    if not others:
        return "nothing else could be tried"
    second = min(others, key=lambda one: one.behind)
    if second.ties:
        tie = f"{second.candidate.label} ties with it within one standard error"
        return f"{chosen.candidate.label} has the best score; {tie}, and {chosen.candidate.label} is simpler"
    ahead = _difference(choice, second, best)
    return f"{chosen.candidate.label} scores {ahead} better than the next best method, {second.candidate.label}"


def _describe_gain(choice: Choice) -> str:
    mean, *ends = choice.gain
    low, high = (_signed(choice, end) for end in ends)
    bounds = "" if ends[0] != ends[0] else f" (95 % interval over clients: {low} to {high})"
    doubt = "; the interval includes no gain" if ends[0] <= 0 else ""
    return f"{_signed(choice, mean)}{_unit(choice)} over one model for all{bounds}{doubt}"


def _difference(choice: Choice, worse: Scored, better: Scored) -> str:
    return versus(choice.metric, better.value, worse.value).lstrip("+")


def _behind(choice: Choice, one: Scored) -> str:
    """Write how far a candidate is behind, finely enough to tell it from its error where it does not tie."""
    if not one.behind:
        return ""
    pair = one.behind, one.error
    behind, error = (_signed(choice, each).lstrip("+") for each in pair)
    if behind == error and not one.ties and choice.metric.is_share:
        behind, error = (f"{100 * each:.3f}" for each in pair)
    return f"{behind} ± {error}"


def _unit(choice: Choice) -> str:
    return " points" if choice.metric.is_share else f" of {choice.metric.title}"


def _signed(choice: Choice, number: float) -> str:
    """Write a difference with its sign, as finely as the scores: in points of a share, else with three digits."""
    return write_gain(choice.metric, 100 * number if choice.metric.is_share else number)
