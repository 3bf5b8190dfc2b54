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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution."""
    return build(tmp_path_factory.mktemp("dist"))


def install(built: tuple[Path, Path], folder: Path) -> Path:
    """An environment with the wheel alone; its interpreter."""
    python = make_environment(folder / "environment")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(built[0])]
    assert subprocess.run(pip, env=free_environment(), check=False).returncode == 0
    return python


@pytest.mark.slow
def test_the_demonstration_runs_from_the_wheel_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    check_contents(*built, tmp_path)
    python = install(built, tmp_path)
    lend_dependencies(python)
    check_words(python, tmp_path)
    check_demo(python, tmp_path)
    assert (tmp_path / "runs").is_dir()


@pytest.mark.slow
def test_the_wheel_takes_words_with_the_newest_typer(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Flower holds the environment of these tests to an older one; a stranger's takes the newest."""
    python = install(built, tmp_path)
    pip = [str(python), "-m", "pip", "install", "--quiet", "typer"]
    assert subprocess.run(pip, env=free_environment(), check=False).returncode == 0
    lend_dependencies(python)
    check_words(python, tmp_path)
