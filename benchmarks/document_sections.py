"""The sections of the page on speed and memory: what each benchmark measures, its tables, and its bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.document_bars import (
    Bar,
    Judge,
    Row,
    Rows,
    evaluation,
    faster,
    groups_found,
    memory_held,
    no_dearer,
    no_larger,
    of_the_limit,
    ranged,
    share,
    spread,
    waited,
)
from benchmarks.peers import WORKLOADS
from coterie.report.numbers import significant
from coterie.report.tables import Markdown, Table, to_markdown

CHART = Path(__file__).parents[1] / "docs" / "pictures" / "scale.svg"
"""What `python -m benchmarks.scale --chart docs/pictures` draws."""


@dataclass(frozen=True)
class Section:
    """One benchmark on the page."""

    name: str
    title: str
    text: str
    shown: Callable[[Rows], list[str]]
    bars: tuple[Bar, ...] = ()
    options: str = ""


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], names: int | None = None) -> str:
    """A table of Markdown, its first `names` columns of text (all of them without it), the others of numbers."""
    texts = [[Markdown(text) for text in row] for row in rows]
    return to_markdown(Table(header, texts, len(header) if names is None else names))


def _engine(rows: Rows) -> list[str]:
    header = (
        "network",
        "engine",
        "the limit",
        "workers",
        "samples/s",
        "of the limit",
        "of the plain loop",
        "evaluation",
    )
    body = [
        [
            row["network"],
            row["engine"],
            row["limit"],
            str(row["workers"]),
            f"{row['samples_per_second']:,.0f}",
            ranged(row["of_limit"], row["least"], row["most"], "{:.2f}".format),
            f"{row['of_plain']:.2f}",
            f"{row['evaluation']:.2f}",
        ]
        for row in rows
    ]
    return [markdown(header, body, 3)]


def _peers(rows: Rows) -> list[str]:
    header = (
        "way",
        "processes × threads",
        "s a round",
        "times Coterie's",
        "peak MiB",
        "samples",
        "loss, first to last",
    )
    parts = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        some = [row for row in rows if row["workload"] == workload]
        parts += [
            f"{workload}: {WORKLOADS[workload][0]}.",
            markdown(
                header,
                [
                    [
                        row["way"],
                        f"{row['processes']} × {row['threads']}",
                        spread(row, "seconds"),
                        spread(row, "ratio"),
                        f"{row['memory_mib']:,.0f}",
                        f"{row['samples']:,}",
                        f"{row['loss_first']:.3f} to {row['loss_last']:.3f}",
                    ]
                    for row in some
                ],
                2,
            ),
        ]
    return parts


def _beside_pfl(text: str, judge: Callable[..., Judge]) -> list[Bar]:
    """A bar held against pfl as it is by default, in one process, and against pfl at its fastest."""
    ways = {"pfl by default": False, "pfl at its fastest": True}
    return [Bar(text.replace("pfl", way), judge(best=best)) for way, best in ways.items()]


def _scale(rows: Rows) -> list[str]:
    chart = ["![Cost against the number of clients, on logarithmic axes](pictures/scale.svg)"] * CHART.exists()
    parts = dict.fromkeys(row["part"] for row in rows)
    return chart + [table for part in parts for table in plainly([row for row in rows if row["part"] == part])]


def _methods(rows: Rows) -> list[str]:
    parts = ("clients", "server", "evaluation", "rest")
    header = ("method", "s a round", *parts, "extra over FedAvg", "1st round, s")
    found = []
    for network, epochs in dict.fromkeys((row["network"], row["epochs"]) for row in rows):
        some = [row for row in rows if (row["network"], row["epochs"]) == (network, epochs)]
        body = [
            [
                row["method"],
                significant(row["round_s"]),
                *(share(row[f"{part}_s"] / row["round_s"]) for part in parts),
                spread(row, "extra", share),
                f"{row['first_extra_s']:+.2f}",
            ]
            for row in some
        ]
        one = some[0]
        head = f"`{network}`, {epochs} local epoch{'s' * (epochs > 1)}, {one['clients']} clients of {one['data']}, "
        head += f"medians of {one['rounds']} rounds:"
        found += [head, markdown(header, body, 1)]
    return found


def plainly(rows: Rows) -> list[str]:
    """All columns of the rows, the extremes of a number's repeats behind it; columns of the same keys together."""
    found = []
    for keys in dict.fromkeys(tuple(row) for row in rows):
        shown = [key for key in keys if not key.endswith(("_least", "_most"))]
        some = [row for row in rows if tuple(row) == keys]
        text = [key for key in shown if any(isinstance(row[key], str) for row in some)]
        shown = text + [key for key in shown if key not in text]
        body = [[_cell(row, key) for key in shown] for row in some]
        found.append(markdown([key.replace("_", " ") for key in shown], body, len(text)))
    return found


def _cell(row: Row, key: str) -> str:
    value = row[key]
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | str):
        return value if isinstance(value, str) else f"{value:,}"
    return spread(row, key) if f"{key}_least" in row else significant(value)


ENGINE = """\
The limit is a plain training loop of one model over the same samples at its best: batches of 10 to 512, a process a
core or a thread a core, whichever is fastest in the same run. A path is a whole exchange with every client: orders
out, training, replies lined up, every transfer counted. *Of the limit* is per core: one worker is held against one
core's share. *Of the plain loop* is the same against that loop at the clients' own batch size. *Evaluation* is the
exchange that scores a model on all clients' test samples, a quarter as many as they train on, as a share of the
training exchange. The bars look at the faster engine with a worker a core.

Perceptrons whose samples are wide take the steps of their first layer in its dual form
(`coterie/clients/engine/dual_perceptron.py`): the same steps, sooner done. The faster clients train, the larger a
share evaluation has, in which there is work for each client that is no arithmetic."""

PEERS = """\
The same work for everybody: the same clients and samples, the same network, FedAvg with one local epoch of SGD
at batch 10. That each did it is checked by the samples trained, the number of parameters and a loss below that
of guessing. A round is whole: training, aggregation, and the evaluation of the new model on all held-out
samples; Coterie also writes its tables, its ledger of transfers and a checkpoint. It stores images as bytes and
makes numbers of them in the rounds; the others are handed the same numbers before the first. Every simulator
takes part with the fastest of several settings (processes and threads). `plain` is one model trained on as many
samples by a plain loop, without clients. Memory is the peak of all processes together (proportional set size),
in a run of its own. How the others are installed is said in `benchmarks/peers.py`. The bars on speed were set
against numbers in which pfl took 3.8 times as long as the bare prototype: that is pfl as it is run by default,
in one process. The first page held Coterie against pfl at its fastest alone. Since then, after those numbers had
been seen, every bar is judged against both, with the same number; memory as well."""

BF16 = """\
`training.precision = "bf16"` lets clients compute in bfloat16 and keeps their parameters in float32. It is off
unless asked for. Dense layers stay in float32 in minibatches of up to 16 samples, where they wait for memory.
Clients are then trained one after the other, which makes perceptrons slower (W2 above), not faster."""

SCALE = """\
Federations with planted groups, 20 samples a client. Some 300 clients take part in a round however many there
are, and all of them with `cfl`, which compares everybody: so a round of the others hardly grows, while their
evaluation, of everybody, and the first round, in which FeSEM hears all clients, do. The slope is that of the
logarithm of a cost over the logarithm of the number of clients: 1 is proportional growth, 0 is none. What was set
out for was that the groups are found and memory is bounded; the limits in the bars, an ARI of 0.9 and 16,000 MB,
are ours. The bar looks at the most clients: with other numbers of groups or wider networks the tables below show
methods that miss groups from their random start. Above `scale.hierarchy_above` (20,000 clients) CFL goes through
micro-clusters: hence its hump before it."""

METHODS = """\
A round of each method, split into what clients compute, what the method computes between its questions
(`server`), the evaluation of all clients, and the rest: tables, ledger, sketches for the picture, checkpoint (for
what a run spends that paces itself: no more than a twentieth of the round).
*Extra* is what server, evaluation and rest take beyond FedAvg's in the round beside it, as a share of the
method's round. Methods are timed in groups of seven, each group with a FedAvg of its own. The last column is the
extra of the first round in seconds, which is not counted: some methods cluster then, and never again.

Four things were settled after first numbers had been seen. The bar was set without naming a network; it was
first measured with the perceptron, which trains within milliseconds so that anything else shows, and most methods
that compare models missed it. The CNN, the default for images, was added then. The bar did not name a number of
local epochs either; both networks were first trained for one, and many methods missed it. Five, as many as the
papers train or fewer, were added then: the CNN with five local epochs is what stands for a usual round, and its
line is the bar. The other three are held against the same number; one local epoch is the harshest view of what a
server costs. And where clients train before they are evaluated (FedBABU, FedSR, Per-FedAvg), that training is the
method's own: all that their evaluation takes beyond FedAvg's is counted as clients' work, so that they have no
extra of evaluation by construction. Checkpoints, which a run alone paces to a twentieth of its time, are counted as
that much at most, for beside other methods their pace would be another."""

STARTUP = """\
Fresh processes, from their start to their end; `import coterie` is timed inside its process."""

SECTIONS = (
    Section(
        "engine",
        "Training and evaluation, as a fraction of the limit",
        ENGINE,
        _engine,
        (
            Bar("CNNs train at 0.90 of the limit or more", of_the_limit(False, 0.90)),
            Bar("perceptrons train at 0.60 of the limit or more", of_the_limit(True, 0.60)),
            Bar("evaluation of all clients under a quarter of a round of one epoch", evaluation),
        ),
    ),
    Section(
        "peers",
        "Beside other simulators",
        PEERS,
        _peers,
        (
            *_beside_pfl("W1 at least 1.4 times as fast as pfl", partial(faster, "W1", 1.4)),
            *_beside_pfl(
                "W1 with bf16 at least 2.5 times as fast as pfl", partial(faster, "W1", 2.5, "coterie bf16")
            ),
            *_beside_pfl("W2 at least 5 times as fast as pfl", partial(faster, "W2", 5)),
            *_beside_pfl("W1 in no more memory than pfl and one model a worker", partial(no_larger, "W1")),
            *_beside_pfl("W2 in no more memory than pfl and one model a worker", partial(no_larger, "W2")),
        ),
        " --environments FOLDER",
    ),
    Section("bf16", "Half the digits", BF16, plainly),
    Section(
        "scale",
        "Growth with clients, parameters and groups",
        SCALE,
        _scale,
        (
            Bar(
                "most clients: every method that looks for the planted groups finds them (ARI above 0.9)",
                groups_found,
            ),
            Bar("most clients: every method stays below 16,000 MB", memory_held),
        ),
        " --chart docs/pictures",
    ),
    Section(
        "methods",
        "What each method costs beside training",
        METHODS,
        _methods,
        (
            Bar(
                "CNN, 5 local epochs: extra over FedAvg under 10 % of a round for every method",
                no_dearer("cnn", 5, 0.10),
            ),
            Bar("CNN, 1 local epoch, the harsh view: the same", no_dearer("cnn", 1, 0.10)),
            Bar("perceptron, 5 local epochs: the same", no_dearer("mlp", 5, 0.10)),
            Bar("perceptron, 1 local epoch, the harsh view: the same", no_dearer("mlp", 1, 0.10)),
        ),
    ),
    Section(
        "startup",
        "Until something happens",
        STARTUP,
        plainly,
        (
            Bar("`import coterie` under 0.5 s, without PyTorch", waited("import coterie", 0.5)),
            Bar("`coterie list methods` under 1 s", waited("coterie list methods", 1.0)),
            Bar("20 rounds on digits under 10 s", waited("20 rounds on digits", 10.0)),
        ),
    ),
)
"""In the order of the page."""
