"""The wheel and the source distribution: what is in them, and that they work outside the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.release import (
    build,
    check_contents,
    check_demo,
    check_versions,
    check_words,
    free_environment,
    lend_dependencies,
    make_environment,
    version,
)


def test_all_files_name_one_version() -> None:
    import coterie

    check_versions()
    assert coterie.__version__ == version()


@pytest.mark.slow
def test_the_demonstration_runs_from_the_wheel_alone(tmp_path: Path) -> None:
    wheel, sdist = build(tmp_path / "dist")
    check_contents(wheel, sdist, tmp_path)
    python = make_environment(tmp_path / "environment")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    assert subprocess.run(pip, check=False).returncode == 0
    lend_dependencies(python)
    check_words(python, tmp_path)
    check_demo(python, tmp_path)
    assert (tmp_path / "runs").is_dir()


@pytest.mark.slow
def test_the_wheel_takes_words_with_the_newest_typer(tmp_path: Path) -> None:
    """Flower holds the environment of these tests to an older one; a stranger's takes the newest."""
    wheel, _ = build(tmp_path / "dist")
    python = make_environment(tmp_path / "environment")
    for words in (["--no-deps", "--no-index", str(wheel)], ["typer"]):
        pip = [str(python), "-m", "pip", "install", "--quiet", *words]
        assert subprocess.run(pip, env=free_environment(), check=False).returncode == 0
    lend_dependencies(python)
    check_words(python, tmp_path)
