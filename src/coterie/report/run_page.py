"""The report of a run: one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from coterie.errors import BadInput, count_of
from coterie.report.charts import draw_run
from coterie.report.compared_runs import read_against, write_against
from coterie.report.each_client import describe_clients
from coterie.report.gains import bound_worst_tenth, floats
from coterie.report.numbers import MISSING, capital, decimals, duration, measured, percent, versus, volume
from coterie.report.rendering import render_page
from coterie.report.run_tables import last_rounds
from coterie.report.tables import Table, capitalise, flatten
from coterie.report.why_groups import explain_groups
from coterie.runs.folder.baselines import TITLES, read_baselines, read_refusals
from coterie.runs.folder.files import write_whole
from coterie.runs.folder.metrics import ADAPTED, MACRO
from coterie.runs.folder.reading import UNCHECKED, RunResults, method_name, read_runs
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import newcomers_columns

MOST_TRANSFERS = 12
"""Rows of the table of what was sent."""

MOST_GROUPS = 200
"""Groups that the page lists at most."""

MOST_NAMES = 12
"""Clients that are named of each group."""


def build(folder: RunFolder, against: Sequence[RunFolder] | None = None) -> Path:
    """Write `report.html` into the run's folder and return its path.

    Args:
        folder: the run; it may still go on.
        against: other runs, drawn as further lines and compared client by client. They are kept in the folder;
            without them, those that were kept last are shown, and an empty list forgets them.

    Raises:
        BadInput: the folder is no run, a file in it is damaged, or it cannot be written to.
    """
    notes: list[str] = []
    named = against
    if against is None:
        against, notes = read_against(folder)
    notes = [*folder.warnings(), *notes, *([] if folder.is_checked else [UNCHECKED])]
    run, *others = read_runs([folder, *against], notes)  # what is damaged is noted, what is sound is shown
    transfers, more_transfers = _transfers(run)
    members, more_groups = _members(run)
    environment, joined = folder.environment(), run.newcomers
    trained = run.last if joined is None else run.last.filter(~pl.col("client").is_in(joined["client"].implode()))
    page = render_page(
        "run.html",
        run.label,
        _lead(run),
        draw_run(run, others),
        notes=notes,
        tiles=_tiles(run, others),
        compared=capitalise(last_rounds([folder, *against]).without("rounds")) if others else None,
        each=describe_clients(run, [*read_baselines(folder), *others]),
        not_run=[
            f"{TITLES[name]} was not run beside this run: {why}"
            for name, why in read_refusals(folder).items()
            if name in TITLES
        ],
        newcomers=None if joined is None else _tabulate_newcomers(run, joined, trained),
        about_newcomers="" if joined is None else _describe_newcomers(run, joined, trained),
        why=explain_groups(run),
        members=members,
        more_groups=more_groups,
        transfers=transfers,
        more_transfers=more_transfers,
        failures=_failures(run),
        failed=folder.failures().height,
        asked=run.rounds["participants"].sum(),
        experiment=folder.experiment_text(),
        experiment_path=folder.path / "experiment.toml",
        environment=Table(
            ["Environment", ""],
            [*flatten({k: v for k, v in environment.items() if k not in ("metrics", "classes")})],
            texts=2,
        ),
        seed=environment.get("seed"),
    )
    path = folder.path / "report.html"
    try:
        if named is not None:
            write_against(folder, named)
        write_whole(path, page.encode())
    except OSError as error:
        raise BadInput(f"{path} cannot be written ({error.strerror}); make its folder writable") from None
    return path


def _lead(run: RunResults) -> str:
    done, clients = run.rounds.height, run.last.height
    experiment = run.folder.experiment()
    data, network = experiment.get("data", {}), _network(run)
    on = ""
    if {"name", "split"} <= set(data):  # of a file its name; where it lies is below, in the experiment
        name = str(data["name"])
        on = f" on {Path(name).name if name.startswith('/') else name}, split {data['split']}"
    words = f"{method_name(experiment)}{on}{f', network {network}' if network else ''}: "
    words += f"{count_of(clients, 'client')}, {count_of(done, 'round')}"
    progress, status = run.folder.progress(), run.folder.status
    if progress is not None and status != "finished":
        words += f" of {progress.rounds}; the run is {'still going on' if status == 'running' else 'interrupted'}"
    return words + "."


def _network(run: RunResults) -> str:
    """The network's name; that which `auto` took, where the run has written it down."""
    given = run.folder.experiment().get("network", {})
    name = str(given.get("name", "") if isinstance(given, Mapping) else given)
    described = run.folder.environment().get("description", [])
    taken = [line.split()[1].rstrip(":") for line in described if line.startswith("network ")]
    return taken[0] if name == "auto" and taken else name


def _tiles(run: RunResults, others: Sequence[RunResults]) -> list[tuple[str, str, str]]:
    """The numbers at the top: name, value and a remark of each; none before the first round is finished."""
    if not run.rounds.height:
        return []
    end = run.summary
    return [
        *_score_tiles(run, others),
        *_privacy_tile(run),
        ("Groups", str(end["groups"]), f"{count_of(end['moved'], 'change')} in all"),
        *_agreement_tile(end),
        ("Sent up", volume(end["up_bytes"]), "clients to server"),
        ("Sent down", volume(end["down_bytes"]), "server to clients"),
        ("Time", duration(end["seconds"]), f"{duration(end['simulated_seconds'])} simulated"),
    ]


def _score_tiles(run: RunResults, others: Sequence[RunResults]) -> list[tuple[str, str, str]]:
    """The tiles on the first metric, and the other metrics as a remark."""
    end, metric, column = run.summary, run.metrics.deciding, run.metrics.headline
    name, mean = capital(metric.title), end[column]
    tiles = [(name, MISSING, "no round was evaluated yet")]
    if mean is not None:
        further = ", ".join(f"{m.title} {measured(m, end[f'{MACRO}{m.name}'])}" for m in run.metrics.of[1:])
        held = ((o.label, o.summary[column]) for o in others if o.rounds.height and o.metrics.deciding == metric)
        beside = next((f"{versus(metric, mean, of)} against {label}" for label, of in held if of is not None), "")
        std = f"{100 * end['std']:.1f} points" if metric.is_share else measured(metric, end["std"])
        tiles = [
            (f"{name}, mean over clients", measured(metric, mean), beside or further),
            (f"{name}, worst 10 %", measured(metric, end["worst10"]), f"{_sureness(run)}std {std}"),
        ]
    if (adapted := end.get(f"{ADAPTED}{column}")) is not None:
        by_it = f"{versus(metric, adapted, mean)} by it" if mean is not None else ""
        tiles.insert(1, (f"{name} after adaptation", measured(metric, adapted), by_it))
    return tiles


def _sureness(run: RunResults) -> str:
    """Say between what the mean of the worst tenth lies; nothing where a client's score has no interval."""
    metric = run.metrics.deciding
    known = run.last.filter(pl.col("test_samples") > 0).drop_nulls(metric.name)
    known = known.join(run.intervals, on="client", how="left", maintain_order="left")
    samples = known["test_samples"].to_numpy().astype(np.int64)
    scores, low, high = (floats(known[column]) for column in (metric.name, "low", "high"))
    ends = bound_worst_tenth(metric, scores, samples, low, high)
    if np.isnan(ends[0]):
        return ""
    return f"95 % interval {measured(metric, ends[0])} to {measured(metric, ends[1])}; "


def _privacy_tile(run: RunResults) -> list[tuple[str, str, str]]:
    """The tile on what has been spent of the promise of privacy; none where nothing is promised."""
    if run.epsilon is None or run.promise is None:
        return []
    remark = f"of {run.promise['hides']}; delta {run.promise['delta']:.2g}, noise by {run.promise['noise by']}"
    if (usual := run.promise.get("epsilon of the median client")) is not None:
        remark += f"; {usual:.3g} at the median client by the end"
    if "void for" in run.promise:
        remark += f"; void for {run.promise['void for']}"
    return [("Privacy, epsilon", f"{run.epsilon:.3g}", remark)]


def _agreement_tile(end: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The tile on true groups; none where none are known."""
    if end["ari"] is None:
        return []
    remark = f"adjusted Rand index; NMI {decimals(end['nmi'])}"
    return [("Agreement with true groups", decimals(end["ari"]), remark)]


def _tabulate_newcomers(run: RunResults, joined: pl.DataFrame, trained: pl.DataFrame) -> Table:
    """By every metric, how clients fare who were held out of training, beside those in training; means."""
    lines = []
    for metric, *columns in newcomers_columns(run.metrics):
        means = [joined[column].mean() for column in columns] + [trained[metric.name].fill_nan(None).mean()]
        shown = [MISSING if mean is None else measured(metric, cast(float, mean)) for mean in means]
        lines.append([capital(metric.title), *shown])
    return Table(["Mean over clients", "On arrival", "Adapted", "In training"], lines)


def _describe_newcomers(run: RunResults, joined: pl.DataFrame, trained: pl.DataFrame) -> str:
    """Say how many were held out of training, and how many were put where their true group is."""
    said = f"{count_of(joined.height, 'client')} {'was' if joined.height == 1 else 'were'} held out of training."
    grouped = trained.filter(pl.col("group") >= 0)
    known = grouped.join(run.federation.select("client", "true_group").drop_nulls(), on="client")
    home = known.group_by("true_group").agg(home=pl.col("group").mode().min())
    pairs = joined.drop_nulls("true_group").join(home, on="true_group")
    if not pairs.height:
        return said
    right = int((pairs["group"] == pairs["home"]).sum())
    return (
        f"{said} {right} of {pairs.height} ({percent(right / pairs.height)}) went to the group that holds most "
        "trained clients of the same true group."
    )


def _members(run: RunResults) -> tuple[list[tuple[str, str]], int]:
    """Each group of the last evaluation: how many clients and how well they do, and who they are.

    Returns:
        The title and the names of each group, and how many groups there is no room for.
    """
    if not run.clustered:
        return [], 0
    members, metric = [], run.metrics.deciding
    # Clients without a group come last.
    order = run.last.sort(pl.col("group") < 0, "group", "client")
    listed = order.filter(pl.col("group").rle_id() < MOST_GROUPS)
    for (group,), clients in listed.group_by("group", maintain_order=True):
        names = [run.names.get(client, f"client {client}") for client in clients["client"]]
        more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
        title = f"Group {group}" if int(str(group)) >= 0 else "No group"
        known = clients[metric.name].drop_nulls().to_numpy()
        mean = f", mean {metric.title} {measured(metric, known.mean())}" if known.size else ""
        members.append(
            (f"{title}: {count_of(clients.height, 'client')}{mean}", ", ".join(names[:MOST_NAMES]) + more)
        )
    return members, max(order["group"].n_unique() - MOST_GROUPS, 0)


def _transfers(run: RunResults) -> tuple[Table, int]:
    """What was sent, the largest first, and how many smaller kinds are left out."""
    sent = (
        run.folder.ledger()
        .group_by("what", "direction")
        .agg(pl.col("bytes").sum(), pl.len().alias("times"))
        .sort(["bytes", "what", "direction"], descending=[True, False, False])
    )
    lines = [
        [what, direction, f"{times:,}", volume(size)]
        for what, direction, size, times in sent.head(MOST_TRANSFERS).iter_rows()
    ]
    return Table(["What", "Direction", "Transfers", "Size"], lines, texts=2), max(sent.height - MOST_TRANSFERS, 0)


def _failures(run: RunResults) -> Table:
    """Why answers did not come, the most frequent reason first."""
    kinds = (
        run.folder.failures()
        .group_by("reason")
        .agg(
            pl.len().alias("times"),
            pl.col("client").n_unique().alias("clients"),
            pl.col("round").min().alias("first"),
            pl.col("round").max().alias("latest"),
        )
        .sort(["times", "reason"], descending=[True, False])
    )
    lines = [[str(value) for value in row] for row in kinds.iter_rows()]
    return Table(["Reason", "Times", "Clients", "First round", "Last round"], lines)
