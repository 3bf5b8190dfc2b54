"""The workflows, the containers and the list of checks: valid by their schemas, and alike where they must be."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")

import yaml

from tests.check import LANES

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def jobs() -> dict[str, Any]:
    """The jobs of the workflow that tests."""
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text("utf-8"))["jobs"]
    return found


@pytest.mark.medium
@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.compose-spec", [ROOT / "docker/compose.yml"]),
    ],
)
def test_files_are_as_their_schemas_say(schema: str, files: list[Path]) -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema comes with the extra dev")
    words = ["--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *words], capture_output=True, text=True, check=False
    )
    assert files
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_is_linted() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint comes with the extra dev, on Linux")
    done = subprocess.run([hadolint, str(ROOT / "docker/Dockerfile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_system_and_the_oldest_and_newest_python_are_tested() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    versions = [c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    matrix = jobs()["quick"]["strategy"]["matrix"]
    assert matrix["python"] == [versions[0], versions[-1]]
    assert project["requires-python"] == f">={versions[0]}"
    assert [name.partition("-")[0] for name in matrix["os"]] == ["ubuntu", "macos", "windows"]
    assert jobs()["wheel"]["strategy"]["matrix"]["os"] == matrix["os"]


def test_workflow_and_makefile_do_the_same() -> None:
    """Both call `tests.check`, in lanes that there are."""
    steps = [step.get("run", "") for job in jobs().values() for step in job["steps"]]
    lines = [*steps, *(ROOT / "Makefile").read_text("utf-8").replace("$@", "quick").splitlines()]
    called = {match[1] for line in lines if (match := re.search(r"-m tests\.check (\w+)", line))}
    assert called == {"quick", "all"}
    assert called <= set(LANES)
    assert "python -m mkdocs build --strict" in steps


def test_no_two_files_differ_by_case_alone_or_have_names_that_windows_refuses() -> None:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    if not names[0]:
        pytest.skip("this is no checkout")
    found = [name for name in names if name]
    assert len({name.casefold() for name in found}) == len(found)
    refused = re.compile(r'(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*[<>:"|?*\\].*|.*[. ]')
    assert [name for name in found if any(refused.fullmatch(part) for part in name.split("/"))] == []
