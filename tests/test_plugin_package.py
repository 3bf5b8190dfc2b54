"""The template package of `examples/plugin`, installed as its README says, is used by all that names it."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.guide import blocks
from tests.processes import call, run_apart

TEMPLATE = Path(__file__).parents[1] / "examples" / "plugin"
RUN = "--data two-dialects --network two-layers --set gamma=1.0 --rounds 2 --set width=8"
FEW = {"run": ("--rounds", "2"), "compare": ("--rounds", "1", "--seeds", "1", "--baselines", "none")}
"""What makes commands of the README small."""
SOURCE = Path(__file__).parents[1] / "src"

pytestmark = [pytest.mark.medium, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package, without a network."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(TEMPLATE, folder / "source")  # building leaves files behind
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*pip, "--target", str(folder / "site"), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


class Shell:
    """Runs programs in a folder, where the package is installed."""

    def __init__(self, site: Path, folder: Path) -> None:
        self.folder = folder
        self.paths = [str(site)]
        path = os.pathsep.join([str(site), str(SOURCE)])
        # Options of the run of tests that this is a part of are not for the package's own.
        whole = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        self.environment = {**whole, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def __call__(self, *words: str, program: list[str] | None = None, fails: bool = False) -> str:
        if program is None:
            return self._fork(words, fails)
        done = subprocess.run(
            [*program, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def _fork(self, words: Sequence[str], fails: bool) -> str:
        """Carry out a command line in a process that has imported everything but the package."""
        log = self.folder.with_suffix(".log")
        log.unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setenv("COLUMNS", "160")
            code = run_apart(call, words, *self.paths, output=log)
        printed = log.read_text("utf-8")
        assert (code != 0) is fails, printed
        return printed

    def python(self, source: str) -> str:
        script = self.folder / "script.py"
        script.write_text(source, "utf-8")
        return self(str(script), program=[sys.executable, "-W", "error"])


@pytest.fixture
def shell(site: Path, tmp_path: Path) -> Shell:
    return Shell(site, tmp_path)


def test_it_is_listed_run_predicted_with_and_exported(shell: Shell) -> None:
    listing = shell("list", "methods")
    assert "\n  fedavgm-focal " in listing
    assert "(package coterie-example)" in listing
    assert "gamma = 2.0" in shell("list", "methods", "fedavgm-focal")
    shell("new", "a.toml", "--method", "fedavgm-focal")
    assert "gamma = 2.0" in (shell.folder / "a.toml").read_text("utf-8")
    shell(
        "run",
        "fedavgm-focal",
        *RUN.split(),
        "--workers",
        "1",
        "--name",
        "first",
        "-q",
        "--observer",
        "diary(every=2)",
    )
    first, last = (shell.folder / "diary.txt").read_text("utf-8").splitlines()
    assert first.startswith("round 2 of 2: ")
    assert last.startswith("finished: ")
    assert "first" in shell("show", "first")
    shell("export", "first", "--client", "speaker 0", "--to", "model.safetensors")
    assert "two-layers" in shell("predict", "model.safetensors", "--data", "two-dialects")
    assert "accuracy" in shell("predict", "first", "--client", "0", "--data", "two-dialects")
    shell.paths = []
    gone = shell("predict", "model.safetensors", "--data", "digits", fails=True)
    assert "'two-layers'" in gone


STOPPED = """
import coterie

class Stop(coterie.Observer):
    def round(self, round):
        raise KeyboardInterrupt

experiment = coterie.Experiment(
    method="fedavgm-focal", data="two-dialects", network="two-layers",
    run={"rounds": 3, "workers": 1, "name": "stopped", "observers": ["diary"]},
)
assert coterie.run(experiment, observers=[Stop()]).status == "interrupted"
"""

AS_IF = """
import coterie, polars

experiment = coterie.Experiment.from_toml(open("runs/stopped/experiment.toml").read())
whole = coterie.run(experiment.updated({"run.name": "whole"}))
resumed = coterie.RunFolder("runs/stopped").rounds()
assert resumed.height == 3
assert whole.rounds.drop("seconds").equals(resumed.drop("seconds"))
"""


def test_a_run_that_was_interrupted_goes_on(shell: Shell) -> None:
    """Its state, which has a registered name, is read back, and its observer goes on."""
    shell.python(STOPPED)
    shell("resume", "stopped", "-q")
    shell.python(AS_IF)
    assert (shell.folder / "diary.txt").read_text("utf-8").count("round 3 of 3") == 2


EVERYWHERE = """
import sys
import coterie
from coterie.runtime import shared_memory
from coterie.runtime.local import pool

def outcome(**run):
    experiment = coterie.Experiment(
        method="fedavgm-focal", data="two-dialects", network="two-layers", run={"rounds": 2, **run}
    )
    return [event.metrics["loss"] for event in coterie.rounds(experiment)]

if __name__ == "__main__":
    alone = outcome(workers=1)
    if "ray" in WHERE:
        assert outcome(runtime="ray") == alone
    else:
        assert outcome(workers=2) == alone
        pool.FORKS = shared_memory.NAMELESS = False
        assert outcome(workers=2) == alone
"""


def test_workers_give_the_bits_of_one_process(shell: Shell) -> None:
    """Forked, and spawned ones that begin with nothing."""
    shell.python(f"WHERE = 'here'\n{EVERYWHERE}")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (coterie[ray])")
def test_ray_gives_the_bits_of_one_process(shell: Shell) -> None:
    shell.python(f"WHERE = 'ray'\n{EVERYWHERE}")


REHEARSED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
import coterie
from tests.shipping.flower.rehearsal import Place, same

experiment = coterie.Experiment(
    method="fedavgm-focal",
    data={{"name": "two-dialects", "clients": 12}},
    network="two-layers",
    run={{"rounds": 2}},
)
here = Path("here").absolute()
nodes = [
    {{"client": i, "state-dir": str(here / f"client-{{i}}"), "allow": "coterie_example"}} for i in range(12)
]
place = Place(here, nodes)
assert same(place.run(experiment), place.simulate(experiment))
for node in nodes:
    del node["allow"]
try:
    place.run(experiment, name="refused")
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="Flower is not installed (coterie[flower])")
def test_clients_of_flower_give_the_bits_of_the_simulation_where_it_is_allowed(shell: Shell) -> None:
    said = shell.python(REHEARSED)
    assert "--node-config \"allow='coterie_example." in said


def test_the_commands_of_its_readme_run(shell: Shell) -> None:
    (block,) = blocks(TEMPLATE / "README.md")
    install, *commands = block.commands
    assert install == "pip install ."  # as the fixture does
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "coterie"
        shell(*words, *FEW.get(words[0], ()))
    assert (shell.folder / "model.safetensors").exists()


def test_its_own_tests_pass(site: Path, shell: Shell) -> None:
    tests = shutil.copytree(TEMPLATE / "tests", shell.folder / "tests")
    assert "2 passed" in shell("-q", "-p", "no:cacheprovider", str(tests), program=[sys.executable, "-m", "pytest"])
