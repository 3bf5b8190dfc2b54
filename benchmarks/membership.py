"""Whether a model gives away what it was trained on, and what a promise of privacy changes in that.

    python -m benchmarks.membership [--write FILE] [--only UNIT,…] [--kept] [--smoke]

Clients of FedAvg hold so few digits, and train on them for so long, that the model knows its samples by heart. Two
attacks look at the model that a run serves, and say of each candidate whether the run was trained on it:

* a threshold on its loss (Yeom, Giacomelli, Fredrikson and Jha, CSF 2018, arXiv 1709.01604);
* LiRA (Carlini, Chien, Nasr, Song, Terzis and Tramèr, IEEE S&P 2022, arXiv 2112.03570): how likely the model's
  confidence is with the candidate and without it, by Gaussians of what other runs show, of which it knows all but
  the draws.

A candidate is a sample (`unit = "example"`) or all that a client holds (`unit = "client"`), of which the mean over
its samples is looked at. In each of `RUNS` runs another half of the candidates takes part, drawn by the run's seed;
each run is attacked in turn with the others' help. A cell is kept as soon as it has ended, under a key of all its
settings and Coterie's version, and is not run again while its key is the same. `--kept` runs nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import rankdata

from benchmarks.kept_cells import Row, fill, write_with_picture
from coterie.clients.data.federation import Federation
from coterie.errors import BadInput
from coterie.report.drawing.figure import Chart
from coterie.runs.loop import train
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session
from coterie.runtime.threads import one_thread
from coterie.studies.compare.spec import key_of

Unit = Literal["example", "client"]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

PAGE = Path(__file__).parents[1] / "docs" / "privacy.md"
KEPT = PAGE.parent / "privacy" / "membership.json"
PICTURE = "membership"
UNITS: Mapping[Unit, tuple[int, int]] = {"example": (4, 50), "client": (40, 10)}
"""How many clients there are, and how many samples each has. Half of the samples, or of the clients, take part."""
EPSILONS = (0.5, 2.0, 8.0, 32.0, None)
"""None promises nothing."""
DELTA = 1e-3
RUNS = 32
FALSE_ALARMS = 0.01
"""The share of candidates who did not take part and may be taken for such that did."""
SOFTENED = 50.0
"""The temperature at which outputs are asked for, so that no probability is rounded to 0 or 1."""
ATTACKS = {"loss": "threshold on the loss", "lira": "LiRA"}
BEGIN, END = "<!-- membership -->", "<!-- end of membership -->"


# ---- the attacks


class Strength(NamedTuple):
    """How well scores tell who took part.

    Attributes:
        auc: the chance that one who did has a larger score than one who did not; 0.5 is guessing.
        hits: the share of those who did that is found with `FALSE_ALARMS` of the others.
    """

    auc: float
    hits: float


def measure_strength(scores: Floats, member: Flags) -> Strength:
    """Return how well scores of any shape tell members; those of both kinds must be there."""
    inside, outside = scores[member], scores[~member]
    ranks = rankdata(np.concatenate([inside, outside]))[: len(inside)]
    auc = (ranks.sum() - len(inside) * (len(inside) + 1) / 2) / (len(inside) * len(outside))
    limit = np.sort(outside)[::-1][int(FALSE_ALARMS * len(outside))]
    drawn = (FALSE_ALARMS - (outside > limit).mean()) / (outside == limit).mean()  # of those at the limit itself
    return Strength(float(auc), float((inside > limit).mean() + drawn * (inside == limit).mean()))


def find_log_odds(outputs: Floats, labels: NDArray[np.int64]) -> Floats:
    """Return log(p / (1 - p)) of each true class's probability `[N]`, from a network's outputs `[N, C]`."""
    true = np.take_along_axis(outputs, labels[:, None], 1)[:, 0]
    others = outputs.copy()
    np.put_along_axis(others, labels[:, None], -np.inf, 1)
    found: Floats = true - logsumexp(others, 1)
    return found


def score_by_loss(confidence: Floats) -> Floats:
    """Return minus the cross-entropy of candidates whose true class has these log odds."""
    found: Floats = -np.logaddexp(0, -confidence)
    return found


def score_by_likelihood(confidence: Floats, member: Flags) -> Floats:
    """Return LiRA's score of each candidate in each run: the log of the ratio of two likelihoods.

    For each run, the others are the shadows: each candidate's Gaussians are those of its confidence in runs with
    it, and without it. As shadows are few, both have one deviation. Of a candidate that was in all shadows, or in
    none, nothing is known, and its score is 0.

    Args:
        confidence: log odds of the true class, `[runs, candidates]`.
        member: whether a run was trained on a candidate, of the same shape.
    """
    scores = np.zeros_like(confidence)
    for run in range(len(confidence)):
        others = np.arange(len(confidence)) != run
        shadows, inside = confidence[others], member[others]
        counts = inside.sum(0), (~inside).sum(0)
        with_it = np.where(inside, shadows, 0).sum(0) / np.maximum(counts[0], 1)
        without = np.where(inside, 0, shadows).sum(0) / np.maximum(counts[1], 1)
        variance = ((shadows - np.where(inside, with_it, without)) ** 2).mean(0)
        ratio = (confidence[run] - without) ** 2 - (confidence[run] - with_it) ** 2
        scores[run] = np.where(np.minimum(*counts) > 0, ratio / (2 * np.maximum(variance, 1e-12)), 0)
    return scores


# ---- what is attacked


@cache
def load_candidates(unit: Unit) -> Any:
    """Return digits, no two of them equal, by client."""
    from sklearn.datasets import load_digits

    clients, each = UNITS[unit]
    bunch = load_digits()
    images, first = np.unique(bunch.images.astype(np.float32)[..., None] / 16, axis=0, return_index=True)
    order = np.random.default_rng(0).permutation(len(images))[: clients * each].reshape(clients, each)
    labels = bunch.target[first].astype(np.int64)
    return {f"client {i:02}": (images[rows], labels[rows]) for i, rows in enumerate(order)}


@dataclass(frozen=True)
class MembershipCell:
    """A run with one promise, and its shadows."""

    unit: Unit
    epsilon: float | None

    def experiment(self) -> Experiment:
        """Return what is run with the seeds 0 … `RUNS` - 1, of the noise too, so that a cell can be made again."""
        promise = {"unit": self.unit, "epsilon": self.epsilon, "delta": DELTA, "noise_seed": 0}
        samples = self.unit == "example"
        return Experiment(
            data={
                "name": load_candidates(self.unit),
                "split": "by-user",
                "test": 0.5 if samples else 0.1,
                "validation": 0,
                "small_clients": "keep",
            },
            network={"name": "mlp", "hidden": [64]},
            method="fedavg",
            training={"lr": 0.5, "batch_size": 25, "epochs": 5},
            evaluation={"every": 20},
            run={"rounds": 20, "holdout_clients": 0 if samples else 0.5, "workers": 1},
            privacy={} if self.epsilon is None else promise,
        )

    @property
    def place(self) -> str:
        """What of its row says which cell it is."""
        return f"{self.unit}, {self.epsilon}, {RUNS} runs"


class Shown(NamedTuple):
    """What the model that a run serves shows of each candidate, in an order that is that of every run.

    Attributes:
        confidence: log odds of the true class `[candidates]`, of a client the mean.
        member: whether the run was trained on it.
        accuracy: of the model on samples that it was not trained on.
    """

    confidence: Floats
    member: Flags
    accuracy: float


def look(experiment: Experiment) -> Shown:
    """Run an experiment whose method has one model, and look at all candidates with what it serves."""
    with one_thread(blas=True), closing(Session(experiment)) as session:
        for _ in train(session):
            pass
        people = session.population
        model = session.method.assignment(session.state, session.server).models
        assert isinstance(people, Federation)
        shares = session.runtime.engine.outputs(model, people.inputs, SOFTENED)[0].double().numpy()
        outputs = SOFTENED * np.log(np.maximum(shares, np.finfo(np.float32).tiny))
        labels, bounds = people.labels.numpy(), people.bounds
        trained = np.zeros(len(labels), np.bool_)
        for begin, end in bounds[: session.server.n, :2]:
            trained[begin:end] = True
        accuracy = float((outputs.argmax(1) == labels)[~trained].mean())
        confidence = find_log_odds(outputs, labels)
        if experiment.run.holdout_clients:
            order = np.argsort(people.names)
            means = np.array([confidence[begin:end].mean() for begin, _, _, end in bounds])
            return Shown(means[order], order < session.server.n, accuracy)
        names = [row.numpy().tobytes() for row in people.inputs]
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
        return Shown(confidence[order], trained[order], accuracy)


def attack(experiment: Experiment, runs: int = RUNS) -> Row:
    """Run an experiment with many seeds, attack each run, and return the row of both attacks."""
    keys = ["run.seed"] if experiment.privacy.noise_seed is None else ["run.seed", "privacy.noise_seed"]
    shown = [look(experiment.updated(dict.fromkeys(keys, seed))) for seed in range(runs)]
    confidence, member, accuracy = (np.array(some) for some in zip(*shown, strict=True))
    by_loss = measure_strength(score_by_loss(confidence), member)
    by_likelihood = measure_strength(score_by_likelihood(confidence, member), member)
    return {
        "key": key_of(experiment),
        "accuracy": float(accuracy.mean()),
        "loss": by_loss._asdict(),
        "lira": by_likelihood._asdict(),
    }


# ---- the page


def cells(units: Sequence[Unit]) -> list[MembershipCell]:
    """Return the cells, unit by unit."""
    return [MembershipCell(*place) for place in product(units, reversed(EPSILONS))]


def read_kept() -> dict[str, Row]:
    """Return the cells that are kept, by place."""
    rows: dict[str, Row] = json.loads(KEPT.read_text("utf-8"))["rows"]
    return rows


def table(unit: Unit, rows: Mapping[str, Row]) -> str:
    """Return a unit's table in Markdown: a line an epsilon."""
    heads = [f"{what}, {value}" for what in ("loss", "LiRA") for value in ("AUC", "found")]
    lines = [f"| {' | '.join(['epsilon', 'accuracy', *heads])} |", "|---" * (len(heads) + 2) + "|"]
    for epsilon in reversed(EPSILONS):
        row = rows.get(MembershipCell(unit, epsilon).place)
        if row is None:
            continue
        found = [f"{row[name]['auc']:.2f} | {100 * row[name]['hits']:.1f} %" for name in ATTACKS]
        shown = "none" if epsilon is None else f"{epsilon:g}"
        lines.append(f"| {' | '.join([shown, format(row['accuracy'], '.2f'), *found])} |")
    return "\n".join(lines)


def draw(rows: Mapping[str, Row]) -> Chart:
    """Draw AUC against epsilon; a thin line is that of models without a promise."""
    points = [
        {"unit": f'unit = "{unit}"', "attack": words, "epsilon": epsilon, "auc": row[name]["auc"]}
        for unit, epsilon, (name, words) in product(UNITS, EPSILONS, ATTACKS.items())
        if (row := rows.get(MembershipCell(unit, epsilon).place)) is not None
    ]
    names = {"unit": pl.String, "attack": pl.String, "epsilon": pl.Float64, "auc": pl.Float64}
    found = pl.DataFrame(points, schema=names)
    colour = alt.Color("attack:N", title=None, sort=list(ATTACKS.values()), scale=alt.Scale(scheme="tableau10"))
    dash = alt.StrokeDash("unit:N", title=None, legend=alt.Legend(symbolType="stroke", symbolSize=400))
    y = alt.Y("auc:Q", title="AUC (0.5 is guessing)", scale=alt.Scale(domain=[0.45, 1]))
    x = alt.X("epsilon:Q", title="epsilon (less promises more)", scale=alt.Scale(type="log", base=2))
    private = alt.Chart(found.filter(pl.col("epsilon").is_not_null()))
    free = alt.Chart(found.filter(pl.col("epsilon").is_null())).mark_rule(strokeWidth=1)
    lines = private.mark_line().encode(x=x, y=y, color=colour, strokeDash=dash)
    dots = private.mark_circle(size=50, opacity=1).encode(x=x, y=y, color=colour)
    return alt.layer(lines, dots, free.encode(y=y, color=colour, strokeDash=dash))


def main(words: Sequence[str]) -> int:
    """Run what is missing, and write the tables and the picture."""
    rows, page = fill("membership", __doc__, words, KEPT, list(UNITS), cells, attack, "unit")
    parts = [part for unit in UNITS for part in (f'`unit = "{unit}"`:', table(unit, rows))]
    if page is None:
        print("\n\n".join(parts))
        return 0
    write_with_picture(page, (BEGIN, END), parts, draw(rows), PICTURE, "AUC of both attacks against epsilon")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BadInput as problem:
        sys.exit("\n".join(problem.problems))
