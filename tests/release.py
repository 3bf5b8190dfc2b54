"""What a release must be: `make release-check` builds it, installs it into an empty environment and runs it there.

Each check is a function that raises `AssertionError` with a sentence; those that take seconds are tests, too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]


def version() -> str:
    """Return the version that is to be released."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def check_versions() -> None:
    """The changelog's newest entry and the citation name the version."""
    for file, pattern in (("CHANGELOG.md", r"^## (\S+)"), ("CITATION.cff", r'^version: "?([^"\n]+)')):
        found = re.search(pattern, (ROOT / file).read_text("utf-8"), re.MULTILINE)
        named = found[1] if found else "none"
        assert named == version(), f"{file} names version {named}; it must be {version()}, as pyproject.toml says"


def check_dated() -> None:
    """The changelog says when the version was released, and nothing is uncommitted."""
    heading = re.search(rf"^## {re.escape(version())} \((.+)\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    dated = heading is not None and re.fullmatch(r"\d{4}-\d\d-\d\d", heading[1]) is not None
    assert dated, f"CHANGELOG.md must date {version()}, as in '## {version()} (2027-01-31)'"
    changed = _run("git", "status", "--porcelain")
    assert not changed, f"there is what is not committed: {changed}"


def build(into: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Build the wheel and the source distribution of a folder; return both."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(into), at=source)
    (wheel,), (sdist,) = into.glob("*.whl"), into.glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path, folder: Path) -> None:
    """The wheel holds every file of the package and none besides; so does a wheel that is built of the source."""
    files = (file for file in (ROOT / "src").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    package = {file.relative_to(ROOT / "src").as_posix() for file in files}
    assert files_of(wheel) == package, f"not alike: {sorted(files_of(wheel) ^ package)}"
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    again, _ = build(folder / "again", folder / sdist.name.removesuffix(".tar.gz"))
    assert files_of(again) == package, (
        f"built of {sdist.name}, it has not alike: {sorted(files_of(again) ^ package)}"
    )


def files_of(wheel: Path) -> set[str]:
    """Return the files of a wheel, without what describes it."""
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def make_environment(folder: Path) -> Path:
    """Make an empty environment; return its interpreter."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def lend_dependencies(python: Path) -> None:
    """Let an environment see what is installed here; not this checkout, for `.pth` files of a path do not count."""
    here, there = (
        subprocess.check_output([at, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True)
        for at in (sys.executable, str(python))
    )
    lent = {here.strip(), sysconfig.get_path("platlib")}
    (Path(there.strip()) / "lent.pth").write_text("\n".join(sorted(lent)) + "\n")


def check_demo(python: Path, folder: Path) -> str:
    """The demonstration runs in an environment, outside the repository, and finds the planted groups."""
    environment = free_environment()
    where = _run(str(python), "-c", "import coterie; print(coterie.__file__)", at=folder, environment=environment)
    assert ROOT not in Path(where).parents, f"{where} is not what was installed"
    said = _run(str(python), "-m", "coterie", "demo", at=folder, environment=environment)
    assert re.search(r"demo-fesem .* 4 │ 1\.00 │", said), f"the demonstration did not find four groups:\n{said}"
    return said


def check_words(python: Path, folder: Path) -> None:
    """The command says its version, and refuses odd words in a sentence, whatever versions pip chose for it."""
    said = _run(str(python), "-m", "coterie", "--version", at=folder, environment=free_environment())
    assert said == f"coterie {version()}", f"coterie --version said {said!r}"
    for words in (["frob"], ["run", "--clints", "3"], ["show"]):
        command = [str(python), "-m", "coterie", *words]
        done = subprocess.run(
            command, cwd=folder, env=free_environment(), capture_output=True, text=True, check=False
        )
        refused = done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
        assert refused, f"coterie {' '.join(words)} ended with {done.returncode}:\n{done.stderr}"


def free_environment() -> dict[str, str]:
    """Return the environment without this checkout, and without what holds pip to the versions of the checks."""
    bound = ("PYTHONPATH", "PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")
    return {name: value for name, value in os.environ.items() if name not in bound}


def _run(*words: str, at: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, cwd=at, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def main() -> int:
    """Run all checks; say each, and how the first that fails does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            check_versions()
            check_dated()
            wheel, sdist = build(folder / "dist")
            check_contents(wheel, sdist, folder)
            print(f"{wheel.name} and {sdist.name} hold what they must")
            python = make_environment(folder / "environment")
            # As a stranger does: only torch is named, for its newest build may be gigabytes for GPUs.
            words = ["install", "--quiet", str(wheel), f"torch=={metadata.version('torch').partition('+')[0]}"]
            _run(str(python), "-m", "pip", *words, environment=free_environment())
            _run(str(python), "-m", "pip", "check")
            print("the wheel is installed into an empty environment, with what pip chooses")
            check_words(python, folder)
            print(check_demo(python, folder))
        except AssertionError as problem:
            print(f"not to be released: {problem}", file=sys.stderr)
            return 1
    print(f"coterie {version()} can be released")
    return 0


if __name__ == "__main__":
    sys.exit(main())
