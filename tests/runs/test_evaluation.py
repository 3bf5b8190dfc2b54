"""Which model is evaluated, and the adaptation that every method gets (`evaluation.adapt`)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from coterie.clients.rules import (
    Answer,
    BeforeAndAfter,
    Client,
    Order,
    Rule,
    Score,
    Train,
    Work,
    rule,
)
from coterie.errors import BadInput
from coterie.methods.exchange import Exchange, Replies, Send
from coterie.runs.evaluation import plan_evaluation
from coterie.runs.folder.metrics import CLASSIFICATION
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.hooks.local_models import LocalModels
from coterie.runs.loop import run, train
from coterie.runs.record import read_scores
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session

pytestmark = pytest.mark.medium  # Most train a few clients several times.

ADAPTED = "adapted_macro_accuracy"


def _experiment(folder: Path, method: Any = "fedavg", **changes: Any) -> Experiment:
    plain = Experiment(
        method=method,
        data={"name": "digits", "split": "dirichlet(0.3)", "clients": 6, "samples_per_client": 60},
        network={"name": "mlp", "hidden": (16,)},
        training={"lr": 0.1, "batch_size": 10, "lr_decay": 0.5},
        run={"rounds": 3, "participation": 0.5, "folder": str(folder), "workers": 1},
    )
    return plain.updated({key.replace("__", "."): value for key, value in changes.items()})


@rule("test-update-by-hand")
class UpdateByHand(Rule):
    """The local update of FedAvg, on the minibatches of an adaptation, then a score."""

    def run(self, client: Client, order: Order) -> Work:
        lr = client.training.lr * client.training.lr_decay ** (client.round - 1)
        trained = yield Train(order.items["model"].values, lr=lr, purpose="adaptation")
        scored = yield Score(trained.model)
        return Answer(report={"score": scored})

    def settings(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_adaptation_is_one_local_update_of_the_served_model_to_the_bit(tmp_path: Path, engine: str) -> None:
    experiment = _experiment(tmp_path, evaluation__adapt={}, run__engine=engine)
    with closing(Session(experiment)) as session:
        events = list(train(session))
        everyone = session.server.everyone
        exchange = Exchange(everyone, UpdateByHand(), {"model": Send.same(session.state.model[0], everyone)})
        by_hand = read_scores(session.runtime.measure(exchange), everyone, np.zeros(6, np.int64), CLASSIFICATION)
    assert events[-1].metrics[ADAPTED] == by_hand.values["accuracy"].mean()
    assert events[-1].metrics[ADAPTED] > events[-1].metrics["macro_accuracy"] + 0.05  # skewed labels


@pytest.mark.parametrize("method", ["fesem", "dcpfl"])
def test_scores_before_are_those_of_a_run_without_adaptation(tmp_path: Path, method: str) -> None:
    plain = run(_experiment(tmp_path, method))
    both = run(_experiment(tmp_path, method, evaluation__adapt={"epochs": 2}))
    names = [name for name in plain.rounds.columns if name != "seconds"]
    assert both.rounds.select(names).equals(plain.rounds.select(names))
    assert both.clients.select(plain.clients.columns).equals(plain.clients)
    assert both.ledger.equals(plain.ledger)
    assert not any("adapted" in name for name in (*plain.rounds.columns, *plain.clients.columns))
    after = both.clients.group_by("round", maintain_order=True).agg(pl.col("adapted_accuracy").mean())
    assert after["adapted_accuracy"].to_list() == pytest.approx(both.rounds[ADAPTED].to_list())


def test_a_method_that_adapts_by_itself_adapts_once(tmp_path: Path) -> None:
    plain = run(_experiment(tmp_path, "fedbabu", run__rounds=1))
    both = run(_experiment(tmp_path, "fedbabu", run__rounds=1, evaluation__adapt={"epochs": 2}))
    # Its own adaptation is the one after; before is the model from which that starts.
    assert both.summary[ADAPTED] == plain.summary["macro_accuracy"]
    assert both.summary["macro_accuracy"] != plain.summary["macro_accuracy"]


@pytest.mark.slow
def test_adaptation_obeys_the_drops_of_a_methods_own_schedule(tmp_path: Path) -> None:
    method = {"name": "fedbabu", "lr_drops": (1,), "fine_tune": 0}
    own = {"evaluated": "local", "adapt": {"epochs": 1}}
    with closing(Session(_experiment(tmp_path, method, evaluation=own))) as session:
        list(train(session))
        rules = [exchange.rule for exchange in plan_evaluation(session, session.state, last=False)]
    assert rules
    assert [rule.lr_drops for rule in rules if isinstance(rule, BeforeAndAfter)] == [(1,)] * len(rules)


@pytest.mark.slow
@pytest.mark.parametrize("adapt", [None, {"epochs": 5}])
def test_newcomers_come_after_the_drops_of_a_methods_own_schedule(tmp_path: Path, adapt: Any) -> None:
    def adapted(*drops: int) -> Any:
        method = {"name": "fedbabu", "lr_drops": drops, "fine_tune": 0}
        wanted = _experiment(tmp_path, method, run__holdout_clients=0.5, run__rounds=2, training__epochs=5)
        joined = RunFolder(run(wanted.updated({"evaluation.adapt": adapt})).folder).newcomers()
        return joined if joined is None else joined["adapted"].to_list()

    assert adapted(2) != adapted() is not None


@pytest.mark.slow
def test_private_layers_adapt_where_a_method_keeps_some(tmp_path: Path) -> None:
    def after(method: str, layers: str) -> float:
        adapt = {"epochs": 1, "layers": layers}
        return float(run(_experiment(tmp_path, method, run__rounds=1, evaluation__adapt=adapt)).summary[ADAPTED])

    assert after("fedper", "private") == after("fedper", "head") != after("fedper", "all")
    assert after("fedavg", "private") == after("fedavg", "all")


@pytest.mark.slow
def test_how_far_an_adaptation_goes(tmp_path: Path) -> None:
    """By steps or epochs, at the learning rate of the round, or at its own."""

    def after(column: str = "adapted_loss", **changes: Any) -> list[float]:
        # A client has 42 or fewer training samples, so that five minibatches of ten are an epoch.
        usual: dict[str, Any] = {"data__split": "iid", "run__engine": "sequential", "run__rounds": 2}
        return run(_experiment(tmp_path, **{**usual, **changes})).rounds[column].to_list()

    epoch, served = after(evaluation__adapt={}), after("loss")
    assert after(evaluation__adapt={"steps": 5}) == after(evaluation__adapt={"lr": 0.1}) == epoch
    assert after(evaluation__adapt={"steps": 1}) != epoch != after(evaluation__adapt={"lr": 0.01})
    assert after(evaluation__adapt={"steps": 0}) == after(evaluation__adapt={"lr": 0.0}) == served
    # A decay of almost 0: in the second round nothing can move any more.
    still = _experiment(tmp_path, evaluation__adapt={}, training__lr_decay=1e-9)
    rounds = run(still.updated({"run.rounds": 2})).rounds
    assert rounds["adapted_loss"][0] != rounds["loss"][0]
    assert rounds["adapted_loss"][1] == pytest.approx(rounds["loss"][1], abs=1e-6)


@pytest.mark.slow
def test_both_engines_and_workers_agree(tmp_path: Path) -> None:
    adapt = {"epochs": 2, "layers": "head"}
    one = run(_experiment(tmp_path, "fesem", evaluation__adapt=adapt, run__engine="sequential"))
    two = run(_experiment(tmp_path, "fesem", evaluation__adapt=adapt, run__engine="batched", run__workers=2))
    assert two.rounds["adapted_loss"].to_list() == pytest.approx(one.rounds["adapted_loss"].to_list(), abs=1e-4)


def test_the_local_model_is_what_the_client_last_trained(tmp_path: Path) -> None:
    """For FeSEM that is the W_i of a client, which stays as it is while the client is away."""
    with closing(Session(_experiment(tmp_path, "fesem", evaluation__evaluated="local"))) as session:
        seen: dict[int, torch.Tensor] = {}
        answer = session.runtime.answer

        def note(ask: Any) -> Any:
            reply = answer(ask)
            if isinstance(ask, Exchange) and isinstance(reply, Replies) and "model" in ask.rule.uploads:
                seen.update(zip(reply.clients.tolist(), reply.models.clone(), strict=True))
            return reply

        session.runtime.answer = note  # type: ignore[method-assign]  # to see what crosses
        list(train(session))
        local = session.find(LocalModels)
    assert sorted(seen) == session.server.everyone[local.sent].tolist()
    assert all(torch.equal(local.models[client], model) for client, model in seen.items())


def test_who_has_trained_nothing_is_scored_as_served(tmp_path: Path) -> None:
    served = run(_experiment(tmp_path, run__rounds=1))
    local = run(_experiment(tmp_path, run__rounds=1, evaluation__evaluated="local"))
    took_part = served.clients["took_part"].to_numpy()
    same = (served.clients["accuracy"] == local.clients["accuracy"]).to_numpy()
    assert same[~took_part].all()
    assert not same[took_part].all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluation.adapt": {"epochs": 1, "steps": 2}}, "epochs or steps"),
        ({"evaluation.adapt": {"epoch": 1}}, r"evaluation\.adapt\.epoch .*epochs"),
        ({"evaluation.adapt": "head"}, r"evaluation\.adapt = 'head' .*table"),
    ],
)
def test_what_no_adaptation_is(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        _experiment(tmp_path).updated(changes)


def test_layers_that_the_network_lacks_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"evaluation\.adapt\.layers = 'fc9'"):
        run(_experiment(tmp_path, evaluation__adapt={"layers": "fc9"}))
    assert not list(tmp_path.iterdir())


def test_a_key_of_the_table_can_be_set_alone(tmp_path: Path) -> None:
    experiment = _experiment(tmp_path).updated({"evaluation.adapt.epochs": 2, "evaluation.adapt.layers": "head"})
    assert experiment.evaluation.adapt is not None
    assert (experiment.evaluation.adapt.epochs, experiment.evaluation.adapt.layers) == (2, "head")
    assert Experiment.from_toml(experiment.to_toml()) == experiment
