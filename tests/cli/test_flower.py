"""`coterie flower`: apps that Flower accepts, keys, clients' parts of a simulation, and who is there."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.held_out_clients import hold_out_clients
from coterie.runs.schema.experiment import Experiment, prepare
from coterie.runs.setup import load_federation
from coterie.shipping.flower.status import FEDERATION
from tests.commandline import Terminal

REHEARSAL = """
[data]
name = "digits"
split = "dirichlet(0.5) + rotated(2)"
clients = 6

[method]
name = "ifca"
clusters = 2

[run]
holdout_clients = 0.3
"""


# ---- new


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_flower_accepts_a_new_app_and_sends_no_keys(terminal: Terminal) -> None:
    """Flower's own check and bundling, of an app whose folder also holds keys and runs."""
    pytest.importorskip("flwr")
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import get_fab_metadata, load_and_validate

    for folder, name, package in (
        ("my-federation", "my-federation", "my_federation_app"),
        ("Wards of 2 Hospitals!", "wards-of-2-hospitals", "wards_of_2_hospitals_app"),
        ("deep/2026_json", "json", "json_app"),
        ("class_app", "class-app", "class_app"),
        ("a" * 50, "a" * 32, f"{'a' * 32}_app"),
    ):
        done = terminal("flower", "new", folder)
        assert (done.code, done.err) == (0, "")
        assert "experiment.toml" in done.out
        assert terminal("flower", "keys", f"{folder}/keys", "--client", "a").code == 0
        (Path(folder) / "runs/first").mkdir(parents=True)
        (Path(folder) / "runs/first/status.json").write_text("{}", "utf-8")
        config, warnings = load_and_validate(Path(folder) / "pyproject.toml")
        assert warnings == []
        assert config["project"]["dependencies"] == []
        assert (Path(folder) / package / "server_app.py").is_file()
        bundle = build_fab_from_disk(Path(folder))
        assert get_fab_metadata(bundle) == (f"coterie/{name}", "1.0.0")
        held = _held(bundle)
        assert held == {
            "pyproject.toml",
            "experiment.toml",
            "README.md",
            *(f"{package}/{part}.py" for part in ("__init__", "server_app", "client_app")),
        }


def _held(bundle: bytes) -> set[str]:
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        return set(archive.namelist()) - {".info/CONTENT"}


def test_a_new_app_declares_every_key_that_its_readme_explains(terminal: Terminal) -> None:
    terminal("flower", "new", "fed")
    config = tomllib.loads(Path("fed/pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    readme = Path("fed/README.md").read_text("utf-8")
    rows = [line.split("|") for line in readme.splitlines() if line.startswith("| `")]
    explained = {cells[1].strip(" `"): cells[2].strip(" `") for cells in rows}
    usual = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()}
    assert explained == {key: value or "none" for key, value in usual.items()}
    assert "{{" not in readme


@pytest.mark.parametrize(("options", "method"), [([], "fesem"), (["--method", "ifca"], "ifca")])
def test_a_new_app_explains_every_setting_and_waits_for_own_data(
    terminal: Terminal, options: list[str], method: str
) -> None:
    terminal("flower", "new", "fed", *options)
    text = Path("fed/experiment.toml").read_text("utf-8")
    experiment = Experiment.from_toml(Path("fed/experiment.toml"))
    experiment.check()
    assert experiment.data.is_remote
    assert experiment.method.name == method
    assert text == experiment.commented_toml()


def test_a_new_app_carries_out_the_experiment_it_is_given(terminal: Terminal) -> None:
    Path("mine.toml").write_text(REHEARSAL, "utf-8")
    done = terminal("flower", "new", "fed", "--experiment", "mine.toml")
    assert done.code == 0
    assert re.search("rehearsal.*digits", done.out)
    assert Experiment.from_toml(Path("fed/experiment.toml")) == Experiment.from_toml(REHEARSAL).resolved()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["123"], "'123'"),
        (["fed", "--experiment", "mine.toml", "--method", "ifca"], "--method 'ifca' .*--experiment"),
        (["fed", "--experiment", "wrong.toml"], r"run\.roundz .*rounds"),
    ],
)
def test_a_new_app_that_cannot_be_is_refused_and_not_begun(terminal: Terminal, words: list[str], said: str) -> None:
    Path("mine.toml").write_text(REHEARSAL, "utf-8")
    Path("wrong.toml").write_text("[run]\nroundz = 3\n", "utf-8")
    done = terminal("flower", "new", *words)
    assert done.code == 2
    assert re.search(said, done.err)
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["mine.toml", "wrong.toml"]


# ---- keys


def test_keys_says_what_it_wrote_and_refuses_the_rest(terminal: Terminal) -> None:
    pytest.importorskip("flwr")
    done = terminal("flower", "keys", "keys", "--host", "fl.example.org", "--client", "a", "--client", "b")
    assert (done.code, done.err) == (0, "")
    assert done.out.split() == [
        f"keys/{name}" for name in ("ca.crt", "server.pem", "server.key", "a", "a.pub", "b", "b.pub")
    ]
    again = terminal("flower", "keys", "keys", "--client", "a", "--host", "no host")
    assert (again.code, again.out) == (2, "")
    assert [line.startswith("coterie: ") for line in again.err.splitlines()] == [True, True]


# ---- data


def test_each_client_gets_the_very_samples_of_the_simulation_in_their_order(terminal: Terminal) -> None:
    Path("mine.toml").write_text(REHEARSAL, "utf-8")
    done = terminal("flower", "data", "mine.toml", "--into", "parts")
    assert (done.code, done.err) == (0, "")
    assert 'name = "remote", clients = 6, features = [8, 8, 1], classes = 10' in done.out
    experiment = Experiment.from_toml(REHEARSAL)
    federation, away = hold_out_clients(load_federation(prepare(experiment)), 0.3, 0)
    assert len(away) == 2
    assert sorted(path.name for path in Path("parts").iterdir()) == [f"client-{i}.npz" for i in range(6)]
    for client in range(6):
        with np.load(Path("parts") / f"client-{client}.npz", allow_pickle=False) as part:
            assert sorted(part.files) == ["features", "label", "split"]
            for number, split in enumerate(("train", "validation", "test")):
                inputs, labels = federation.slice(client, split)  # type: ignore[arg-type]
                chosen = part["split"] == number
                assert part["features"][chosen].tobytes() == inputs.numpy().tobytes()
                assert part["label"][chosen].tobytes() == labels.numpy().tobytes()
            assert (np.diff(part["split"].astype(int)) >= 0).all()
    before = Path("parts/client-0.npz").read_bytes()
    terminal("flower", "data", "mine.toml", "--into", "again")
    assert Path("again/client-0.npz").read_bytes() == before


def test_parts_are_never_overwritten_and_own_data_are_nobodys_to_write(terminal: Terminal) -> None:
    Path("mine.toml").write_text(REHEARSAL, "utf-8")
    Path("parts").mkdir()
    Path("parts/client-5.npz").write_bytes(b"mine")
    done = terminal("flower", "data", "mine.toml")
    assert (done.code, done.out, "'parts' has client-5.npz" in done.err) == (2, "", True)
    assert [path.name for path in Path("parts").iterdir()] == ["client-5.npz"]
    terminal("flower", "new", "fed")
    done = terminal("flower", "data", "fed/experiment.toml")
    assert done.code == 2
    assert "data.name = 'remote'" in done.err


# ---- status


def run_of(name: str, clients: list[dict[str, Any]], round: int = 3) -> None:
    """A run's folder as a server leaves it after a round."""
    folder = RunFolder.create("runs", name)
    folder.write_experiment(Experiment().to_toml())
    written = datetime.now(UTC) - timedelta(minutes=7)
    status = {"round": round, "of": 20, "written": written.isoformat(), "clients": clients}
    (folder.path / FEDERATION).write_text(json.dumps(status), "utf-8")
    folder.write_status("running", round, 20)


def member(client: int, **others: Any) -> dict[str, Any]:
    seen = (datetime.now(UTC) - timedelta(hours=5, minutes=1)).isoformat()
    return {
        "client": client,
        "name": f"ward-{client}",
        "node": f"123{client}",
        "samples": 120 + client,
        "group": 1,
        "online": True,
        "last_round": 3,
        "last_seen": seen,
        "problem": None,
    } | others


def test_status_says_who_is_there(terminal: Terminal) -> None:
    gone = {"online": False, "problem": "[late]", "last_round": 1}
    new = {"group": None, "samples": None, "last_round": None, "last_seen": None, "node": None, "online": False}
    run_of("one", [member(0), member(1, **gone), member(2, **new)])
    run_of("two", [], round=9)
    for words in (["one"], ["runs/one"], ["one", "--folder", "runs"]):
        done = terminal("flower", "status", *words)
        assert (done.code, done.err) == (0, "")
        head, *lines = done.out.splitlines()
        assert re.match("one: running, round 3 of 20, .*7 min", head)
        rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
        assert rows == [
            ["0", "ward-0", "1230", "online", "", "5 hours ago", "1", "120", "3"],
            ["1", "ward-1", "1231", "offline", "[late]", "5 hours ago", "1", "121", "1"],
            ["2", "ward-2", "", "offline", "", "", "", "", ""],
        ]
    assert re.match("two: .*9 of 20", terminal("flower", "status").out)
    RunFolder("runs/one").write_status("finished", 20, 20)
    head, *lines = terminal("flower", "status", "one").out.splitlines()
    assert head.startswith("one: finished, ")
    assert not any("online" in line for line in lines)


def test_status_refuses_what_has_no_clients(terminal: Terminal) -> None:
    done = terminal("flower", "status")
    assert done.code == 2
    assert "'runs'" in done.err
    RunFolder.create("runs", "simulated").write_experiment(Experiment().to_toml())
    done = terminal("flower", "status", "simulated")
    assert done.code == 2
    assert "federation.json" in done.err


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{", "its text"),
        (json.dumps({"round": 1, "of": 2, "written": "2026-01-01", "clients": [{"client": 0}]}), "clients.0.name"),
    ],
)
def test_a_damaged_status_is_named_with_the_place(terminal: Terminal, text: str, place: str) -> None:
    run_of("one", [])
    (Path("runs/one") / FEDERATION).write_text(text, "utf-8")
    done = terminal("flower", "status", "one")
    assert done.code == 2
    assert re.fullmatch(rf"coterie: runs/one/federation\.json .*\({place}: .*\n", done.err)
