"""What a run promises, keeps, and says of it; that methods under a promise tell nothing else."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields, replace
from math import erf, exp, log, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import polars as pl
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

import coterie
from coterie import BadInput, Experiment
from coterie.advice.explain.explain import explain
from coterie.clients.engine.private_steps import count_private_steps
from coterie.clients.engine.upload_noise import UploadNoise
from coterie.clients.rules.choose import Choose
from coterie.clients.rules.local_update import LocalUpdate
from coterie.methods import METHODS, Cohort, Method
from coterie.methods.aggregation import Aggregation
from coterie.methods.exchange import Ask, Exchange, Replies, Send
from coterie.methods.privacy import PrivacySupport
from coterie.models.layout import Part
from coterie.report.run_page import build
from coterie.report.run_tables import last_rounds, show
from coterie.runs.accounting import Releases, find_epsilon, find_noise
from coterie.runs.folder.run_folder import SECRET, RunFolder
from coterie.runs.loop import resume, run
from coterie.runs.promise import find_client_noise, make_promise
from coterie.runs.session import Session
from coterie.runtime.runtime import drive
from coterie.shipping.model.export import export
from coterie.shipping.model.served import trained_model
from coterie.shipping.model.trained import read_model
from tests.federated import Trained, planted, train

DATA = {"name": "digits", "split": "rotated(2)", "clients": 12}
SETTINGS: dict[str, dict[str, Any]] = {
    "ifca": {"init": "plain", "clusters": 2},
    "fesem": {"clusters": 2, "warm_up": 0},
    "lg-fedavg": {"layers": 1},
}


def experiment(method: Any = "fedavg", rounds: int = 3, **privacy: Any) -> Experiment:
    promised = privacy or {"unit": "client", "noise_multiplier": 1.0}
    run = {"rounds": rounds, "workers": 1, "participation": 0.5}
    return Experiment(data=DATA, method=method, run=run, training={"batch_size": 16}, privacy=promised)


class Quiet(coterie.Observer):
    """Says nothing, and interrupts a run after a round."""

    def __init__(self, stop: int = 0) -> None:
        self._stop = stop

    def round(self, round: coterie.Round) -> None:
        if round.number == self._stop:
            raise KeyboardInterrupt


def draw(session: Session, number: int) -> list[int]:
    """Who takes part in a round."""
    cohort = Cohort(number, session.draw_cohort(number), session.server)
    for hook in session.hooks:
        cohort = hook.server_view(cohort)
    return [int(client) for client in cohort.clients]


def method_of(name: str) -> Method[Any]:
    made: Method[Any] = METHODS[name].target(**METHODS[name].bind(SETTINGS.get(name, {})))
    return made


def names(kind: str) -> list[str]:
    return [name for name in METHODS.names() if not getattr(method_of(name).privacy_support, kind)]


# ---- the accountant


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """Balle and Wang, 2018, Theorem 8, exactly."""

    def below(x: float) -> float:
        return (1 + erf(x / sqrt(2))) / 2

    half = 1 / (2 * multiplier)
    return below(half - epsilon * multiplier) - exp(epsilon) * below(-half - epsilon * multiplier)


@pytest.mark.parametrize(("multiplier", "times"), [(1.0, 1), (4.0, 1), (8.0, 25)])
def test_epsilon_is_that_of_the_gaussian_mechanism(multiplier: float, times: int) -> None:
    """Many releases are one with less noise, where everybody takes part in each."""
    epsilon = find_epsilon(multiplier, Releases(times), 1e-5)
    assert gaussian_delta(epsilon, multiplier / sqrt(times)) == pytest.approx(1e-5, rel=0.02)


@pytest.mark.slow
def test_the_noise_found_keeps_the_promise_and_is_no_greater() -> None:
    releases = Releases(20, 0.2)
    noise = find_noise(3.0, releases, 1e-4)
    assert 3.0 * 0.998 < find_epsilon(noise, releases, 1e-4) <= 3.0
    assert find_epsilon(noise, Releases(20), 1e-4) > 6  # who may be away tells less
    assert find_epsilon(noise, Releases(0), 1e-4) == 0
    assert find_epsilon(0.05, releases, 1e-4) > 100


def test_an_epsilon_that_no_noise_gives_is_refused() -> None:
    with pytest.raises(BadInput, match=r"privacy\.epsilon = 1e-06 .*10 "):
        find_noise(1e-6, Releases(10), 1e-9)


# ---- settings


@pytest.mark.parametrize(
    ("privacy", "problem"),
    [
        ({"unit": "client"}, "epsilon or noise_multiplier"),
        ({"unit": "example", "epsilon": 1, "noise_by": "clients"}, "noise_by .*unit = 'client'"),
        ({"unit": "client", "epsilon": 1, "noise_by": "clients", "clip_quantile": 0.5}, "clip_quantile .*unit"),
    ],
)
def test_what_makes_no_promise_is_refused(privacy: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        experiment(**privacy)


def test_every_refusal_has_a_reason_of_the_method() -> None:
    """Nobody is refused because nothing was said."""
    silent = set(vars(PrivacySupport()).values())
    for name in METHODS.names():
        assert not silent & set(vars(method_of(name).privacy_support).values()), name


# ---- what methods tell


@dataclass(eq=False)
class Silent(Aggregation):
    """Centres that nobody moves: whatever else reaches the state of a method has gone past the noise."""

    @property
    def is_mean(self) -> bool:
        return False

    def average_groups(
        self,
        models: Tensor,
        groups: NDArray[np.int64],
        previous: Tensor,
        weights: ArrayLike | None = None,
        part: Part | None = None,
        step: bool = True,
    ) -> Tensor:
        return previous.clone()


def play(name: str, changed: int | None) -> Trained:
    """Two rounds in which nothing gets through sums; `changed` answers otherwise than it would."""
    method, federation = method_of(name), planted("feature", 2, clients=6)
    start = train(method, federation, 0)
    server = replace(start.server, aggregation=Silent())
    for number in (1, 2):
        clients = np.array([0, 1, 2, 4] if number == 1 else [0, 2, 3, 5])
        start.runtime.begin_round(number)

        def answer(ask: Ask) -> Replies | Tensor | None:
            reply = start.runtime.answer(ask)
            if isinstance(ask, Exchange) and isinstance(reply, Replies) and changed is not None:
                return distort(reply, changed)
            return reply

        start.states.append(drive(method.round(start.state, Cohort(number, clients, server)), answer))
    return start


def distort(replies: Replies, client: int) -> Replies:
    row = np.flatnonzero(replies.clients == client)
    if not len(row):
        return replies
    uploads = {name: values.clone() for name, values in replies.uploads.items()}
    for values in uploads.values():
        values[int(row[0])] = -3 * values[int(row[0])] + 1
    numbers = {
        name: np.where(replies.clients == client, 1 - values, values) for name, values in replies.numbers.items()
    }
    return replace(replies, uploads=uploads, numbers=numbers)


def parts(state: Any, without: int, clients: int) -> Iterator[tuple[str, Any]]:
    """What a state holds, without the row of one client in what has a row for each."""
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, np.ndarray) and len(value) == clients:
            value = np.delete(value, without, 0)
        yield field.name, value.tolist() if isinstance(value, np.ndarray | Tensor) else value


@pytest.mark.parametrize("name", names("server"))
def test_noise_by_the_server_covers_all_that_a_client_tells(name: str) -> None:
    """Where sums are blocked, nothing of client 2 reaches anything but its own row."""
    one, other = play(name, None), play(name, 2)
    assert dict(parts(one.state, 2, 6)) == dict(parts(other.state, 2, 6))


@pytest.mark.medium
@pytest.mark.parametrize("name", names("clients"))
def test_noise_by_clients_covers_all_that_they_send(name: str) -> None:
    """One model a round, and nothing else."""
    found = train(method_of(name), planted("feature", 2, clients=6), 3, participation=0.5)
    for asked in found.asked:
        assert all(exchange.rule.uploads == ("model",) and not replies.numbers for exchange, replies in asked)
        told = np.concatenate([replies.clients for _, replies in asked])
        assert len(np.unique(told)) == len(told)


def test_what_a_client_sends_is_hidden_before_it_leaves() -> None:
    method, federation = method_of("fedavg"), planted("feature", 2, clients=4)
    plain = train(method, federation, 1)
    start = train(method, federation, 0)
    engine: Any = start.runtime
    engine.engine.upload_noise = UploadNoise(0.1, 5.0)
    engine.begin_round(1)
    exchange, replies = plain.asked[0][0]
    hidden = engine.answer(exchange)
    update = hidden.models - start.state.model
    assert float(update.std()) == pytest.approx(2 * 0.1 * 5, rel=0.05)
    assert hidden.report.keys() == {"trained_samples"}
    assert "train_loss" in replies.report


def test_numbers_without_a_model_are_not_told_either() -> None:
    """A server that asks for what its method never would hears nothing."""
    start = train(method_of("fedavg"), planted("feature", 2, clients=4), 0)
    engine: Any = start.runtime
    engine.engine.upload_noise = UploadNoise(0.1, 5.0)
    engine.begin_round(1)
    clients = np.arange(2)
    replies = engine.answer(Exchange(clients, Choose(), {"models": Send.all(start.state.model, clients)}))
    assert not len(replies)
    assert "Choose" in replies.missing[0]


# ---- runs


@pytest.mark.parametrize("name", names("server"))
def test_a_round_of_nobody_is_noise_alone(name: str) -> None:
    """Without it, models that stay as they were would say that nobody took part."""
    wanted = experiment(
        {"name": name, **SETTINGS.get(name, {})}, 1, unit="client", noise_multiplier=1, noise_seed=0
    )
    session = Session(wanted.updated({"run.participation": 1e-6}))
    assert not draw(session, 1)
    before = session.method.assignment(session.state, session.server).models.clone()
    after = session.method.assignment(session.play_round(1).state, session.server).models
    session.close()
    assert bool((before != after).any(1).all())


def test_a_method_that_asks_a_client_twice_in_a_round_is_stopped() -> None:
    """The promise counts one answer a round, also where a method of somebody's own says that it is covered."""
    session = Session(experiment("fedavg", 1, unit="client", noise_multiplier=1.0, noise_by="clients"))
    start = Send.same(session.state.model[0], np.arange(2))

    def greedy(state: Any, cohort: Cohort) -> Iterator[Ask]:
        yield Exchange(np.arange(2), LocalUpdate(), {"model": start})
        yield Exchange(np.arange(1, 3), LocalUpdate(), {"model": start})

    object.__setattr__(session.method, "round", greedy)
    with pytest.raises(RuntimeError, match=r"fedavg .*twice"):
        session.play_round(1)
    session.close()


def test_a_private_run_draws_each_client_by_itself() -> None:
    session = Session(experiment(rounds=30))
    sizes = [len(draw(session, number)) for number in range(1, 31)]
    session.close()
    assert len(set(sizes)) > 3
    assert np.mean(sizes) == pytest.approx(6, abs=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "privacy",
    [{"unit": "client", "noise_by": "server"}, pytest.param({"unit": "example"}, marks=pytest.mark.slow)],
)
def test_a_run_says_what_it_has_spent(tmp_path: Path, privacy: dict[str, Any]) -> None:
    wanted = experiment(epsilon=6.0, delta=0.01, **privacy).updated(
        {"run.folder": str(tmp_path), "run.name": "private"}
    )
    with closing(Session(wanted)) as session:
        promise = make_promise(wanted, session.population.samples)
    assert promise is not None
    assert promise.epsilon == pytest.approx(6.0, rel=0.002)
    run(wanted, observers=[Quiet()])
    log = pl.read_parquet(tmp_path / "private" / "log.parquet").filter(name="epsilon")["value"].to_list()
    assert log == [promise.find_spent(number) for number in (1, 2, 3)]
    folder = RunFolder(tmp_path / "private")
    assert promise.describe() in folder.environment()["description"]
    page, unit = build(folder).read_text("utf-8"), "sample" if privacy["unit"] == "example" else "client"
    assert f"Privacy, epsilon</dt><dd>{promise.epsilon:.3g}<" in page
    assert f"of one {unit}; delta 0.01" in page
    if promise.usual_epsilon is not None:
        assert f"{promise.usual_epsilon:.3g} at the median" in page
    table = last_rounds([folder])
    assert table.rows[0][table.header.index("epsilon")] == f"{promise.epsilon:.2f}"
    assert f"epsilon {promise.epsilon:.3g} of one {unit} with delta 0.01" in str(show(folder).caption)


@pytest.mark.slow
def test_every_client_keeps_the_promise_for_its_samples() -> None:
    """The one that spends most decides on the noise, whichever that is."""
    sizes = np.array([17, 30, 33, 64, 200])
    wanted = experiment(unit="example", epsilon=4.0, delta=1e-4).updated({"training.epochs": 2})
    promise = make_promise(wanted, sizes)
    assert promise is not None
    spent = []
    for samples in sizes.tolist():
        probability, steps = count_private_steps(samples, 16, 2, rounds=3)
        spent.append(find_epsilon(promise.multiplier, Releases(steps, probability), 1e-4))
    assert max(spent) == promise.epsilon
    assert 4.0 * 0.998 < max(spent) <= 4.0
    assert spent[4] < 2
    assert promise.usual_epsilon == spent[2]
    assert f"epsilon = {max(spent):.3g} ({spent[2]:.3g} " in promise.describe()
    equal = make_promise(wanted, np.full(3, 64))
    assert equal is not None
    assert equal.usual_epsilon is None
    alone = find_client_noise(wanted.updated({"data.samples_per_client": 30}), SimpleNamespace(samples=sizes[4:]))
    assert alone[1] is not None
    assert alone[1].noise_multiplier < promise.multiplier


@pytest.mark.parametrize("name", names("samples"))
def test_noise_in_steps_covers_methods_whose_rules_take_them(name: str) -> None:
    """In every exchange of their rounds, clients do what the engine can hide."""
    found = train(method_of(name), planted("feature", 2, clients=6), 3, participation=0.5)
    assert all(exchange.rule.private_steps for asked in found.asked for exchange, _ in asked)
    assert all(not replies.numbers for asked in found.asked for _, replies in asked)


def test_noise_in_variances_of_batches_is_refused() -> None:
    wanted = experiment(unit="client", noise_multiplier=1.0)
    with pytest.raises(BadInput, match=r"privacy.*batch"):
        Session(wanted.updated({"network.name": "planted-batch-norm"}))


# ---- the secret


KINDS = (
    {"noise_by": "server"},
    {"noise_by": "clients"},
    pytest.param({"unit": "example"}, marks=pytest.mark.slow),
)


def play_first_round(wanted: Experiment, secret: bytes = b"") -> Tensor:
    """Return FedAvg's model after a round."""
    with closing(Session(wanted, secret=secret)) as session:
        model: Tensor = session.play_round(1).state.model
        return model[0]


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_seed_of_a_run_has_no_part_in_its_noise(kind: dict[str, Any]) -> None:
    """Same seed, same bits needs the same secret, which nobody has, or the seed of the noise."""
    wanted = experiment(**{"unit": "client", "noise_multiplier": 1.0, **kind}).updated({"run.participation": 1.0})
    repeatable, secret = wanted.updated({"privacy.noise_seed": 3}), bytes(range(32))
    one = play_first_round(wanted)
    assert not torch.equal(one, play_first_round(wanted))
    assert not torch.equal(one, play_first_round(wanted.updated({"privacy.noise_seed": 0})))
    for some, key in ((repeatable, b""), (wanted, secret)):
        first = play_first_round(some, key)
        assert torch.equal(first, play_first_round(some.updated({"run.workers": 2}), key))
        assert not torch.equal(first, one)


def test_who_takes_part_comes_from_the_secret_where_the_promise_counts_on_it() -> None:
    def draw_all(secret: bytes = b"", noise_by: str = "server") -> list[list[int]]:
        wanted = experiment(unit="client", noise_multiplier=1.0, noise_by=noise_by)
        with closing(Session(wanted, secret=secret)) as session:
            return [draw(session, number) for number in range(1, 9)]

    assert draw_all() != draw_all()
    assert draw_all(bytes(32)) == draw_all(bytes(32))
    # Where clients add noise, epsilon is that of one who is there in every round.
    assert draw_all(noise_by="clients") == draw_all(noise_by="clients")


def differ(one: coterie.Result, other: coterie.Result) -> bool:
    return not (
        one.rounds.drop("seconds").equals(other.rounds.drop("seconds")) and one.clients.equals(other.clients)
    )


@pytest.mark.slow
def test_the_secret_is_its_owners_and_goes_when_the_run_ends(tmp_path: Path) -> None:
    wanted = experiment(rounds=3)
    wanted = wanted.updated({"run.folder": str(tmp_path), "run.name": "cut"})
    assert run(wanted, observers=[Quiet(2)]).status == "interrupted"
    cut = tmp_path / "cut"
    if os.name == "posix":
        assert stat.S_IMODE((cut / SECRET).stat().st_mode) == 0o600
    secret = RunFolder(cut).secret()
    for name in ("copy", "lost"):
        shutil.copytree(cut, tmp_path / name)
    (tmp_path / "lost" / SECRET).unlink()
    found, copy = (resume(tmp_path / name, observers=[Quiet()]) for name in ("cut", "copy"))
    assert not differ(found, copy)
    assert differ(found, resume(tmp_path / "lost", observers=[Quiet()]))
    export(trained_model(RunFolder(cut))[0], cut / "model.safetensors")
    for path in tmp_path.rglob("*"):
        assert path.name != SECRET
        if path.is_file():
            content = path.read_bytes()
            assert secret not in content
            assert secret.hex().encode() not in content


def test_a_damaged_secret_is_named(tmp_path: Path) -> None:
    wanted = experiment(rounds=3).updated({"run.folder": str(tmp_path), "run.name": "cut"})
    run(wanted, observers=[Quiet(2)])
    (tmp_path / "cut" / SECRET).write_text("0102")
    with pytest.raises(BadInput, match=f"{SECRET} .*damaged"):
        resume(tmp_path / "cut", observers=[Quiet()])


@pytest.mark.medium
def test_a_run_whose_noise_can_be_made_again_says_for_whom_its_promise_is_void(tmp_path: Path) -> None:
    wanted = experiment(rounds=1, unit="client", noise_multiplier=1.0, noise_seed=5)
    wanted = wanted.updated({"run.folder": str(tmp_path), "run.name": "private"})
    run(wanted, observers=[Quiet()])
    folder = RunFolder(tmp_path / "private")
    void = folder.environment()["privacy"]["void for"]
    assert "noise_seed" in void
    assert any(void in line for line in explain(wanted).description)
    assert void in build(folder).read_text("utf-8")
    assert void in str(show(folder).caption)
    with closing(Session(experiment())) as session:
        assert session.promise is not None
        assert "void for" not in session.promise.to_json()


@pytest.mark.parametrize(("noise_by", "said"), [("server", True), ("clients", False)])
def test_models_of_single_clients_in_checkpoints_are_said(noise_by: str, said: bool) -> None:
    """Of clients that add noise themselves, nobody has a model without it."""
    wanted = experiment(unit="client", noise_multiplier=1.0, noise_by=noise_by)
    with closing(Session(wanted.updated({"evaluation.evaluated": "local"}))) as session:
        assert any("checkpoints" in sentence for sentence in session.find_warnings()) == said


@pytest.mark.slow
def test_exports_of_private_runs_say_neither_how_many_are_in_a_group_nor_who(tmp_path: Path) -> None:
    """Nor does the sentence that asks which group."""
    ifca = {"name": "ifca", "init": "plain", "clusters": 2}
    wanted = experiment(ifca, 2, unit="client", noise_multiplier=1.0, clip_norm=0.01)
    wanted = wanted.updated({"run.folder": str(tmp_path), "run.name": "private"})
    last = run(wanted, observers=[Quiet()]).clients.filter(round=2)
    folder, groups = RunFolder(tmp_path / "private"), sorted(last["group"].unique())
    assert len(groups) == 2
    with pytest.raises(BadInput) as raised:
        trained_model(folder)
    assert re.findall(r"\d+", str(raised.value)) == ["2", "0", "1"]
    for group in groups:
        found, notes = trained_model(folder, group=group)
        assert notes == []
        export(found, tmp_path / "model.safetensors")
        told = read_model(tmp_path / "model.safetensors").about
        assert re.findall(r"\d+", told.whose) == [str(group), "2"]  # after round 2
        assert "client" not in told.to_json()
    export(found, tmp_path / "model.onnx")
    (known,) = onnx.load(tmp_path / "model.onnx").metadata_props
    assert known.value == told.to_json()


def test_a_client_of_a_run_with_noise_of_its_own_is_given_what_it_is_served(tmp_path: Path) -> None:
    wanted = experiment(rounds=1, unit="client", noise_multiplier=1.0, noise_by="clients")
    run(wanted.updated({"run.folder": str(tmp_path), "run.name": "private"}), observers=[Quiet()])
    folder = RunFolder(tmp_path / "private")
    assert torch.equal(trained_model(folder, client="3")[0].vector, trained_model(folder)[0].vector)


def test_default_delta_is_less_than_one_in_all_clients() -> None:
    promise = make_promise(experiment(), np.full(1000, 50))
    assert promise is not None
    assert promise.delta == pytest.approx(1000**-1.1)
    assert log(promise.delta) < log(1 / 1000)
