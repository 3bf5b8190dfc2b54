"""A server can make a client import nothing but what is installed there and what its operator allows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

from coterie.clients.rules import LocalUpdate, Order
from coterie.clients.rules.rule import Item
from coterie.methods import METHODS
from coterie.runs.schema.experiment import Experiment
from coterie.runtime.remote.codec import VERSION, pack_order
from coterie.runtime.remote.message import Message
from coterie.shipping.flower.client import ORDER, answer_message
from tests.packages import METHOD, install
from tests.shipping.flower.rehearsal import greet

TRAP = "from pathlib import Path\nPath('sprung').touch()\n" + METHOD
"""A module that leaves a trace when it is imported."""

PARAMETERS = 64 * 200 + 200 + 200 * 10 + 10
"""Of the perceptron that `auto` is for these digits."""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Any]]:
    """A client of a rehearsal, where two packages are installed and a module lies in the current folder."""
    site = tmp_path / "site"
    install(site, "some-package", {"methods": {"trapped": "some_trap:Mine"}}, {"some_trap": TRAP})
    install(site, "sounds-alike", {"methods": {"alike": "some_trap_too:Mine"}}, {"some_trap_too": TRAP})
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "here_trap.py").write_text(TRAP, "utf-8")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setattr(METHODS, "entries", dict(METHODS.entries))
    monkeypatch.chdir(tmp_path / "here")
    yield {"client": 0, "state-dir": str(tmp_path / "state")}
    for name in ("some_trap", "some_trap_too", "here_trap"):
        sys.modules.pop(name, None)


def experiment(**changes: Any) -> str:
    """The text of an experiment that names what a server likes; a name is written as it is."""
    run = "\n".join(f"{key} = {value}" for key, value in changes.pop("run", {}).items())
    text = Experiment(method="fedavg", data={"name": "digits", "split": "iid", "clients": 2}).to_toml()
    for key, value in changes.items():
        section = text.index(f"[{key}]")
        start = text.index("name = ", section)
        text = text[:start] + f'name = "{value}"' + text[text.index("\n", start) :]
    return text.replace("[run]\n", f"[run]\n{run}\n") if run else text


ATTACKS: dict[str, dict[str, Any]] = {
    "a class of the standard library": {"method": "subprocess:Popen"},
    "a function of it": {"network": "os:system"},
    "a module of the current folder": {"method": "here_trap:Mine"},
    "what is installed, by its path": {"method": "some_trap:Mine"},
    "what is installed, by its name": {"method": "trapped"},
    "a dataset": {"data": "some_trap:Mine"},
    "through what Coterie imports": {"network": "coterie.plugins:import_module"},
    "a module to import first": {"run": {"imports": '["some_trap"]'}},
    "an observer": {"run": {"observers": '["some_trap:Mine"]'}, "method": "some_trap:Mine"},
}


@pytest.mark.parametrize(("section", "key"), [("network", "start"), ("data", "test_path")])
def test_a_client_reads_no_file_that_a_server_names(section: str, key: str, client: Mapping[str, Any]) -> None:
    secret = Path("secret.npz")
    secret.write_text("not to be read", "utf-8")
    text = experiment().replace(f"[{section}]\n", f'[{section}]\n{key} = "{secret}"\n')
    answer = greet(text, client)
    assert f"{section}.{key} = 'secret.npz'" in (answer.refusal or "")
    assert not greet(experiment(), client).refusal


@pytest.mark.each_once
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("allow", [None, "", "some", "some_trap.py", "other:Mine some_trap:Other"])
def test_a_client_imports_nothing_that_is_not_allowed(
    attack: str, allow: str | None, client: Mapping[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    node = client if allow is None else {**client, "allow": allow}
    text = experiment(**ATTACKS[attack])
    refusals = [greet(text, node).refusal, _order(node, text).refusal]
    assert any("not allowed" in str(refusal) for refusal in refusals), refusals
    assert None not in refusals[1:]
    assert "not allowed" in capfd.readouterr().err, "its operator reads it too"
    assert not Path("sprung").exists()


def test_the_server_cannot_allow_it_itself(client: Mapping[str, Any]) -> None:
    for node in (client, {**client, "partition-id": 0}):
        reply = _order(node, experiment(method="trapped"), {"allow": "some_trap"})
        assert "not allowed" in str(reply.refusal)
    assert not Path("sprung").exists()


def test_no_order_imports_a_rule(client: Mapping[str, Any]) -> None:
    """A rule's name is known to those who were imported before; whatever is allowed does not matter."""

    @dataclass(frozen=True)
    class Trap(LocalUpdate):
        pass

    for name in ("some_trap:Mine", "subprocess:Popen", "os:system"):
        Trap.name = name
        reply = _order({**client, "allow": "some_trap"}, experiment(), rule=Trap())
        assert f"rule '{name}'" in str(reply.refusal)
    assert not Path("sprung").exists()


@pytest.mark.each_once
@pytest.mark.parametrize("allow", ["some_trap", "some_trap:Mine", "other some_trap"])
@pytest.mark.parametrize("name", ["trapped", "some_trap:Mine"])
def test_what_is_allowed_is_used(allow: str, name: str, client: Mapping[str, Any]) -> None:
    reply = _order({**client, "allow": allow}, experiment(method=name))
    assert reply.refusal is None
    assert Path("sprung").exists()
    assert "not allowed" in str(_order(client, experiment(method=name)).refusal), "the next one is asked anew"


def test_the_environment_allows_it_for_all_nodes(
    client: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_ALLOW", "other some_trap")
    assert _order(client, experiment(method="trapped")).refusal is None


def _order(client: Mapping[str, Any], text: str, run: Mapping[str, Any] | None = None, rule: Any = None) -> Message:
    """The client's answer to an order to train, after it said who it is to an experiment without any trick."""
    digest = greet(experiment(), client).values["digest"]
    model = torch.zeros(PARAMETERS)
    order = Order(0, 1, rule or LocalUpdate(), {"model": Item(model)})
    values = {"version": VERSION, "experiment": text, "run": "0" * 32, "asks": ORDER, "digest": digest}
    numbers = {"state": 0, "next_state": 1, "oldest_state": 0, "keep": True}
    return answer_message(Message({**values, **numbers}, pack_order(order)), client, run or {})
