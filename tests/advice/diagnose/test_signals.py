"""Other signals than directions: what they say, that they decide nothing, and that sketches say the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coterie.advice.diagnose.diagnose import diagnose
from coterie.advice.diagnose.signals import Signal
from coterie.clients.rules import half_data
from coterie.grouping.halves import PairingTest
from tests.advice.diagnose.test_diagnose import experiment, some


@pytest.mark.medium
def test_losses_and_predictions_tell_planted_groups_and_change_no_other_answer() -> None:
    asked = experiment("permuted-labels(2)", 12)
    plain = diagnose(asked, starts=1, gains=False)
    found = diagnose(asked.updated({"data.public": 100}), starts=1, gains=False, losses=True)
    assert [(s.name, s.clients) for s in found.signals] == [("losses", 12), ("predictions", 12)]
    assert all(s.test.p <= 0.05 for s in found.signals)
    alone = diagnose(asked, starts=1, gains=False, losses=True)
    assert replace(alone, signals=(), seconds=0.0) == replace(plain, seconds=0.0)


@pytest.mark.medium
def test_sketched_directions_find_the_same_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = experiment("rotated(2)", 12, network={"name": "mlp", "hidden": [300]})
    whole = diagnose(asked, starts=1, gains=False)
    monkeypatch.setattr(half_data, "SKETCH_ABOVE", 10_000)
    found = diagnose(asked, starts=1, gains=False, losses=True)
    assert found.true_groups_ari == whole.true_groups_ari == 1.0
    assert 0 < abs(found.structure.own - whole.structure.own) < 0.05
    assert found.signals == ()
    assert "22,510 parameters" in found.notes[-1]


def test_the_sentence_says_who_decides_where_signals_disagree() -> None:
    near, far = PairingTest(0.001, 0.2, 0.5), PairingTest(0.3, 0.4, 0.41)
    agreeing = some(signals=(Signal("losses", 20, 30, near),)).sentences()[1]
    assert ("p < 0.002, 20 clients" in agreeing, "directions" in agreeing) == (True, False)
    found = some(signals=(Signal("losses", 20, 30, near), Signal("predictions", 20, 100, far)))
    said = found.sentences()[1]
    assert all(part in said for part in ("p < 0.002, 20", "100 public", "p = 0.3, 20", "directions"))
    assert found.tables()["signals"][1]["test"]["p"] == 0.3
