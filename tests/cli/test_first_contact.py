"""What a newcomer meets: other libraries' words, help as it is written, tables as wide as asked."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from coterie.errors import SYNONYMS
from tests.commandline import Terminal


@pytest.mark.parametrize(
    ("word", "meant"),
    [("learning_rate", "training.lr"), ("num_rounds", "run.rounds"), ("n_clients", "data.clients")],
)
def test_a_word_of_another_library_leads_to_the_setting(terminal: Terminal, word: str, meant: str) -> None:
    assert word in SYNONYMS
    for words in (("run", "fedavg"), ("compare", "fedavg", "ifca")):
        ended = terminal(*words, "--set", f"{word}=1")
        assert (ended.code, ended.out) == (2, "")
        assert meant in ended.err
    ended = terminal("run", "fedavg", "--set", f"{meant.partition('.')[0]}.{word}=1")
    assert meant.partition(".")[2] in ended.err.rpartition(word)[2]


def test_help_names_the_extra_that_is_needed(terminal: Terminal) -> None:
    assert "coterie[tune]" in "".join(terminal("compare", "--help").out.replace("│", "").split())


@pytest.mark.parametrize("columns", [60, 100])
def test_a_table_that_is_no_terminals_is_as_wide_as_columns_says(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    terminal("run", "fedavg", "--rounds", "2", "--clients", "4", "--name", "first", "--baselines", "none")
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, terminal("show", "first").out.splitlines())) <= columns


def test_what_is_missing_at_several_clients_is_one_note(terminal: Terminal) -> None:
    rows = [f"h{row % 4},{row % 7 if row % 5 else ''},{row % 3},{row % 2}" for row in range(80)]
    Path("wards.csv").write_text("\n".join(["client,age,x,label", *rows]), "utf-8")
    words = ("--set", "missing=mean", "--rounds", "1", "--name", "wards", "--baselines", "none", "-q")
    assert terminal("run", "fedavg", "--data", "wards.csv", *words).code == 0
    said = terminal("predict", "wards", "--data", "wards.csv").out
    assert next(line for line in said.splitlines() if " missing " in line).startswith("note: 16 ")
    assert said.count(" missing ") == 1


def test_of_many_columns_the_nearest_are_named_first(terminal: Terminal) -> None:
    names = [f"lab_{number}" for number in range(30)] + ["discharged", "ward"]
    Path("wide.csv").write_text("\n".join([",".join(names), *[",".join(["1"] * len(names))] * 3]), "utf-8")
    for key, wrong, meant, named in (
        ("label", "dischargd", "discharged", "data.client=ward"),
        ("client", "Wards", "ward", "data.label=discharged"),
    ):
        ended = terminal("run", "fedavg", "--data", "wide.csv", "--set", f"data.{key}={wrong}", "--set", named)
        assert ended.code == 2
        assert ended.err.split("one of ")[1].startswith(meant)


@pytest.mark.slow
def test_who_the_clients_are_is_asked_until_it_is_answered(terminal: Terminal) -> None:
    Path("hospitals").mkdir()
    for name in ("north", "south"):
        rows = [f"{row % 7},{'abc'[row % 3]},{row % 2}" for row in range(60)]
        Path(f"hospitals/{name}.csv").write_text("\n".join(["age,ward,label", *rows]), "utf-8")
    words = ("run", "fedavg", "--data", "hospitals", "--rounds", "1", "--baselines", "none")
    for answer, asks in (((), True), (("--split", "by-user"), False), (("--set", "client=ward"), False)):
        ended = terminal(*words, *answer)
        assert ended.code == 0, ended.err
        assert ("client=ward" in ended.out) == asks
    assert "client=ward" in terminal("auto", "hospitals/north.csv").err


def write_hospitals(names: Iterable[str], lacks: str = "") -> None:
    Path("hospitals").mkdir()
    for name in names:
        rows = [f"{'' if name == lacks and row == 5 else row % 7},{row % 2}" for row in range(60)]
        Path(f"hospitals/{name}.csv").write_text("\n".join(["age,label", *rows]), "utf-8")


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--clients", "0"], ["--set", "task.name=nothing"]])
def test_missing_values_are_told_with_other_mistakes(terminal: Terminal, words: list[str]) -> None:
    write_hospitals(["north", "south"], lacks="south")
    ended = terminal("run", "fedavg", "--data", "hospitals", *words)
    assert ended.code == 2
    first, second = ended.err.splitlines()
    assert not re.search(r"\bage\b", first)
    assert re.search(r"\bage\b", second)
    assert "data.missing" in second
    filled = terminal("run", "fedavg", "--data", "hospitals", *words, "--set", "missing=mean").err
    assert not re.search(r"\bage\b", filled)


def test_text_among_the_numbers_of_several_columns_is_told_at_once(terminal: Terminal) -> None:
    rows = [f"{site},{i},{i / 2},{'yes' if i % 3 else 'no'}" for site in "ab" for i in range(20)]
    rows[3:5] = ["a,forty,1,yes", "a,1,high,no"]
    Path("table.csv").write_text("\n".join(["site,age,dose,outcome", *rows]))
    words = ["--set", "client=site", "--set", "label=outcome"]
    code, _, err = terminal("run", "fedavg", "--data", "table.csv", *words)
    assert code == 2
    assert [re.findall("age|dose|forty|high", line) for line in err.splitlines()] == [
        ["age", "forty"],
        ["dose", "high"],
    ]


@pytest.mark.parametrize("name", ["notes.csv", "notes.txt", "north.xlsx", ".DS_Store", "._north.csv"])
def test_a_stray_file_in_a_folder_is_named_and_blamed_on_no_setting(terminal: Terminal, name: str) -> None:
    write_hospitals(["north", "south", "west"])
    Path("hospitals", name).write_text("These are notes.\n", "utf-8")
    ended = terminal("run", "fedavg", "--data", "hospitals", "--rounds", "1", "--baselines", "none")
    assert ended.code == (2 if name == "notes.csv" else 0)
    assert (name in ended.out + ended.err) == (not name.startswith("."))
    assert "data.label" not in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("baselines", ["cheap", "none"])
@pytest.mark.parametrize(("rate", "has_learnt"), [("0.1", True), ("0", False)])
def test_a_run_that_is_no_better_than_a_constant_answer_says_what_to_try(
    terminal: Terminal, rate: str, has_learnt: bool, baselines: str
) -> None:
    words = ("--rounds", "6", "--clients", "4", "--baselines", baselines)
    ended = terminal("run", "fedavg", *words, "--set", f"training.lr={rate}")
    assert ended.code == 0
    assert ended.out.count("data.standardise") == (not has_learnt)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "is_behind"), [("local-only", True), ("fedavg", False)])
def test_a_run_that_a_baseline_clearly_beats_says_which_one(
    terminal: Terminal, method: str, is_behind: bool
) -> None:
    words = ("--split", "iid", "--clients", "8", "--set", "samples_per_client=30", "--rounds", "10")
    ended = terminal("run", method, *words, "--baselines", "all")
    assert ended.code == 0
    (beside,) = [line for line in ended.out.splitlines() if line.startswith("beside")]
    assert ("95 % interval" in beside) == is_behind


@pytest.mark.parametrize(("names", "asks"), [(40, True), (21, True), (20, False), (2, False)])
def test_labels_that_look_like_names_are_asked_about(terminal: Terminal, names: int, asks: bool) -> None:
    rows = [f"{'ab'[i % 2]},{i},patient {i % names}" for i in range(40)]
    Path("table.csv").write_text("\n".join(["site,age,who", *rows]))
    words = ["--data", "table.csv", "--set", "client=site", "--set", "label=who", "--rounds", "1"]
    ended = terminal("run", "fedavg", *words, "--baselines", "none")
    assert ended.code == 0
    assert ("data.label" in ended.out) == asks


def test_a_text_among_labels_that_are_numbers_is_named(terminal: Terminal) -> None:
    rows = [f"{'ab'[i % 2]},{i % 7},{i / 2}" for i in range(60)]
    rows[3] = "b,3,forty"
    Path("table.csv").write_text("\n".join(["site,dose,age", *rows]))
    words = ["--data", "table.csv", "--set", "client=site", "--set", "label=age"]
    code, _, err = terminal("run", "fedavg", *words)
    assert code == 2
    assert re.search("'forty' in line 5", err)
    assert terminal("run", "fedavg", *words, "--set", "task.name=classification", "--rounds", "1", "-q").code == 0


def test_a_new_table_is_blamed_for_the_text_and_not_for_a_number(terminal: Terminal) -> None:
    rows = [f"{site},{i},{'yes' if i % 3 else 'no'}" for site in "ab" for i in range(20)]
    Path("table.csv").write_text("\n".join(["site,age,outcome", *rows]))
    words = ["--data", "table.csv", "--set", "client=site", "--set", "label=outcome", "--rounds", "1"]
    assert terminal("run", "fedavg", *words, "--name", "first", "-q").code == 0
    for new in ("site,age\na,53\na,seventy\n", "site;age\na;53,5\na;seventy\n"):
        Path("new.csv").write_text(new)
        code, _, err = terminal("predict", "first", "--data", "new.csv")
        assert code == 2
        assert re.search("line 3.*'seventy'", err)
