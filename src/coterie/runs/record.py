"""What a round brings, and how it becomes rows of the run's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coterie.clients.data.agree.population import Population
from coterie.clients.rules.requests import Scored
from coterie.grouping.affinity import gap
from coterie.methods.exchange import Exchange, Ids, Log, LogGap, Replies
from coterie.methods.method import UNKNOWN, Split
from coterie.models.layout import BYTES_PER_SCALAR
from coterie.runs.folder.metrics import (
    ADAPTED,
    ClientScores,
    RunMetrics,
    agreement,
    client_f1,
    count_moved,
)
from coterie.runs.folder.tables import FAILURES, FEDERATION, LEDGER, LOG, clients_schema, rounds_schema
from coterie.runtime.ledger import Ledger

if TYPE_CHECKING:
    from coterie.runs.session import Session

Number = TypeVar("Number", np.float64, np.int64)


@dataclass(frozen=True, eq=False)
class Scores:
    """How clients do on their held-out data, each `[n]`; NaN where a client could not be evaluated."""

    values: Mapping[str, NDArray[np.float64]]
    """By the run's metrics. Of a client that was tested it is NaN where a metric is not defined on its samples."""
    loss: NDArray[np.float64]
    tested: NDArray[np.bool_]
    """Whether there is an answer, made on at least one sample."""
    groups: NDArray[np.int64]
    """As the method numbers them; `UNKNOWN` for a client without one."""
    adapted: Scores | None = None
    """The same after an adaptation; None where the experiment asks for none."""

    def of(self, name: str) -> NDArray[np.float64]:
        """Return the values of a metric, or the loss."""
        return self.loss if name == "loss" else self.values[name]


@dataclass(eq=False)
class RoundResult:
    """What one round brings. A run records it whole, or forgets it where the round was cut off."""

    number: int
    took_part: NDArray[np.bool_]
    """Whether each client `[n]` answered an exchange in which it uploads or keeps something."""
    state: Any = None
    """The method's, after the round."""
    scores: Scores | None = None
    """None where no evaluation was due."""
    exchanges: list[Exchange] = field(default_factory=list)
    """Those that were answered, in their order; a client may be sent a model in one and train it in a later one."""
    seconds: float = 0.0
    """Of the round and its evaluation."""
    train_loss: dict[int, float] = field(default_factory=dict)
    """The last one of each client that reported any."""
    trained_samples: dict[int, float] = field(default_factory=dict)
    passes: float = 0.0
    """Local passes over own samples, a mean over clients (`mean_passes`)."""

    def add(self, exchange: Exchange, replies: Replies) -> None:
        """Note an exchange: which clients took part in it, and how their training went."""
        self.exchanges.append(exchange)
        if exchange.rule.uploads or exchange.rule.client_state:  # who only answers a question takes no part
            self.took_part[replies.clients] = True
        for client, loss in zip(replies.clients, replies.report.get("train_loss", []), strict=False):
            if loss is not None:
                self.train_loss[int(client)] = float(loss)
        for client, samples in zip(replies.clients, replies.report.get("trained_samples", []), strict=False):
            self.trained_samples[int(client)] = self.trained_samples.get(int(client), 0.0) + float(samples or 0)


def measure_by(population: Population) -> RunMetrics:
    """Return the metrics of the task that the clients' data are for; the first one decides."""
    return RunMetrics.named(population.task.metrics)


def read_scores(replies: Replies, clients: Ids, groups: NDArray[np.int64], metrics: RunMetrics) -> Scores:
    """Read the replies to an evaluation of `clients` `[n]`; a client without a group gets the one it chose there.

    Clients without held-out samples have no value of any metric and no loss (NaN), like those who did not answer.
    """
    groups = groups.copy()
    where = np.searchsorted(clients, replies.clients)
    if choices := replies.report.get("choice"):
        for i, choice in zip(where.tolist(), choices, strict=True):
            if groups[i] == UNKNOWN and choice is not None:
                groups[i] = choice
    adapted = None
    if "adapted" in replies.report:
        adapted = Scores(*_measure(replies.report["adapted"], where, len(clients), metrics), groups)
    return Scores(*_measure(replies.report.get("score", []), where, len(clients), metrics), groups, adapted)


def _measure(
    scores: Sequence[Any], where: NDArray[np.int64], n: int, metrics: RunMetrics
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64], NDArray[np.bool_]]:
    """Return metrics, loss and who was tested `[n]`, of scores whose clients have the places `where`."""
    values = {metric.name: np.full(n, np.nan) for metric in metrics.of}
    loss, tested = np.full(n, np.nan), np.zeros(n, np.bool_)
    known = [i for i, score in enumerate(scores) if isinstance(score, Scored) and score.samples]
    if not known:
        return values, loss, tested
    some = where[known]
    loss[some], tested[some] = [scores[i].loss for i in known], True
    if len(scores[known[0]].actual):
        counts = [
            np.stack([getattr(scores[i], what) for i in known]) for what in ("actual", "predicted", "correct")
        ]
        actual, predicted, correct = counts
        counted = {"accuracy": correct.sum(1) / actual.sum(1), "f1": client_f1(actual, predicted, correct)}
        for name in values.keys() & counted.keys():
            values[name][some] = counted[name]
    for name in values.keys() & scores[known[0]].values.keys():
        values[name][some] = [scores[i].values[name] for i in known]
    return values, loss, tested


def round_row(run: Session, result: RoundResult, groups: NDArray[np.int64]) -> dict[str, Any]:
    """Return the round's row in the table of rounds; `groups` `[n]` are those after it, as tables number them."""
    settings, ledger, federation = run.experiment.run, run.runtime.ledger, run.federation
    ari, nmi = agreement(groups, federation.true_groups)
    compute = {client: samples * settings.seconds_per_sample for client, samples in result.trained_samples.items()}
    losses = [loss for loss in result.train_loss.values() if not np.isnan(loss)]
    sizes, after = split_sizes(federation.bounds, run.experiment.evaluation.on), {}
    if run.experiment.evaluation.adapt is not None:
        adapted = summarise_scores(None if result.scores is None else result.scores.adapted, sizes, run.metrics)
        after = {f"{ADAPTED}{name}": value for name, value in adapted.items()}
    return {
        "round": result.number,
        **summarise_scores(result.scores, sizes, run.metrics),
        "train_loss": float(np.mean(losses)) if losses else None,
        "groups": len(np.unique(groups[groups >= 0])),
        "moved": count_moved(run.groups, groups),
        "ari": ari,
        "nmi": nmi,
        "up_bytes": sum(ledger.bytes("up").values()),
        "down_bytes": sum(ledger.bytes("down").values()),
        "passes": result.passes,
        "simulated_seconds": ledger.seconds(settings.link_mbit, compute),
        "seconds": result.seconds,
        "participants": int(result.took_part.sum()),
        "failed": len({client for client, _ in run.runtime.failures}),
        **after,
    }


def mean_passes(trained_samples: Mapping[int, float], samples: NDArray[np.int64]) -> float:
    """Return how often a client's training samples `[n]` went backwards through a network, a mean over clients."""
    trained = _by_client(trained_samples, np.zeros(len(samples)))
    return float((trained / np.maximum(samples, 1)).mean())


def is_enough(passes: Sequence[float], wanted: float | None) -> bool:
    """Say whether a run ends after rounds of these local passes: one more like the last would be further off.

    It does not where no number is wanted. After the first round, which may hold a warm-up, nothing is known of the
    next. The sum is exact, so that a resumed run ends where it would have.
    """
    more = passes[-1] / 2 if len(passes) > 1 else 0.0
    return wanted is not None and bool(passes) and fsum(passes) + more >= wanted


def summarise_scores(
    scores: Scores | None, samples: NDArray[np.int64], metrics: RunMetrics
) -> dict[str, float | None]:
    """Return the round's columns of scores, such as accuracy, worst tenth and loss; None without an evaluation."""
    if scores is None:
        return dict.fromkeys(metrics.columns)
    # A client that could not be evaluated weighs nothing; a loss that is NaN all the same is the model's.
    weights = np.where(scores.tested, samples, 0.0)
    return dict(metrics.summarise(ClientScores(scores.values, scores.loss, weights)))


def split_sizes(bounds: NDArray[np.int64], split: Split) -> NDArray[np.int64]:
    """Return how many samples of a split each client has `[n]`, from the bounds of all its splits `[n, 4]`."""
    first = 1 if split == "validation" else 2
    sizes: NDArray[np.int64] = bounds[:, first + 1] - bounds[:, first]
    return sizes


def round_tables(
    run: Session, result: RoundResult, row: Mapping[str, Any], groups: NDArray[np.int64]
) -> dict[str, pl.DataFrame]:
    """Return what a round adds to each of the run's tables; `row` is its row of the table of rounds."""
    federation, runtime, number = run.federation, run.runtime, result.number
    samples, schema = split_sizes(federation.bounds, run.experiment.evaluation.on), rounds_schema(run.metrics)
    return {
        "rounds": pl.DataFrame([row], schema={name: schema.get(name, pl.Float64()) for name in row}),
        "clients": client_rows(result, groups, samples, runtime.ledger, run.metrics),
        "ledger": ledger_rows(number, runtime.ledger),
        "failures": pl.DataFrame([(number, *each) for each in runtime.failures], schema=FAILURES, orient="row"),
        "log": log_rows(number, runtime.logged, federation.true_groups),
    }


def client_rows(
    result: RoundResult,
    groups: NDArray[np.int64],
    samples: NDArray[np.int64],
    ledger: Ledger,
    metrics: RunMetrics,
) -> pl.DataFrame:
    """Return the clients' table of one round; it has no rows in a round without evaluation.

    `groups` `[n]` are as the tables number them, `samples` `[n]` those that each client was evaluated on.
    """
    scores, n, schema = result.scores, len(groups), clients_schema(metrics)
    if scores is None:
        return pl.DataFrame(schema=schema)
    columns = {name: scores.of(name) for name in metrics.client_columns}
    if (adapted := scores.adapted) is not None:
        after = {f"{ADAPTED}{name}": adapted.of(name) for name in columns}
    else:
        after = {}
    return pl.DataFrame(
        {
            "round": np.full(n, result.number),
            "client": np.arange(n),
            "group": groups,
            "took_part": result.took_part,
            **columns,
            "test_samples": samples,
            "train_loss": pl.Series(_by_client(result.train_loss, np.full(n, np.nan)), nan_to_null=True),
            "up_bytes": _by_client(ledger.bytes("up"), np.zeros(n, np.int64)),
            "down_bytes": _by_client(ledger.bytes("down"), np.zeros(n, np.int64)),
            **after,
        },
        schema_overrides=schema,
    )


def ledger_rows(round: int, ledger: Ledger) -> pl.DataFrame:
    """Return the ledger's table of one round."""
    clients, ways, what, scalars = zip(*ledger.rows, strict=True) if ledger.rows else ((), (), (), ())
    sizes = np.array(scalars, np.int64)
    columns = {
        "round": np.full(len(sizes), round),
        "client": np.array(clients, np.int32),
        "direction": ways,
        "what": what,
        "scalars": sizes,
        "bytes": sizes * BYTES_PER_SCALAR,
    }
    return pl.DataFrame(columns, schema_overrides=LEDGER)


def log_rows(round: int, logged: Sequence[Log | LogGap], true_groups: NDArray[np.int64] | None) -> pl.DataFrame:
    """Return the log's table of one round: finite numbers, and gaps where the true groups are known."""
    rows: list[tuple[int, str, str, float]] = []
    for entry in logged:
        if isinstance(entry, Log):
            values = entry.values if isinstance(entry.values, Mapping) else {"": entry.values}
            rows += [(round, entry.name, str(of), float(value)) for of, value in values.items()]
        elif true_groups is not None:
            alike = entry.kind == "similarity"
            value = gap(entry.matrix if alike else -entry.matrix, true_groups[entry.clients])
            rows.append((round, "gap1" if alike else "gap2", entry.of, value))
    return pl.DataFrame([row for row in rows if np.isfinite(row[3])], schema=LOG, orient="row")


def federation_table(federation: Population) -> pl.DataFrame:
    """Return the table of who the clients are."""
    sizes, n, histograms = np.diff(federation.bounds, axis=1), federation.n, federation.histograms
    return pl.DataFrame(
        {
            "client": np.arange(n),
            "name": federation.names,
            "true_group": [None] * n if federation.true_groups is None else federation.true_groups,
            "few_shot": [None] * n if federation.few_shot is None else federation.few_shot,
            "train": sizes[:, 0],
            "validation": sizes[:, 1],
            "test": sizes[:, 2],
            "labels": [None] * n if histograms is None else histograms.tolist(),
        },
        schema_overrides=FEDERATION,
    )


def _by_client(counted: Mapping[int, float], found: NDArray[Number]) -> NDArray[Number]:
    """Put each client's number into its place in `found` `[n]`, and return that."""
    found[list(counted)] = list(counted.values())
    return found
