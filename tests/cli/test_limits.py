"""What asks for more than there is ends in one sentence, before memory or hours are spent."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_core import SchemaValidator, core_schema

from coterie.cli import app
from tests.commandline import Terminal


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("data.clients=10000000", "clients = 10000000 .*digits .*1,797 samples"),
        ("run.workers=300", r"run\.workers = 300 .*256"),
        ("run.rounds=1000000000000", r"run\.rounds = 1000000000000 .*1000000"),
        ("run.client_timeout=1e300", r"run\.client_timeout = 1e\+300 "),
    ],
)
def test_sizes_without_end_are_refused(setting: str, said: str, terminal: Terminal) -> None:
    code, _, err = terminal("run", "fedavg", "--set", setting)
    assert code == 2
    assert re.match(f"coterie: {said}", err)


NESTED = {
    "brackets": "a = " + "[" * 3000 + "]" * 3000,
    "brackets with numbers between": "a = " + "[1, " * 3000 + "]" * 3000,
    "dots": ".".join(["a"] * 50_000) + " = 1",
    "dots in quotes": ".".join(["'a b'"] * 50_000) + " = 1",
    "one long text": f'a = "{"a" * 2_000_000}"',
}


@pytest.mark.parametrize("what", NESTED)
def test_an_experiment_that_no_parser_can_read_is_refused_at_once(what: str, terminal: Terminal) -> None:
    Path("deep.toml").write_text(NESTED[what])
    code, _, err = terminal("run", "deep.toml")
    assert code == 2
    assert "nested" in err or "1,048,576" in err
    assert len(err) < 300


@pytest.mark.medium
def test_a_number_of_thousands_of_digits_is_refused(terminal: Terminal) -> None:
    Path("long.toml").write_text(f"method = 'fedavg'\n[run]\nseed = 1{'0' * 5000}\n")
    assert re.match(r"coterie: long\.toml .*4,300 digits", terminal("run", "long.toml").err)
    code, _, err = terminal("run", "fedavg", "--seed", "1" + "0" * 5000)
    assert (code, "run.seed = '1000" in err) == (2, True)


def test_of_many_problems_some_are_said_each_once_and_in_short(terminal: Terminal) -> None:
    code, _, err = terminal("run", "fedavg", *(f"--set=x{i}" for i in range(50)), f"--set={'y' * 5000}", "--set=x0")
    first, *_, last = err.splitlines()
    assert (code, len(err.splitlines())) == (2, 21)
    assert re.match("coterie: --set 'x0' .*--set KEY=VALUE", first)
    assert " 31 " in last
    _, _, err = terminal("run", "fedavg", f"--set={'y' * 5000}")
    assert (len(err) < 1100, "--set KEY=VALUE" in err) == (True, True)


def test_a_long_text_is_no_nesting(terminal: Terminal) -> None:
    Path("long.toml").write_text(f'method = "{"a." * 40}{"a" * 500_000}"')
    code, _, err = terminal("run", "long.toml")
    assert (code, "nested" in err) == (2, False)


@pytest.mark.skipif(os.name != "posix", reason="there are no named pipes")
def test_a_pipe_is_waited_for_by_nobody(terminal: Terminal) -> None:
    for name in ("pipe.toml", "pipe.npz", "pipe.csv"):
        os.mkfifo(name)
    code, _, err = terminal("run", "pipe.toml")
    assert (code, "'pipe.toml'" in err) == (2, True)
    for name in ("pipe.npz", "pipe.csv"):
        code, _, err = terminal("run", "fedavg", "--data", name)
        assert code == 2
        assert f"data = '{name}'" in err


@pytest.mark.parametrize(
    "setting",
    ["network.hidden=[1000000000]", "network.hidden=[99999999,99999999]", "network.channels=[999999,999999]"],
)
def test_a_network_without_end_is_counted_before_any_memory_is_taken(setting: str, terminal: Terminal) -> None:
    name = "cnn" if "channels" in setting else "mlp"
    code, _, err = terminal("run", "fedavg", f"--set=network.name={name}", "--set", setting)
    assert code == 2
    assert err.startswith(f"coterie: network.name = '{name}' ")
    assert " GB " in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_a_network_that_does_not_fit_is_told_of() -> None:
    import resource

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))

    words = ["run", "fedavg", "--set", "network.name=mlp", "--set", "network.hidden=[50000000]"]
    ended = subprocess.run(
        [sys.executable, "-m", "coterie", *words], capture_output=True, text=True, preexec_fn=limited, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("coterie: network.name = 'mlp' ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (MemoryError(), "memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested"),
        (OverflowError("int too large to convert to float"), "too large"),
    ],
)
def test_what_there_is_not_enough_of_is_said(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(app, "app", fail)
    assert app.main(["list"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("coterie: ")
    assert said in line


def test_an_error_of_the_program_is_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        app.main(["list"])


def test_ctrl_c_while_compiled_code_calls_python_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pressed:
        @property
        def value(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def build(**options: object) -> None:
        # pydantic's core says it with an error of its own, as of anything that fails while it builds a schema.
        SchemaValidator(core_schema.enum_schema(Pressed, [Pressed()]))

    monkeypatch.setattr(app, "app", build)
    assert app.main(["list"]) == 130
    assert capsys.readouterr().err == "coterie: interrupted\n"


@pytest.mark.parametrize("option", ["--seeds", "--jobs", "--tune"])
def test_a_number_of_more_digits_than_python_reads_is_refused(option: str, terminal: Terminal) -> None:
    code, out, err = terminal("compare", "fedavg", option, "9" * 5000)
    assert (code, out) == (2, "")
    assert re.match(f"coterie: ({option}|{option[2:]}) ", err)
