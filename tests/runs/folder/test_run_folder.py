import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from coterie.errors import BadInput
from coterie.runs.folder import round_files
from coterie.runs.folder.picture import Picture
from coterie.runs.folder.run_folder import RunFolder, list_runs
from coterie.runs.folder.tables import (
    CLIENTS,
    FAILURES,
    LEDGER,
    LOG,
    NEWCOMERS,
    ROUNDS,
    decode_round,
)


def a_round(number: int, accuracy: float = 0.5) -> dict[str, pl.DataFrame]:
    row = dict.fromkeys(ROUNDS, 0) | {"train_loss": None, "ari": None, "nmi": None}
    client = dict.fromkeys(CLIENTS, 0) | {"round": number, "took_part": True, "train_loss": None}
    return {
        "rounds": pl.DataFrame([row | {"round": number, "accuracy": accuracy}], schema=ROUNDS),
        "clients": pl.DataFrame([client | {"client": i, "group": -1} for i in range(3)], schema=CLIENTS),
        "ledger": pl.DataFrame(
            [(number, i, way, "model", 10, 40) for way in ("down", "up") for i in range(3)],
            schema=LEDGER,
            orient="row",
        ),
        "failures": pl.DataFrame([(number, 2, "timeout")] if number % 2 else [], schema=FAILURES, orient="row"),
        "log": pl.DataFrame(
            [(number, "norm", of, accuracy * scale) for of, scale in (("fc1", 2), ("fc2", 3))], LOG, orient="row"
        ),
    }


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "runs", "first")
    folder.write_experiment('method = "fedavg"\n')
    return folder


def tables(folder: RunFolder) -> list[pl.DataFrame]:
    return [folder.rounds(), folder.clients(), folder.ledger(), folder.failures(), folder.log()]


def test_a_round_comes_back_as_written(folder: RunFolder) -> None:
    folder.write_round(1, **a_round(1))
    for frame, written in zip(tables(folder), a_round(1).values(), strict=True):
        assert_frame_equal(frame, written)


def test_compacting_changes_no_row_and_leaves_a_file_a_table(folder: RunFolder) -> None:
    for number in (1, 2, 3):
        folder.write_round(number, **a_round(number, number / 10))
    before = tables(folder)
    folder.compact()
    assert not (folder.path / "metrics").exists()
    assert {p.stem for p in folder.path.glob("*.parquet")} == {"rounds", "clients", "ledger", "failures", "log"}
    assert before[0].height == 3
    for frame, earlier in zip(tables(folder), before, strict=True):
        assert_frame_equal(frame, earlier)
    assert_frame_equal(pl.read_parquet(folder.path / "ledger.parquet"), before[2])


def test_a_resumed_run_gives_the_tables_of_an_uninterrupted_one(folder: RunFolder, tmp_path: Path) -> None:
    whole = RunFolder.create(tmp_path / "runs", "whole")
    for number in range(1, 7):
        whole.write_round(number, **a_round(number, number / 10))
    for number in range(1, 6):
        folder.write_round(number, **a_round(number, number / 10))
    folder.compact()
    folder.write_round(5, **a_round(5, 0.99))
    folder.forget_after(3)
    assert folder.rounds()["round"].to_list() == [1, 2, 3]
    for number in range(4, 7):
        folder.write_round(number, **a_round(number, number / 10))
    for frame, wanted in zip(tables(folder), tables(whole), strict=True):
        assert_frame_equal(frame, wanted)
    folder.compact()
    for frame, wanted in zip(tables(folder), tables(whole), strict=True):
        assert_frame_equal(frame, wanted)


@pytest.mark.parametrize("vanished", [[4], [4, 3], [4, 3, 2]])
def test_a_table_is_read_while_another_process_drops_its_rounds_one_by_one(
    folder: RunFolder, vanished: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3, 4):
        folder.write_round(number, **a_round(number))
    left = list(vanished)

    def decode_late(path: Path, table: str, schemas: Mapping[str, pl.Schema], run: str) -> pl.DataFrame:
        if left:  # each read comes too late by one file
            (folder.path / "metrics" / f"{left.pop(0):06d}.zip").unlink()
        return decode_round(path, table, schemas, run)

    monkeypatch.setattr(round_files, "decode_round", decode_late)
    assert folder.rounds()["round"].to_list() == [n for n in (1, 2, 3, 4) if n not in vanished]


def test_a_part_is_newer_than_the_compacted_row(folder: RunFolder) -> None:
    folder.write_round(1, **a_round(1, 0.1))
    folder.compact()
    folder.write_round(1, **a_round(1, 0.2))
    assert folder.rounds()["accuracy"].to_list() == [0.2]
    assert folder.ledger().height == 6


def test_a_round_that_was_cut_off_is_left_out(folder: RunFolder) -> None:
    folder.write_round(1, **a_round(1))
    folder.compact()
    rounds = (folder.path / "rounds.parquet").read_bytes()
    folder.write_round(2, **a_round(2))
    folder.compact()
    # Killed when the first of the compacted tables had lost the round, and while the next was being written.
    (folder.path / "rounds.parquet").write_bytes(rounds)
    (folder.path / "metrics").mkdir()
    (folder.path / "metrics/.000002.zip.1.new").write_bytes(b"PK")
    assert [set(t["round"]) for t in tables(folder)] == [{1}] * 5


@pytest.mark.medium
def test_a_kill_while_writing_leaves_whole_rounds_only(folder: RunFolder) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); from test_run_folder import a_round;"
        "from coterie.runs.folder.run_folder import RunFolder; folder = RunFolder(sys.argv[1]); number = 0\n"
        "while True:\n number += 1; folder.write_round(number, **a_round(number)); print(number, flush=True)"
    )
    command = [sys.executable, "-c", script, str(folder.path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        last = next(int(line) for line in writer.stdout if int(line) >= 5)
        writer.kill()
    rounds = folder.rounds()["round"].to_list()
    assert rounds == list(range(1, len(rounds) + 1))
    assert len(rounds) >= last
    assert folder.clients().group_by("round").len()["len"].to_list() == [3] * len(rounds)


def test_an_empty_folder_has_empty_tables(folder: RunFolder) -> None:
    assert [t.schema for t in tables(folder)] == [ROUNDS, CLIENTS, LEDGER, FAILURES, LOG]
    assert sum(t.height for t in tables(folder)) == 0
    folder.forget_after(0)
    folder.compact()
    assert folder.rounds().height == 0


@pytest.mark.parametrize("damage", [b"", b"PK nonsense", 0, 100, 1000])
def test_a_damaged_part_is_named(folder: RunFolder, damage: bytes | int) -> None:
    folder.write_round(1, **a_round(1))
    path = folder.path / "metrics/000001.zip"
    content = bytearray(path.read_bytes())
    if isinstance(damage, bytes):
        content[:] = damage
    else:  # one bit, in an archive's first member
        content[damage] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"metrics/000001\.zip .*damaged"):
        tables(folder)


def test_a_table_of_other_columns_is_damaged(folder: RunFolder) -> None:
    pl.DataFrame({"round": [1]}).write_parquet(folder.path / "rounds.parquet")
    with pytest.raises(BadInput, match=r"rounds\.parquet .*damaged \(.*round\)"):
        folder.rounds()


def test_newcomers_are_of_the_end_of_a_run(folder: RunFolder) -> None:
    assert folder.newcomers() is None
    rows = [(7, "client 7", None, 1, 20, 0.5, None), (9, "client 9", 2, -1, 0, None, None)]
    frame = pl.DataFrame(rows, NEWCOMERS, orient="row")
    folder.write_newcomers(frame.select(reversed(frame.columns)))
    kept = folder.newcomers()
    assert kept is not None
    assert_frame_equal(kept, frame)
    folder.write_round(1, **a_round(1))
    folder.forget_after(1)
    assert folder.newcomers() is None


def test_a_taken_name_is_never_overwritten(tmp_path: Path) -> None:
    names = [RunFolder.create(tmp_path, "run").name for _ in range(3)]
    assert names == ["run", "run-2", "run-3"]
    for bad in ("", "../run", ".hidden", "a/b", "a b"):
        with pytest.raises(BadInput, match="letters"):
            RunFolder.create(tmp_path, bad)


def test_finding_a_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere"):
        RunFolder.find("x", tmp_path / "nowhere")
    for name in ("fesem-a", "fesem-b", "ifca"):
        RunFolder.create(tmp_path, name).write_experiment("")
    RunFolder.create(tmp_path, "no-run")
    assert [f.name for f in list_runs(tmp_path)] == ["fesem-a", "fesem-b", "ifca"]
    assert RunFolder.find("if", tmp_path).name == "ifca"
    assert RunFolder.find("fesem-b", tmp_path).path == tmp_path / "fesem-b"
    assert RunFolder.find(str(tmp_path / "ifca"), "elsewhere").name == "ifca"
    with pytest.raises(BadInput, match=r"'fesem'.*fesem-a or fesem-b"):
        RunFolder.find("fesem", tmp_path)
    with pytest.raises(BadInput, match=r"'ifac' .*ifca"):
        RunFolder.find("ifac", tmp_path)
    with pytest.raises(BadInput, match=r"'' .*fesem-a, fesem-b, ifca"):
        RunFolder.find("", tmp_path)


def test_experiment_and_environment(folder: RunFolder) -> None:
    assert folder.experiment() == {"method": "fedavg"}
    assert folder.environment() == {}
    folder.write_environment({"seed": 3, "versions": {"python": "3.11"}})
    assert folder.environment().items() >= {"seed": 3, "versions": {"python": "3.11"}}.items()
    (folder.path / "environment.json").write_text("{")
    with pytest.raises(BadInput, match=r"environment\.json .*damaged"):
        folder.environment()
    folder.write_experiment("method = ")
    with pytest.raises(BadInput, match=r"experiment\.toml .*damaged"):
        folder.experiment()
    (folder.path / "experiment.toml").unlink()
    with pytest.raises(BadInput, match=r"no experiment\.toml"):
        folder.experiment_text()


def test_picture(folder: RunFolder) -> None:
    assert folder.picture() is None
    n = 4
    picture = Picture(
        np.eye(n, dtype=np.float32),
        "cosine",
        np.array([0, 1, 0, -1]),
        np.ones((n, 2), np.float32),
        np.array([1, 3, 5, 7]),
        9,
    )
    folder.write_picture(picture)
    kept = folder.picture()
    assert kept is not None
    assert (kept.affinity_name, kept.round, kept.groups.tolist()) == ("cosine", 9, [0, 1, 0, -1])
    assert np.array_equal(kept.affinity, picture.affinity)
    assert np.array_equal(kept.clients, picture.clients)
    path = folder.path / "picture.npz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadInput, match=r"picture\.npz .*damaged"):
        folder.picture()
    np.savez(path, affinity=np.array([object()]), allow_pickle=True)
    with pytest.raises(BadInput, match=r"picture\.npz .*damaged"):
        folder.picture()


def status_of(folder: RunFolder) -> str:
    return RunFolder(folder.path).status


@pytest.mark.medium
def test_status_follows_the_process(folder: RunFolder) -> None:
    assert status_of(folder) == "interrupted"
    folder.write_status("running", 2, 10)
    progress = folder.progress()
    assert progress is not None
    assert (progress.round, progress.rounds, progress.pid) == (2, 10, os.getpid())
    assert status_of(folder) == "running"
    script = (
        "import sys; from coterie.runs.folder.run_folder import RunFolder\n"
        "RunFolder(sys.argv[1]).write_status('running', 3, 10)"
    )
    subprocess.run([sys.executable, "-c", script, str(folder.path)], check=True)
    assert status_of(folder) == "interrupted"
    status = folder.path / "status.json"
    status.write_text(status.read_text().replace(platform.node(), "another-machine"))
    assert status_of(folder) == "running"
    folder.write_status("finished", 10, 10)
    assert status_of(folder) == "finished"
    for content in ("[]", '{"state": "running"}', status.read_text().replace("finished", "done")):
        status.write_text(content)
        with pytest.raises(BadInput, match=r"status\.json .*damaged"):
            _ = folder.status
    status.write_text("")  # a machine that stops may leave it so
    assert status_of(folder) == "interrupted"


@pytest.mark.parametrize("name", ["con", "NUL.txt", "Com1", "ends."])
def test_a_run_gets_no_name_that_windows_refuses(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="Windows"):
        RunFolder.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []
    assert RunFolder.create(tmp_path, f"a-{name.rstrip('.')}").path.is_dir()
