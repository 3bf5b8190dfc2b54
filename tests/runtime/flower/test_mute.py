"""A client that does not answer is waited for in a few rounds, and then no more; it comes back when it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

from flwr.app import Message as FlowerMessage

from coterie.runs.folder.run_folder import RunFolder
from coterie.runtime.flower.transport import from_flower
from tests.shipping.flower.rehearsal import Faulty, Place, prolong, same
from tests.shipping.flower.test_failures import BAD, CLIENTS, failures, own

MUTE = r"0\.05 s$"
HELD = f"quarantine until round 7: .*{MUTE}"
FIRST, LAST = 2, 6
"""The rounds in which the node is mute; in round 8 it is asked for the first time since."""


class MuteForAWhile(Faulty):
    """Client `BAD` gives no answer from round `FIRST` to `LAST`."""

    def push_messages(self, messages: Iterable[FlowerMessage]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            order = from_flower(message.content)
            if "next_state" in order.values:
                round = int(order.values["next_state"]) // 1000 % 10**6
                self.mute = {1000 + BAD} if FIRST <= round <= LAST else set()
                if message.metadata.dst_node_id == 1000 + BAD:
                    TO_BAD.append(round)
        return super().push_messages(messages)


PATIENCE: dict[str, Any] = {"round-seconds": 0.05}
TO_BAD: list[int] = []
"""The rounds of the messages to the client, in order."""


@pytest.mark.slow
def test_a_mute_client_costs_no_waiting_and_may_come_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TO_BAD.clear()
    here, asked = own(tmp_path)
    asked = asked.updated({"run.rounds": 9, "run.checkpoint_every": 1})
    here = Place(tmp_path, here.nodes, MuteForAWhile)
    run = here.run(asked, **PATIENCE)
    assert sorted(set(TO_BAD)) == [1, 2, 3, 4, 8, 9]
    failed = [row for row in failures(run) if "not evaluated" not in row[2]]
    assert [number for number, client, _ in failed if client == BAD] == [*range(2, 8)]
    assert all(re.search(MUTE if number < 5 else HELD, reason) for number, _, reason in failed)
    assert RunFolder(run).rounds()["participants"].to_list() == [CLIENTS, *[CLIENTS - 1] * 6, CLIENTS, CLIENTS]
    assert RunFolder(run).ledger().filter(client=BAD, round=5).is_empty()
    log = capsys.readouterr().out
    assert re.search(rf"clinic-1 \D+ 3 rounds\D+ round 8: .*{MUTE}[\s\S]*round 8: clinic-1 ", log, re.MULTILINE)
    # The same in two parts, of which the first ends while the client is in quarantine.
    parted = here.run(asked.updated({"run.rounds": 5}), name="parted", **PATIENCE)
    told = json.loads((parted / "federation.json").read_text())
    assert [bool(re.search(HELD, c["problem"] or "")) for c in told["clients"]] == [False, True, False, False]
    prolong(parted, 9)
    here.run(asked, resume="parted", **PATIENCE)
    assert failures(parted) == failures(run)
    assert same(run, parted)
