"""Whoever is handed a page or the package is told whose work is in it, and on what terms."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from coterie.clients.data import DATASETS
from tests.commandline import Terminal
from website.notices import LIST, NOTICES, TOOLS, describe_bundle, list_packages

ROOT = Path(__file__).parents[1]


@pytest.mark.medium
def test_a_page_holds_the_notices_of_what_it_embeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = ("run", "fedavg", "--rounds", "1", "--clients", "4", "--name", "one", "-q", "--baselines", "none")
    assert Terminal(capsys)(*run).code == 0
    page = Path("runs/one/report.html").read_text("utf-8")
    notices = NOTICES.read_text("utf-8")
    assert notices in page
    # They stand in a comment that ends behind them, before the libraries.
    begin = page.index(notices)
    end = page.index("*/", begin)
    assert page.rindex("/*!", 0, begin) > page.rindex("<script>", 0, begin)
    assert end == begin + len(notices)
    assert end < page.rindex("vegaEmbed")


def test_the_notices_are_of_the_versions_that_are_embedded() -> None:
    notices = NOTICES.read_text("utf-8")
    assert describe_bundle() in notices
    for name in ("vega", "vega-lite", "vega-embed", "d3-array", "fast-json-patch", "semver", "topojson-client"):
        assert re.search(rf"^{name}: Copyright", notices, re.MULTILINE), name
    # The sentences by which BSD, MIT and ISC licences ask for their notice.
    for sentence in (
        "Redistributions in binary form must reproduce",
        "shall be included in",
        "appear in all copies",
    ):
        assert sentence in notices


def test_all_packages_that_are_asked_for_are_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *(line for extra, lines in extras.items() if extra not in TOOLS for line in lines),
    ]
    rows = [line.split(" | ") for line in LIST.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in rows[1:]] == [re.split("[>=<]", line)[0] for line in asked]
    assert all(len(row[2]) > 3 and "not " not in row[2] for row in rows)
    assert list_packages().count("\n") == LIST.read_text("utf-8").count("\n")
    assert "NOTICE" in project["license-files"]
    assert (ROOT / "NOTICE").is_file()


def test_every_data_set_has_its_terms() -> None:
    terms = (ROOT / "docs" / "data.md").read_text("utf-8").partition("## Terms of the data sets")[2]
    named = {name for line in terms.splitlines() for name in re.findall("`([^`]+)`", line.partition(" | ")[0])}
    own = {entry.name for entry in DATASETS if entry.target.__module__.startswith("coterie.")}
    assert own <= named
