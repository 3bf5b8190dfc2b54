"""An experiment as TOML and as texts on a command line: out, in, and every mistake in one sentence."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import BadInput
from coterie.runs.schema.experiment import Experiment, assemble
from coterie.runs.schema.names import catalog, qualify
from coterie.runs.schema.registry import LATER, SECTIONS, field_names, section_settings
from coterie.runs.schema.sections import MethodChoice, Network
from coterie.runs.schema.toml import value_of


def problems(action: Any, *arguments: Any, **keys: Any) -> list[str]:
    with pytest.raises(BadInput) as caught:
        action(*arguments, **keys)
    return caught.value.problems


KEYS = st.one_of(
    st.sampled_from(["clusters", "mu", "self", "settings", "title", "model_extra", "_x", "a b", "a.b", "", "é"]),
    st.text(min_size=1, max_size=6),
).filter(lambda key: key != "name")
SCALARS = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=5
)
SHARES = st.floats(0, 1, exclude_min=True, exclude_max=True)


def choices(title: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda name, settings: {**settings, "name": name}, st.text(), st.dictionaries(KEYS, VALUES, max_size=4)
    )


def tables(optional: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=optional)


EXPERIMENTS = st.builds(
    Experiment,
    data=tables(
        {
            "name": st.text(),
            "split": st.text(),
            "clients": st.none() | st.integers(1),
            "validation": SHARES,
            "test": SHARES,
            "min_samples": st.integers(2),
            "samples_per_client": st.none() | st.integers(1),
            "public": st.integers(0),
        }
    ).map(lambda table: table or None),
    network=choices("network"),
    method=choices("method"),
    training=tables(
        {"epochs": st.integers(0, 10_000), "lr": st.floats(0, 1e300), "optimizer": st.sampled_from(["sgd", "adam"])}
    ),
    evaluation=tables({"every": st.integers(1)}),
    run=tables(
        {
            "rounds": st.integers(1, 10**6 - 1),
            "participation": SHARES,
            "seed": st.integers(0),
            "workers": st.none() | st.integers(1, 256),
            "engine": st.sampled_from(["auto", "sequential", "batched"]),
            "client_timeout": st.none() | st.floats(1e-300, 1e6),
            "quarantine_after": st.none() | st.just("never") | st.integers(1, 10**6 - 1),
            "folder": st.text(min_size=1),
            "name": st.none() | st.from_regex(r"[^\W_][\w.+=-]*", fullmatch=True),
        }
    ),
)


@pytest.mark.medium
@given(EXPERIMENTS)
def test_toml_round_trips(experiment: Experiment) -> None:
    text = experiment.to_toml()
    again = Experiment.from_toml(text)
    assert again == experiment
    assert repr(again) == repr(experiment)  # 1, 1.0 and True are equal, yet not the same setting
    assert again.to_toml() == text


@pytest.mark.medium
@given(EXPERIMENTS)
def test_no_change_changes_nothing(experiment: Experiment) -> None:
    assert experiment.updated({}) == experiment
    assert experiment.updated({"run.seed": 7}).updated({"run.seed": experiment.run.seed}) == experiment


def test_every_key_but_those_not_set_is_written() -> None:
    written = tomllib.loads(Experiment().to_toml())
    assert list(written) == [title for title in SECTIONS if title not in LATER]
    written |= {title: Experiment().tables()[title] for title in LATER}
    for title in SECTIONS:
        settings = section_settings(title)
        assert list(written[title]) == [s.name for s in settings if s.default is not None and not s.required]
        assert [s.name for s in settings] == field_names(title)
        assert all(s.help for s in settings)


def test_a_key_that_may_be_unset_is_so_by_default() -> None:
    # TOML has no word for None: a key left out must mean None wherever None is possible.
    fields = {title: section.model_fields for title, section in SECTIONS.items()}
    unset = {t: [n for n, f in some.items() if type(None) in get_args(f.annotation)] for t, some in fields.items()}
    assert unset == {title: [s.name for s in section_settings(title) if s.default is None] for title in SECTIONS}
    assert len(unset["data"]) > 10
    assert Experiment(**{title: dict.fromkeys(keys) for title, keys in unset.items() if keys}) == Experiment()


def test_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    experiment = Experiment(method={"name": "ifca", "clusters": 3}, data={"name": "é"})
    path.write_text(experiment.to_toml(), encoding="utf-8")
    assert Experiment.from_toml(path) == Experiment.from_toml(str(path)) == experiment
    assert Experiment.from_toml("") == Experiment()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[run]\nrounds 20\n", 2),
        ("[run]\nrounds =\n", 2),
        ("[run]\nname = 'x\n", 2),
        ("[run]\nrounds = 1\nrounds = 2\n", 3),
        ("[run", 1),
    ],
)
def test_a_syntax_error_is_found_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    (sentence,) = problems(Experiment.from_toml, path)
    assert sentence.startswith(f"{path}, line {line}: ")
    assert "\n" not in sentence
    assert f" line {line}: " in problems(Experiment.from_toml, text)[0]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing, folder, latin = tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "c.toml"
    folder.mkdir()
    latin.write_bytes("[data]\nname = 'é'\n".encode("latin-1"))
    assert "coterie new" in problems(Experiment.from_toml, missing)[0]
    assert " file" in problems(Experiment.from_toml, folder)[0]
    assert "UTF-8" in problems(Experiment.from_toml, latin)[0]


def test_what_a_file_holds_is_checked_like_anything_else() -> None:
    text = "rounds = 3\n[run]\nrounds = 0\nname = 1979-05-27\n[method]\nname = 'fesm'\nstart = 10:00:00\n"
    found = problems(Experiment.from_toml, text)
    assert [s.split(" ")[0] for s in found] == ["method.start", "run.rounds", "run.name", "rounds", "method"]


@pytest.mark.parametrize("method", ["fedavg", "local-only", "ifca", "fesem"])
def test_the_commented_file_has_every_key_with_its_meaning(method: str) -> None:
    experiment = Experiment(method=method)
    text = experiment.commented_toml()
    assert Experiment.from_toml(text) == experiment.resolved().updated({"data.split": "auto"})
    own = [s.name for s in catalog("method")[method].settings]
    kept = [s.name for s in catalog("method")[method].settings if s.default is not None]
    assert list(Experiment.from_toml(text).method.settings) == kept
    lines = text.splitlines()
    for title in SECTIONS:
        for name in field_names(title) + (own if title == "method" else []):
            at = [i for i, line in enumerate(lines) if line.removeprefix("# ").startswith(f"{name} =")]
            assert at, name
            assert all(lines[i - 1].startswith("# ") for i in at), name
    assert max(map(len, lines)) <= 102


def test_the_commented_file_keeps_what_was_changed() -> None:
    experiment = Experiment(method={"name": "fesem", "clusters": 7}, run={"name": "x", "rounds": 3}, network="mlp")
    text = experiment.commented_toml()
    assert Experiment.from_toml(text) == experiment.resolved().updated({"data.split": "auto"})
    assert "(default 20)\nrounds = 3\n" in text


def test_resolved_writes_the_defaults_of_the_method_out() -> None:
    full = Experiment(method={"name": "fesem", "mu": 0}).resolved()
    entry = catalog("method")["fesem"]
    assert full.method.settings == {s.name: s.default for s in entry.settings} | {"mu": 0.0}
    assert full.resolved() == full
    assert full.network == Network(name="auto")
    both = problems(Experiment(method="fesm", network="mpl").resolved)
    assert [re.findall("fesem|mlp", sentence) for sentence in both] == [["fesem"], ["mlp"]]


# ---- key=value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3.0", 3.0),
        ("1e-3", 0.001),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("'3'", "3"),
        ("mnist", "mnist"),
        ("dirichlet(0.5) + rotated(4)", "dirichlet(0.5) + rotated(4)"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_a_value_is_toml_or_else_text(text: str, value: Any) -> None:
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


def test_bare_keys_find_their_section() -> None:
    experiment = assemble(
        {"method": "fesem"},
        {},
        ["mu=0.5", "lr = 0.2", "clients=5", "every=2", "rounds=3", "split=iid + rotated(2)"],
    )
    assert experiment.method == MethodChoice(name="fesem", mu=0.5)
    assert (experiment.training.lr, experiment.data.clients, experiment.evaluation.every) == (0.2, 5, 2)
    assert (experiment.run.rounds, experiment.data.split) == (3, "iid + rotated(2)")


def test_a_bare_key_is_that_of_privacy_where_no_other_section_has_it() -> None:
    experiment = assemble({"method": "fedavg"}, {}, ["unit=client", "epsilon=4.0", "clip_norm=2.0"])
    assert (experiment.privacy.epsilon, experiment.aggregation.clip_norm) == (4.0, 2.0)
    assert assemble({"method": "per-fedavg"}, {}, ["order=hf", "delta=0.1"]).method.settings["delta"] == 0.1


def test_dotted_keys_decide_what_bare_ones_mean() -> None:
    experiment = assemble({"method": "fedavg"}, {}, ["hidden=[8]", "network.name=mlp"])
    assert experiment.network == Network(name="mlp", hidden=(8,))
    assert assemble({}, {}, ["method.name=ifca", "init=plain"]).method.settings == {"init": "plain"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name=x", r"name .*method\.name, network\.name, task\.name, data\.name or run\.name"),
        ("clustrs=3", r"clustrs .*fesem .*clusters\?"),
        ("nam=3", r"nam .*method\.name or network\.name or task\.name or data\.name or run\.name\?"),
        ("rounds", "'rounds' .*--set KEY=VALUE"),
        ("=3", "'=3' .*--set KEY=VALUE"),
        ("rounds=many", r"run\.rounds = 'many' .*integer"),
        ("run.rounds=0", r"run\.rounds = 0 .* 1"),
        ("data=x",
         rf"data\.name=x, .*data\.KEY .*{', '.join(field_names('data'))}"),
        ("task=regression",
         r"task\.name=regression, .*task\.KEY .*name, metrics"),
        ("run=x", rf"run\.KEY .*{', '.join(field_names('run'))}"),
    ],
)  # fmt: skip
def test_each_wrong_text_gets_one_sentence(text: str, says: str) -> None:
    (sentence,) = problems(assemble, {"method": "fesem"}, {}, [text])
    assert re.search(says, sentence)


def test_an_empty_section_of_a_file_has_its_defaults() -> None:
    assert Experiment.from_toml("[data]\n[run]\n") == assemble({"data": {}}, {}, []) == Experiment()


def test_a_key_that_nothing_resembles_gets_the_keys_of_the_method() -> None:
    (sentence,) = problems(qualify, "qqqqqq", "ifca", "auto")
    assert re.search("^qqqqqq .*; ifca .* name, clusters, ", sentence)


def test_a_setting_of_an_unknown_method_is_not_the_problem() -> None:
    experiment = assemble({"method": "fesm"}, {}, ["clusters=3"])
    (sentence,) = problems(experiment.check)
    assert re.search(r"'fesm' .*fesem\?", sentence)


def test_all_that_is_wrong_with_tables_changes_and_texts_is_said_at_once() -> None:
    tables = {"method": {"name": "ifca", "foo": 3}, "training": {"lr": -1}, "network": "bar"}
    found = problems(assemble, tables, {"run.rounds": 0, "data.name": "digts"}, ["odd=3", "clusters", "clients=0"])
    said = (
        "'clusters'",
        "odd .*ifca",
        "data.clients = 0 ",
        "training.lr = -1 ",
        "run.rounds = 0 ",
        "method.foo .*ifca",
    )
    for sentence, says in zip(found, (*said, "network 'bar'", "data 'digts'"), strict=True):
        assert re.search(says, sentence)


def test_a_text_goes_before_a_change_and_that_before_a_table() -> None:
    experiment = assemble({"run": {"rounds": 0, "seed": 1}}, {"run.rounds": 3, "run.seed": 2}, ["rounds=5"])
    assert (experiment.run.rounds, experiment.run.seed) == (5, 2)
