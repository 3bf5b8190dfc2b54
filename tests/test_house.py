"""How the source is kept: telling names, public ones in tests, no pickle, no machine's own paths."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("src", "tests", "benchmarks", "examples", "website")
TEXT = (*CODE, "docs", ".ci")
SUFFIXES = {
    "",
    ".cfg",
    ".css",
    ".html",
    ".ipynb",
    ".js",
    ".json",
    ".md",
    ".py",
    ".sh",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}

SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager", "managers"}

# Whatever these read may run code as it is read.
UNPICKLERS = {
    **{name: {"load", "loads", "Unpickler"} for name in ("pickle", "_pickle", "cloudpickle", "dill")},
    "marshal": {"load", "loads"},
    "joblib": {"load"},
    "torch": {"load"},
    "pandas": {"read_pickle"},
    "shelve": {"open"},
}

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
    assert [hit for path in _files(CODE) for hit in _unpickling(path)] == []


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


def test_something_is_looked_at() -> None:
    assert ROOT / "src/coterie/randomness.py" in _files(CODE)
    assert {ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "README.md"} <= set(_top())


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


def _unpickling(path: Path) -> Iterator[str]:
    """Calls and imports that unpickle, under whatever name the module was imported."""
    if path.suffix != ".py":
        return
    tree = ast.parse(path.read_text("utf-8"))
    named = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    safe = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and _reads_weights_alone(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in safe:
            module = named.get(ast.unparse(node.value), "")
            if node.attr in UNPICKLERS.get(module, ()):
                yield f"{path}:{node.lineno}: {module}.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in UNPICKLERS.get(node.module or "", ()):
                    yield f"{path}:{node.lineno}: {node.module}.{alias.name}"
        elif isinstance(node, ast.Call) and _may_unpickle(node):
            yield f"{path}:{node.lineno}: allow_pickle"


def _reads_weights_alone(call: ast.Call) -> bool:
    """Whether PyTorch reads tensors in a call, and refuses whatever else a file holds."""
    return any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)


def _may_unpickle(call: ast.Call) -> bool:
    """Whether NumPy may unpickle in a call. Writing a pickle is harmless: tests do, to see it refused."""
    allowed = any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in call.keywords)
    return allowed and not ast.unparse(call.func).rpartition(".")[2].startswith("save")


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


@pytest.mark.parametrize("place", ["src/coterie/utils.py", "src/common/a.py", "tests/test_base.py", "docs/Misc.md"])
def test_the_check_of_names_catches(place: str) -> None:
    assert len(_bad_names([ROOT / "src/coterie/baseline.py", ROOT / place])) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(file)",
        "import torch\ntorch.load('model.pt', weights_only=False)",
        "import numpy\nnumpy.load('a.npz', allow_pickle=True)",
    ],
)
def test_the_check_of_pickles_catches(tmp_path: Path, source: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(source, "utf-8")
    assert len(list(_unpickling(path))) == 1


def test_the_check_of_pickles_lets_pass(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        "import json, pickle\nimport numpy\njson.load(f)\npickle.dumps(1)\n"
        "numpy.load('a', allow_pickle=False)\nnumpy.savez('a', allow_pickle=True)\n"
        "import torch\ntorch.load('model.pt', weights_only=True)",
        "utf-8",
    )
    assert list(_unpickling(path)) == []


@pytest.mark.parametrize(
    "source",
    [
        "pool._replies",
        "from coterie.runtime.local.pool import _replies",
        "monkeypatch.setattr(pool, '_replies', None)",
    ],
)
def test_the_check_of_private_names_catches(tmp_path: Path, source: str) -> None:
    path = tmp_path / "test_a.py"
    path.write_text(source, "utf-8")
    assert len(_uses(path, {"_replies"})) == 1
    path.write_text(f"{source}\nclass Own:\n    _replies = 1\n    _other = 2\nOwn._other\n", "utf-8")
    assert _uses(path, {"_replies"}) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_check_of_paths_catches(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "a.md"
    path.write_text(f"../{folder}/a ~/{folder}/b runs/{folder}/c see {folder}/d\n", "utf-8")
    assert _machine_paths(path) == []
    path.write_text(f"open('/{folder}/somebody/data')\n", "utf-8")
    assert len(_machine_paths(path)) == 1
