"""A node takes part under the name that its key was registered with, and under no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

from coterie.runs.folder.run_folder import RunFolder
from coterie.runtime.flower.transport import from_flower, to_flower
from coterie.runtime.remote.message import Message
from tests.shipping.flower.rehearsal import Faulty, Place
from tests.shipping.flower.test_failures import BAD, CLIENTS, failures, own

THIEF = CLIENTS
"""The node behind all others."""
NAMES = {1000 + client: f"clinic-{client}" for client in range(CLIENTS)}


def claim(grid: Faulty, node: int, count: int, message: Message) -> Message | None:
    """Have the thief say in its hello that it is another, whatever its own configuration says."""
    if node != THIEF or "name" not in message.values:
        return None
    return Message({**message.values, "name": f"clinic-{BAD}"}, message.body)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clinic-9", None], ids=["a name of its own", "no name"])
def test_a_node_that_takes_the_name_of_another_is_refused_and_the_other_goes_on(
    name: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The thief comes first, when nobody else is there and the name is free."""
    here, asked = own(tmp_path)
    thief: dict[str, Any] = {**here.nodes[BAD], "state-dir": str(tmp_path / "thief")}
    if name is not None:
        thief["client"] = name

    class Alone(Faulty):
        looks = 0

        def get_node_ids(self) -> list[int]:
            self.registered = NAMES | ({1000 + THIEF: name} if name else {})
            self.looks += 1
            return [1000 + THIEF] if self.looks == 1 else list(super().get_node_ids())

    run = Place(tmp_path, [*here.nodes, thief], Alone).run(asked.updated({"run.rounds": 2}), back=claim, wait=30)
    log = capsys.readouterr().out
    assert re.search(rf"node {1000 + THIEF} .*clinic-{BAD}.* {name or 'without a name'};", log)
    assert failures(run) == []
    assert RunFolder(run).rounds()["participants"].to_list() == [CLIENTS, CLIENTS]
    assert not (tmp_path / "thief/model.safetensors").exists(), "it was sent no model"


@pytest.mark.slow
def test_a_node_with_a_wrong_name_reads_in_its_own_log_that_the_name_is_not_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, asked = own(tmp_path)

    class Keyed(Faulty):
        def get_node_ids(self) -> list[int]:
            self.registered = NAMES | {1000 + BAD: "clinic-7"}
            return list(super().get_node_ids())

    with pytest.raises(RuntimeError, match=r"3 of 4 clients "):
        Place(tmp_path, here.nodes, Keyed).run(asked)
    log = capsys.readouterr()
    assert re.search("clinic-1.* clinic-7;", log.out)
    assert len({line for line in log.err.splitlines() if "client = 'clinic-1'" in line}) == 1


@pytest.mark.medium
def test_a_federation_without_registered_names_says_that_nobody_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, asked = own(tmp_path)
    here.run(asked)
    assert "no client" in capsys.readouterr().out


def test_two_messages_that_say_the_same_differ_in_a_part_that_nobody_can_guess() -> None:
    """Flower numbers a message by its content, and takes an answer from whoever knows that number."""
    message = Message({"asks": "hello"}, b"body")
    one, other = to_flower(message), to_flower(message)
    assert one["values"] != other["values"]
    assert (from_flower(one).values, from_flower(one).body) == (message.values, message.body)
