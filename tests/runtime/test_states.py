"""What clients keep: rows for those who keep something, in memory or in a mapped file, with the same results."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import coterie
from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder
from coterie.runtime import shared_memory
from coterie.runtime import states as client_states
from coterie.runtime.checkpoint import Checkpoints
from coterie.runtime.shared_memory import Arena
from coterie.runtime.states import ClientStates
from tests.runtime.local.test_pool import record_arenas, scalars_of


@pytest.mark.parametrize("shared", [False, True])
def test_only_who_keeps_something_has_a_row(shared: bool) -> None:
    states = ClientStates(100_000, Arena() if shared else None)
    for number in range(20):
        for client in range(10):
            states.update(client * 7, {"model": torch.full((1000,), float(number + client))})
        states.commit()
    assert states.room <= 3 * 10 * 1000  # ten rows, and as many again while a round may be undone
    assert states.of(63)["model"].eq(28.0).all()
    assert states.of(62) == {}
    assert states.has["model"].nonzero().flatten().tolist() == list(range(0, 70, 7))
    for client in range(10):
        states.update(client * 7, {"model": None})
    states.commit()
    assert states.room == 0
    assert states.names == []


def test_room_that_is_not_taken_over_is_used_again() -> None:
    states = ClientStates(5, Arena())
    for number in range(5):
        room = states.reserve("model", (10,), 4)
        states.update(0, {"model": room[0].fill_(float(number))}, own=True)
        states.release("model", room[1:])
        states.commit()
        assert states.of(0)["model"].tolist() == [float(number)] * 10
    assert states.room <= 6 * 10


def test_what_is_updated_twice_in_a_round_can_be_undone() -> None:
    states = ClientStates(3)
    states.update(1, {"model": torch.zeros(4)})
    states.commit()
    for value in (1.0, 2.0, 3.0):
        states.update(1, {"model": torch.full((4,), value)})
        states.update(2, {"model": torch.full((4,), value)})
    assert [states.of(c)["model"][0].item() for c in (1, 2)] == [3.0, 3.0]
    states.roll_back()
    assert states.of(1)["model"].tolist() == [0.0] * 4
    assert states.of(2) == {}
    states.update(0, {"model": torch.ones(4)})
    assert states.of(1)["model"].tolist() == [0.0] * 4


def test_what_an_exchange_began_with_is_shown_until_the_next_one() -> None:
    states = ClientStates(2)
    for value in range(30):
        states.mark()
        states.update(1, {"model": torch.full((4,), float(value))})
        with states.rewound():
            assert states.of(1).get("model", torch.tensor([-1.0]))[0] == value - 1
        if value % 3 == 1:
            states.commit()
    states.mark()
    with states.rewound():
        assert states.of(1)["model"][0] == 29
    states.roll_back()
    assert states.of(1)["model"][0] == 28
    assert states.room <= 6 * 4  # of two clients' rows none is lost


@pytest.mark.parametrize("limit", [0, 0.0005])
def test_beyond_the_limit_it_lies_in_a_file_without_a_name(
    limit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arenas = record_arenas(monkeypatch, client_states)
    states = ClientStates(50, limit_mb=limit)
    states.folder = tmp_path
    for client in range(50):
        states.update(client, {"model": torch.full((100,), float(client))})
    states.commit()
    assert all(states.of(c)["model"].eq(float(c)).all() for c in range(50))
    files = scalars_of(arenas)
    assert states.room - files <= limit * 1e6 / 4
    assert files >= 50 * 100 - limit * 1e6 / 4
    assert list(tmp_path.iterdir()) == ([] if shared_memory.NAMELESS else list(tmp_path.glob(".coterie-*")))
    states.close()
    assert states.of(7)["model"].eq(7.0).all()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
def test_a_file_that_has_a_name_goes_with_the_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "NAMELESS", False)
    states = ClientStates(5, limit_mb=0)
    states.folder = tmp_path
    states.update(1, {"model": torch.ones(100)})
    assert len(list(tmp_path.iterdir())) == 1
    del states
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_what_is_remembered_comes_back(tmp_path: Path) -> None:
    states = ClientStates(6)
    states.update(4, {"model": torch.arange(3.0), "steps": torch.tensor([7.0])})
    states.update(1, {"model": torch.arange(3.0) + 1})
    kept = Checkpoints(tmp_path, "mine")
    kept.save(1, states.to_checkpoint())
    _, memory = kept.load(tmp_path / "000001.safetensors")
    assert memory["kept"]["model"].shape == (2, 3)  # of two clients, not of six
    other = ClientStates(6, Arena(), limit_mb=0)
    other.update(2, {"model": torch.zeros(3)})
    other.restore(memory["kept"], memory["has"])
    # Checkpoints of earlier versions have a row for everybody.
    dense = ClientStates(6)
    dense.restore(states.kept, states.has)
    for found in (other, dense):
        for client in range(6):
            ours, theirs = states.of(client), found.of(client)
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def of_method(folder: Path, workers: int, states_mb: int, rounds: int = 3) -> coterie.Experiment:
    """Ditto: every client keeps a model of its own."""
    return coterie.Experiment(
        method="ditto",
        data={"name": "digits", "clients": 6},
        network={"name": "mlp", "hidden": [16]},
        training={"momentum": 0.5},
        scale={"states_mb": states_mb},
        run={"rounds": rounds, "workers": workers, "participation": 0.7, "folder": str(folder)},
    )


def checkpoint(folder: RunFolder) -> bytes:
    """The last checkpoint, but for the digest of the experiment that it is of."""
    path = sorted((folder.path / "checkpoints").glob("*.safetensors"))[-1]
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


KILLED = """
import os, signal, sys
import coterie
from pathlib import Path
from tests.runtime.test_states import of_method

class Kill:
    def round(self, event):
        if event.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    def __getattr__(self, name):
        return lambda *given: None

coterie.run(of_method(Path(sys.argv[1]), 2, 0), observers=[Kill()])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")
def test_a_killed_run_with_states_in_a_file_goes_on(tmp_path: Path) -> None:
    """To what a run gives whose states lie in this process's memory."""
    whole = RunFolder(coterie.run(of_method(tmp_path / "whole", 1, 4000)).folder)
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    }
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "killed")], env=env)
    assert killed.returncode == -signal.SIGKILL
    (path,) = (tmp_path / "killed").iterdir()
    resumed = RunFolder(coterie.resume(path).folder)
    assert resumed.rounds().drop("seconds").equals(whole.rounds().drop("seconds"))
    assert checkpoint(resumed) == checkpoint(whole)
    assert [p.name for p in path.iterdir() if p.name.startswith(".coterie")] == []


@pytest.mark.medium
def test_a_full_disk_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(BadInput, match=r"scale\.states_mb"):
        coterie.run(of_method(tmp_path, 1, 0))
