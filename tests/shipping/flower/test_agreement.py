"""Real clients with tables agree on columns, on the values of text and on scales before the first round."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr", reason="coterie[flower] is not installed")

from coterie.clients.data.agree.agreement import Agreement, propose_columns
from coterie.clients.data.agree.own import load_own, public_inputs
from coterie.clients.data.agree.population import ClientInfo
from coterie.clients.data.read.columns import Named
from coterie.clients.data.read.preparation import Column, Missing
from coterie.clients.tasks.numbers import Multilabel
from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from coterie.runs.schema.names import build_task
from coterie.runtime.ledger import SUMS
from coterie.runtime.remote.handshake import pack_hello, unpack_hello
from coterie.runtime.remote.message import Message
from coterie.shipping.flower.client import FlowerClient, Node, find_client
from coterie.shipping.model.served import trained_model
from coterie.shipping.model.trained import MODEL, read_model
from coterie.shipping.registration import Registration
from tests.commandline import Terminal
from tests.shipping.flower.rehearsal import Faulty, Place, greet, same

NAMES = ["east", "north", "south"]
EACH = 30
HELD_OUT: dict[str, Any] = {"validation": 0.1, "test": 0.2, "min_samples": 1, "seed": 0}


def tables(text: bool = False) -> dict[str, pl.DataFrame]:
    """What three clinics measured: columns by name, which samples are for what, and wards if `text`."""
    found = {}
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng(number)
        sick = np.arange(EACH) % 2
        columns: dict[str, Any] = {
            "age": rng.normal(50 + number, 10, EACH),
            "marker": 40 * sick + rng.normal(0, 9, EACH),
        }
        if text:
            columns["ward"] = [["icu", "day"][k % 2] for k in range(EACH)]
        split = np.repeat(["train", "validation", "test"], [20, 4, 6])
        found[name] = pl.DataFrame({**columns, "split": split, "label": np.where(sick, "ill", "well")})
    return found


def clinics(folder: Path, held: dict[str, pl.DataFrame], **more: Any) -> Place:
    """A place with a node for each table; `more` is what every node is told."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = []
    for name, table in held.items():
        table.write_csv(folder / f"{name}.csv")
        nodes.append({"client": name, "data": str(folder / f"{name}.csv"), "state-dir": str(folder / name), **more})
    return Place(folder, nodes)


def experiment(width: int = 2, method: str = "fedavg", **data: Any) -> Experiment:
    return Experiment(
        method=method,
        data={"name": "remote", "clients": 3, "features": [width], "classes": ["ill", "well"], **data},
        network={"name": "mlp", "hidden": [8]},
        training={"epochs": 2, "lr": 0.01},
        evaluation={"every": 2},
        run={"rounds": 2},
    )


def turned(held: dict[str, pl.DataFrame], who: str, order: Sequence[str]) -> dict[str, pl.DataFrame]:
    """The same tables, one with its columns in another order."""
    return {name: table.select(order) if name == who else table for name, table in held.items()}


def test_a_process_keeps_the_newest_of_a_client_alone(tmp_path: Path) -> None:
    asked, before = experiment().to_toml(), []

    def find(agreed: Agreement | None, name: str = "east") -> FlowerClient:
        text = None if agreed is None else agreed.to_json()
        node = {"client": name, "data": "east.csv", "state-dir": str(tmp_path / name)}
        return find_client(asked, text, Node.read(node, {}))

    other = find(None, "north")
    for agreed in (None, Agreement(), Agreement((), (0.0,), (1.0,))):
        client = find(agreed)
        assert find(agreed) is client
        before.append(weakref.ref(client))
        del client
    assert [client() is None for client in before] == [True, True, False]
    assert find(None, "north") is other


@pytest.mark.medium
def test_a_new_app_takes_what_clients_must_agree_on_from_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An experiment on one table of everybody's; then each client holds its part of it, and nothing was written."""
    monkeypatch.chdir(tmp_path)
    held = tables(text=True)
    whole = pl.concat([table.with_columns(clinic=pl.lit(name)) for name, table in held.items()])
    whole.rename({"label": "outcome"}).write_csv("everybody.csv")
    mine = Experiment(
        method="fedavg",
        data={"name": "everybody.csv", "label": "outcome", "client": "clinic", "standardise": "client"},
        network={"name": "mlp", "hidden": [8]},
        run={"rounds": 2},
    )
    Path("mine.toml").write_text(mine.to_toml(), "utf-8")
    assert Terminal(capsys)("flower", "new", "app", "--experiment", "mine.toml").code == 0
    found = Experiment.from_toml(Path("app/experiment.toml"))
    assert (found.data.clients, found.data.features, found.data.classes) == (3, (4,), ("ill", "well"))
    assert (found.data.columns, found.data.levels) == (("age", "marker", "ward"), {"ward": ("day", "icu")})
    apart = {
        name: table.rename({"label": "outcome"})
        for name, table in turned(held, "north", whole.columns[:-1]).items()
    }
    ran = RunFolder(clinics(tmp_path / "clinics", apart).run(found))
    assert ran.rounds().height == 2
    assert ran.federation() is not None


def test_a_new_app_learns_numbers_on_the_scale_that_the_table_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients who hold their own targets cannot know a common mean; without one, numbers in thousands diverge."""
    monkeypatch.chdir(tmp_path)
    x = pl.Series("x", [float(n % 7) for n in range(60)])
    prices = 200_000 + 1_000 * x + pl.Series([float(n % 29) for n in range(60)])
    table = pl.DataFrame({"x": x, "label": prices, "client": [f"shop {n % 3}" for n in range(60)]})
    table.write_csv("prices.csv")
    Path("mine.toml").write_text(Experiment(method="fedavg", data="prices.csv").to_toml(), "utf-8")
    assert Terminal(capsys)("flower", "new", "app", "--experiment", "mine.toml").code == 0
    task: Any = build_task(Experiment.from_toml(Path("app/experiment.toml")).task)
    (mean,), (deviation,) = task.target_scale
    assert mean == pytest.approx(table["label"].mean(), rel=0.01)
    assert deviation == pytest.approx(table["label"].std(), rel=0.3)


@pytest.mark.slow
def test_columns_are_matched_by_name(tmp_path: Path) -> None:
    held = tables()
    straight = clinics(tmp_path / "straight", held).run(experiment())
    crooked = clinics(tmp_path / "crooked", turned(held, "north", ["label", "marker", "split", "age"]))
    assert same(straight, crooked.run(experiment()))
    preparation = read_model(tmp_path / "crooked" / "north" / MODEL).about.preparation
    assert preparation is not None
    assert preparation.input_names == ("age", "marker")


@pytest.mark.medium
def test_the_experiment_says_the_order(tmp_path: Path) -> None:
    run = clinics(tmp_path, tables()).run(experiment(columns=["marker", "age"]))
    agreement = Registration.read(run).agreement
    assert agreement is not None
    assert [column.name for column in agreement.columns] == ["marker", "age"]
    model, _ = trained_model(RunFolder(run))
    assert model.about.preparation is not None
    assert model.about.preparation.input_names == ("marker", "age")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop("age"), r"north \(node 1001\).*no column age"),
        (lambda t: t.rename({"marker": "crp"}), "no column marker; .*column crp.* age, marker"),
        (lambda t: t.with_columns(dose=pl.col("age")), "column dose.* age, marker"),
    ],
)
def test_a_client_with_other_columns_is_turned_away(
    change: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = tables()
    held["north"] = change(held["north"])
    with pytest.raises(RuntimeError, match=said):
        clinics(tmp_path, held).run(experiment())
    assert "coterie: north " in capsys.readouterr().err


@pytest.mark.slow
def test_features_without_names_cannot_be_matched(tmp_path: Path) -> None:
    place = clinics(tmp_path, tables())
    x = np.zeros((EACH, 2), np.float32)
    np.savez(tmp_path / "south.npz", features=x, label=np.array(["ill", "well"] * (EACH // 2)))
    place.nodes[2]["data"] = str(tmp_path / "south.npz")  # type: ignore[index]
    with pytest.raises(RuntimeError, match=r"no names.*age, marker"):
        place.run(experiment())


@pytest.mark.medium
def test_values_of_text_are_told_only_where_they_may_be(tmp_path: Path) -> None:
    held, told = tables(text=True), []

    def back(grid: Faulty, node: int, count: int, message: Message) -> None:
        told.append(json.dumps(dict(message.values)))

    with pytest.raises(RuntimeError, match=r"'ward' .*east.*text"):
        clinics(tmp_path / "silent", held).run(experiment(4), back=back)
    assert not any("icu" in text for text in told)
    run = clinics(tmp_path / "open", held, **{"tell-levels": True}).run(experiment(4))
    named = clinics(tmp_path / "named", held).run(experiment(4, levels={"ward": ["day", "icu"]}), back=back)
    assert same(run, named)
    assert not any("icu" in text for text in told)


@pytest.mark.slow
def test_a_value_that_nobody_knows_is_named_in_the_clients_log_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = tables(text=True)
    # Twelve of them are not for testing, where a value that training had not is no mistake.
    held["south"] = held["south"].with_columns(ward=pl.col("ward").replace("day", "morgue"))
    with pytest.raises(RuntimeError) as caught:
        clinics(tmp_path, held).run(experiment(4, levels={"ward": ["day", "icu"]}))
    told, log = str(caught.value), capsys.readouterr().err
    assert all(word in told for word in ("column ward", "data.levels"))
    assert not any(word in told for word in ("morgue", "12"))
    assert all(word in log for word in ("south.csv", "column ward", "'morgue'", "12 rows", "day, icu"))


def ask(data: Path, asked: Experiment, agreed: Agreement | None = None) -> str:
    """What a client with that file, or folder of files, answers to a hello, as the server reads it."""
    node = {"client": "a", "data": str(data), "state-dir": str(data.with_name("state"))}
    said = greet(asked, node) if agreed is None else greet(asked, node, agreed=agreed.to_json())
    return json.dumps(dict(said.values), ensure_ascii=False)


@pytest.mark.parametrize(
    ("table", "task", "said"),
    [
        ({"label": [0.0, 37.25] * 4}, {}, "label in row 1 .*integers or strings"),
        ({"split": ["train", "P37.25"] * 4}, {}, "split in row 1 .*train"),
        ({"a": [1.0, float("inf")] * 4, "patient": ["P37.25"] * 8}, {}, "column a .*row 1"),
        ({"a": [1.0, None] * 4}, {}, "column a .*row 1; 4 of 8 rows"),
        ({"label": [0.0, float("inf")] * 4}, {"name": "regression"}, "label in row 1 .*target"),
        ({"b": ["37.25"] * 8}, {}, r"column b .*data\.levels"),
        ({"b": [3.0] * 8}, {}, r"column b.* a\b"),
    ],
)
def test_a_refusal_tells_no_value_and_no_path(
    table: dict[str, Any], task: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = pl.DataFrame({"a": [1.0, 2.0] * 4, "label": ["ill", "well"] * 4, **table})
    held.write_parquet(tmp_path / "O'Brien.parquet")
    levels = "37.25" in str(table.get("b"))
    data: dict[str, Any] = {"levels": {"b": ["x"]}, "columns": ["a", "b"]} if levels else {}
    data |= {"client": "patient"} if "patient" in table else {}
    asked = experiment(2 if levels else 1, **data)
    asked = asked.updated({"task": task, "data.classes": 1}) if task else asked
    agreed = Agreement((Column("a"), Column("b", ("x",))) if levels else (Column("a"),))
    answer = ask(tmp_path / "O'Brien.parquet", asked, agreed)
    assert re.search(said, answer)
    assert "37.25" not in answer
    assert "Brien" not in answer
    assert "O'Brien.parquet" in capsys.readouterr().err


def test_a_refusal_of_several_labels_tells_none() -> None:
    with pytest.raises(BadInput, match="label 1 in row 0 is 37") as caught:
        Multilabel().read_targets(np.array([[1, 37]]), "a.npz", [])
    assert re.fullmatch("label 1 in row 0 (?!.*37).*-1.*", "\n".join(caught.value.told))


def test_a_refusal_tells_no_path_of_a_file_in_a_folder(tmp_path: Path) -> None:
    for number in range(2):
        pl.DataFrame({f"a{number}": [1.0], "label": ["ill"]}).write_csv(tmp_path / f"O'Brien {number}.csv")
    answer = ask(tmp_path, experiment(1))
    assert "no column a0" in answer
    assert not any("Brien" in said for said in (answer, ask(tmp_path / "O'Brien.csv", experiment(1))))


def test_a_refusal_tells_no_path_of_the_folder_for_states(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1.0, 2.0] * 10, "label": ["ill", "well"] * 10}).write_csv(tmp_path / "a.csv")
    (tmp_path / "state").write_text("no folder")
    answer = ask(tmp_path / "a.csv", experiment(1), Agreement((Column("a"),)))
    assert ("state-dir" in answer, str(tmp_path) in answer) == (True, False)


def test_columns_that_become_too_many_inputs_are_refused_before_any_is_made(tmp_path: Path) -> None:
    held = tables(text=True)
    place = clinics(tmp_path, held, **{"tell-levels": True})
    with pytest.raises(RuntimeError, match=r"data\.features = \[2\].*\[4\], .*: ward \(2\), age"):
        place.run(experiment())
    wide = Agreement((Column("age"), Column("marker"), Column("ward", ("day", "icu", *map(str, range(998))))))
    with pytest.raises(BadInput, match=r"\[1002\], .*: ward \(1,000\)"):
        load_own("a", tmp_path / "east.csv", (4,), ["ill", "well"], **HELD_OUT, agreed=wide)


def test_clients_cannot_tell_more_values_than_a_message_may_name() -> None:
    clients = [
        ClientInfo(name, (1, 0, 1), (1,), 2, "", columns=(Column("a", tuple(f"{name}{k}" for k in range(6000))),))
        for name in ("x", "y")
    ]
    with pytest.raises(BadInput, match=r"'a' .*12,000 "):
        propose_columns(clients)


@pytest.mark.parametrize(
    ("missing", "expected"), [("drop", [1.0, 5.0]), ("mean", [1.0, 3.0, 5.0]), ("zero", [1.0, 0.0, 5.0])]
)
def test_public_samples_are_read_like_those_of_clients(
    missing: Missing, expected: list[float], tmp_path: Path
) -> None:
    table = pl.DataFrame({"a": [1.0, None, 5.0], "label": [7, 8, 9], "price": [100.0, 200.0, 300.0]})
    table.write_csv(tmp_path / "public.csv")
    agreed, named = Agreement((Column("a"), Column("label"))), Named(label="price")
    found = public_inputs(tmp_path / "public.csv", (2,), 9, 0, agreed, missing=missing, named=named)
    assert found[:, 0].tolist() == expected
    assert found[0, 1] == 7


@pytest.mark.medium
def test_standardised_alike_a_federation_gives_the_bits_of_a_simulation(tmp_path: Path) -> None:
    held, width = tables(text=True), 4
    place = clinics(tmp_path, held)
    asked = experiment(width, standardise="global", levels={"ward": ["day", "icu"]})
    real = place.run(asked)
    folder = tmp_path / "simulation"
    clinics(folder, held)
    simulated = asked.updated({"data": {"name": str(folder), "standardise": "global"}})
    assert same(real, place.simulate(simulated))
    sums = RunFolder(real).ledger().filter(pl.col("what") == SUMS)
    assert sums.group_by("direction").agg(pl.col("bytes").unique()).sort("direction").rows() == [
        ("down", [16 * width]),
        ("up", [24 * width]),
    ]
    assert sums["client"].n_unique() == 3


@pytest.mark.slow
def test_a_resumed_run_keeps_to_what_was_agreed_on(tmp_path: Path) -> None:
    asked = experiment(standardise="global")
    whole = clinics(tmp_path / "whole", tables()).run(asked)

    def back(grid: Faulty, node: int, count: int, message: Message) -> None:
        if message.body and count > 4:
            raise KeyboardInterrupt

    place = clinics(tmp_path / "parts", tables())
    stopped = place.run(asked, back=back)
    assert RunFolder(stopped).rounds().height == 1
    assert same(whole, place.run(asked, resume="real"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"columns": "[[1, null]]"}, r"columns\.0\.0 = 1 .*string"),
        ({"columns": json.dumps([["a", None], ["a", None]])}, "column.*once"),
        ({"columns": json.dumps([["a", ["x"] * 20_000]])}, "columns.* 10000 items"),
        ({"sums": "[[1, 2], [1, 2]]"}, "sums.*three rows"),
        ({"sums": "[[20], [1], [1]]"}, "sums.*2 numbers"),
        ({"sums": "[[20, 20], [1, NaN], [1, 1]]"}, "sums"),
        ({"sums": "[[20, 20], [100, 1], [1, 1]]"}, "sums"),
        ({"sums": "[[2.5, 20], [1, 1], [1, 1]]"}, "sums"),
        ({"sums": "[[1e300, 20], [0, 1], [0, 1]]"}, "sums"),
        ({"sums": "[[20, 20], [0, 1], [1e300, 1]]"}, "sums"),
        ({"sums": f"[[20, 20], [1, {10**400}], [1, 1]]"}, "sums"),
    ],
)
def test_a_hello_is_not_trusted(change: dict[str, str], said: str) -> None:
    sums = ((20.0, 20.0), (0.0, 1.0), (1.0, 1.0))
    told = pack_hello(ClientInfo("north", (20, 4, 6), (2,), 2, "", columns=(Column("age"),), sums=sums))
    assert unpack_hello(told).sums == sums
    with pytest.raises(BadInput, match=said):
        unpack_hello(Message({**told.values, **change}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "not possible"),
        ("[" * 100_000, "not possible"),
        (f'{{"columns": [], "mean": [{10**400}], "deviation": [1.0]}}', r"mean\.0 = .*finite"),
        ('{"columns": [], "mean": [1.0], "deviation": []}', "each deviation"),
        ('{"columns": [], "mean": [1.0], "deviation": [0.0]}', r"deviation\.0 = 0\.0"),
    ],
)
def test_an_agreement_is_not_trusted(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Agreement.from_json(text)


def test_sums_of_which_no_scale_comes_are_refused() -> None:
    one = ClientInfo("a", (2, 0, 1), (1,), 2, "", sums=((2.0,), (0.0,), (1.5e308,)))
    with pytest.raises(BadInput, match="finite"):
        Agreement().scaled([one, one])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"columns": ["age", "age"]}, r"data\.columns.*once"),
        ({"columns": ["age", "marker"], "levels": {"ward": ["a"]}}, r"data\.levels .*'ward'"),
        ({"levels": {"ward": ["a", "a"]}}, r"data\.levels.*once"),
        ({"label": "ill", "client": "ill"}, r"data\.label and data\.client .*'ill'"),
        ({"columns": ["age", "ward"], "levels": {"ward": ["a", "b"]}}, r"\[3\]"),
    ],
)
def test_columns_that_cannot_be_are_refused_before_anybody_is_asked(data: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        experiment(**data).check()
