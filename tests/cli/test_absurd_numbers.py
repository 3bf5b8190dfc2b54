"""What is valid and absurd is refused in a sentence, before any memory or time is taken for it."""

from __future__ import annotations

import struct
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from coterie.runs.folder.manifest import Manifest
from tests.commandline import Terminal

SOON = 30
"""Seconds in which a refusal comes, on a busy machine, too."""


def columns(path: Path) -> None:
    names = ["client", *(f"x{i}" for i in range(50_001)), "label"]
    lines = [",".join([f"c{row % 4}", *["1"] * 50_001, str(row % 2)]) for row in range(3)]
    path.with_suffix(".csv").write_text("\n".join([",".join(names), *lines]))


def classes(path: Path) -> None:
    rows = [f"c{row % 4},{row % 7},name {row}" for row in range(1500)]
    path.with_suffix(".csv").write_text("\n".join(["client,x,label", *rows]))


def names(path: Path) -> None:
    x = np.zeros((12, 2), np.float32)
    np.savez(path.with_suffix(".npz"), x=x, y=np.arange(12) % 2, columns=np.array(["a", "\ud800"]))


def archive(path: Path) -> None:
    """A file of some hundred kilobytes that would unfold to a thousand times as much."""
    np.savez_compressed(path.with_suffix(".npz"), x=np.zeros((10_000, 2_000), np.float32), y=np.arange(10_000) % 2)


def image(path: Path) -> None:
    """PNG images of a few bytes that say that they have 3.6 thousand million pixels."""
    for client in ("a", "b"):
        for kind in ("x", "y"):
            (path / client / kind).mkdir(parents=True)
            head = struct.pack(">IIBBBBB", 60_000, 60_000, 1, 0, 0, 0, 0)
            parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")]
            body = b"".join(
                struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
                for name, data in parts
            )
            (path / client / kind / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("command", "words", "named"),
    [
        ("explain", ("--network", "mlp", "--set", "network.hidden=[500000,500000]"), "parameters"),
        ("run", ("--network", "mlp", "--set", "network.hidden=[500000,500000]"), "parameters"),
        (
            "explain",
            ("--network", "mlp", "--set", f"network.hidden=[{','.join(['8'] * 20_000)}]"),
            "network.hidden",
        ),
        ("explain", ("--set", "epochs=1000000000"), "training.epochs"),
        ("run", ("--set", "epochs=1000000000"), "training.epochs"),
    ],
)
def test_settings(command: str, words: tuple[str, ...], named: str, terminal: Terminal) -> None:
    begun = time.monotonic()
    code, _, said = terminal(command, "fedavg", "--data", "digits", *words)
    assert (code, time.monotonic() - begun < SOON) == (2, True)
    assert named in said
    assert len(said.splitlines()) == 1


@pytest.mark.medium
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("explain", "fesem", "--set", "restarts=1000000000"), "method.restarts"),
        (("diagnose", "digits", "--starts", "1000000000"), "starts"),
    ],
)
def test_repetitions(words: tuple[str, ...], named: str, terminal: Terminal) -> None:
    code, _, said = terminal(*words)
    assert code == 2
    assert named in said


@pytest.mark.medium
@pytest.mark.parametrize("write", [columns, classes, names, archive, image])
def test_data(write: object, tmp_path: Path, terminal: Terminal) -> None:
    assert callable(write)
    write(tmp_path / "odd")
    (path,) = tmp_path.iterdir()
    begun = time.monotonic()
    code, _, said = terminal("explain", "fedavg", "--data", str(path))
    assert (code, time.monotonic() - begun < SOON) == (2, True)
    assert "Traceback" not in said
    assert "odd" in said or "labels" in said


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["numbers", "lists"])
@pytest.mark.parametrize("command", ["explain", "run", "diagnose"])
def test_a_small_file_that_unfolds_to_more_than_there_is(
    kind: str, command: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.room.available_bytes", lambda: 10**7)
    n = 500_000 if kind == "numbers" else 40
    values = pl.zeros(4_000_000, pl.Float32, eager=True)
    x = values[:n] if kind == "numbers" else values.reshape((n, len(values) // n)).arr.to_list()
    client = pl.int_range(n, eager=True) % 4
    pl.DataFrame({"client": client, "x": x, "label": client % 2}).write_parquet("small.parquet")
    assert Path("small.parquet").stat().st_size < 10**6
    words = ("small.parquet",) if command == "diagnose" else ("fedavg", "--data", "small.parquet")
    code, out, said = terminal(command, *words)
    assert (code, out, len(said.splitlines())) == (2, "", 1)
    assert "small.parquet" in said


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the addresses of a process")
def test_a_file_that_a_limit_on_the_process_has_no_room_for(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read a table takes twice as many addresses as bytes; where these run out, nothing could be said."""
    import resource

    row = pl.int_range(4_000_000, eager=True)
    pl.DataFrame({"client": row % 4, "x": row % 3, "label": row % 2}).write_parquet("small.parquet")
    taken = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    monkeypatch.setattr("resource.getrlimit", lambda kind: (taken + 250_000_000, resource.RLIM_INFINITY))
    code, _, said = terminal("explain", "fedavg", "--data", "small.parquet")
    assert (code, len(said.splitlines())) == (2, 1)
    assert "small.parquet" in said
    assert "12,000,000 values" in said


@pytest.mark.slow
def test_twenty_thousand_clients_are_explained_soon(terminal: Terminal) -> None:
    row = pl.int_range(120_000, eager=True)
    pl.DataFrame({"client": row // 6, "x": row % 7, "label": row % 2}).write_parquet("many.parquet")
    begun = time.monotonic()
    code, out, _ = terminal("explain", "fedavg", "--data", "many.parquet", "--set", "min_samples=2")
    assert (code, time.monotonic() - begun < SOON) == (0, True)
    assert "whole run" in out


@pytest.mark.slow
def test_many_epochs_and_a_large_cohort_are_explained_soon(terminal: Terminal) -> None:
    """Ten epochs are tried, and costs are of all."""
    from coterie.advice.explain.explain import explain
    from coterie.runs.schema.experiment import Experiment

    ten, many = (explain(Experiment(method="fedavg", training={"epochs": epochs})) for epochs in (10, 10_000))
    assert ten.first is not None
    assert many.first is not None
    assert many.first.read_bytes == 1000 * ten.first.read_bytes
    assert many.experiment.training.epochs == 10_000
    code, out, _ = terminal("explain", "fedavg", "--set", "epochs=0")
    assert (code, "whole run" in out) == (0, True)


@pytest.mark.slow
def test_a_name_that_no_drawing_may_hold(tmp_path: Path, terminal: Terminal) -> None:
    call, table = terminal, tmp_path / "odd.csv"
    rows = [f'"s\x1b{row % 4}\x07",{row % 7},{row % 2}' for row in range(80)]
    table.write_text("\n".join(["client,x,label", *rows]))
    words = ("--data", str(table), "--rounds", "1", "--name", "odd", "-q", "--baselines", "none")
    assert call("run", "fedavg", *words).code == 0
    assert call("report", "odd", "--charts", "drawn").code == 0
    assert list(Path("drawn").glob("*.png"))


@pytest.mark.medium
def test_a_name_that_no_file_can_have(terminal: Terminal) -> None:
    long = "a" * 5000
    Path("long.toml").write_text(f"[data]\nname = '{long}'\n")
    for words in (("run", "fedavg", long), ("flower", "new", "app", "--experiment", "long.toml")):
        assert "Traceback" not in terminal(*words).err
    assert terminal("run", "fedavg", long).code == 2


@pytest.mark.slow
def test_a_text_in_the_place_of_a_round(terminal: Terminal) -> None:
    """Also where whoever wrote it has made the digests anew."""
    call = terminal
    assert call("run", "fedavg", "--rounds", "1", "--name", "one", "-q", "--baselines", "none").code == 0
    folder = Path("runs") / "one"
    changed = pl.read_parquet(folder / "rounds.parquet").with_columns(round=pl.lit("one"))
    changed.write_parquet(folder / "rounds.parquet")
    Manifest(folder, lambda: True).write({"rounds.parquet": (folder / "rounds.parquet").read_bytes()})
    code, _, said = call("show", "one")
    assert code == 2
    assert "rounds.parquet" in said
