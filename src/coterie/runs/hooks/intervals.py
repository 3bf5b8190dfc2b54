"""How sure the clients' last scores are, and what an answer without a model scores: computed at a run's end.

Both need the scores of single samples, which no table keeps. Only ends of intervals are kept of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import torch
from torch import Tensor

from coterie.clients.data.federation import Federation
from coterie.clients.rules.score_bounds import ScoreBounds
from coterie.clients.tasks.measures import MEASURES
from coterie.clients.tasks.score_intervals import BOUNDED, bound_metric
from coterie.errors import count_of
from coterie.methods.method import Split
from coterie.randomness import stream
from coterie.runs.evaluation import plan_evaluation
from coterie.runs.folder.tables import INTERVALS
from coterie.runs.hooks.hook import Hook

if TYPE_CHECKING:
    from coterie.runs.session import Session


class Intervals(Hook):
    """Keeps how sure the last scores are by a metric for which that does not follow from the table of clients.

    Real clients are not asked for it, nor are those who were promised privacy.
    """

    @classmethod
    def is_on(cls, run: Session) -> bool:
        """Whether it is to be computed; of a share of right answers it follows from the number of samples."""
        if not run.is_simulated or run.promise is not None:
            return False
        metric, task = run.metrics.deciding.name, run.population.task
        return metric in BOUNDED and not (metric == "accuracy" and task.one_class)

    def describe_end(self) -> str:
        return f"computing intervals for the scores of {count_of(self.run.server.n, 'client')}"

    def run_ended(self) -> Sequence[str]:
        if self.run.folder is not None and self.run.groups is not None:
            self.run.folder.write_intervals(self.measure())
        return ()

    def measure(self) -> pl.DataFrame:
        """Return how sure each client's last score is, and what a constant answer scores, as `INTERVALS`."""
        run, federation, metric = self.run, self.run.federation, self.run.metrics.deciding.name
        assert isinstance(federation, Federation)
        run.runtime.begin_round(run.planned)  # clients draw what they drew in the last evaluation
        found = np.full((federation.n, len(INTERVALS) - 1), np.nan)
        for exchange in plan_evaluation(run, run.state, last=True):
            replies = run.runtime.measure(replace(exchange, rule=ScoreBounds(exchange.rule, metric)))
            for client, bounds in zip(replies.clients.tolist(), replies.report.get("bounds", []), strict=False):
                ends = [end for pair in (bounds or [])[:2] for end in pair]
                found[client, : len(ends)] = ends
        split, seed = run.experiment.evaluation.on, run.experiment.run.seed
        for client in range(federation.n):
            found[client, 4:] = _score_constant(federation, client, metric, split, seed)
            if run.runtime.on_answers is not None:
                run.runtime.on_answers(client + 1, federation.n)
        run.runtime.states.roll_back()
        columns = {"client": np.arange(federation.n), **dict(zip(list(INTERVALS)[1:], found.T, strict=True))}
        return pl.DataFrame(columns, schema_overrides=INTERVALS).with_columns(pl.col(pl.Float64).fill_nan(None))


def _score_constant(
    federation: Federation, client: int, metric: str, split: Split, seed: int
) -> tuple[float, float, float]:
    """Return the score of the client's best constant answer from its training targets, and its interval.

    That is their mean, their most common class, or how often each token is among them.
    """
    own, targets = federation.slice(client, "train")[1], federation.slice(client, split)[1]
    if not len(own) or not len(targets):
        return float("nan"), float("nan"), float("nan")
    predicted, scores = _answer_constantly(federation, own, targets)
    taken = scores if MEASURES[metric].takes == "score" else predicted
    score = MEASURES[metric].compute(taken, targets)
    rng = stream(seed, "bounds of a constant", client)
    return score, *bound_metric(metric, predicted.numpy(), scores.numpy(), targets.numpy(), rng)


def _answer_constantly(federation: Federation, own: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is predicted for targets `[s, ...]`, and its scores, by what is most common among a client's own.

    Scores are the same for all samples; those of tokens are how often each is among the client's own, plus one.
    """
    tokens, several = federation.task.tokens, own.dim() > 1
    if own.is_floating_point() and federation.task.probable:  # labels, each 0, 1 or unknown
        predicted = (own.double().nanmean(0) >= 0.5).to(own.dtype).expand(targets.shape)
        return predicted, torch.zeros(targets.shape)
    if own.is_floating_point():
        predicted = own.double().mean(0).to(own.dtype).expand(targets.shape)
        return predicted, predicted
    counts = torch.bincount(own[own >= 0], minlength=federation.outputs)
    predicted = counts.argmax().expand(targets.shape)
    if tokens:
        return predicted, (counts + 1.0).log().expand(*targets.shape, len(counts))
    scores = torch.zeros(len(targets) if several or federation.outputs == 1 else (len(targets), federation.outputs))
    return predicted, scores
