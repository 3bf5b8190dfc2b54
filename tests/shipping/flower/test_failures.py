"""What goes wrong in a federation has a recorded, bounded consequence."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

from flwr.app import Error
from flwr.app import Message as FlowerMessage
from safetensors.numpy import load, save

import coterie
from coterie.clients.data import build
from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from coterie.runtime.remote.message import Message
from coterie.shipping.flower.parts import write_parts
from tests.shipping.flower.rehearsal import Faulty, Place, greet, own_data, place, prolong, same

CLIENTS = 4
BAD = 1
ROOT = Path(__file__).parents[3]


def experiment(method: str = "fesem", rounds: int = 3, **run: Any) -> Experiment:
    settings = {"clusters": 2} if method == "fesem" else {}
    return Experiment(
        method={"name": method, **settings},
        data={"name": "digits", "split": "rotated(2)", "clients": CLIENTS, "samples_per_client": 60},
        training={"epochs": 1, "lr": 0.1},
        run={"rounds": rounds, "seed": 1, **run},
    )


def failures(run: Path) -> list[tuple[int, int, str]]:
    return [(row["round"], row["client"], row["reason"]) for row in RunFolder(run).failures().to_dicts()]


def in_round(message: Message, round: int) -> bool:
    """Whether a message is the training order of a round."""
    return message.values.get("keep") is True and int(message.values["next_state"]) % 10**9 == round * 1000 + 1


@dataclass(frozen=True)
class Wrong:
    """What is changed of the order of client 1, or of its answer, and the reason that is recorded."""

    change: Callable[[Message], Message]
    reason: str
    there: bool = False
    """Whether on the way to the client."""


def tensors(message: Message, change: Callable[[np.ndarray], np.ndarray] | None) -> Message:
    """A message with other numbers in its body, or with none."""
    held = {} if change is None else {k: change(v) for k, v in load(message.body).items()}
    return replace(message, body=save(held, meta(message)))


def report(message: Message, name: str, value: object) -> Message:
    """A message that reports something else."""
    said = meta(message)
    inside = json.loads(said["header"])
    inside["report"][name] = value
    return replace(message, body=save(load(message.body), {**said, "header": json.dumps(inside)}))


def meta(message: Message) -> dict[str, str]:
    size = int.from_bytes(message.body[:8], "little")
    found: dict[str, str] = json.loads(message.body[8 : 8 + size])["__metadata__"]
    return found


def header(message: Message, old: str, new: str) -> Message:
    """A message whose body says something else in its header, which stays as long as it was."""
    assert len(old) == len(new)
    assert old.encode() in message.body
    return replace(message, body=message.body.replace(old.encode(), new.encode(), 1))


WRONG = (
    Wrong(
        lambda message: tensors(message, lambda v: np.where(np.arange(v.size) == 3, np.nan, v).astype("f4")),
        "model .*NaN",
    ),
    Wrong(
        lambda message: tensors(message, lambda v: v[:-1]),
        r"model .*\(15009,\).*\(15010,\)",
    ),
    Wrong(
        lambda message: tensors(message, lambda v: v.astype("f8")),
        r"model .*torch\.float64.*torch\.float32",
    ),
    Wrong(lambda message: replace(message, body=message.body[:100]), "100 bytes"),
    Wrong(
        lambda message: replace(message, values={**message.values, "version": "coterie-message/9"}),
        "'coterie-message/9'",
    ),
    Wrong(
        lambda message: replace(message, values={**message.values, "version": "coterie-message/9"}),
        "'coterie-message/9'",
        there=True,
    ),
    Wrong(lambda message: header(message, "local-update", "local-updatx"), "rule 'local-updatx'", there=True),
    Wrong(lambda message: Message(), "None", there=True),
    Wrong(lambda message: tensors(message, None), "no model"),
    Wrong(lambda message: report(message, "train_loss", "abc"), "train_loss = 'abc'"),
    Wrong(lambda message: report(message, "trained_samples", [1]), r"trained_samples = '\[1\]'"),
)


@pytest.mark.medium
def test_a_wrong_message_costs_its_client_the_round_and_nothing_else(tmp_path: Path) -> None:
    """In every round but the first and the last client 1 is asked, or answers, something else that is wrong."""
    rounds, training = len(WRONG) + 2, [0]

    def there(grid: Faulty, node: int, count: int, message: Message) -> Message | None:
        training[:] = [r for r in range(2, rounds) if node == BAD and in_round(message, r)]
        wrong = [WRONG[r - 2] for r in training if WRONG[r - 2].there]
        return wrong[0].change(message) if wrong else None

    def back(grid: Faulty, node: int, count: int, message: Message) -> Message | None:
        wrong = [WRONG[r - 2] for r in training if not WRONG[r - 2].there]
        return wrong[0].change(message) if wrong else None

    asked = experiment(rounds=rounds).updated({"evaluation.every": rounds})
    run = place(tmp_path, CLIENTS).run(asked, there=there, back=back)
    found = failures(run)
    assert [(round, client) for round, client, _ in found] == [(r, BAD) for r in range(2, rounds)]
    for (_, _, said), wrong in zip(found, WRONG, strict=True):
        assert re.search(wrong.reason, said), said
    there_were = [CLIENTS, *[CLIENTS - 1] * len(WRONG), CLIENTS]
    assert RunFolder(run).rounds()["participants"].to_list() == there_were
    assert RunFolder(run).status == "finished"
    assert RunFolder(run).clients().filter(round=rounds)["accuracy"].is_not_nan().all()


@pytest.mark.slow
def test_a_model_of_the_largest_numbers_ends_no_run(tmp_path: Path) -> None:
    """It is finite, but its squares are not; the picture of the groups is drawn of the others, in resumes too."""
    last: list[bool] = []

    def there(grid: Faulty, node: int, count: int, message: Message) -> None:
        last.append(node == BAD and in_round(message, 2))

    def back(grid: Faulty, node: int, count: int, message: Message) -> Message | None:
        return tensors(message, lambda v: np.full_like(v, 3.4e38)) if last[-1] else None

    asked = experiment(rounds=2)
    here = place(tmp_path, CLIENTS)
    run = here.run(asked, there=there, back=back)
    assert RunFolder(run).status == "finished"
    picture = RunFolder(run).picture()
    assert picture is not None
    assert picture.clients.tolist() == [0, 2, 3]
    assert " 1 left out" in picture.affinity_name
    prolong(run, 3)
    here.run(asked, resume="real")
    assert RunFolder(run).rounds().height == 3


@pytest.mark.medium
def test_a_client_vanishes_in_mid_round_is_away_and_comes_back(tmp_path: Path) -> None:
    def there(grid: Faulty, node: int, count: int, message: Message) -> FlowerMessage | None:
        if node == BAD and in_round(message, 2):
            grid.offline.add(1000 + BAD)
        if node == 0 and in_round(message, 3):
            grid.offline.clear()  # it is there again when round 4 begins
        return None

    run = place(tmp_path, CLIENTS).run(experiment("fedrep", rounds=5), there=there)
    found = failures(run)
    assert {round for round, _, reason in found if "not connected" in reason} == {2, 3}
    assert {(round, client) for round, client, _ in found} == {(2, BAD), (3, BAD)}
    rows = RunFolder(run).rounds()
    assert rows["participants"].to_list() == [CLIENTS, CLIENTS - 1, CLIENTS - 1, CLIENTS, CLIENTS]
    told = json.loads((run / "federation.json").read_text())
    assert [c["last_round"] for c in told["clients"]] == [5] * CLIENTS
    assert all(c["online"] and c["problem"] is None for c in told["clients"])


@pytest.mark.slow
def test_a_server_that_was_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Client 1 has its order of round 3; clients 0 and 1 may have kept a state that the server knows nothing of."""
    asked = experiment("fedrep", rounds=4)
    file = tmp_path / "asked.toml"
    file.write_text(asked.to_toml(), encoding="utf-8")
    words = [sys.executable, "-m", "tests.shipping.flower.killed", str(tmp_path), str(file), str(CLIENTS), "6"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=120)
    assert ended.returncode == -9, ended.stderr.decode()
    here = place(tmp_path, CLIENTS)
    progress = RunFolder(here.runs / "real").progress()
    assert progress is not None
    assert 1 <= progress.round < 4
    real, simulated = here.run(asked, resume="real"), here.simulate(asked)
    assert RunFolder(real).status == "finished"
    assert same(real, simulated)
    assert failures(real) == []


@pytest.mark.medium
def test_a_client_that_lost_its_folder_begins_anew_and_that_is_said(tmp_path: Path) -> None:
    here = place(tmp_path, CLIENTS)

    def there(grid: Faulty, node: int, count: int, message: Message) -> None:
        if node == BAD and in_round(message, 3):
            shutil.rmtree(tmp_path / f"client-{BAD}" / "states")

    run = here.run(experiment("fedrep", rounds=5), there=there)
    assert [(number, client, "round 2" in said) for number, client, said in failures(run)] == [(3, BAD, True)]
    assert RunFolder(run).rounds()["participants"].to_list() == [4, 4, 3, 4, 4]


def own(folder: Path, **data: Any) -> tuple[Place, Experiment]:
    """Clients with data of their own, of which node 1 and 2 can be told what is wrong."""
    asked = experiment(rounds=1)
    parts = write_parts(build("digits", "rotated(2)", CLIENTS, 1, samples_per_client=60), folder / "parts")
    schema = {"name": "remote", "clients": CLIENTS, "features": [8, 8, 1], "classes": 10, **data}
    return own_data(folder, parts), asked.updated({"data": schema})


@pytest.mark.slow
def test_what_clients_hold_is_checked_before_the_first_round(tmp_path: Path) -> None:
    here, asked = own(tmp_path)
    held = dict(np.load(here.nodes[1]["data"]))
    np.savez(here.nodes[1]["data"], **{**held, "features": held["features"][:, :6]})
    np.savez(here.nodes[2]["data"], **{**held, "label": held["label"] + 7})
    nodes = [*here.nodes[:3], {**here.nodes[3], "client": "clinic-0"}]
    with pytest.raises(RuntimeError) as caught:
        Place(tmp_path, nodes).run(asked)
    short, shape = r"1 of 4 clients .*\(clinic-0\)", r"\[6, 8, 1\].*\[8, 8, 1\].*data\.features"
    for said in (short, shape, "0, 1, 2", "clinic-0 .*twice"):
        assert re.search(said, str(caught.value))
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"client": ""}, "client .*missing"),
        ({"data": ""}, "data .*missing"),
        ({"state-dir": ""}, "state-dir .*missing"),
        ({"data": "nowhere.npz"}, "data = … "),
    ],
)
def test_a_node_that_is_not_configured_is_told_what_is_missing(
    node: dict[str, str], said: str, tmp_path: Path
) -> None:
    here, asked = own(tmp_path)
    nodes = [*here.nodes[:3], {**here.nodes[3], **node}]
    with pytest.raises(RuntimeError, match=said):
        Place(tmp_path, nodes).run(asked)


@pytest.mark.medium
def test_a_run_of_real_clients_is_not_resumed_as_a_simulation(tmp_path: Path) -> None:
    run = place(tmp_path, CLIENTS).run(experiment("fedrep", rounds=1))
    prolong(run, 2)
    with pytest.raises(BadInput, match=r"run real .*real clients"):
        coterie.resume(run)


@pytest.mark.slow
def test_data_that_changed_since_the_run_began_are_refused_on_its_resumption(tmp_path: Path) -> None:
    here, asked = own(tmp_path)
    run = here.run(asked)
    prolong(run, 2)
    held = dict(np.load(here.nodes[1]["data"]))
    np.savez(here.nodes[1]["data"], **{**held, "features": held["features"] + 1})
    here.run(asked, resume="real")
    assert {(number, client) for number, client, _ in failures(run)} == {(2, 1)}
    assert RunFolder(run).rounds()["participants"].to_list() == [4, 3]


@pytest.mark.medium
def test_an_error_message_of_flower_is_put_into_words(tmp_path: Path) -> None:
    error = "<class 'ValueError'>:<'no electricity'>"
    told = {
        2: (2, error, error),
        3: (3, "Message Unavailable", "in time"),
        4: (8, "ClientApp stopped responding.", "process died"),
    }

    def there(grid: Faulty, node: int, count: int, message: Message) -> FlowerMessage | None:
        for round, (code, reason, _) in told.items():
            if node == BAD and in_round(message, round):
                return FlowerMessage(Error(code=code, reason=reason), reply_to=grid.message)
        return None

    run = place(tmp_path, CLIENTS).run(experiment(rounds=5), there=there)
    found = [failed for failed in failures(run) if not failed[2].startswith("not evaluated")]
    assert [(n, client, told[n][2] in said) for n, client, said in found] == [(n, BAD, True) for n in told]


@pytest.mark.parametrize("name", ["/etc/data.npz", "hub:owner/name", "digits"])
def test_a_server_cannot_have_a_client_read_something_else(name: str, tmp_path: Path) -> None:
    """The experiment's word is not taken for it: the client looks at its own configuration."""
    node = {"client": "clinic", "data": "/data.npz", "state-dir": str(tmp_path / "state")}
    asked = experiment(rounds=1).updated({"data": {"name": name}})
    said = greet(asked, node, {"data": "/other.npz", "state-dir": "/"})
    assert re.search(f"data.name = '{name}'.*'remote'", said.refusal or "")
    assert not (tmp_path / "state").exists()


def test_a_server_cannot_have_a_client_write_elsewhere(tmp_path: Path) -> None:
    here, asked = own(tmp_path)
    said = greet(asked, here.nodes[0], asks="order", run="../../x")
    assert "run = '../../x'" in str(said.refusal)
    unnamed = {name: value for name, value in here.nodes[0].items() if name != "state-dir"}
    said = greet(asked, unnamed, {"state-dir": str(tmp_path / "x")})
    assert "state-dir" in str(said.refusal)
    assert not (tmp_path / "x").exists()


def test_a_client_removes_the_half_written_model_of_a_killed_process(tmp_path: Path) -> None:
    here, asked = own(tmp_path)
    node = here.nodes[0]
    left = Path(node["state-dir"]) / f".model.safetensors.{10**8}.new"
    left.parent.mkdir()
    left.write_text("half")
    assert greet(asked, node).refusal is None
    assert not left.exists()
