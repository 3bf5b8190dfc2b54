"""Who is there, who is turned away, and for how long."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage

from coterie.runs.folder.run_folder import RunFolder
from coterie.runtime.flower.roster import natural_order
from coterie.runtime.remote.codec import VERSION
from coterie.runtime.remote.message import Message, Value
from tests.shipping.flower.rehearsal import Faulty, Place, greet, place, prolong, same
from tests.shipping.flower.test_failures import BAD, CLIENTS, experiment, failures, in_round, own


def content(**records: Any) -> RecordDict:
    return RecordDict({"values": ConfigRecord({"version": VERSION}), **records})


@pytest.mark.slow
def test_a_malformed_message_ends_nothing(tmp_path: Path) -> None:
    def there(grid: Faulty, node: int, count: int, message: Message) -> FlowerMessage | None:
        if node == BAD and in_round(message, 2):
            return FlowerMessage(content(body=ArrayRecord({})), reply_to=grid.message)
        return None

    run = place(tmp_path, CLIENTS).run(experiment(), there=there)
    ((round, client, said),) = failures(run)
    assert (round, client) == (2, BAD)
    assert "read" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"features": "[" * 100_000}, "features .*JSON"),
        ({"train": -5}, "train = -5 .* 1"),
        ({"classes": 2**40}, "classes = 1099511627776 .*2147483647"),
        ({"features": "[8, -8]"}, "features.1 = -8 "),
        ({"features": "[1000000, 1000000, 1000000]"}, "2,147,483,647 .*numbers"),
        ({"name": "x" * 300}, "name .*200"),
        ({"digest": 7}, "digest = 7"),
    ],
)
def test_a_hello_that_cannot_be_is_turned_away(change: dict[str, Value], said: str, tmp_path: Path) -> None:
    def back(grid: Faulty, node: int, count: int, message: Message) -> Message | None:
        return Message({**message.values, **change}) if node == BAD and "name" in message.values else None

    with pytest.raises(RuntimeError, match=said) as caught:
        place(tmp_path, CLIENTS).run(experiment(), back=back)
    assert re.search("3 of 4 clients ", str(caught.value))


def test_clients_are_numbered_in_the_natural_order_of_whatever_names_they_have() -> None:
    names = ["x²", "²", "client-10", "client-2", "٣"]
    assert sorted(names, key=natural_order) == ["٣", "client-2", "client-10", "x²", "²"]


@pytest.mark.slow
def test_two_clients_cannot_share_a_folder(tmp_path: Path) -> None:
    here = place(tmp_path, CLIENTS)
    shared = str(tmp_path / "shared")
    nodes = [{**node, "state-dir": shared} if node["client"] in (0, 1) else node for node in here.nodes]
    with pytest.raises(RuntimeError, match=r"client 0.*folder"):
        Place(tmp_path, nodes).run(experiment())


@pytest.mark.slow
def test_a_run_with_newcomers_of_its_own_is_resumed(tmp_path: Path) -> None:
    here, asked = own(tmp_path)
    asked = asked.updated({"run.holdout_clients": 0.25, "run.rounds": 2})
    run = here.run(asked)
    prolong(run, 3)
    here.run(asked, resume="real")
    assert RunFolder(run).rounds().height == 3
    whole = here.run(asked.updated({"run.rounds": 3}), name="whole")
    assert same(run, whole)
    first, second = RunFolder(run).newcomers(), RunFolder(whole).newcomers()
    assert first is not None
    assert second is not None
    assert first.equals(second)


@pytest.mark.slow
def test_a_round_waits_until_somebody_is_there(tmp_path: Path) -> None:
    """Everybody is gone for some looks, as when the server's own link is down."""
    away: list[int] = []

    class Link(Faulty):
        def get_node_ids(self) -> list[int]:
            if away and away[0] > 0:
                away[0] -= 1
                return []
            return list(super().get_node_ids())

    def back(grid: Faulty, node: int, count: int, message: Message) -> None:
        if node == CLIENTS - 1 and count == 2 and not away:  # hello, round 1, its evaluation
            away.append(5)

    here = place(tmp_path, CLIENTS)
    here.grid = Link
    run = here.run(experiment(), back=back, wait=30)
    assert away == [0]
    assert failures(run) == []
    assert RunFolder(run).rounds()["participants"].to_list() == [CLIENTS] * 3


@pytest.mark.slow
def test_where_nobody_comes_back_the_run_says_so_and_not_that_the_rate_is_too_large(tmp_path: Path) -> None:
    def back(grid: Faulty, node: int, count: int, message: Message) -> None:
        if node == CLIENTS - 1 and count == 2:
            grid.offline.update(range(1000, 1000 + CLIENTS))

    with pytest.raises(RuntimeError, match=r"not connected.*nodes"):
        place(tmp_path, CLIENTS).run(experiment(rounds=6), back=back, wait=0.2)


@pytest.mark.slow
def test_data_that_change_while_a_node_stays_are_noticed(tmp_path: Path) -> None:
    from coterie.shipping.flower import client

    here, asked = own(tmp_path)
    asked = asked.updated({"run.rounds": 3})

    def there(grid: Faulty, node: int, count: int, message: Message) -> None:
        if node == BAD and in_round(message, 2):
            held = dict(np.load(here.nodes[BAD]["data"]))
            np.savez(here.nodes[BAD]["data"], **{**held, "features": held["features"] + 1})
            client.NEWEST_CLIENTS.clear()  # on its own machine every message starts a new process

    run = here.run(asked, there=there)
    failed = [f for f in failures(run) if not f[2].startswith("not evaluated")]
    assert [(number, client, "changed" in reason) for number, client, reason in failed] == [
        *((2, BAD, True), (3, BAD, True))
    ]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"wait": "soon"}, "wait = 'soon' .*seconds"),
        ({"round-seconds": -3}, "round-seconds = -3 .*seconds"),
        ({"resume": "nothing"}, "'nothing'"),
    ],
)
def test_a_run_configuration_that_cannot_be_is_refused(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=said):
        place(tmp_path, CLIENTS).run(experiment(), **config)


def test_flat_samples_take_the_shape_that_is_wanted(tmp_path: Path) -> None:
    here, asked = own(tmp_path)
    held = dict(np.load(here.nodes[BAD]["data"]))
    flat = tmp_path / "flat.npz"
    np.savez(flat, **{**held, "features": held["features"].reshape(len(held["label"]), -1)})
    one, other = (
        greet(asked, {"client": "a", "data": str(path), "state-dir": str(tmp_path / "a")})
        for path in (here.nodes[BAD]["data"], flat)
    )
    assert one.values["digest"] == other.values["digest"]
    assert one.values["features"] == other.values["features"] == "[8, 8, 1]"
