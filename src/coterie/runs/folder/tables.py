"""The tables of a run: what each column holds, whether a frame fits, and how they are encoded and decoded."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path

import polars as pl

from coterie.errors import BadInput
from coterie.runs.folder.files import naming_damage, read_file
from coterie.runs.folder.manifest import digest
from coterie.runs.folder.metrics import ADAPTED, CLASSIFICATION, RunMetric, RunMetrics


def rounds_schema(metrics: RunMetrics) -> pl.Schema:
    """Return the columns of the table of rounds of a run with these metrics.

    One row a round. Of a metric m there are `m`, weighted by test samples, and `macro_m`, the mean over clients;
    `worst10` and `std` are of the first. Where every client is also scored after an adaptation, each of these is
    there again behind the others, as `adapted_macro_m` (see `adapted_columns`). They are null in a round without an
    evaluation, which has no rows in the clients' table either. Bytes, passes and seconds are of that round alone.
    `passes` is the number of samples that a client trained on over its own training samples, a mean over all
    clients in training; null in runs of versions that did not count them. `seconds` is wall time and not
    reproducible.
    """
    return pl.Schema(
        {
            "round": pl.Int32(),
            **dict.fromkeys(metrics.columns, pl.Float64()),
            "train_loss": pl.Float64(),
            "groups": pl.Int32(),
            "moved": pl.Int32(),
            "ari": pl.Float64(),
            "nmi": pl.Float64(),
            "up_bytes": pl.Int64(),
            "down_bytes": pl.Int64(),
            "passes": pl.Float64(),
            "simulated_seconds": pl.Float64(),
            "seconds": pl.Float64(),
            "participants": pl.Int32(),
            "failed": pl.Int32(),
        }
    )


def clients_schema(metrics: RunMetrics) -> pl.Schema:
    """Return the columns of the clients' table of a run with these metrics.

    One row a client and evaluated round; `group` -1 means that the client has none. `adapted_m` and `adapted_loss`
    follow where every client is also scored after an adaptation.
    """
    return pl.Schema(
        {
            "round": pl.Int32(),
            "client": pl.Int32(),
            "group": pl.Int32(),
            "took_part": pl.Boolean(),
            **dict.fromkeys(metrics.client_columns, pl.Float64()),
            "test_samples": pl.Int32(),
            "train_loss": pl.Float64(),
            "up_bytes": pl.Int64(),
            "down_bytes": pl.Int64(),
        }
    )


ROUNDS, CLIENTS = rounds_schema(CLASSIFICATION), clients_schema(CLASSIFICATION)
"""The tables of a classification that names no metrics."""

LEDGER = pl.Schema(
    {
        "round": pl.Int32,
        "client": pl.Int32,
        "direction": pl.String,
        "what": pl.String,
        "scalars": pl.Int64,
        "bytes": pl.Int64,
    }
)
"""One row a transfer (docs/methods/conventions.md, convention 10); `direction` is `up` or `down`."""

FAILURES = pl.Schema({"round": pl.Int32, "client": pl.Int32, "reason": pl.String})
"""One row a client that was asked and did not answer."""

NOT_EVALUATED = "not evaluated: "
"""The beginning of the reasons of clients that did not answer an evaluation."""

LOG = pl.Schema({"round": pl.Int32, "name": pl.String, "of": pl.String, "value": pl.Float64})
"""One row a number that the method says of itself: what it is, of which part of the method (or nothing), finite."""

FEDERATION = pl.Schema(
    [
        ("client", pl.Int32()),
        ("name", pl.String()),
        ("true_group", pl.Int32()),
        ("few_shot", pl.Boolean()),
        ("train", pl.Int32()),
        ("validation", pl.Int32()),
        ("test", pl.Int32()),
        ("labels", pl.List(pl.Int32())),
    ]
)
"""One row a client: who it is, its true group (null where nobody knows), its samples, its training labels."""

NEWCOMERS = pl.Schema(
    {
        "client": pl.Int32,
        "name": pl.String,
        "true_group": pl.Int32,
        "group": pl.Int32,
        "test_samples": pl.Int32,
        "arrival": pl.Float64,
        "adapted": pl.Float64,
    }
)
"""One row a client that was held out of training: the group that the method gave it in the end, -1 for none, and
the first of the run's metrics on its test samples with the model that it is given (`arrival`), and after the
experiment's adaptation of it, or one local update where there is none (`adapted`). Further metrics have two columns
each beside these (`newcomers_schema`)."""

INTERVALS = pl.Schema(
    {
        "client": pl.Int32,
        "low": pl.Float64,
        "high": pl.Float64,
        "adapted_low": pl.Float64,
        "adapted_high": pl.Float64,
        "constant": pl.Float64,
        "constant_low": pl.Float64,
        "constant_high": pl.Float64,
    }
)
"""One row a client: between what its last score by the first metric lies (95 %), the same after an adaptation, and
what the best constant answer from its training targets scores on the same samples, with its interval; null where
there is none."""

ARRIVAL = "arrival_"
"""The beginning of the columns that say of a further metric what it is for unseen clients on arrival."""


def newcomers_columns(metrics: RunMetrics) -> list[tuple[RunMetric, str, str]]:
    """Return each metric of newcomers with its columns, on arrival and after an adaptation."""
    further = [(metric, f"{ARRIVAL}{metric.name}", f"{ADAPTED}{metric.name}") for metric in metrics.further]
    return [(metrics.deciding, "arrival", "adapted"), *further]


def newcomers_schema(metrics: RunMetrics) -> pl.Schema:
    """Return the columns of the newcomers' table: of each further metric, on arrival and after an adaptation."""
    scores = {column: pl.Float64() for _, *columns in newcomers_columns(metrics) for column in columns}
    return pl.Schema({**NEWCOMERS, **scores})


def adapted_columns(schema: pl.Schema) -> dict[str, pl.DataType]:
    """Return the columns that a table also has where every client is scored after an adaptation, too."""
    return {f"{ADAPTED}{name}": pl.Float64() for name in scored_columns(schema)}


def scored_columns(schema: pl.Schema) -> list[str]:
    """Return the columns that only an evaluation gives: those between what is known of each round or client."""
    names = list(schema)
    for before, after in (("took_part", "test_samples"), ("round", "train_loss")):
        if before in names and after in names:
            return names[names.index(before) + 1 : names.index(after)]
    return []


def rounds_without_all(failures: pl.DataFrame) -> set[int]:
    """Return the rounds in whose evaluation somebody was missing; `failures` has the columns `FAILURES`."""
    return set(failures.filter(pl.col("reason").str.starts_with(NOT_EVALUATED))["round"])


def take_adapted(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a table of a run with the metrics after adaptation also in the place of those before.

    Raises:
        BadInput: the run has none.
    """
    names = [name for name in frame.columns if name.startswith(ADAPTED)]
    if not names:
        raise BadInput("the run has no scores after an adaptation; set evaluation.adapt")
    after = {name.removeprefix(ADAPTED): frame[name] for name in names}
    return frame.with_columns(**after)


@cache
def growing_tables(metrics: RunMetrics) -> dict[str, pl.Schema]:
    """Return the columns of the tables that grow by each round, by table."""
    return {
        "rounds": rounds_schema(metrics),
        "clients": clients_schema(metrics),
        "ledger": LEDGER,
        "failures": FAILURES,
        "log": LOG,
    }


RUN_KEY = "coterie.run"
"""Under which a file of a run says whose it is."""


_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException)


def encode(frame: pl.DataFrame, schema: pl.Schema, run: str = "") -> bytes:
    """Encode a frame as a Parquet file of a run, its columns in the order of the schema."""
    buffer = BytesIO()
    cast_columns(frame, schema).write_parquet(buffer, metadata={RUN_KEY: run} if run else None)
    return buffer.getvalue()


def decode(path: Path, schema: pl.Schema, run: str = "") -> pl.DataFrame:
    """Decode the table in a Parquet file.

    Raises:
        FileNotFoundError: there is no such file.
        BadInput: the file cannot be read, holds other columns, or is of another run.
    """
    with naming_damage(path, *_UNREADABLE):
        content = read_file(path)
        frame = pl.read_parquet(content)
        _require_run(run, pl.read_parquet_metadata(BytesIO(content)).get(RUN_KEY, "") if run else "")
        return _require_schema(schema, frame)


def _require_run(run: str, said: str) -> None:
    """Refuse a file that says it is of another run. One that says nothing was written by an earlier version."""
    if run and said and said != run:
        raise ValueError("it is of another run")


def cast_columns(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Return the frame with the columns of the schema, in its order and types."""
    return pl.DataFrame([frame[name].cast(kind) for name, kind in _with_adapted(schema, frame).items()])


def stack_tables(schema: pl.Schema, frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the tables below each other; those without rows need not have the columns after adaptation."""
    return pl.concat([pl.DataFrame(schema=schema), *frames], how="diagonal")


def _with_adapted(schema: pl.Schema, frame: pl.DataFrame) -> pl.Schema:
    """Return the schema, with those columns after adaptation that the frame has."""
    after = adapted_columns(schema)
    return pl.Schema({**schema, **after}) if any(name in frame.columns for name in after) else schema


DIGEST_LENGTH = len(digest(b""))


def encode_round(frames: Mapping[str, pl.DataFrame], schemas: Mapping[str, pl.Schema], run: str) -> bytes:
    """Encode some rounds' rows of each table as one ZIP archive of Arrow streams; empty tables are left out.

    The archive's comment says of which run they are, and ends in a digest of all before it: an archive has places
    in which a bit changes what is read, and no checksum of its own notices.

    This takes a tenth of the time of Parquet files, and waits for the disk once.
    """
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.comment = f"{run} {'0' * DIGEST_LENGTH}".encode()
        for table, frame in frames.items():
            if frame.height:
                part = BytesIO()
                cast_columns(frame, schemas[table]).write_ipc_stream(part, compression="zstd")
                # A member of a fixed date: the same rounds are the same bytes.
                archive.writestr(zipfile.ZipInfo(f"{table}.arrow"), part.getvalue())
    content = buffer.getvalue()[:-DIGEST_LENGTH]
    return content + digest(content).encode()


def decode_round(path: Path, table: str, schemas: Mapping[str, pl.Schema], run: str) -> pl.DataFrame:
    """Decode one table in a file of some rounds; empty where it has no rows.

    Raises:
        FileNotFoundError: there is no such file.
        BadInput: the file cannot be read, holds other columns, or is of another run.
    """
    schema, name = schemas[table], f"{table}.arrow"
    with naming_damage(path, *_UNREADABLE):
        content = read_file(path)
        with zipfile.ZipFile(BytesIO(content)) as archive:
            owner, _, kept = archive.comment.decode("ascii", "replace").partition(" ")
            _require_run(run, owner)
            if kept and kept != digest(content[:-DIGEST_LENGTH]):  # earlier versions kept none
                raise ValueError("its contents do not match its digest")
            if name not in archive.namelist():
                return pl.DataFrame(schema=schema)
            return _require_schema(schema, pl.read_ipc_stream(archive.read(name)))


RENAMED = {"spread": "std", "planted": "true_group"}
"""Columns by the names they had once, with those they have now."""


def _require_schema(schema: pl.Schema, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame from a file, if it has the schema."""
    for former in RENAMED.keys() & {*frame.columns} - {*schema}:
        raise ValueError(f"its column {former} is called {RENAMED[former]} now; rename that, or run it again")
    if "passes" in schema and "passes" not in frame.columns and {*schema} - {"passes"} <= {*frame.columns}:
        frame = frame.with_columns(passes=pl.lit(None, pl.Float64)).select(*_with_adapted(schema, frame))
    if frame.schema != _with_adapted(schema, frame):
        raise ValueError(f"its columns are {', '.join(frame.columns)}")
    return frame
