"""Run folders that look like real ones: planted groups, learning curves, traffic, failures."""

from pathlib import Path

import numpy as np
import polars as pl

from coterie.grouping.labels import relabel
from coterie.randomness import stream
from coterie.runs.folder import metrics
from coterie.runs.folder.picture import Picture
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import (
    FAILURES,
    FEDERATION,
    LEDGER,
    LOG,
    NEWCOMERS,
    clients_schema,
    rounds_schema,
)

from .stories import Story

EXPERIMENT = """\
# {name}: clustered training on rotated images
[method]
name = "{method}"
clusters = {groups}
"""


PARAMETERS = 60_000


def synthesise(
    parent: Path,
    name: str,
    *,
    clients: int = 20,
    groups: int = 4,
    rounds: int = 15,
    method: str = "fesem",
    ceiling: float = 0.9,
    planted: int = 4,
    picture: bool = True,
    failing: bool = True,
    story: Story | None = None,
    newcomers: int = 0,
    until: int | None = None,
    measured: metrics.RunMetrics = metrics.CLASSIFICATION,
) -> RunFolder:
    """A finished run; `groups` 1 is a method that keeps one model for all, 0 one that sends nothing.

    With a `story` the method logs it, and the run knows its people, of whom every third is few-shot. A run that
    comes only `until` a round is interrupted. It is `measured` by metrics that are as good as its accuracy: errors
    fall from 12 to below 4 while that rises.
    """
    folder = RunFolder.create(parent, name)
    folder.write_experiment(EXPERIMENT.format(name=name, method=method, groups=groups))
    folder.write_environment(
        {
            "seed": 3,
            "command": "coterie run experiment.toml",
            "started": "2024-05-06T07:08:09+00:00",
            "versions": {"coterie": "0.1.0", "python": "3.11.9", "torch": "2.6.0"},
            **({} if measured == metrics.CLASSIFICATION else {"metrics": measured.to_json()}),
        }
    )
    rng = stream(3, "synthesis/" + name)
    true = np.arange(clients) % max(groups, 1)
    talent = rng.normal(0, 0.04, clients) - 0.08 * (rng.random(clients) < 0.1)
    samples = rng.integers(20, 200, clients)
    before: np.ndarray | None = None
    for number in range(1, (until or rounds) + 1):
        lost = rng.random(clients) < 0.8 * np.exp(-4 * number / rounds) - 0.05
        group = np.where(lost, rng.integers(0, max(groups, 1), clients), true) if groups > 1 else true
        group = relabel(group) if groups else np.full(clients, -1)
        progress = 1 - 0.85 * np.exp(-5 * number / rounds)
        noise = rng.normal(0, 0.012, clients)
        accuracy = np.clip(ceiling * progress + talent - 0.06 * lost + noise, 0.02, 1)
        took = rng.random(clients) < 0.7
        took[rng.integers(clients)] = True
        failed = took & (rng.random(clients) < 0.04) if failing else np.zeros(clients, bool)
        size = 4 * PARAMETERS if groups else 0
        up, down = np.where(took & ~failed, size, 0), np.where(took, size, 0)
        ari, nmi = metrics.agreement(group, np.arange(clients) % planted if planted else None)
        values = {
            metric.name: 10 * (1.2 - accuracy) if metric.less_is_better else accuracy - 0.02 * (number_of > 0)
            for number_of, metric in enumerate(measured.of)
        }
        loss = 2.3 * (1 - accuracy)
        train = np.where(took & ~failed, 2.3 * (1 - progress) + 0.1, np.nan)
        table = pl.DataFrame(
            {
                "round": np.full(clients, number),
                "client": np.arange(clients),
                "group": group,
                "took_part": took,
                **{name: {"loss": loss, **values}[name] for name in measured.client_columns},
                "test_samples": samples,
                "train_loss": train,
                "up_bytes": up,
                "down_bytes": down,
            }
        ).with_columns(pl.col("train_loss").fill_nan(None))
        row = {
            **measured.summarise(metrics.ClientScores(values, loss, samples.astype(float))),
            "round": number,
            "train_loss": float(np.nanmean(train)) if (took & ~failed).any() else None,
            "groups": len({g for g in group.tolist() if g >= 0}),
            "moved": metrics.count_moved(before, group),
            "ari": ari,
            "nmi": nmi,
            "up_bytes": int(up.sum()),
            "down_bytes": int(down.sum()),
            "passes": 1.0,
            "simulated_seconds": 30.0,
            "seconds": 1.25,
            "participants": int(took.sum()),
            "failed": int(failed.sum()),
        }
        transfers = [
            (number, int(i), way, what, scalars, 4 * scalars)
            for way, sent, what, scalars in (
                ("down", took, "model", PARAMETERS),
                ("up", took & ~failed, "model", PARAMETERS),
                ("up", took & ~failed, "loss", 1),
            )
            for i in np.flatnonzero(sent)
            if groups
        ]
        reasons = ("no answer within 60 s", "the loss became <NaN>")
        folder.write_round(
            number,
            pl.DataFrame([row], schema=rounds_schema(measured)),
            table.cast(clients_schema(measured)),
            pl.DataFrame(transfers, schema=LEDGER, orient="row"),
            pl.DataFrame(
                [(number, int(i), reasons[i % 2]) for i in np.flatnonzero(failed)], FAILURES, orient="row"
            ),
            pl.DataFrame([(number, *entry) for entry in story(number)] if story else [], LOG, orient="row"),
        )
        before = group
    if picture:
        folder.write_picture(_picture(true if groups > 1 else np.zeros(clients, int), rounds, rng))
    if story or newcomers:
        folder.write_federation(_people(clients, planted))
    if newcomers:
        folder.write_newcomers(_newcomers(clients, newcomers, planted, rng))
    if until is None:
        folder.compact()
    folder.write_status("finished" if until is None else "interrupted", until or rounds, rounds)
    return folder


def _people(clients: int, planted: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "client": range(clients),
            "name": [f"client {i}" for i in range(clients)],
            "true_group": [i % planted if planted else None for i in range(clients)],
            "few_shot": [i % 3 == 0 for i in range(clients)],
            "train": [60] * clients,
            "validation": [10] * clients,
            "test": [30] * clients,
            "labels": [[0, 1]] * clients,
        },
        schema=FEDERATION,
    )


def _newcomers(clients: int, count: int, planted: int, rng: np.random.Generator) -> pl.DataFrame:
    """Newcomers of whom every ninth has no test data."""
    ids = np.arange(clients, clients + count)
    arrival = np.where(ids % 9 > 0, rng.uniform(0.3, 0.9, count), np.nan)
    true = ids % max(planted, 1)
    columns = {"client": ids, "name": [f"newcomer {i}" for i in ids], "true_group": true, "group": true}
    columns |= {"test_samples": np.where(ids % 9 > 0, 30, 0), "arrival": arrival, "adapted": arrival + 0.05}
    return pl.DataFrame(columns).fill_nan(None).cast(NEWCOMERS)


def _picture(group: np.ndarray, number: int, rng: np.random.Generator) -> Picture:
    n = len(group)
    centres = rng.normal(0, 2, (group.max() + 1, 12))
    models = centres[group] + rng.normal(0, 0.6, (n, 12))
    centred = models - models.mean(0) if n > 1 else models
    axes = np.linalg.svd(centred, full_matrices=True)[2][:2]
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return Picture(
        (unit @ unit.T).astype(np.float32),
        "cosine similarity of updates",
        group,
        (centred @ axes.T).astype(np.float32),
        np.arange(n),
        number,
    )
