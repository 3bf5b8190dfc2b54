"""What a run costs with 1,000 to 100,000 clients, and how the cost grows with parameters and with groups.

    python -m benchmarks.scale [--json FILE] [--chart FOLDER] [--smoke]

Clients hold 20 images of handwritten digits (8 x 8, of scikit-learn) of a few classes; which ones is what makes the
planted groups. Every cell is a run of its own in a fresh process, with two to ten rounds and one evaluation of all
clients at the end. With fedavg, ifca and fesem 300 clients take part in a round, after fesem's first, in which all
do; with cfl all do always. Thresholds are the defaults, so that up to 20,000 clients cfl compares all pairs. Memory
is the most that all processes of the run held together, shared pages counted once. The slope is that of the
logarithm of a cost over the logarithm of what grows: 1 is growth in proportion.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import arguments, median, write
from benchmarks.memory import held, require_proc

if TYPE_CHECKING:
    from coterie.report.drawing.figure import Chart

SAMPLES, COHORT, FEW = 20, 300, 3_000

METHODS: dict[str, Mapping[str, Any]] = {
    "fedavg": {},
    "ifca": {},
    "fesem": {},
    # Every leaf is tested from the second round on, whatever the norms, down to the last.
    "cfl": {"t_min": 2, "eps1_frac": 2.0, "ratio": 0.0, "gamma_max": 0.5, "recursive": True},
}
ROUNDS = {"fedavg": 4, "ifca": 10, "fesem": 4, "cfl": 2}


@dataclass(frozen=True)
class Cell:
    """One run: what grows, and everything else."""

    part: str
    method: str
    clients: int
    hidden: int = 0
    groups: int = 4


def cells(smoke: bool) -> list[Cell]:
    """What is measured; little with `smoke`."""
    if smoke:
        return [Cell("clients", "fesem", n) for n in (200, 400)]
    found = [Cell("clients", method, n) for method in METHODS for n in (1_000, 3_000, 10_000, 30_000, 100_000)]
    found += [Cell("parameters", method, FEW, width) for method in METHODS for width in (0, 64, 512)]
    return found + [Cell("groups", method, FEW, groups=k) for method in ("ifca", "fesem", "cfl") for k in (2, 10)]


def images(file: Path, clients: int) -> None:
    """Digits for so many clients, drawn from those of scikit-learn with replacement, a little noise on each."""
    from sklearn.datasets import load_digits

    digits, rng = load_digits(), np.random.default_rng(0)
    drawn = rng.integers(0, len(digits.target), clients * SAMPLES)
    inputs = (digits.images / 16).astype(np.float32)[drawn]
    inputs += 0.05 * rng.standard_normal(inputs.shape, np.float32)
    np.savez(file, x=inputs[..., None], y=digits.target[drawn].astype(np.int64))


def run(cell: Cell, folder: Path) -> dict[str, Any]:
    """A cell's run in this process: seconds of each of its parts, and how well groups are found."""
    import coterie
    from coterie.runs.record import RoundResult
    from coterie.runs.session import Session

    method = {"name": cell.method, **METHODS[cell.method]}
    if cell.method in ("ifca", "fesem"):
        method["clusters"] = cell.groups
    experiment = coterie.Experiment(
        data={
            "name": str(folder / f"{cell.clients}.npz"),
            "split": f"label-blocks({cell.groups})",
            "clients": cell.clients,
        },
        network={"name": "mlp", "hidden": [cell.hidden] if cell.hidden else []},
        method=method,
        training={"epochs": 3, "batch_size": 7, "lr": 0.1},
        run={
            "rounds": ROUNDS[cell.method],
            "participation": 1.0 if cell.method == "cfl" else min(1.0, COHORT / cell.clients),
            "folder": str(folder),
        },
    )
    experiment.check()

    def timed(work: Callable[[], Any]) -> tuple[float, Any]:
        start = time.perf_counter()
        found = work()
        return time.perf_counter() - start, found

    build, session = timed(lambda: Session(experiment))

    def play() -> RoundResult:
        result: RoundResult = session.play_round(session.done + 1)
        session.record(result)
        return result

    try:
        rounds = []
        for _ in range(experiment.run.rounds):
            seconds, result = timed(play)
            rounds.append(seconds)
        evaluation, result.scores = timed(lambda: session.evaluate(session.state, last=True))
        row = session.record(result)
    finally:
        session.close()
    return {
        "parameters": session.layout.size,
        "build_seconds": build,
        "first_round_seconds": rounds[0],
        "round_seconds": median(rounds[1:]),
        "evaluation_seconds": evaluation,
        "accuracy": row["macro_accuracy"],
        "ari": None if cell.method == "fedavg" else row["ari"],  # which looks for none
    }


def measured(cell: Cell, folder: Path) -> dict[str, Any]:
    """A cell's row, from a fresh process that is watched."""
    command = [sys.executable, "-m", "benchmarks.scale", "--cell", json.dumps(asdict(cell)), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    most, done = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.1):
            most = max(most, held(process.pid).total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        text, _ = process.communicate()
    finally:
        done.set()
        watcher.join()
    if process.returncode:
        raise SystemExit(f"{cell} ended with the code {process.returncode}")
    return {**asdict(cell), **json.loads(text.splitlines()[-1]), "peak_mb": most / 1e6}


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the line of least squares through logarithms: the power with which values grow."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


SLOPES = ("build_seconds", "first_round_seconds", "round_seconds", "evaluation_seconds", "peak_mb")
AXES = {"clients": "clients", "parameters": "parameters", "groups": "groups"}


def slopes(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each part and method a row with the power with which every cost grows."""
    found = []
    for part, axis in AXES.items():
        for method in METHODS:
            own = [row for row in rows if (row["part"], row["method"]) == (part, method)]
            if len(own) > 1:
                powers = {name: slope([row[axis] for row in own], [row[name] for row in own]) for name in SLOPES}
                found.append({"part": f"slope over {part}", "method": method, **powers})
    return found


def chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Seconds of a round, seconds of an evaluation and memory against clients, all axes logarithmic."""
    import altair as alt

    shown = {
        "seconds of a round": ("round_seconds", 1.0),
        "seconds of an evaluation of all": ("evaluation_seconds", 1.0),
        "gigabytes at most": ("peak_mb", 1e-3),
    }
    values = [
        {"method": row["method"], "clients": row["clients"], "what": title, "value": row[name] * factor}
        for row in rows
        if row["part"] == "clients"
        for title, (name, factor) in shown.items()
    ]
    lines = alt.Chart(alt.InlineData(values=values)).mark_line(point=True)
    encoded = lines.encode(
        x=alt.X("clients:Q").scale(type="log").axis(format="~s", values=sorted({v["clients"] for v in values})),
        y=alt.Y("value:Q").scale(type="log").title(None).axis(format="~g", tickCount=5),
        color=alt.Color("method:N").sort(list(METHODS)).title(None),
    )
    panels = encoded.properties(width=220, height=220).facet(
        column=alt.Column("what:N").sort(list(shown)).title(None)
    )
    found: Chart = panels.resolve_scale(y="independent").configure(background="white", font="Helvetica, sans-serif")
    return found


def main() -> None:
    """Measure every cell, print the table and the slopes."""
    parser = arguments("scale", __doc__, {}, repeats=None)
    parser.add_argument(
        "--chart", type=Path, metavar="FOLDER", help="draw the growth with clients: scale.svg and scale.png"
    )
    parser.add_argument("--cell", nargs=2, metavar=("CELL", "FOLDER"), help="run one cell in this process")
    given = parser.read()
    if given.cell:
        print(json.dumps(run(Cell(**json.loads(given.cell[0])), Path(given.cell[1]))))
        return
    require_proc()
    rows: list[dict[str, Any]] = []
    wanted = cells(given.smoke)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for cell in sorted(wanted, key=lambda cell: cell.clients):
            file = folder / f"{cell.clients}.npz"
            if not file.exists():
                for old in folder.glob("*.npz"):
                    old.unlink()
                images(file, cell.clients)
            rows.append(measured(cell, folder))
    rows.sort(key=lambda row: wanted.index(Cell(**{key: row[key] for key in asdict(wanted[0])})))
    rows += slopes(rows)
    show(rows)
    write(given.json, "scale", rows)
    if given.chart:
        from coterie.report.drawing.saving import save_charts

        save_charts({"scale": chart(rows)}, given.chart)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows, one table a part."""
    for part in dict.fromkeys(row["part"] for row in rows):
        own = [row for row in rows if row["part"] == part]
        table, columns = Table(title=part), [name for name in own[0] if name not in ("part", "hidden")]
        for name in columns:
            table.add_column(name.replace("_", " "), justify="left" if name == "method" else "right")
        for row in own:
            table.add_row(*[_text(row[name]) for name in columns])
        Console(width=160).print(table)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
