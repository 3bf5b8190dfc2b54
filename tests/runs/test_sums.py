"""A run gives the same bits by sums and by rows, and brings rows where somebody must see them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.methods import METHODS
from coterie.methods.exchange import Exchange, Replies
from coterie.runs.hooks import order
from coterie.runs.hooks.hook import Hook
from coterie.runs.loop import train
from coterie.runs.record import RoundResult
from coterie.runs.session import Session

ROUNDS = 3


class Watching(Hook):
    """Notes who came as a row and who in a sum; it changes nothing."""

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        self.summed: list[bool] = []
        self.rows = 0
        self.models_in_rows = False

    def row_limit(self, exchange: Exchange, name: str, number: int) -> float:
        return float("inf")

    def reply(self, exchange: Exchange, replies: Replies, result: RoundResult) -> Replies:
        self.summed.append(bool(replies.sums))
        self.rows += sum(len(summed.rows) for summed in replies.sums.values())
        shapes, size = exchange.rule.shapes(self.run.layout), self.run.layout.size
        self.models_in_rows |= any(shapes.get(name, (size,))[-1] == size for name in replies.uploads)
        return replies


class Seeing(Hook):
    """Changes nothing, but does not say so: then it is shown every model."""

    def reply(self, exchange: Exchange, replies: Replies, result: RoundResult) -> Replies:
        assert not replies.sums
        return replies


@dataclass
class Outcome:
    state: Any
    rounds: Any
    failures: list[Any]
    watching: Watching
    asked_again: int


@dataclass
class Player:
    """Plays runs, by sums or by rows."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    played: int = field(default=0)

    def play(self, *, rows: bool = False, **keys: Any) -> Outcome:
        self.monkeypatch.setattr(order, "ORDER", (*KEPT, Watching, *[Seeing] * rows))
        self.played += 1
        experiment = coterie.Experiment.model_validate(
            {
                "method": {"name": "fedavg"},
                "data": {"name": "digits", "clients": 40, "samples_per_client": 30},
                "network": {"name": "mlp", "hidden": [4]},
                **keys,
                "run": {"rounds": ROUNDS, "workers": 1, "folder": str(self.folder), "name": f"run{self.played}"}
                | keys.get("run", {}),
            }
        )
        again = []
        with closing(Session(experiment)) as session:
            measure = session.runtime.measure

            def counted(exchange: Exchange, clients: Any = None) -> Replies:
                again.append(clients is not None)
                return measure(exchange, clients)

            session.runtime.measure = counted  # type: ignore[method-assign]
            events = list(train(session))
            rounds = [{k: v for k, v in event.metrics.items() if "seconds" not in k} for event in events]
            failures = [failure for event in events for failure in event.failures]
            return Outcome(session.state, rounds, failures, session.find(Watching), sum(again))


KEPT = order.ORDER


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Player:
    return Player(tmp_path, monkeypatch)


def tensors(state: Any) -> list[torch.Tensor]:
    return [value for value in vars(state).values() if isinstance(value, torch.Tensor)]


def assert_equal(one: Outcome, other: Outcome) -> None:
    assert all(torch.equal(a, b) for a, b in zip(tensors(one.state), tensors(other.state), strict=True))
    assert str(one.rounds) == str(other.rounds)  # NaN equals NaN there
    assert one.failures == other.failures


RUNS: dict[str, tuple[dict[str, Any], list[bool]]] = {
    "fedavg": ({}, [True] * ROUNDS),
    "uniform weights": ({"method": {"name": "fedavg", "weights": "uniform"}}, [True] * ROUNDS),
    "ifca": ({"method": {"name": "ifca", "clusters": 2, "init": "plain"}}, [True] * ROUNDS),
    "a shared part, private layers": ({"method": {"name": "fedper"}}, [True] * ROUNDS),
    "alternating": ({"method": {"name": "fedrep", "head_epochs": 1}}, [True] * ROUNDS),
    "personal models": ({"method": {"name": "ditto"}}, [True] * ROUNDS),
    "equal weights": ({"method": {"name": "pfedme", "personal_steps": 1}}, [True] * ROUNDS),
    "the server's part of a part": (
        {"method": {"name": "fedper"}, "aggregation": {"optimizer": "adam"}},
        [True] * ROUNDS,
    ),
    "private layers of clients that vanish": (
        {"method": {"name": "fedper"}, "run": {"client_dropout": 0.3}},
        [True] * ROUNDS,
    ),
    "gradients": ({"method": {"name": "fedsgd", "lr": 0.5}}, [True] * ROUNDS),
    "gradients, then models": ({"method": {"name": "feddane"}}, [True] * 2 * ROUNDS),
    "gradients that clients keep and who vanishes": (
        {"method": {"name": "feddane", "mu": 0.1}, "run": {"client_dropout": 0.3}},
        [True] * 2 * ROUNDS,
    ),
    "models beside what is none": ({"method": {"name": "scaffold"}}, [True] * ROUNDS),
    "a server optimizer for one of two": (
        {"method": {"name": "scaffold"}, "aggregation": {"optimizer": "adam"}},
        [True] * ROUNDS,
    ),
    "a model for every group": ({"method": {"name": "fedem", "init": "plain"}}, [True] * ROUNDS),
    "a model for every group, and a server optimizer": (
        {"method": {"name": "fedem", "init": "plain"}, "aggregation": {"optimizer": "adam"}},
        [True] * ROUNDS,
    ),
    "a model for every group, and counts": ({"method": {"name": "fedrc", "init": "plain"}}, [True] * ROUNDS),
    "drawn groups": ({"method": {"name": "em-groups", "init": "plain"}}, [True] * ROUNDS),
    "models of groups and one of all": ({"method": {"name": "stocfl"}}, [False] + [True] * ROUNDS),
    "a mean without its step": (
        {"method": {"name": "partial-pooling"}, "aggregation": {"optimizer": "adam"}},
        [True] * ROUNDS,
    ),
    "part of the way to a mean": ({"method": {"name": "feddist"}}, [True] * ROUNDS),
    "groups of layers, and private ones": (
        {"method": {"name": "grouped-layers", "after": 1, "private": "last:1"}},
        [False, True, True],
    ),
    "groups of which all share a base": ({"method": {"name": "fedcps"}}, [False, True, True]),
    "a server optimizer for groups of which all share a base": (
        {"method": {"name": "fedcps", "init": "plain"}, "aggregation": {"optimizer": "adam"}},
        [True] * ROUNDS,
    ),
    "a server optimizer": ({"aggregation": {"optimizer": "adam"}}, [True] * ROUNDS),
    "clients that vanish": ({"run": {"client_dropout": 0.3}}, [True] * ROUNDS),
    "no screening": ({"aggregation": {"norm_bound": "off"}}, [True] * ROUNDS),
    "capped weights": (
        {
            "data": {"name": "digits", "clients": 40, "split": "dirichlet(0.5)"},
            "aggregation": {"max_weight": 1.0},
        },
        [True] * ROUNDS,
    ),
    "a median": ({"aggregation": {"rule": "median"}}, [False] * ROUNDS),
    "clipped": ({"aggregation": {"clip_norm": 0.5}}, [False] * ROUNDS),
    "local evaluation": ({"evaluation": {"evaluated": "local"}}, [False] * ROUNDS),
    "an attack": ({"attack": {"share": 0.2, "kind": "scale"}}, [False] * ROUNDS),
    "noise": ({"privacy": {"unit": "client", "noise_multiplier": 1.0, "noise_seed": 1}}, [False] * ROUNDS),
    "few clients": ({"run": {"participation": 0.05}}, [False] * ROUNDS),
}


@pytest.mark.parametrize("name", RUNS)
def test_sums_give_the_bits_of_rows(name: str, player: Player) -> None:
    keys, expected = RUNS[name]
    sums = player.play(**keys)
    assert sums.watching.summed == expected
    assert_equal(sums, player.play(rows=True, **keys))


@pytest.mark.medium
@pytest.mark.parametrize("method", METHODS.names())
def test_a_method_says_whether_its_server_looks_at_single_models(method: str, player: Player) -> None:
    keys: dict[str, Any] = {"method": {"name": method}, "run": {"rounds": 6}}
    if method in ("fedcr", "fedsr"):
        keys["network"] = {"name": "gaussian-mlp", "hidden": [4]}
    watching = player.play(**keys).watching
    assert watching.models_in_rows == bool(watching.run.method.needs.models)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedavg"},
        {"name": "fedper"},
        {"name": "feddane"},
        {"name": "scaffold"},
        {"name": "fedem", "init": "plain"},
        {"name": "fedcps", "init": "plain", "clusters": 2},
    ],
    ids=lambda method: method["name"],
)
@pytest.mark.parametrize("workers", [2, 5])
def test_workers_give_the_bits_of_one_process(workers: int, method: dict[str, Any], player: Player) -> None:
    alone = player.play(method=method)
    many = player.play(method=method, run={"workers": workers})
    assert all(many.watching.summed)
    assert_equal(alone, many)


@pytest.mark.parametrize("method", ["fedavg", "fedper", "ditto", "feddane", "scaffold", "partial-pooling"])
@pytest.mark.parametrize("workers", [1, 2])
def test_who_is_out_of_proportion_is_left_out_of_sums(method: str, workers: int, player: Player) -> None:
    """Clients that keep a state are asked once more from the one with which the exchange began."""
    keys: dict[str, Any] = {
        "method": {"name": method},
        "aggregation": {"norm_bound": 1.0},  # all above the median
        "run": {"workers": workers},
    }
    sums, rows = player.play(**keys), player.play(rows=True, **keys)
    assert sums.failures
    assert sums.asked_again  # the first round knows no median, and adds too much
    assert sums.asked_again < ROUNDS or sums.watching.rows == 0
    assert_equal(sums, rows)
