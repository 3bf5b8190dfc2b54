import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coterie.errors import BadInput
from coterie.report import run_page
from coterie.runs.folder.picture import Picture
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import CLIENTS, FAILURES, FEDERATION, LEDGER, NEWCOMERS, ROUNDS
from tests.processes import call, run_apart

from .drawing import charts_of
from .synthesis import synthesise


class Reader(HTMLParser):
    """The text a reader sees, and every element with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.inside and self.inside[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def written(clustered: RunFolder, together: RunFolder) -> str:
    return run_page.build(clustered, [together]).read_text(encoding="utf-8")


def assert_loads_nothing(written: str) -> dict[str, Any]:
    """The page needs no file and no address beside itself; its charts' specifications."""
    reader = Reader(written)
    assert not reader.inside
    for tag, attributes in reader.elements:
        assert tag not in ("link", "iframe", "base", "object", "embed"), tag
        assert not {"srcset", "data", "background"} & set(attributes)
        # A link leads to a place on the page, and a picture holds itself.
        assert (attributes.get("href") or "#").startswith("#")
        assert (attributes.get("src") or "data:").startswith("data:")
    assert "default-src 'none'" in written
    style = re.search(r"<style>(.*?)</style>", written, re.DOTALL)
    assert style is not None
    assert "@import" not in style[1]
    assert "url(" not in style[1]
    specifications = re.search(r'id="specifications">(.*?)</script>', written, re.DOTALL)
    assert specifications is not None
    assert "//" not in specifications[1]
    found: dict[str, Any] = json.loads(specifications[1])
    return found


@pytest.mark.medium
def test_page_loads_nothing(written: str) -> None:
    assert len(assert_loads_nothing(written)) == 5


def test_page_says_the_numbers_of_the_tables(written: str, clustered: RunFolder, together: RunFolder) -> None:
    text = Reader(written).text
    mine, other = clustered.rounds()[-1], together.rounds()[-1]
    assert f"{mine['macro_accuracy'].item():.1%}" in text
    gain = 100 * (mine["macro_accuracy"].item() - other["macro_accuracy"].item())
    assert re.search(rf"\{gain:+.1f} points .*fedavg-rotated", text)
    assert f"{clustered.failures().height} answers" in text
    assert "clusters = 4" in text
    assert "torch 2.6.0" in text
    assert re.search(f"coterie run {clustered.path / 'experiment.toml'}.*seed 3", text)


@pytest.mark.slow
def test_a_page_is_the_same_with_the_library_of_charts_from_the_cache(
    together: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in the way").touch()
    pages = []
    for cache in ("fresh", "fresh", "in the way"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        code = run_apart(call, ["report", str(together.path)], output=tmp_path / "log")
        assert code == 0, (tmp_path / "log").read_text("utf-8")
        pages.append((together.path / "report.html").read_bytes())
        assert len(list((tmp_path / "fresh/coterie").iterdir())) == 1
    assert pages[0] == pages[1] == pages[2]


@pytest.mark.medium
def test_what_users_wrote_stays_text(tmp_path: Path) -> None:
    nasty = "</script><script>document.title = 'taken'</script><b>&amp;"
    folder = synthesise(tmp_path, "nasty", clients=4, groups=2, rounds=2, failing=False)
    folder.write_experiment(f"method = '''{nasty}'''\n")
    folder.write_environment({"command": nasty, "python": nasty})
    picture = folder.picture()
    assert picture is not None
    object.__setattr__(picture, "affinity_name", nasty)
    folder.write_picture(picture)
    second = pl.col("round") == 2
    folder.write_round(
        2,
        folder.rounds().filter(second),
        folder.clients().filter(second),
        folder.ledger().filter(second),
        pl.DataFrame([(2, 0, nasty)], schema=FAILURES, orient="row"),
    )
    text = run_page.build(folder).read_text(encoding="utf-8")
    assert nasty not in text
    reader = Reader(text)
    assert not any(tag == "b" for tag, _ in reader.elements)
    assert sum(tag == "script" for tag, _ in reader.elements) == 3
    assert reader.text.count(nasty) >= 5


def test_groups_that_nobody_planted_are_not_agreed_with(tmp_path: Path) -> None:
    said = [
        Reader(run_page.build(synthesise(tmp_path, name, planted=planted, picture=False)).read_text("utf-8")).text
        for name, planted in (("without", 0), ("with", 2))
    ]
    assert ["true groups" in text for text in said] == [False, True]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("settings", "charts_left", "sentence"),
    [
        ({"picture": False}, {"accuracy", "distribution", "groups"}, "no picture"),
        ({"groups": 1, "picture": False}, {"accuracy", "distribution"}, "no groups"),
        ({"groups": 0, "picture": False}, {"accuracy", "distribution"}, "no groups"),
        ({"clients": 1, "groups": 1}, {"accuracy"}, "two clients"),
        ({"rounds": 1}, {"accuracy", "distribution", "groups", "affinity", "map"}, "1 round."),
        ({"failing": False}, {"accuracy", "distribution", "groups", "affinity", "map"}, "answered."),
    ],
)
def test_missing_pieces_are_said_and_left_out(
    tmp_path: Path, settings: dict[str, int], charts_left: set[str], sentence: str
) -> None:
    folder = synthesise(tmp_path, "poor", **{"clients": 8, "groups": 2, "rounds": 3} | settings)  # type: ignore[arg-type]
    assert set(charts_of(folder)) == charts_left
    text = run_page.build(folder).read_text(encoding="utf-8")
    assert sentence in Reader(text).text
    assert "nan" not in Reader(text).text.lower().replace("<nan>", "")


@pytest.mark.medium
def test_a_run_without_a_finished_round_has_a_page(tmp_path: Path, clustered: RunFolder) -> None:
    folder = RunFolder.create(tmp_path, "fresh")
    folder.write_experiment('method = "ifca"\n')
    folder.write_status("running", 0, 10)
    text = Reader(run_page.build(folder).read_text(encoding="utf-8")).text
    assert "0 rounds of 10" in text
    assert "fresh" in run_page.build(clustered, [folder]).read_text(encoding="utf-8")


def test_a_run_without_evaluation_has_a_page(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "blind")
    folder.write_experiment('method = "ifca"\n')
    row = dict.fromkeys(ROUNDS, 0) | {"round": 1, "accuracy": float("nan"), "macro_accuracy": float("nan")}
    clients, ledger, failures = (pl.DataFrame(schema=schema) for schema in (CLIENTS, LEDGER, FAILURES))
    folder.write_round(1, pl.DataFrame([row], schema=ROUNDS, strict=False), clients, ledger, failures)
    assert "A distribution needs" in run_page.build(folder).read_text(encoding="utf-8")


@pytest.mark.medium
def test_groups_are_said_with_their_members(tmp_path: Path) -> None:
    folder = synthesise(tmp_path, "named", clients=40, groups=2, rounds=4, failing=False)
    assert "client 0, client 2, client 4" in Reader(run_page.build(folder).read_text(encoding="utf-8")).text
    names = [f"<ward {client}>" for client in range(40)]
    rest = {column: [1] * 40 for column in ("true_group", "train", "validation", "test")}
    people = {"client": range(40), "name": names, "few_shot": [False] * 40, "labels": [[1]] * 40, **rest}
    folder.write_federation(pl.DataFrame(people, schema=FEDERATION, strict=False))
    text = run_page.build(folder).read_text(encoding="utf-8")
    last = folder.clients().filter((pl.col("round") == 4) & (pl.col("group") == 0))
    shown = Reader(text).text
    members = [f"<ward {client}>" for client in last["client"].sort()]
    mean = last["accuracy"].to_numpy().mean()
    assert re.search(rf"Group 0: {len(members)} clients\D+{mean:.1%} {', '.join(members[:12])} and ", shown)
    assert f"{members[11]} and {len(members) - 12} more" in shown
    assert "<ward" not in text
    assert text.count("3 (\\u003cward 3\\u003e)") >= 2  # in the tooltips of the map and of the history


def test_the_picture_says_who_is_missing(tmp_path: Path) -> None:
    folder = synthesise(tmp_path, "away", clients=6, groups=2, rounds=3, failing=False)
    picture = folder.picture()
    assert picture is not None
    kept = [0, 1, 2, 4, 5]
    folder.write_picture(
        Picture(
            picture.affinity[kept][:, kept],
            "distance between client models",
            picture.groups[kept],
            picture.coordinates[kept],
            picture.clients[kept],
            3,
        )
    )
    text = Reader(run_page.build(folder).read_text(encoding="utf-8")).text
    assert "distance between client models after round 3" in text
    assert text.count("5 of 6 clients") == 2


def test_the_header_says_what_was_run(tmp_path: Path) -> None:
    folder = synthesise(tmp_path, "x", clients=4, rounds=2)
    folder.write_experiment(
        '[method]\nname = "ifca"\n[data]\nname = "digits"\nsplit = "iid"\n[network]\nname = "auto"\n'
    )
    folder.write_environment({"description": ["4 clients", "network mlp: 15,010 parameters in 2 layers"]})
    text = Reader(run_page.build(folder).read_text(encoding="utf-8")).text
    assert re.search(r"ifca on digits\b.* iid\b.* mlp\b.* 4 clients\b.* 2 rounds", text)
    folder.write_experiment('[method]\nname = "ifca"\n[data]\nname = "/far/away/wards.csv"\nsplit = "by-user"\n')
    text = Reader(run_page.build(folder).read_text(encoding="utf-8")).text
    assert re.search(r"ifca on wards\.csv\b.* by-user\b.* 4 clients", text)


@pytest.mark.medium
def test_what_a_page_compares_with_is_kept(clustered: RunFolder, together: RunFolder) -> None:
    with_other = run_page.build(clustered, [together]).read_text(encoding="utf-8")
    assert run_page.build(clustered).read_text(encoding="utf-8") == with_other
    alone = run_page.build(clustered, []).read_text(encoding="utf-8")
    assert "fedavg-rotated" not in alone
    assert run_page.build(clustered).read_text(encoding="utf-8") == alone


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"experiment\.toml"):
        run_page.build(RunFolder(tmp_path))


@pytest.mark.medium
def test_who_was_held_out_of_training_is_beside_those_who_trained(tmp_path: Path) -> None:
    folder = synthesise(tmp_path, "joined", clients=8, groups=2, planted=2, rounds=3)
    assert "Unseen clients" not in Reader(run_page.build(folder).read_text("utf-8")).text
    # Planted group 0 is mostly in group 1, whatever the numbers, and newcomers do not vote.
    groups = [1, 0, 1, 0, 0, 0, 1, 0]
    last = folder.clients().filter(pl.col("round") == 3).with_columns(group=pl.Series(groups, dtype=pl.Int32))
    sent = (frame.filter(pl.col("round") == 3) for frame in (folder.ledger(), folder.failures()))
    folder.write_round(3, folder.rounds().filter(pl.col("round") == 3), last, *sent)
    who = {"client": range(8), "name": [f"client {i}" for i in range(8)], "true_group": [i % 2 for i in range(8)]}
    rest = {column: [None] * 8 for column in FEDERATION if column not in who}
    folder.write_federation(pl.DataFrame({**who, **rest}, schema=FEDERATION))
    rows = [(20, "a", 0, 1, 10, 0.5, 0.75), (21, "b", 1, 1, 10, 0.25, None), (22, "c", 0, 1, 0, None, None)]
    folder.write_newcomers(pl.DataFrame([*rows, (23, "d", None, 1, 10, 0.75, 0.65)], NEWCOMERS, orient="row"))
    text = Reader(run_page.build(folder).read_text("utf-8")).text
    mean = last["accuracy"].to_numpy().mean()
    assert re.search(r" 4 clients\D+ 2 of 3 \(66\.7%\)", text)
    assert f"Accuracy 50.0% 70.0% {mean:.1%}" in text


@pytest.mark.medium
def test_a_page_lists_so_many_groups_and_says_how_many_more(tmp_path: Path) -> None:
    folder = synthesise(tmp_path, "many", clients=210, groups=210, rounds=1, picture=False, failing=False)
    text = run_page.build(folder).read_text("utf-8")
    assert text.count("<dt>Group ") == run_page.MOST_GROUPS == 200
    assert "and 10 more groups" in text
