"""Every kind of page in a browser, at three widths: with a keyboard, a screen reader, a phone, in the dark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import coterie
from coterie.report import run_page
from tests.browser import CHROMIUM, Browser

from .access import WIDTHS, assert_reached_by_tab, assert_usable, read_tree
from .synthesis import synthesise
from .test_diagnosis_page import page_of, whole
from .test_watch import serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine to open pages with"),
]


def _write_run(folder: Path) -> Path:
    run = synthesise(folder, "wards", clients=14, groups=3, rounds=8)
    other = synthesise(folder / "other", "wards", clients=14, groups=1, rounds=8, picture=False)
    return run_page.build(run, [other])


def _write_diagnosis(folder: Path) -> Path:
    page = folder / "diagnosis.html"
    page.write_text(page_of(replace(whole(), notes=("`coterie` has a note.", "another one."))), encoding="utf-8")
    return page


def _write_comparison(folder: Path) -> Path:
    tables = {
        "name": "digits",
        "seeds": 2,
        "experiment": {"data": {"name": "digits", "clients": 6}, "run": {"rounds": 2, "holdout_clients": 0.2}},
        "methods": {"FedAvg": {"method": "fedavg"}, "FeSEM": {"method": {"name": "fesem", "clusters": 2}}},
        "settings": {"turned": {"data": {"split": "rotated(2)"}}, "dealt": {"data": {"split": "iid"}}},
    }
    return coterie.compare(tables, folder=folder, jobs=1).folder.path / "report.html"


@pytest.mark.parametrize("write", [_write_run, _write_diagnosis, _write_comparison])
def test_a_page_is_usable(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    page = write(tmp_path)
    with Browser(tmp_path / "profile") as browser:
        for width in WIDTHS:
            browser.resize(width)
            browser.open(page.as_uri())
            browser.wait("document.body && document.body.dataset.drawn")
            assert_usable(browser)
            assert_reached_by_tab(browser)


def test_the_table_of_clients_is_sorted_by_the_keyboard_and_says_so(tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.resize(800)
        browser.open(_write_run(tmp_path).as_uri())
        browser.wait("document.body && document.body.dataset.drawn")
        stops = assert_reached_by_tab(browser)
        assert stops.index("DIV Each client, who loses most first") < stops.index("BUTTON Client")
        browser.evaluate("document.querySelector('.sortable button').focus()")
        press = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        for kind in ("keyDown", "keyUp"):
            browser.send("Input.dispatchKeyEvent", type=kind, **press)
        names = browser.evaluate("[...document.querySelectorAll('.sortable tbody th')].map(e => e.innerText)")
        assert names == [f"client {i}" for i in range(14)]
        assert browser.evaluate("document.querySelector('.sortable th').getAttribute('aria-sort')") == "ascending"
        heads = [node for node in read_tree(browser) if node["role"] == "columnheader"]
        assert {"Client", "Group"} <= {node["name"].split(" \u25b2")[0] for node in heads}


def test_the_method_of_the_clients_table_is_chosen_by_the_keyboard(tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.resize(800)
        browser.open(_write_comparison(tmp_path).as_uri())
        browser.wait("document.body && document.body.dataset.drawn")
        (choice,) = [node for node in read_tree(browser) if node["role"] == "combobox"]
        assert choice["name"] == "Gains by"
        heading = "document.querySelector('.by-method thead').rows[0].cells[2].innerText"
        shown = "[...document.querySelectorAll('.by-method')][0].querySelector('.says').innerText"
        before = browser.evaluate(f"[{heading}, {shown}]")
        browser.evaluate("document.querySelector('select').focus()")
        for kind in ("keyDown", "keyUp"):
            browser.send(
                "Input.dispatchKeyEvent", type=kind, key="ArrowDown", code="ArrowDown", windowsVirtualKeyCode=40
            )
        chosen = browser.evaluate("document.querySelector('select').value")
        assert browser.evaluate(heading) == f"Accuracy with {chosen}" != before[0]
        assert browser.evaluate(shown) != before[1]
        assert browser.evaluate("document.querySelector('.by-method [aria-live]').innerText").startswith(
            "Against FedAvg"
        )
        gains = "[...document.querySelector('.by-method tbody').rows].map(r => parseFloat(r.cells[1].innerText))"
        assert browser.evaluate(gains) == sorted(browser.evaluate(gains))


def test_the_live_page_is_usable_and_keeps_the_keyboards_place(tmp_path: Path) -> None:
    for name in ("earlier", "later"):
        synthesise(tmp_path / "runs", name, clients=12, groups=3, rounds=8)
    with serve(tmp_path / "runs") as page, Browser(tmp_path / "profile") as browser:
        for width in WIDTHS:
            browser.resize(width)
            browser.open(page.address)
            browser.wait("document.querySelectorAll('#runs tbody tr').length === 2")
            assert_usable(browser)
            assert_reached_by_tab(browser)
            browser.evaluate("document.querySelector('#runs a').focus()")
            browser.evaluate("was = document.activeElement, before = was.textContent")
            browser.wait("!was.isConnected")  # the page has been drawn anew
            assert browser.evaluate("document.activeElement.textContent === before")
            browser.evaluate("location.hash = 'run=earlier,later'")
            browser.wait("document.querySelectorAll('article[data-name]').length === 2")
            assert_usable(browser)
