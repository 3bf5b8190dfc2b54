"""The tables of a run and how they reach the disk: schemas, checks, and files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from coterie.problems import BadInput

ROUNDS = pl.Schema(
    {
        "round": pl.Int32,
        "accuracy": pl.Float64,
        "macro_accuracy": pl.Float64,
        "f1": pl.Float64,
        "macro_f1": pl.Float64,
        "worst10": pl.Float64,
        "spread": pl.Float64,
        "loss": pl.Float64,
        "train_loss": pl.Float64,
        "groups": pl.Int32,
        "moved": pl.Int32,
        "ari": pl.Float64,
        "nmi": pl.Float64,
        "up_bytes": pl.Int64,
        "down_bytes": pl.Int64,
        "simulated_seconds": pl.Float64,
        "seconds": pl.Float64,
        "participants": pl.Int32,
        "failed": pl.Int32,
    }
)
"""One row a round. Bytes and seconds are of that round alone; `seconds` is wall time and not reproducible."""

CLIENTS = pl.Schema(
    {
        "round": pl.Int32,
        "client": pl.Int32,
        "group": pl.Int32,
        "took_part": pl.Boolean,
        "accuracy": pl.Float64,
        "loss": pl.Float64,
        "f1": pl.Float64,
        "test_samples": pl.Int32,
        "train_loss": pl.Float64,
        "up_bytes": pl.Int64,
        "down_bytes": pl.Int64,
    }
)
"""One row a client and evaluated round; `group` -1 means that the client has none."""

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
"""One row a transfer (specification 0.2, convention 10); `direction` is `up` or `down`."""

FAILURES = pl.Schema({"round": pl.Int32, "client": pl.Int32, "reason": pl.String})
"""One row a client that was asked and did not answer."""

PEOPLE = pl.Schema(
    [
        ("client", pl.Int32()),
        ("name", pl.String()),
        ("planted", pl.Int32()),
        ("few_shot", pl.Boolean()),
        ("train", pl.Int32()),
        ("validation", pl.Int32()),
        ("test", pl.Int32()),
        ("labels", pl.List(pl.Int32())),
    ]
)
"""One row a client: who it is, its planted group (null where nobody knows), its samples, its training labels."""

SCHEMAS: dict[str, pl.Schema] = {
    "rounds": ROUNDS,
    "clients": CLIENTS,
    "ledger": LEDGER,
    "failures": FAILURES,
}
MEASURED = ("accuracy", "macro_accuracy", "f1", "macro_f1", "worst10", "spread", "loss")
"""What only an evaluation gives; null in a round without one, which has no rows in the clients' table either."""

NULLABLE = {"train_loss", "ari", "nmi", *MEASURED}


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it appears whole or not at all, also when the machine stops in between."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def mismatches(table: str, frame: pl.DataFrame, number: int) -> list[str]:
    """One sentence for each way in which a frame is not what `table` keeps of round `number`."""
    schema, found = SCHEMAS[table], []
    if missing := [c for c in schema if c not in frame.columns]:
        found.append(f"{table} lacks {', '.join(missing)}; it has the columns {', '.join(schema)}")
    if extra := [c for c in frame.columns if c not in schema]:
        found.append(f"{table} has {', '.join(extra)}; its columns are {', '.join(schema)}")
    if found:
        return found
    for column, wanted in schema.items():
        series = frame[column]
        if series.dtype != wanted and series.null_count() < frame.height:
            found.append(f"{table}.{column} has the type {series.dtype}; it must be {wanted}")
        elif series.null_count() and column not in NULLABLE:
            found.append(f"{table}.{column} has {series.null_count()} missing values; it must have none")
    if not found and frame.filter(pl.col("round") != number).height:
        wrong = sorted(set(frame["round"].to_list()) - {number})
        found.append(f"{table}.round has {', '.join(map(str, wrong))}; it must be {number} throughout")
    return found


def encode(frame: pl.DataFrame, schema: pl.Schema) -> bytes:
    """The frame as a Parquet file, its columns in the order of the schema."""
    buffer = BytesIO()
    frame.select(pl.col(name).cast(kind) for name, kind in schema.items()).write_parquet(buffer)
    return buffer.getvalue()


def decode(path: Path, schema: pl.Schema) -> pl.DataFrame:
    """The table in a Parquet file.

    Raises:
        FileNotFoundError: there is no such file.
        BadInput: the file cannot be read or holds other columns.
    """
    try:
        frame = pl.read_parquet(path.read_bytes())
    except (pl.exceptions.PolarsError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise damaged(path, error) from None
    if frame.schema != schema:
        raise damaged(path, ValueError(f"its columns are {', '.join(frame.columns)}"))
    return frame


def encode_json(value: Mapping[str, Any]) -> bytes:
    """A mapping as a JSON file that people can read."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any] | None:
    """The mapping in a JSON file, or None where there is no such file.

    Raises:
        BadInput: the file cannot be read or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise damaged(path, error) from None
    if not isinstance(value, dict):
        raise damaged(path, ValueError("it holds no JSON object"))
    return value


def damaged(path: Path, error: Exception) -> BadInput:
    """The one sentence for a file that cannot be read."""
    reason = str(error).split("\n", 1)[0]
    return BadInput(f"{path} is damaged ({reason}); restore it, or resume the run from an earlier checkpoint")
