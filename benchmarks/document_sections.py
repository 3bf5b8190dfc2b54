"""The tables and bars of the page on speed and memory, by benchmark; what they mean is said on the page itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.document_bars import (
    Bar,
    Judge,
    Row,
    Rows,
    evaluation,
    faster,
    groups_found,
    held_below,
    memory_held,
    no_dearer,
    of_a_plain_loop,
    of_the_limit,
    ranged,
    share,
    spread,
    waited,
)
from benchmarks.peers import WORKLOADS
from coterie.report.drawing.figure import Chart
from coterie.report.numbers import significant
from coterie.report.tables import Markdown, Table, to_markdown

IN_WORDS = {
    "coterie": "Coterie",
    "pfl": "pfl, fastest settings",
    "pfl, one process": "pfl, one process (default)",
    "flower": "Flower simulation",
    "fluke": "fluke",
    "plain": "plain loop, without clients",
}
"""The ways in the picture of a round beside other simulators, in words."""

CHART = Path(__file__).parents[1] / "docs" / "pictures" / "scale.svg"
"""What `python -m benchmarks.scale --chart docs/pictures` draws."""


@dataclass(frozen=True)
class Section:
    """One benchmark on the page."""

    name: str
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
    parts = ["![Time of a round beside other simulators, in times of Coterie's](pictures/peers.svg)"]
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
            *(
                said
                for row in some
                if "where" in row
                for said in (_say_time(row["where"]), _say_memory(row["memory"]))
            ),
        ]
    return parts


def _say_time(seconds: Mapping[str, float]) -> str:
    """Say where the time of Coterie's round goes."""
    whole, (clients, server, evaluation, rest) = sum(seconds.values()), seconds.values()
    return (
        f"Where a round of Coterie goes, {1000 * whole:,.0f} ms in a run of its own: the clients' training "
        f"{clients / whole:.0%}, the server's own work {server / whole:.1%}, evaluation {evaluation / whole:.0%}, "
        f"tables, ledger, picture and checkpoint {rest / whole:.0%}."
    )


def _say_memory(held: Mapping[str, Any]) -> str:
    """Say what fills the memory of Coterie's processes."""
    files, shared, main, *workers = (number / 2**20 for number in (held["files"], held["shared"], *held["own"]))
    return (
        f"What fills Coterie's memory: files (libraries and programs) {files:.0f} MiB; what its processes share "
        f"(PyTorch, Polars and Python as they are once loaded, and the samples) {shared:.0f} MiB; the main process "
        f"{main:.0f} MiB; the workers {' and '.join(f'{own:.0f}' for own in workers)} MiB."
    )


def draw_peers(rows: Rows) -> Chart:
    """Draw how long a round takes in each way, in times of Coterie's: a panel a workload."""
    import altair as alt

    ways, panels = list(IN_WORDS.values()), []
    colour = alt.condition(f"datum.way == '{ways[0]}'", alt.value("#1f77b4"), alt.value("#c7c7c7"))
    for workload in dict.fromkeys(row["workload"] for row in rows):
        some = [row for row in rows if row["workload"] == workload and row["way"] in IN_WORDS]
        values = [{"way": IN_WORDS[row["way"]], "times": row["ratio"]} for row in some]
        room = 1.15 * max(row["ratio"] for row in some)  # for the longest bar's number
        bars = alt.Chart(alt.InlineData(values=values)).encode(
            x=alt.X("times:Q", title="time of a round, in times of Coterie's")
            .scale(domain=[0, room])
            .axis(tickCount=5),
            y=alt.Y("way:N").sort(ways).title(None),
        )
        numbers = bars.mark_text(align="left", dx=4).encode(text=alt.Text("times:Q", format=".1f"))
        data, who, *rest = WORKLOADS[workload][0].split(", ")
        lines = alt.Title(f"{data}, {who}", subtitle=", ".join(rest), anchor="start", fontSize=12)
        panels.append(
            (bars.mark_bar().encode(color=colour) + numbers).properties(width=250, height=170, title=lines)
        )
    found: Chart = alt.hconcat(*panels).configure(background="white", font="Helvetica, sans-serif")
    return found


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


SECTIONS = (
    Section(
        "engine",
        _engine,
        (
            Bar("CNNs train at 0.90 of the limit or more", of_the_limit(False, 0.90)),
            Bar("perceptrons train at 0.60 of the limit or more", of_the_limit(True, 0.60)),
            Bar("evaluation of all clients under a quarter of a round of one epoch", evaluation),
        ),
    ),
    Section(
        "modules",
        plainly,
        (
            Bar(
                "ResNet-18, a ViT, a GPT and an LSTM train at 0.95 of a plain loop or more",
                of_a_plain_loop(0.95),
            ),
        ),
    ),
    Section(
        "peers",
        _peers,
        (
            *_beside_pfl("W1 at least twice as fast as pfl", partial(faster, "W1", 2)),
            *_beside_pfl(
                "W1 with bf16 at least 3.5 times as fast as pfl", partial(faster, "W1", 3.5, "coterie bf16")
            ),
            *_beside_pfl("W2 at least 5 times as fast as pfl", partial(faster, "W2", 5)),
            Bar("W1 in no more memory than pfl in one process", held_below("W1")),
            Bar("W2 in no more than 450 MiB", held_below("W2", 450)),
        ),
        " --environments FOLDER",
    ),
    Section("bf16", plainly),
    Section(
        "scale",
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
        plainly,
        (
            Bar("`import coterie` under 0.5 s, without PyTorch", waited("import coterie", 0.5)),
            Bar("`coterie list methods` under 1 s", waited("coterie list methods", 1.0)),
            Bar("20 rounds on digits under 10 s", waited("20 rounds on digits", 10.0)),
        ),
    ),
)
"""In the order of the page."""
