"""`coterie reproduce` from end to end, on digits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import BadInput
from coterie.runs.folder.run_folder import RunFolder
from coterie.studies.papers import item as items
from coterie.studies.papers import result
from coterie.studies.papers.claims import Reference
from tests.commandline import Terminal

from .items import ITEM
from .test_result import made

SMALL = ("--scale", "small", "--jobs", "2")


@pytest.fixture
def coterie(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The command line in an empty folder, with the papers' items being those in `papers` there."""
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers/a-table1.toml").write_text(ITEM, "utf-8")
    (tmp_path / "papers/a-table2.toml").write_text(ITEM.replace("Table 1", "Table 2"), "utf-8")
    monkeypatch.setattr(items, "files", lambda package: tmp_path / "papers")
    return terminal


def test_what_there_is(coterie: Terminal, tmp_path: Path) -> None:
    (tmp_path / "papers/a-table10.toml").write_text(ITEM, "utf-8")
    done = coterie("reproduce", "--list")
    assert done.code == 0
    names = [line.split()[0] for line in done.out.splitlines()]
    assert names[:3] == ["a-table1", "a-table2", "a-table10"]
    assert "--keep docs/reproduction" in done.out
    assert re.search(r"^a-table1 .*Two methods on two splits \(small: no result; medium.*; full", done.out)
    assert coterie("reproduce") == done
    one = coterie("reproduce", "a-table2", "--list")
    assert [name for name in ("a-table1", "a-table2", "a-table10") if name in one.out] == ["a-table2"]
    assert coterie("reproduce", "a-table3", "--list").code == 2
    (tmp_path / "papers/a-table2.toml").write_text(ITEM.replace('title = "Two methods on two splits"', ""), "utf-8")
    wrong = coterie("reproduce", "--list")
    assert (wrong.code, "a-table2: title " in wrong.err) == (2, True)
    assert "a-table10" in wrong.out


def keep_result(tmp_path: Path, item: str, **changes: Any) -> None:
    """Keep a result of an item, without running it."""
    loaded = items.load_item(item)
    values = dict.fromkeys(loaded.wanted_numbers("small"), (50.0, 51.0))
    kept = replace(made(loaded), values=values, finished=8, failed=(), notes=(), seconds=600.0)
    result.write(tmp_path / f"kept/{item}-small.json", loaded, replace(kept, **changes))


def test_how_items_stand(coterie: Terminal, tmp_path: Path) -> None:
    for changes, state in (
        ({}, "small: up to date, 10 min"),
        ({"finished": 4}, "small: incomplete, 10 min"),
        ({"digest": "0" * 16}, "small: outdated, 10 min"),
        ({"methods": {"IFCA": {"name": "ifca", "clusters": 9}}}, "small: outdated, 10 min"),
    ):
        keep_result(tmp_path, "a-table1", **changes)
        first, second, where, _ = coterie("reproduce", "--list", "--keep", "kept").out.splitlines()
        assert all(word in where for word in ("kept", "reproductions"))
        assert f"({state}; medium: no result; " in first
        assert "(small: no result; " in second
    assert "up to date" not in coterie("reproduce", "--list").out


@pytest.mark.slow
def test_a_queue_leaves_out_what_is_up_to_date(coterie: Terminal, tmp_path: Path) -> None:
    keep_result(tmp_path, "a-table1")
    keep_result(tmp_path, "a-table2")
    done = coterie("reproduce", "all", "--scale", "small", "--keep", "kept")
    assert (done.code, done.err, done.out[:6]) == (0, "", "2 of 2")
    assert not list((tmp_path / "reproductions").glob("cells/*"))
    # An item that cannot run at all keeps none of the others from running.
    quick = ITEM.replace("seeds = 2", 'seeds = 1\nkeep_settings = ["IID"]').replace(
        '["FedAvg", "IFCA"]', '["FedAvg"]'
    )
    quick = quick.replace("methods.IFCA.method.clusters = 2\n", "")
    (tmp_path / "papers/a-table1.toml").write_text(
        quick.replace("experiment.run.rounds = 2", "experiment.run.rounds = 2\nexperiment.data.min_samples = 2000"),
        "utf-8",
    )
    (tmp_path / "papers/a-table2.toml").write_text(quick, "utf-8")
    done = coterie("reproduce", "all", "--scale", "small", "--jobs", "1", "--keep", "kept")
    assert done.code == 1
    assert "a-table1: 1 of 1 run" in done.out
    assert "\n2 runs" in done.out
    assert "a-table1: IID, FedAvg, seed 0 failed: " in done.err
    assert result.read(tmp_path / "kept/a-table2-small.json").finished == 1
    again = coterie("reproduce", "all", "--scale", "small", "--jobs", "1", "--keep", "kept")
    assert again.out.startswith("1 of 2 ")


@pytest.mark.slow
def test_from_the_command_to_the_page(coterie: Terminal, tmp_path: Path) -> None:
    done = coterie("reproduce", "a-table1", *SMALL, "--keep", "kept", "--folder", "here")
    assert done.code == 0, done.err
    told, item = " ".join(done.out.split()), items.load_item("a-table1")
    for text in (
        item.title,
        item.says,
        "small: 2 seeds, 8 runs",
        "digits for the images",
        "6 clients",
        "holds: +2.75",
    ):
        assert text in told
    folder = tmp_path / "here/a-table1-small"
    assert {path.name for path in folder.iterdir()} == {"result.json", "table.md", "report.html"}
    kept = (tmp_path / "kept/a-table1-small.json").read_bytes()
    assert kept == (folder / "result.json").read_bytes()
    assert len(kept) < 50_000
    page = (folder / "report.html").read_text("utf-8")
    assert "not run 1" in page

    # What was kept is what the runs say.
    found = result.read(folder / "result.json")
    cells = items.load_item("a-table1").comparison("small").cells()
    for cell in cells:
        name = "adapted_accuracy" if cell.is_adapted else "accuracy"
        last = RunFolder(tmp_path / "here/cells" / cell.key).rounds()[name][-1]
        kept_values = found.values[Reference("accuracy", cell.method, cell.setting)]
        assert kept_values[cell.seed] == pytest.approx(100 * last, rel=1e-5)
    assert (found.runs, found.finished, found.failed) == (8, 8, ())

    # Again: nothing is run, and every file has the same bytes.
    before = {path: path.read_bytes() for path in folder.iterdir()}
    again = coterie("reproduce", "a-table1", *SMALL, "--folder", "here", "--quiet")
    assert (again.code, again.out) == (0, f"{Path('here/a-table1-small/result.json')}\n")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    # Another item with the same cells shares them.
    cells_before = sorted((tmp_path / "here/cells").iterdir())
    assert coterie("reproduce", "all", *SMALL, "--folder", "here", "-q").out.count("result.json") == 2
    assert sorted((tmp_path / "here/cells").iterdir()) == cells_before

    assert coterie("reproduce", "--write", "kept.md").out == "kept.md\n"
    page = (tmp_path / "kept.md").read_text("utf-8")
    assert re.search(r"\| \[a-table1\]\(#a-table1\) \| Table 1: .* \| 3 \| to be run \| ", page)
    assert re.search(r"\| \[a-table2\]\(#a-table2\) \| Table 2: .* \| 3 \| to be run \| to be run \|", page)
    # Another finding is another text, and needs no run.
    (tmp_path / "papers/a-table1.toml").write_text(ITEM.replace("Few rounds.", "Two rounds are few."), "utf-8")
    coterie("reproduce", "--write", "kept.md")
    assert (tmp_path / "kept.md").read_text("utf-8") == page.replace("Few rounds.", "Two rounds are few.")
    assert "Two rounds are few." in (tmp_path / "kept/a-table1-small.json").read_text("utf-8")


@pytest.mark.parametrize("name", ["dcpfl", "DC-PFL", "dc_pfl", "FeSEM", "fedtsdp", "FEDCPS", "LayerCFL"])
def test_the_name_of_a_paper_is_answered_with_its_items(name: str) -> None:
    own = [one for one in items.list_items() if one.startswith(f"{items.paper_prefix(name)}-")]
    assert len(own) > 5
    with pytest.raises(BadInput, match=f"'{name}' .*{', '.join(own)}"):
        items.load_item(name)


@pytest.mark.slow
def test_a_run_that_fails_among_good_ones(coterie: Terminal, tmp_path: Path) -> None:
    # The digits are fewer than 2000 samples for each of six clients.
    text = ITEM.replace("[scales.small]", "[scales.small]\nsettings.IID.data.min_samples = 2000").replace(
        "seeds = 2", "seeds = 1"
    )
    (tmp_path / "papers/a-table1.toml").write_text(text, "utf-8")
    done = coterie("reproduce", "a-table1", *SMALL)
    assert done.code == 1
    assert done.err.count("coterie: a-table1: IID, ") == 2
    found = result.read(tmp_path / "reproductions/a-table1-small/result.json")
    assert (found.runs, found.finished, len(found.failed)) == (4, 2, 2)
    assert found.values[Reference("accuracy", "IFCA", "IID")] == (None,)
    assert found.values[Reference("accuracy", "IFCA", "β = 0.2")][0] is not None
    assert "2 of 4 runs" in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fesem-fig"], "'fesem-fig' .*a-table1, a-table2; .* all"),
        (["A"], "'A' .*a-table1, a-table2"),
        (["a-table1", "--scale", "tiny"], "'tiny' .*full, large, medium, small"),
        (["a-table1", "--scale", "large"], "a-table1 .*large; .*small, medium, full"),
        (["all", "--scale", "large"], "no item .*large"),
        (["a-table1", "--jobs", "0"], "--jobs '0' .*at least 1"),
        (["--scale", "small", "--keep", "here"], "--scale, --keep .*item"),
        (["--front", "README.md"], "--front .*--write"),
        (["--write", "page.html"], r"--write 'page\.html' .*\.md"),
    ],
)
def test_bad_input(coterie: Terminal, words: list[str], said: str) -> None:
    done = coterie("reproduce", *words)
    assert (done.code, done.out) == (2, "")
    assert re.match(f"coterie: .*{said}", done.err)


def test_a_name_beside_all_is_looked_up_too(coterie: Terminal) -> None:
    """Options behind `--` are names; without this, everything was run."""
    done = coterie("reproduce", "--", "nothing", "all", "--jobs", "0")
    assert (done.code, done.out) == (2, "")
    assert [line.split("'")[1] for line in done.err.splitlines()] == ["nothing", "--jobs", "0"]


def test_everything_that_is_wrong_is_said_before_anything_runs(coterie: Terminal, tmp_path: Path) -> None:
    for name, split in (("a-table1", "dirichlet(-1)"), ("a-table2", "dirichlet(0)")):
        path = tmp_path / f"papers/{name}.toml"
        path.write_text(path.read_text("utf-8").replace("dirichlet(0.2)", split), "utf-8")
    done = coterie("reproduce", "all", *SMALL)
    assert (done.code, done.out) == (2, "")
    assert [line.split(":")[1] for line in done.err.splitlines()] == [" a-table1", " a-table2"]
    assert not (tmp_path / "reproductions").exists()


INTERRUPTED = """
import sys
from pathlib import Path
from coterie.cli.app import main
from coterie.studies.papers import item

if __name__ == "__main__":
    item.files = lambda package: Path("papers")
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are sent as on POSIX systems")
def test_interrupted_and_gone_on_with(coterie: Terminal, tmp_path: Path) -> None:
    text = ITEM.replace("experiment.run.rounds = 2", "experiment.run.rounds = 10")
    text = text.replace("seeds = 2", 'seeds = 2\nkeep_settings = ["β = 0.2"]')
    (tmp_path / "papers/a-table1.toml").write_text(text, "utf-8")
    (tmp_path / "script.py").write_text(INTERRUPTED, "utf-8")
    words = [sys.executable, "script.py", "reproduce", "a-table1", "--jobs", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "reproductions").glob("cells/*/metrics/*.zip")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")
    # The first run has begun and the last one has not, however quick the machine is.
    assert re.search("a-table1: [0-3] of 4 runs", out)
    again = "coterie reproduce a-table1 --scale small --folder reproductions"
    assert out.endswith(f"{again}\n")
    assert coterie(*again.split()[1:], "-q").code == 0
    table = json.loads((tmp_path / "reproductions/a-table1-small/result.json").read_text("utf-8"))
    assert (table["runs"], table["finished"]) == (4, 4)
