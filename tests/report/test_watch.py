"""`coterie watch`: who may ask, what is read while a run writes, and the page in a browser with a run going on."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from coterie.errors import BadInput
from coterie.report.watch.control import Resumed, stop
from coterie.report.watch.reading import Watched
from coterie.report.watch.server import listening, make_app, make_server, make_token
from coterie.runs.folder.lock import find_writer, lock_folder
from coterie.runs.folder.run_folder import RunFolder
from tests.browser import CHROMIUM, Browser
from tests.commandline import Terminal
from tests.damage import make_runs
from tests.guide import blocks
from tests.processes import Processes

from .synthesis import synthesise

PAGE = Path(__file__).parents[2] / "docs/watch.md"

TOKEN = make_token()


class Page:
    """A live page that is served in a thread."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}/{TOKEN}/"

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        """The status and the body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, what: str) -> Any:
        status, body = self.ask(f"/{TOKEN}/api/{what}")
        assert status == 200, body
        return json.loads(body)


@contextmanager
def serve(folder: Path) -> Iterator[Page]:
    with listening() as listener:
        port = listener.getsockname()[1]
        app = make_app(folder, TOKEN, port)
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield Page(port)
        finally:
            server.should_exit = True
            thread.join()
            app.close()


# ---- who may ask


def test_only_this_machine_can_ask() -> None:
    with listening() as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        taken = listener.getsockname()[1]
        with pytest.raises(BadInput, match=f"--port {taken}"), listening(taken):
            pass


@pytest.mark.medium
def test_who_does_not_know_the_token_or_the_name_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path) as page:
        own = f"127.0.0.1:{page.port}"
        assert page.ask(f"/{TOKEN}/")[0] == 200
        assert page.ask(f"/{TOKEN}/", Host=f"localhost:{page.port}")[0] == 200
        for path in ("/", "/api/runs", f"/{TOKEN}", f"/{TOKEN[:-1]}/", f"/{TOKEN}x/", "/%ff/", f"/x/{TOKEN}/"):
            assert page.ask(path) == (404, ""), path
        for name in ("evil.example", f"evil.example:{page.port}", "127.0.0.1", f"127.0.0.1:{page.port + 1}"):
            assert page.ask(f"/{TOKEN}/", Host=name) == (403, ""), name
        for origin in ("http://evil.example", "null", f"https://{own}", "http://127.0.0.1:1"):
            assert page.ask(f"/{TOKEN}/api/stop?name=x", "POST", Origin=origin) == (403, ""), origin
        status, body = page.ask(f"/{TOKEN}/api/stop?name=x", "POST", Origin=f"http://{own}")
        assert (status, "'x'" in json.loads(body)["problem"]) == (409, True)
        for what in ("stop", "resume"):
            assert page.ask(f"/{TOKEN}/api/{what}?name=x")[0] == 405  # no link does anything
            assert page.ask(f"/api/{what}?name=x", "POST")[0] == 404


@pytest.mark.medium
def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    synthesise(tmp_path / "elsewhere", "secret", clients=4, groups=2, rounds=2)
    (tmp_path / "runs").mkdir()
    with serve(tmp_path / "runs") as page:
        for name in ("../elsewhere/secret", "..%2Felsewhere%2Fsecret", str(tmp_path / "elsewhere/secret"), "", "."):
            assert page.ask(f"/{TOKEN}/api/run?name={name}")[0] == 409, name
            assert page.ask(f"/{TOKEN}/api/resume?name={name}", "POST")[0] == 409, name
        for path in ("../../etc/passwd", "%2e%2e/server.py", "templates/watch.js"):
            assert page.ask(f"/{TOKEN}/{path}")[0] in (403, 404), path


@pytest.mark.medium
def test_the_page_may_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    with serve(tmp_path) as page:
        connection = http.client.HTTPConnection("127.0.0.1", page.port)
        connection.request("GET", f"/{TOKEN}/")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        assert (
            "default-src 'none'; script-src 'self'; style-src 'self'" in (answer.headers["Content-Security-Policy"])
        )
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "//" not in text
        # Whatever comes from a run is written as text.
        writers = "innerHTML|outerHTML|insertAdjacentHTML|document.write|createContextualFragment"
        assert not re.search(writers, page.ask(f"/{TOKEN}/watch.js")[1])


# ---- what is read


@pytest.mark.medium
def test_rows_say_what_the_tables_say(tmp_path: Path) -> None:
    run = synthesise(tmp_path, "whole", clients=6, groups=2, rounds=4)
    (row,) = Watched(tmp_path).index()
    rounds = run.rounds()
    assert (row["name"], row["round"], row["groups"]) == ("whole", 4, rounds["groups"][-1])
    assert row["value"] == rounds["macro_accuracy"][-1]
    assert row["failed"] == rounds["failed"].sum()
    assert row["bytes"] == int(rounds["up_bytes"].sum()) + int(rounds["down_bytes"].sum())
    found = Watched(tmp_path).detail("whole")
    (accuracy,) = [curve for curve in found["curves"] if curve["title"] == "accuracy"]
    assert accuracy["points"] == list(rounds.select("round", "macro_accuracy").drop_nulls().iter_rows())
    clients = run.clients()
    for place, client in enumerate(found["members"]["clients"]):
        own = clients.filter(pl.col("client") == place)
        assert client["groups"] == own["group"].to_list()
    assert found["failures"]["count"] == run.failures().height
    json.dumps(found, allow_nan=False)


def test_the_time_left_is_that_of_the_last_rounds(tmp_path: Path) -> None:
    run = synthesise(tmp_path, "going", clients=4, groups=2, rounds=4)
    run.write_status("running", 4, 14)  # by this process, which lives
    (row,) = Watched(tmp_path).index()
    assert row["state"] == "running"
    assert row["left"] == pytest.approx(10 * np.mean(run.rounds()["seconds"].to_numpy()))
    run.write_status("interrupted", 4, 14)
    (row,) = Watched(tmp_path).index()
    assert (row["state"], row["left"]) == ("interrupted", None)


# ---- stopping and resuming


@pytest.mark.medium
def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def _said(**changed: Any) -> Callable[[Path], object]:
    """Change what a JSON file says."""
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changed}), "utf-8")


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, "utf-8")


BAD: dict[str, tuple[str, Callable[[Path], object]]] = {
    **{f"pipe {name}": (name, _pipe) for name in ("status.json", "environment.json", "rounds.parquet")},
    **{f"device {name}": (name, _device) for name in ("status.json", "environment.json", "rounds.parquet")},
    "device experiment.toml": ("experiment.toml", _device),
    "not a number": ("environment.json", _said(started=float("nan"))),
    "half a pair": ("environment.json", _said(started="\ud800")),
    "deep json": ("status.json", _text("[" * 10**5)),
    "deep toml": ("experiment.toml", _text(f"a = {'[' * 10**5}")),
    "large pid": ("status.json", _said(pid=10**30)),
    "list pid": ("status.json", _said(pid=[1])),
    "half a status": ("status.json", _text("{")),
    "half an experiment": ("experiment.toml", _text("method = [")),
    "no text": ("experiment.toml", lambda path: path.write_bytes(b"\xff\xfe")),
    "half a table": ("rounds.parquet", _text("PAR1")),
    "a text as round": ("status.json", _said(round="three")),
    "an object as round": ("status.json", _said(round={})),
    "a large round": ("status.json", _said(round=10**9)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished and a stopped run."""
    folder = tmp_path_factory.mktemp("made")
    make_runs(folder, 1)
    return folder


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="pipes, devices and names that are no text")
def test_a_bad_run_is_a_row_that_says_so_and_the_others_are_shown(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    synthesise(runs, "good", rounds=3)
    RunFolder.create(runs, "begun").write_experiment("")
    for number, (file, spoil) in enumerate(BAD.values()):
        bad = runs / f"bad-{number}"
        shutil.copytree(runs / "good", bad)
        if file == "environment.json":
            (bad / "manifest.json").unlink()  # as somebody who wants to do harm would
        spoil(bad / file)
    shutil.copytree(runs / "good", os.fsdecode(os.fsencode(runs) + b"/odd-\xff"))
    with serve(runs) as page:
        rows = {row["name"]: row for row in page.get("runs")["runs"]}
        assert len(rows) == len(BAD) + 2  # without an experiment.toml that is a file it is no run
        assert (rows["begun"]["problem"], rows["begun"]["state"]) == ("", "interrupted")
        assert (rows["good"]["problem"], rows["good"]["round"]) == ("", 3)
        for number, name in enumerate(BAD):
            if name != "device experiment.toml":
                assert rows[f"bad-{number}"]["problem"], name
                assert page.get(f"run?name=bad-{number}")["problem"], name
            assert page.get("run?name=good")["curves"]


@pytest.mark.medium
@pytest.mark.each_once
@pytest.mark.skipif(sys.platform != "linux", reason="pipes, devices and names that are no text")
@pytest.mark.parametrize("cause", [*BAD, "odd name"])
def test_a_bad_run_is_one_sentence_for_every_command(
    made: Path, tmp_path: Path, cause: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run, name = tmp_path / "runs/finished", "finished"
    shutil.copytree(made / name, run)
    if cause == "odd name":
        file, name = "odd", os.fsdecode(b"odd-\xff")
        run.rename(run.with_name(name))
    else:
        file, spoil = BAD[cause]
        if file == "environment.json":
            (run / "manifest.json").unlink()
        spoil(run / file)
    for command in ("show", "report", "resume"):
        ended = Terminal(capsys)(command, name)
        assert (ended.code, ended.out) == (2, "")
        assert file in ended.err
        assert len(ended.err.splitlines()) == 1


@pytest.mark.medium
@pytest.mark.parametrize("name", ["000001-999999.zip", "999999.zip", "000001-" + "9" * 30 + ".zip"])
def test_the_name_of_a_file_alone_makes_no_rounds(
    name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs/stopped"
    shutil.copytree(made / "stopped", run)
    (run / "metrics/000003.zip").rename(run / "metrics" / name)
    for command in ("show", "report", "resume"):
        ended = Terminal(capsys)(command, "stopped")
        assert (ended.code, ended.out) == (2, "")
        assert "metrics/" in ended.err
        assert len(ended.err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pipes")
def test_no_pipe_keeps_a_resumed_run_waiting(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes on from the checkpoint before one that is a pipe."""
    monkeypatch.chdir(tmp_path)
    run, terminal = tmp_path / "runs/stopped", Terminal(capsys)
    shutil.copytree(made / "stopped", run)
    _pipe(run / "checkpoints/000003.safetensors")
    _pipe(run / "noise.secret")
    ended = terminal("resume", "stopped")
    assert ended.code == 2
    assert "noise.secret" in ended.err
    (run / "noise.secret").unlink()
    ended = terminal("resume", "stopped")
    assert ended.code == 0
    assert "000003.safetensors" in ended.out + ended.err


def test_nobody_but_the_holder_of_the_lock_is_stopped(tmp_path: Path) -> None:
    run = synthesise(tmp_path, "whole", clients=4, groups=2, rounds=3)
    with pytest.raises(BadInput, match=r"whole .*not running"):
        stop(run)
    run.write_status("running", 3, 9)  # says this process, which holds no lock
    with pytest.raises(BadInput, match=r"whole .*held"):
        stop(run)
    with lock_folder(run.path, "busy"), pytest.raises(BadInput, match=r"whole .*held"):
        stop(run)  # its own
    with pytest.raises(BadInput, match=r"whole .*already"):
        Resumed().resume(run)
    run.write_status("finished", 9, 9)
    with pytest.raises(BadInput, match=r"whole .*finished"):
        Resumed().resume(run)
    (tmp_path / "c" / "cells").mkdir(parents=True)
    (tmp_path / "c" / "comparison.toml").write_text("", "utf-8")
    cell = synthesise(tmp_path / "c" / "cells", "one", clients=4, groups=2, rounds=3)
    cell.write_status("running", 3, 9)
    with pytest.raises(BadInput, match=r"one .* comparison"):
        stop(cell)


@pytest.mark.medium
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not say who holds a lock")
def test_the_holder_of_a_lock_is_known(tmp_path: Path) -> None:
    assert find_writer(tmp_path) is None
    script = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True)"
    other = subprocess.Popen(
        [sys.executable, "-c", f"{script}; input()", str(tmp_path / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        assert find_writer(tmp_path) == other.pid
    finally:
        other.communicate(b"\n")
    assert find_writer(tmp_path) is None


@pytest.mark.medium
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a.txt"], "'a.txt'"),
        (["runs/one"], "'runs/one'.*'runs'"),
        (["compared"], "'compared'.*'compared/cells'"),
        (["--port", "x"], "--port 'x'.*at least 1"),
        (["--port", "70000"], "--port 70000 .* 65535"),
    ],
)
def test_what_the_command_refuses(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("", "utf-8")
    Path("compared").mkdir()
    Path("compared/comparison.toml").write_text("", "utf-8")
    synthesise(tmp_path / "runs", "one", clients=4, groups=2, rounds=2)
    refused = Terminal(capsys)("watch", *words)
    assert re.fullmatch(f"2  coterie: .*{said}.*\n", f"{refused.code} {refused.out} {refused.err}")


# ---- in a browser

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine to open the page with")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as found:
        yield found


@contextmanager
def ended_at_last(run: Path) -> Iterator[None]:
    """Leave no process behind that still trains, however a test ends."""
    try:
        yield
    finally:
        progress = RunFolder(run).progress()
        if progress is not None and progress.state == "running":
            with suppress(ProcessLookupError):
                os.kill(progress.pid, signal.SIGKILL)


def until(true: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@needs_chromium
def test_the_page_with_a_run_going_on(tmp_path: Path, browser: Browser) -> None:
    runs = tmp_path / "runs"
    synthesise(runs, "earlier", clients=12, groups=3, rounds=8)
    synthesise(runs, "other", clients=6, groups=2, rounds=5)
    words = "run fedavg --clients 4 --rounds 100000 --network mlp --set network.hidden=[8] --name going -q"
    words += " --set samples_per_client=40 --set run.client_dropout=0.2"
    names = "[...document.querySelectorAll('#runs tbody tr')].map(row => row.dataset.name).join()"

    def state_of(name: str) -> str:
        return f"document.querySelector('article[data-name={name}] dd')?.textContent"

    with ended_at_last(runs / "going"), serve(runs) as page:
        call = Processes(tmp_path).start(*words.split())
        until(lambda: (runs / "going" / "status.json").exists())
        browser.resize(1280)
        browser.open(page.address)
        browser.wait(f"({names}) === 'going,other,earlier' || ({names}) === 'going,earlier,other'")
        assert "1 running" in browser.wait("document.getElementById('count').textContent")

        # Sort by name, search, and filter.
        browser.evaluate("document.querySelectorAll('#runs th button')[0].click()")
        assert browser.evaluate(names) == "earlier,going,other"
        browser.evaluate("document.querySelectorAll('#runs th button')[0].click()")
        assert browser.evaluate(names) == "other,going,earlier"
        set_search = "search.value = {!r}; search.dispatchEvent(new Event('input'))"
        browser.evaluate(set_search.format("FedAvg goi"))
        assert browser.evaluate(names) == "going"
        browser.evaluate(set_search.format(""))
        browser.evaluate("state.value = 'running'; state.dispatchEvent(new Event('change'))")
        assert browser.evaluate(names) == "going"
        browser.evaluate("state.value = ''; state.dispatchEvent(new Event('change'))")

        # Two beside each other.
        for name in ("earlier", "other"):
            browser.evaluate(f"document.querySelector('[data-name={name}] input').click()")
        browser.evaluate("document.getElementById('beside').click()")
        browser.wait("document.querySelectorAll('article[data-name]').length === 2")
        assert browser.evaluate("document.querySelector('svg').querySelectorAll('.curve').length") == 2
        cells = "document.querySelector('article[data-name=earlier]').querySelectorAll('rect').length"
        assert browser.evaluate(cells) == 12 * 8  # the group of each client in each round

        # The run goes on before one's eyes.
        browser.evaluate("location.hash = 'run=going'")
        browser.wait(f"{state_of('going')} === 'running'")
        assert "going" in browser.evaluate("document.title")
        points = "document.querySelector('polyline')?.getAttribute('points')"
        before = browser.wait(points)
        browser.wait(f"({points}) !== {before!r}")
        left = browser.evaluate("document.querySelector('article[data-name=going] dl').innerText")
        assert "time left" in left
        assert browser.wait("document.querySelectorAll('.failures li').length")

        # Stopped as by Ctrl-C, and resumed.
        browser.evaluate("location.hash = 'run=going'")
        browser.wait("document.querySelector('article[data-name=going] .stop')")
        browser.evaluate("document.querySelector('article[data-name=going] .stop').click()")
        browser.wait(f"{state_of('going')} === 'interrupted'")
        assert call.wait() == 130
        reached = RunFolder(runs / "going").rounds()["round"][-1]
        browser.evaluate("document.querySelector('article[data-name=going] .resume').click()")
        browser.wait(f"{state_of('going')} === 'running'")
        until(lambda: RunFolder(runs / "going").rounds()["round"][-1] > reached)
        assert [text for text in browser.complaints if "favicon" not in text] == []


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    (block,) = blocks(PAGE)
    (line,) = block.commands
    command = [sys.executable, "-m", *shlex.split(line)]
    # As in a terminal: whoever started the tests in the background left the signal ignored.
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as served:
        assert served.stdout is not None
        address = served.stdout.readline().split()[1]
        port, token = address.removeprefix("http://127.0.0.1:").rstrip("/").split("/")
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        connection.request("GET", f"/{token}/api/runs")
        assert json.loads(connection.getresponse().read()) == {"folder": "runs", "runs": []}
        connection.close()
        os.kill(served.pid, signal.SIGINT)
        assert served.wait(60) == 0
        assert served.communicate()[1] == ""
