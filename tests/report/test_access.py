"""Every kind of page in a browser, at three widths: with a keyboard, a screen reader, a phone, in the dark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import coterie
from coterie.report import run_page
from coterie.runs.folder.run_folder import RunFolder
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


PRESS = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}


@contextmanager
def opened(page: Path, profile: Path) -> Iterator[Browser]:
    """The page in a browser, after it was usable at every width; it is 800 pixels wide."""
    with Browser(profile) as browser:
        for width in (*WIDTHS, 800):
            browser.resize(width)
            browser.open(page.as_uri())
            browser.wait("document.body && document.body.dataset.drawn")
            assert_usable(browser)
            assert_reached_by_tab(browser)
            drawn = "[...document.querySelectorAll('.chart:not(details:not([open]) *)')].map(c => c.dataset.drawn)"
            assert set(browser.evaluate(drawn)) == {"yes"}
        yield browser


def press(browser: Browser, **key: object) -> None:
    for kind in ("keyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, **key)


def test_the_page_of_a_run_is_usable_and_its_table_is_sorted_by_the_keyboard(tmp_path: Path) -> None:
    page = _write_run(tmp_path)
    with opened(page, tmp_path / "profile") as browser:
        marks = "document.querySelectorAll('#chart-affinity .role-mark path').length"
        assert browser.evaluate(marks) >= 14 * 13
        stops = assert_reached_by_tab(browser)
        assert next(i for i, stop in enumerate(stops) if "ach client" in stop) < stops.index("BUTTON Client")
        browser.evaluate("document.querySelector('.sortable button').focus()")
        press(browser, **PRESS)
        names = browser.evaluate("[...document.querySelectorAll('.sortable tbody th')].map(e => e.innerText)")
        assert names == [f"client {i}" for i in range(14)]
        assert browser.evaluate("document.querySelector('.sortable th').getAttribute('aria-sort')") == "ascending"
        heads = [node for node in read_tree(browser) if node["role"] == "columnheader"]
        assert {"Client", "Group"} <= {node["name"].split(" \u25b2")[0] for node in heads}


def test_the_page_of_a_log_is_usable(mixed: RunFolder, tmp_path: Path) -> None:
    with opened(run_page.build(mixed), tmp_path / "profile"):
        pass


def test_the_page_of_a_diagnosis_is_usable(tmp_path: Path) -> None:
    with opened(_write_diagnosis(tmp_path), tmp_path / "profile"):
        pass


def test_the_page_of_a_comparison_is_usable_and_its_method_is_chosen_by_the_keyboard(tmp_path: Path) -> None:
    with opened(_write_comparison(tmp_path), tmp_path / "profile") as browser:
        (choice,) = [node for node in read_tree(browser) if node["role"] == "combobox"]
        assert choice["name"] == "Gains by"
        heading = "document.querySelector('.by-method thead').rows[0].cells[2].innerText"
        shown = "[...document.querySelectorAll('.by-method')][0].querySelector('.says').innerText"
        before = browser.evaluate(f"[{heading}, {shown}]")
        browser.evaluate("document.querySelector('select').focus()")
        press(browser, key="ArrowDown", code="ArrowDown", windowsVirtualKeyCode=40)
        chosen = browser.evaluate("document.querySelector('select').value")
        assert browser.evaluate(heading) == f"Accuracy with {chosen}" != before[0]
        assert browser.evaluate(shown) != before[1]
        says = "document.querySelector('.by-method [aria-live]').innerText"
        assert browser.evaluate(says).startswith("Against FedAvg")
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
