"""The package as on Windows and macOS: no fork, no /proc, and on Windows none of POSIX's locks and signals.

`injected/sitecustomize.py` makes every process of a call so. There, files that are open cannot be moved or removed.
What it cannot show is how Windows' own calls behave: those stand behind `sys.platform == "win32"`, and mypy reads
them with that platform.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest

from coterie.cli.app import main
from coterie.runs.folder.run_folder import RunFolder
from coterie.runtime.leftovers import remove_half_written
from tests.commandline import COTERIE
from tests.interrupted import assert_same_run
from tests.process_table import command, family
from tests.shipping.flower.outside import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems are imitated on Linux alone")

SETTINGS = [
    "fedrep",
    *("--clients=4", "--network=mlp", "--rounds=12", "--baselines=none", "--set=checkpoint_every=1"),
    *("--set=network.hidden=8", "--set=samples_per_client=40", "--set=states_mb=0", "--set=data_mb=0"),
]


@pytest.fixture(params=["win32", "darwin"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Of processes on another system, with a folder of their own for temporary files."""
    (tmp_path / "temporary").mkdir()
    path = [str(Path(__file__).with_name("injected")), *sys.path]
    return {
        **os.environ,
        "COTERIE_SYSTEM": request.param,
        "COTERIE_TOGETHER": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(path),
        "TMPDIR": str(tmp_path / "temporary"),
        "PYTHONIOENCODING": "cp1252" if request.param == "win32" else "utf-8",
    }


on_windows = pytest.mark.parametrize("environment", ["win32"], indirect=True)
on_macos = pytest.mark.parametrize("environment", ["darwin"], indirect=True)


def call(environment: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*COTERIE, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding=environment["PYTHONIOENCODING"],
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done


def python(environment: dict[str, str], source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def left_behind(folder: Path) -> list[Path]:
    """What the next run finds in a folder for temporary files, and does not remove.

    Windows keeps a file that is mapped to the very end of a process: the next process removes it as it begins.
    """
    remove_half_written(folder)
    return list(folder.iterdir())


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run on this system with which the others are compared."""
    folder = tmp_path_factory.mktemp("here")
    with chdir(folder):
        assert main(["run", *SETTINGS, "--name=here", "--quiet"]) == 0
    return RunFolder(folder / "runs/here")


@on_windows
@pytest.mark.slow
def test_a_run_in_one_process_has_the_bits_it_has_elsewhere(
    environment: dict[str, str], here: RunFolder, tmp_path: Path
) -> None:
    """Over files that are mapped; spawned workers have their turn below."""
    done = call(environment, tmp_path, "run", *SETTINGS, "--workers=1", "--name=there")
    assert done.returncode == 0, done.stderr
    assert_same_run(RunFolder(tmp_path / "runs/there"), here)
    assert left_behind(tmp_path / "temporary") == []


@pytest.mark.slow
def test_a_killed_run_is_seen_to_have_ended_and_goes_on_to_the_same_bits(
    environment: dict[str, str], here: RunFolder, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "runs/killed")
    with subprocess.Popen(
        [*COTERIE, "run", *SETTINGS, "--workers=2", "--name=killed"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            until(lambda: list((folder.path / "checkpoints").glob("*.safetensors")), 120)
            process.send_signal(signal.SIGSTOP)
            meanwhile = call(environment, tmp_path, "resume", "killed")
        finally:
            process.kill()
    assert (meanwhile.returncode, "running" in meanwhile.stderr) == (2, True), meanwhile.stderr
    assert folder.status == "interrupted"
    assert call(environment, tmp_path, "resume", "killed").returncode == 0
    assert_same_run(folder, here)
    assert left_behind(tmp_path / "temporary") == []


@on_windows
@pytest.mark.slow
def test_a_comparison_runs_in_processes(environment: dict[str, str], tmp_path: Path) -> None:
    words = ["--jobs=2", "--seeds=1", "--rounds=2", "--clients=4", "--name=both"]
    done = call(environment, tmp_path, "compare", "fedavg", "local-only", *words)
    assert done.returncode == 0, done.stderr
    assert "fedavg" in done.stdout


@on_windows
@pytest.mark.medium
def test_no_federation_of_processes_is_begun(environment: dict[str, str]) -> None:
    """Nor any folder or key made for it."""
    pytest.importorskip("flwr", reason="coterie[flower] is not installed")
    source = """
from pathlib import Path
from coterie.errors import BadInput
from coterie.shipping.flower.deployment import deploy
try:
    with deploy(Path("federation"), {}):
        pass
except BadInput as error:
    print(error)
"""
    assert "Windows" in python(environment, source)


@on_windows
@pytest.mark.slow
def test_windows_is_imitated_and_files_that_are_open_are_removed_when_they_can_be(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """At once where nobody has them, when a reader is done, or when what is mapped is no longer.

    The tests above would pass without the imitation.
    """
    (tmp_path / "open").write_bytes(b"x")
    source = f"""
import mmap, os, sys, threading
from pathlib import Path
from coterie.clients.open_files import put_in_place, remove, remove_when_unmapped
place = Path({str(tmp_path)!r})
from coterie.clients import open_files
from coterie.runtime import leftovers
from coterie.runtime import shared_memory
from coterie.runtime.local import pool
assert os.name == "posix" and open_files.os.name == "nt" and leftovers.sys.platform == "win32"
assert not pool.FORKS and not shared_memory.NAMELESS
assert not hasattr(open_files.os, "fork")
assert leftovers.is_alive(os.getpid()) and not leftovers.is_alive(10**8)
handle = open_files.os.open(place / "text", open_files.os.O_WRONLY | open_files.os.O_CREAT)
open_files.os.write(handle, b"a\\n")
assert (place / "text").read_bytes() == b"a\\r\\n"
with (place / "open").open("rb"):
    for act in ((place / "open").unlink, lambda: (place / "text").replace(place / "open")):
        try:
            act()
        except PermissionError:
            continue
        raise AssertionError(act)
for name in ("con", "a:b", "nul.txt", "end."):
    try:
        (place / name).write_text("x")
    except OSError:
        continue
    raise AssertionError(name)

def begin(name):
    (place / name).write_bytes(b"old")
    return (place / name).open("rb")

reader = begin("replaced")
(place / "fresh").write_bytes(b"new")
threading.Timer(0.2, reader.close).start()
put_in_place(place / "fresh", place / "replaced")
assert (place / "replaced").read_bytes() == b"new"

reader = begin("removed")
threading.Timer(0.2, reader.close).start()
remove(place / "removed")
assert not (place / "removed").exists()

with begin("mapped") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
remove_when_unmapped(place / "mapped")
assert (place / "mapped").exists()
mapped.close()
remove_when_unmapped(place / "another")
assert not (place / "mapped").exists()

with begin("to the end") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
remove_when_unmapped(place / "to the end")
del mapped
"""
    assert python(environment, source) == ""
    assert not (tmp_path / "to the end").exists()


@pytest.mark.slow
@on_macos
def test_macos_is_imitated(environment: dict[str, str]) -> None:
    source = """
import os
from pathlib import Path
from coterie.runtime import leftovers, threads
from coterie.runtime import shared_memory
from coterie.runtime.local import pool
assert os.name == "posix" and not pool.FORKS and not shared_memory.NAMELESS
assert leftovers.sys.platform == "darwin" and not hasattr(threads.os, "sched_getaffinity")
for path in (Path("/proc/self/stat"), Path("/dev/shm/x")):
    try:
        path.write_text("x", "utf-8")
    except FileNotFoundError:
        continue
    raise AssertionError(path)
"""
    python(environment, source)


@pytest.mark.slow
@on_macos
def test_ctrl_c_while_spawned_workers_begin_is_said_once(environment: dict[str, str], tmp_path: Path) -> None:
    """The terminal sends it to all of them; they import for a second, and then ignore it."""
    with subprocess.Popen(
        [*COTERIE, "run", *SETTINGS, "--workers=2", "--rounds=1000"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            until(lambda: process.poll() is not None or is_spawning(process.pid), 90)
            time.sleep(0.3)
            os.killpg(process.pid, signal.SIGINT)
            output, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors, errors
    assert "interrupted" in output + errors


def is_spawning(pid: int) -> bool:
    """Whether a process has started a worker."""
    return any("spawn_main" in " ".join(command(child)) for child in family(pid))
