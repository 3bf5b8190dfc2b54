"""How the source is kept: telling names, public ones in tests, no pickle, no machine's own paths."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("src", "tests", "benchmarks", "examples", "website")
TEXT = (*CODE, "docs", ".ci")
SUFFIXES = {"", *".css .html .ipynb .js .json .md .py .sh .toml .txt .yaml .yml".split()}  # noqa: SIM905

SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager", "managers"}

UNPICKLES = re.compile(
    r"(?<!`)torch\.load\((?!.*weights_only=True)|\b(?:joblib|marshal)\.loads?\(|load\(.*allow_pickle=True"
)
"""What may run code as it is read, and no linter finds (S301 finds pickle and its like)."""

PRIVATE = re.compile(r"\b_[A-Za-z]\w*")
PUBLIC = {"_asdict", "_exit", "_fields", "_make", "_replace"}
"""Names of the standard library that are public, though they begin with an underscore."""

FOLDERS = ("home", "Users", "root", "work", "tmp", "opt", "mnt", "media", "scratch", "srv", "private")
MACHINE_PATH = re.compile(rf"(?<![\w.~/<:*}}-])/(?:{'|'.join(FOLDERS)})/[\w.]|\b[A-Za-z]:\\+Users\b")


def test_names_say_what_is_inside() -> None:
    assert _bad_names(_files(CODE)) == []


@pytest.mark.medium
def test_no_test_is_lost_by_its_name() -> None:
    """A function of a test file is a test, or somebody names it, be it a decorator that registers it."""
    texts = [path.read_text("utf-8") for path in _files(("tests",)) if path.suffix == ".py"]
    named = Counter(re.findall(r"\w+", "\n".join(texts)))
    lost = [
        f"{path.name}: {node.name}"
        for path in ROOT.glob("tests/**/test_*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_") and named[node.name] < 2
        if all(ast.unparse(decorator).startswith("pytest.mark.") for decorator in node.decorator_list)
    ]
    assert lost == []


@pytest.mark.medium
def test_nothing_is_unpickled() -> None:
    assert [path for path in _files(CODE) if UNPICKLES.search(path.read_text("utf-8"))] == []


@pytest.mark.medium
def test_tests_use_public_names() -> None:
    """A private member of the source is tested through what uses it, or it has a public name."""
    private = {name for path in _files(("src",)) for name in _private_words(path)}
    assert [hit for path in _files(("tests",)) for hit in _uses(path, private)] == []


@pytest.mark.medium
def test_no_path_of_one_machine() -> None:
    found = [hit for path in [*_files(TEXT), *_top()] for hit in _machine_paths(path)]
    assert found == []


def test_every_page_is_on_the_site() -> None:
    named = set(re.findall(r"[\w./-]+\.md\b", (ROOT / "mkdocs.yml").read_text("utf-8")))
    missing = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - named
    assert not missing, f"nav of mkdocs.yml must name {sorted(missing)}"


def _files(folders: tuple[str, ...]) -> list[Path]:
    """Every text file below the folders, without caches."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    return [p for p in found if p.is_file() and p.suffix in SUFFIXES and "__pycache__" not in p.parts]


def _top() -> list[Path]:
    kept = {"Makefile", ".gitignore", ".pre-commit-config.yaml"}
    return [p for p in sorted(ROOT.iterdir()) if p.name in kept or p.suffix in {".md", ".toml", ".txt", ".yml"}]


def _bad_names(files: list[Path]) -> list[str]:
    places = {part for path in files for part in (path, *path.parents) if ROOT in part.parents}
    return sorted(
        str(p.relative_to(ROOT)) for p in places if SAYS_NOTHING & set(re.split(r"[\W_]", p.stem.lower()))
    )


def _private_words(path: Path) -> set[str]:
    return set(PRIVATE.findall(path.read_text("utf-8"))) if path.suffix == ".py" else set()


def _uses(path: Path, private: set[str]) -> list[str]:
    """Where a test reads, imports or patches a private name that no class of its own defines."""
    if not private & _private_words(path):
        return []
    found: list[tuple[int, str]] = []
    own = set(PUBLIC)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            inside = [part for statement in node.body for part in ast.walk(statement)]
            own |= {part.name for part in inside if isinstance(part, ast.FunctionDef)}
            own |= {part.id for part in inside if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        elif isinstance(node, ast.Attribute):
            found.append((node.lineno, node.attr))
            own |= {node.attr} if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self" else set()
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attr"):
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            found += [(node.lineno, text.rpartition(".")[2]) for text in texts]
    return [f"{path}:{line}: {name}" for line, name in found if name in private - own]


def _machine_paths(path: Path) -> list[str]:
    lines = enumerate(path.read_text("utf-8").splitlines(), start=1)
    return [f"{path}:{number}: {line.strip()}" for number, line in lines if MACHINE_PATH.search(line)]
