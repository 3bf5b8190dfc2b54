"""A diagnosis answers in one of seven kinds what to train for whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie import Experiment, diagnose
from coterie.advice.diagnose.answer import ANSWERS
from coterie.clients.rules.fold import OPTIONS
from tests.advice.diagnose.test_diagnose import some

CLIENTS, SAMPLES, INPUTS = 16, 60, 4


def coefficients(kind: str, rng: np.random.Generator) -> NDArray[np.float64]:
    """Each client's linear model `[n, d + 1]`, the constant last."""
    common = np.append(rng.normal(size=INPUTS), 0.0)
    models = np.tile(common, (CLIENTS, 1))
    if kind == "constants":
        models[:, -1] = rng.normal(scale=2.0, size=CLIENTS)
    elif kind == "gradual":
        models[:, :-1] += rng.normal(scale=0.4, size=(CLIENTS, INPUTS))
    elif kind == "groups":
        models[::2] *= -1
    elif kind == "alone":
        models = rng.normal(scale=20.0, size=models.shape)
    return models


def table(kind: str, path: Path) -> Path:
    """Clients of a kind in a file: a number follows the linear model of its client."""
    rng = np.random.default_rng(3)
    lines = ["client,a,b,c,d,label"]
    for client, model in enumerate(coefficients(kind, rng)):
        x = rng.normal(size=(SAMPLES, INPUTS))
        y = x @ model[:-1] + model[-1] + rng.normal(size=SAMPLES)
        lines += [f"{client}," + ",".join(f"{v:.4f}" for v in (*row, one)) for row, one in zip(x, y, strict=True)]
    path.write_text("\n".join(lines), "utf-8")
    return path


def ask(path: Path, **sections: Any) -> Experiment:
    return Experiment(
        data=str(path),
        task="regression",
        network="linear",
        method="fedavg",
        run={"workers": 1},
        training={"epochs": 2},
        **sections,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one", "constants", "gradual", "groups", "alone"])
def test_the_answer_is_of_the_kind_that_the_clients_are(kind: str, tmp_path: Path) -> None:
    found = diagnose(ask(table(kind, tmp_path / "clients.csv")), starts=2)
    assert found.suits.kind == kind, found.pay
    assert found.tables()["answer"] == kind
    assert found.suits.sentence in found.sentences()


def test_every_option_is_of_a_kind() -> None:
    assert set(ANSWERS) == set(OPTIONS)


def test_what_cannot_be_told_is_said() -> None:
    assert some(memberships=()).suits.kind == "unknown"
    assert some(unlearnt="unlearnt").suits.kind == "unknown"
    assert some().suits.kind == "groups"


@pytest.mark.slow
def test_one_model_is_no_answer_where_another_may_gain_much_and_structure_is_likely(tmp_path: Path) -> None:
    found = diagnose(ask(table("one", tmp_path / "clients.csv")), starts=1)
    assert found.pay is not None
    assert found.suits.kind == "one"
    wide = tuple(
        replace(option, gain=replace(option.gain, high=9.0)) if option.name == found.pay.weighed else option
        for option in found.pay.options
    )
    for p, kind in ((0.1, "unknown"), (0.9, "one")):
        doubtful = replace(
            found, pay=replace(found.pay, options=wide), structure=replace(found.structure, p=p), alpha=0.05
        )
        assert doubtful.suits.kind == kind
