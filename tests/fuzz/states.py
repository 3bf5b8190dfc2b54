"""What a run left on the disk, with values of other types in it; and tables for a model that learnt another one."""

from __future__ import annotations

import io
import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl

import coterie
from coterie.report.watch.reading import Watched
from coterie.runs.folder.run_folder import RunFolder
from coterie.shipping.model.predict import load_samples, predict
from coterie.shipping.model.served import trained_model
from coterie.shipping.model.trained import Trained
from tests.fuzz.case import Case, Step
from tests.fuzz.values import CONTROLS, NUMBERS, TEXTS, draw_json

KEPT = ("status.json", "environment.json", "warnings.json", "manifest.json")
ROWS = 24


def make_state(random: Random) -> Case:
    """Return a case that changes a value in a file of a run, and then shows, watches or resumes the run."""
    name, value = random.choice(KEPT), draw_json(random)
    place = random.random()
    without_digests = random.random() < 0.5  # so that no digest gives the change away

    def spoil(folder: Path) -> None:
        run = folder / "runs/first"
        path = run / name
        kept: Any = json.loads(path.read_text("utf-8")) if path.exists() else {"warnings": []}
        keys = list(kept)
        changed = value if place > 0.9 else {**kept, keys[int(place * len(keys)) % len(keys)]: value}
        path.write_bytes(json.dumps(changed).encode(errors="surrogatepass"))
        if without_digests and name != "manifest.json":
            (run / "manifest.json").unlink(missing_ok=True)
            if name != "environment.json":
                environment = json.loads((run / "environment.json").read_text("utf-8"))
                del environment["format"]
                (run / "environment.json").write_text(json.dumps(environment), "utf-8")

    def watch(folder: Path) -> None:
        json.dumps(Watched(folder / "runs").index(), allow_nan=False).encode()

    look: Step = random.choice((watch, ("show", "first"), ("report", "first"), ("resume", "first")))
    return Case((spoil, look), with_run=True)


@cache
def _train() -> Trained:
    """Return a model of a table of two numbers and a word."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        table = {
            "client": [f"c{i % 3}" for i in range(60)],
            "age": rng.normal(size=60),
            "dose": rng.normal(size=60),
        }
        table |= {"sex": [("f", "m")[i % 2] for i in range(60)], "label": [i % 2 for i in range(60)]}
        pl.DataFrame(table).write_csv(path)
        experiment = coterie.Experiment.from_tables(
            {"method": "fedavg", "data": {"name": str(path)}, "run": {"rounds": 1, "workers": 1, "folder": folder}}
        )
        return trained_model(RunFolder(coterie.run(experiment).folder), group=0)[0]


def make_table(random: Random) -> Case:
    """Return a case that predicts a table whose columns are of other types, lack values, or are missing."""
    columns: dict[str, pl.Series] = {}
    for name in ("client", "age", "dose", "sex", "label"):
        if random.random() < 0.9:
            columns[name] = _draw_column(random, name)
    content, name = io.BytesIO(), random.choice(("odd.parquet", "odd.npz"))
    if name == "odd.parquet":
        pl.DataFrame(columns).write_parquet(content)
    else:
        values = np.array([_as_float(text) for text in random.sample(NUMBERS, 9)], np.float64)
        np.savez(content, features=np.resize(values, (ROWS, random.choice((2, 3, 4)))))

    def run(folder: Path) -> None:
        trained = _train()
        predict(trained, load_samples(str(folder / name), trained.about))

    return Case((run,), {name: content.getvalue()})


def _as_float(text: str) -> float:
    try:
        return float(text)
    except (ValueError, OverflowError):
        return float("nan")


def _draw_column(random: Random, name: str) -> pl.Series:
    texts = [random.choice((*TEXTS, *CONTROLS, "f", "m", "1", "", "2.5")) for _ in range(ROWS)]
    texts = [text.encode(errors="replace").decode()[:50] for text in texts]
    numbers = [random.choice((0.0, 1.0, -1e308, 1e39, float("nan"), float("inf"), 2.5)) for _ in range(ROWS)]
    lacking = [None if random.random() < 0.3 else number for number in numbers]
    usual = [f"c{i % 3}" for i in range(ROWS)] if name == "client" else [i % 2 for i in range(ROWS)]
    kinds = (
        *(pl.Series(name, usual), pl.Series(name, usual), pl.Series(name, usual), pl.Series(name, numbers)),
        *(pl.Series(name, lacking), pl.Series(name, texts), pl.Series(name, texts, pl.Categorical)),
        *(pl.Series(name, [True, None] * (ROWS // 2)), pl.Series(name, [None] * ROWS)),
        *(pl.Series(name, ["f", "m"] * (ROWS // 2), pl.Enum(["f", "m"])), pl.Series(name, [[1, 2]] * ROWS)),
        *(pl.Series(name, [{"a": 1}] * ROWS), pl.Series(name, range(ROWS)).cast(pl.Date)),
        *(pl.Series(name, range(ROWS)).cast(pl.Duration), pl.Series(name, [b"x"] * ROWS)),
        pl.Series(name, range(ROWS)).cast(pl.Decimal(10, 2)),
    )
    return random.choice(kinds)
