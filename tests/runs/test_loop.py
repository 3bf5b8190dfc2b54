"""Running from Python: what a run leaves behind, what its numbers mean, and that watching it changes nothing."""

from __future__ import annotations

import json
import platform
import re
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import coterie
from coterie.clients.rules import Answer, Client, Order, Rule, Train, Work, rule
from coterie.errors import BadInput
from coterie.grouping.aggregate import mean
from coterie.methods import METHODS, FedAvg
from coterie.methods.exchange import Exchange, Exchanges, Replies, Send
from coterie.methods.method import Cohort
from coterie.methods.one_model import GlobalState
from coterie.methods.split_halves import MIXED
from coterie.report import run_page
from coterie.runs.folder.metrics import CLASSIFICATION
from coterie.runs.folder.picture import Picture
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import ROUNDS as COLUMNS
from coterie.runs.hooks.screening import leave_out
from coterie.runs.loop import train
from coterie.runs.schema.experiment import Experiment
from coterie.runs.session import Session

BAD = 2


@rule("test-unreliable")
@dataclass(frozen=True)
class Unreliable(Rule):
    """Train; from round 2 on, client `BAD` raises."""

    uploads = ("model",)

    def run(self, client: Client, order: Order) -> Work:
        trained = yield Train(order.items["model"].values)
        if client.id == BAD and client.round >= 2:
            raise RuntimeError("out of memory")
        return Answer({"model": trained.model}, report={"train_loss": trained.loss})


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg with unreliable clients, or which fails itself in round `broken` while a file is not there."""

    broken: int = 0
    mended: str = ""

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        clients = cohort.clients
        replies: Replies = yield Exchange(clients, Unreliable(), {"model": Send.same(state.model[0], clients)})
        if cohort.round == self.broken and not Path(self.mended).exists():
            raise ZeroDivisionError("the method is wrong")
        return replace(state, model=mean(replies.models, state.model))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to run in, and the failing method among those there are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(METHODS, "entries", dict(METHODS.entries))
    METHODS.add("test-failing")(Failing)


def small(method: Any = "fesem", rounds: int = 4, **sections: Any) -> Experiment:
    return Experiment(
        method=method,
        network={"name": "mlp", "hidden": "8"},
        data={"name": "digits", "split": "rotated(2)", "clients": 8, "samples_per_client": 60}
        | sections.pop("data", {}),
        run={"rounds": rounds, "workers": 1, "participation": 0.5} | sections.pop("run", {}),
        **sections,
    )


class Diary(coterie.Observer):
    """Notes which of its methods was called with what, and interrupts the run after some rounds."""

    def __init__(self, *stops: int) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.stops = stops

    def started(self, experiment: Any, description_lines: Any) -> None:
        self.calls.append(("started", list(description_lines)))

    def round(self, round: coterie.Round) -> None:
        self.calls.append(("round", round))
        if round.number in self.stops:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.calls.append(("note", text))

    def finished(self, result: Any) -> None:
        self.calls.append(("finished", result))


def final_state(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the method's own state after the last round."""
    tensors = load_file(max((folder / "checkpoints").glob("*.safetensors")))
    return {name: tensor for name, tensor in tensors.items() if name.split(".")[0] in ("state", "kept", "has")}


def assert_same_state(one: Path, other: Path) -> None:
    first, second = final_state(one), final_state(other)
    assert first.keys() == second.keys()
    assert first
    assert all(torch.equal(first[name], second[name]) for name in first)


# ---- what a run leaves behind


@pytest.mark.medium
def test_a_run_and_its_folder() -> None:
    diary = Diary()
    experiment = small(run={"name": "first", "checkpoint_every": 3})
    result = coterie.run(experiment, observers=[diary])
    assert (result.status, result.folder) == ("finished", Path("runs/first"))
    files = {str(p.relative_to(result.folder)) for p in result.folder.rglob("*") if p.is_file()}
    assert files - {".lock"} == {
        *(f"{name}.parquet" for name in ("rounds", "clients", "ledger", "failures", "log", "federation")),
        *("checkpoints/000003.safetensors", "checkpoints/000004.safetensors"),
        *("experiment.toml", "environment.json", "status.json", "picture.npz", "groups.npz", "warnings.json"),
        "manifest.json",
    }
    for name, table in (("rounds", result.rounds), ("clients", result.clients), ("ledger", result.ledger)):
        assert pl.read_parquet(result.folder / f"{name}.parquet").equals(table)
    assert result.rounds.schema == COLUMNS
    folder = RunFolder(result.folder)
    again = Experiment.from_toml(folder.experiment_text() + "\n")
    assert again.run == experiment.run
    assert folder.status == "finished"
    environment = json.loads((result.folder / "environment.json").read_text("utf-8"))
    assert environment["seed"] == 0
    assert environment["python"] == platform.python_version()
    assert environment["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert environment["engine"] in ("batched", "sequential")
    picture = folder.picture()
    assert isinstance(picture, Picture)
    assert picture.round == 4
    assert picture.affinity.shape == (8, 8)
    # Observers hear everything, in order.
    names = [name for name, _ in diary.calls]
    assert names == ["started", "round", "round", "round", "round", "note", "finished"]
    assert [text for name, text in diary.calls if name == "note"] == folder.warnings()
    assert [event.number for name, event in diary.calls if name == "round"] == [1, 2, 3, 4]
    last = diary.calls[-3][1]
    assert last.up_bytes_total == result.ledger.filter(pl.col("direction") == "up")["bytes"].sum()
    assert last.down_bytes_total == result.ledger.filter(pl.col("direction") == "down")["bytes"].sum()
    assert sum(last.group_sizes) == (result.clients.filter(round=4)["group"] >= 0).sum()
    assert diary.calls[-1][1] is result
    assert result.summary["rounds"] == 4


def test_a_wrong_experiment_leaves_nothing() -> None:
    with pytest.raises(BadInput):
        coterie.run(small(method={"name": "fesem", "clusters": 99}))
    assert not Path("runs").exists()


@pytest.mark.medium
def test_the_loop_itself_writes_nothing_and_can_be_left() -> None:
    experiment = small("fedavg", 2)
    first = next(iter(coterie.rounds(experiment)))
    assert first.number == 1
    assert not Path("runs").exists()
    whole = [event.metrics["accuracy"] for event in coterie.rounds(experiment)]
    results = [coterie.run(experiment), coterie.run(experiment)]
    names = [result.folder.as_posix() for result in results]
    assert names == ["runs/fedavg-digits-rotated-2-s0", "runs/fedavg-digits-rotated-2-s0-2"]
    assert all(whole == result.rounds["accuracy"].to_list() for result in results)


# ---- what the numbers mean


@pytest.mark.medium
@pytest.mark.parametrize("method", ["fesem", "local-only"])
def test_the_rounds_follow_from_the_clients(method: str) -> None:
    # Everybody makes as many passes in a round; FeSEM's warm-up takes longer by default.
    chosen = {"name": "fesem", "warm_up": 0} if method == "fesem" else method
    experiment = small(chosen, run={"client_dropout": 0.2, "seconds_per_sample": 0.001, "link_mbit": 1.0})
    result = coterie.run(experiment)
    federation = Session(experiment).federation
    assert federation.true_groups is not None
    failures = RunFolder(result.folder).failures()
    for row in result.rounds.to_dicts():
        number = row["round"]
        clients = result.clients.filter(round=number)
        assert clients["client"].to_list() == list(range(8))
        assert clients["test_samples"].to_list() == federation.test_samples.tolist()
        accuracy, f1, loss = (clients[name].to_numpy() for name in ("accuracy", "f1", "loss"))
        weights = clients["test_samples"].to_numpy()
        assert row["accuracy"] == pytest.approx((accuracy * weights).sum() / weights.sum())
        assert row["f1"] == pytest.approx((f1 * weights).sum() / weights.sum())
        assert row["loss"] == pytest.approx((loss * weights).sum() / weights.sum())
        assert row["macro_accuracy"] == pytest.approx(accuracy.mean())
        assert row["macro_f1"] == pytest.approx(f1.mean())
        assert row["worst10"] == pytest.approx(accuracy.min())  # a tenth of eight, at least one
        assert row["std"] == pytest.approx(accuracy.std())
        groups = clients["group"].to_numpy()
        known = groups >= 0
        assert row["groups"] == len(np.unique(groups[known]))
        assert row["ari"] == pytest.approx(adjusted_rand_score(federation.true_groups[known], groups[known]))
        assert row["nmi"] == pytest.approx(
            normalized_mutual_info_score(federation.true_groups[known], groups[known])
        )
        took = clients.filter(pl.col("took_part"))
        assert row["participants"] == took.height
        losses = took["train_loss"].drop_nulls()
        assert row["train_loss"] == (pytest.approx(losses.mean()) if len(losses) else None)
        sent = result.ledger.filter(round=number)
        for way in ("up", "down"):
            assert row[f"{way}_bytes"] == sent.filter(direction=way)["bytes"].sum() == clients[f"{way}_bytes"].sum()
        assert (sent["bytes"] == 4 * sent["scalars"]).all()
        lost = failures.filter(round=number)["client"].to_list()
        assert row["failed"] == len(set(lost))
        assert not set(lost) & set(took["client"].to_list())
        moved = clients["up_bytes"].to_numpy() + clients["down_bytes"].to_numpy()
        compute = federation.samples * 0.001 * experiment.training.epochs * clients["took_part"].to_numpy()
        assert row["simulated_seconds"] == pytest.approx((compute + 8 * moved / 1e6).max())
    assert failures.height > 0
    if method == "local-only":
        assert result.ledger.height == 0


@pytest.mark.medium
def test_no_planted_groups_no_agreement() -> None:
    result = coterie.run(small("fedavg", 1, data={"split": "iid"}))
    assert result.rounds["ari"].to_list() == result.rounds["nmi"].to_list() == [None]


# ---- rounds without an evaluation


@pytest.mark.slow
def test_evaluating_less_often_changes_no_result() -> None:
    """A run that was interrupted before its first evaluation is shown, too."""
    often = coterie.run(small("ifca", 4, run={"name": "often"}))
    cut = coterie.run(small("ifca", 4, run={"name": "seldom"}, evaluation={"every": 3}), observers=[Diary(1)])
    assert (cut.status, cut.rounds.height, cut.summary["macro_accuracy"]) == ("interrupted", 1, None)
    assert "evaluated yet" in run_page.build(RunFolder(cut.folder)).read_text("utf-8")
    seldom = coterie.resume(cut.folder)
    assert_same_state(often.folder, seldom.folder)
    assert often.ledger.equals(seldom.ledger)
    evaluated = [False, False, True, True]
    for column in CLASSIFICATION.columns:
        assert seldom.rounds[column].is_not_null().to_list() == evaluated
        assert seldom.rounds[column].filter(evaluated).equals(often.rounds[column].filter(evaluated))
    assert seldom.clients.drop("group").equals(often.clients.filter(pl.col("round") >= 3).drop("group"))
    page = run_page.build(RunFolder(seldom.folder)).read_text("utf-8")
    text = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert "nan" not in re.findall(r"\w+", text.lower())


# ---- failures


@pytest.mark.medium
def test_a_client_that_fails_in_a_row_sits_out_and_is_drawn_as_before() -> None:
    run = {"participation": 1.0, "quarantine_after": 2}
    diary = Diary()
    result = coterie.run(small("test-failing", 7, run=run), observers=[diary])
    folder = RunFolder(result.folder)
    fault = "RuntimeError: out of memory"
    failures = folder.failures().with_columns(
        silent=pl.col("reason").str.starts_with("not evaluated"),
        until=pl.col("reason").str.extract(r"quarantine .*round (\d+)").cast(pl.Int32),
    )
    assert failures.filter(~pl.col("silent")).select("round", "client", "until").rows() == [
        *((2, BAD, None), (3, BAD, None), (4, BAD, 5), (5, BAD, 5), (6, BAD, None), (7, BAD, 10))
    ]
    assert failures.filter("silent").select("round", "until").rows() == [(4, 5), (5, 5), (7, 10)]
    assert failures["reason"].str.contains(fault).all()
    assert sorted(set(result.ledger.filter(client=BAD)["round"])) == [1, 2, 3, 6]
    people = folder.federation()
    assert people is not None
    name = people["name"][BAD]
    first, second = (text for what, text in diary.calls if what == "note" and fault in text)
    assert re.match(rf"round 3: {name}\D+ 2 rounds\D+ round 6: ", first)
    assert re.match(rf"round 6: {name}\D+ 3 rounds\D+ round 11: ", second)


@pytest.mark.medium
def test_a_resumed_run_knows_who_is_in_quarantine() -> None:
    failing, run = "test-failing", {"participation": 0.5, "quarantine_after": 1}
    whole = coterie.run(small(failing, 6, run=run | {"name": "whole"}))
    result = coterie.run(small(failing, 6, run=run | {"name": "stopped"}), observers=[Diary(4)])
    assert result.status == "interrupted"
    result = coterie.resume(result.folder)
    one, other = (RunFolder(each.folder).failures() for each in (whole, result))
    assert one.filter(pl.col("reason").str.contains("in quarantine"), pl.col("round") > 4).height > 0
    assert one.equals(other)
    assert_same_state(whole.folder, result.folder)


@pytest.mark.medium
def test_a_method_that_fails_leaves_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    settings = {"name": "test-failing", "broken": 3, "mended": str(tmp_path / "mended")}
    with pytest.raises(ZeroDivisionError, match="the method is wrong"):
        coterie.run(small(settings, run={"name": "broken", "checkpoint_every": 4}))
    folder = RunFolder("runs/broken")
    progress = folder.progress()
    assert progress is not None
    assert (folder.status, progress.state, progress.round) == ("interrupted", "interrupted", 2)
    (tmp_path / "mended").touch()
    whole = coterie.run(small(settings, run={"name": "whole"}))
    diary = Diary()
    resumed = coterie.resume("runs/broken", observers=[diary])
    assert_same_state(whole.folder, resumed.folder)
    assert resumed.rounds.drop("seconds").equals(whole.rounds.drop("seconds"))
    assert [name for name, _ in diary.calls] == ["started", "round", "round", "finished"]
    # Once more: nothing is left to do, and nothing is done.
    diary = Diary()
    again = coterie.resume(folder, observers=[diary])
    assert [name for name, _ in diary.calls] == ["note", "finished"]
    assert again.rounds.equals(resumed.rounds)
    assert (again.status, again.summary) == (resumed.status, resumed.summary)


def test_a_client_that_cannot_be_evaluated_is_named_and_weighs_nothing() -> None:
    """Its row says NaN; the means are those of the others."""
    with closing(Session(small("fedavg", 1, run={"participation": 1.0}))) as session:
        measure = session.runtime.measure

        def torn(exchange: Exchange, clients: NDArray[np.int64] | None = None) -> Replies:
            return leave_out(measure(exchange), {BAD: "OSError: the disk is gone"})

        session.runtime.measure = torn  # type: ignore[method-assign]  # a client that fails in evaluations alone
        (event,) = train(session)
    assert event.scores is not None
    assert np.isnan(event.scores[BAD])
    rest = np.delete(np.arange(8), BAD)
    weights = session.federation.test_samples[rest]
    assert event.metrics["accuracy"] == pytest.approx(np.average(event.scores[rest], weights=weights))
    assert event.metrics["macro_accuracy"] == pytest.approx(event.scores[rest].mean())
    assert event.failures == [(BAD, "not evaluated: OSError: the disk is gone")]
    assert event.metrics["participants"] == 8


@pytest.mark.medium
@pytest.mark.parametrize(("method", "clusters", "are_mixed"), [("fesem", 4, 0), ("fesem", 3, 1)])
def test_a_run_says_when_clients_of_one_group_differ(method: str, clusters: int, are_mixed: bool) -> None:
    """Where the number of groups was given; nothing of it is counted or changes what the run serves."""
    planted = {"name": "digits", "split": "permuted-labels(4)", "clients": 20}
    experiment = Experiment(
        data=planted, method={"name": method, "clusters": clusters}, run={"rounds": 6, "workers": 1}
    )
    diary = Diary()
    result = coterie.run(experiment, observers=[diary])
    notes = [text for name, text in diary.calls if name == "note"]
    assert notes == RunFolder(result.folder).warnings()
    assert sum(text.startswith(MIXED) for text in RunFolder(result.folder).warnings()) == are_mixed
    assert RunFolder(result.folder).ledger()["round"].max() == 6


@pytest.mark.medium
@pytest.mark.parametrize("workers", [1, 2])
def test_phases_after_the_last_round_say_how_far_they_are(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.runs.events.PROGRESS_SECONDS", 0.0)
    heard: list[str] = []

    class Listening(coterie.Observer):
        def phase(self, text: str) -> None:
            heard.append(text)

    coterie.run(
        coterie.Experiment(
            data={"name": "digits", "clients": 8, "samples_per_client": 40},
            method="fedavg",
            task={"metrics": ["f1"]},
            run={"rounds": 1, "folder": str(tmp_path), "holdout_clients": 0.25, "workers": workers},
        ),
        observers=[Listening()],
    )
    assert any("6 of 6" in text for text in heard)
    assert any("2 of 2" in text for text in heard)
