"""What other packages bring: entry points, modules to import, and objects that are named `package.module:object`.

This is the one place where a name becomes an object. Entry points are read from the metadata of what is installed,
and nothing of a package is imported before a name of it is asked for. A module or a `package.module:object` is
imported only where a person gave it to this process (`give`, `allow`): a name in a file imports nothing by itself.
Every process begins with nothing given; work that goes to another one takes along what was (`consent`).
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from coterie.errors import BadInput, shorten, unknown

GROUPS = ("methods", "networks", "tasks", "datasets", "metrics", "observers")
"""What a package may offer: the entry points `coterie.methods`, `coterie.networks`, …"""

_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_PATH = re.compile(rf"{_MODULE.pattern}:{_MODULE.pattern}")

WHERE = "install its package, or put it into the current folder or a folder of PYTHONPATH"
"""Where a module must lie that cannot be found."""


def is_path(name: str) -> bool:
    """Whether a name is that of an object in a module, `package.module:object`."""
    return _PATH.fullmatch(name) is not None


def digest_sources(names: Iterable[str]) -> dict[str, str]:
    """Return a digest of the file of each module that names, as `package.module:object`, begin with.

    Nothing is imported. A script or a notebook has none. Of a module that this process has imported it is the file
    as it was when it was first asked for: what was imported does not change with it.
    """
    modules = {name.partition(":")[0] for name in names} - {"__main__"}
    found = {name: _digest(sys.modules[name]) if name in sys.modules else _digest_file(name) for name in modules}
    return {name: digest for name, digest in sorted(found.items()) if digest}


@cache
def _digest(module: ModuleType) -> str:
    path = getattr(module, "__file__", None)
    return blake2b(Path(path).read_bytes(), digest_size=8).hexdigest() if path else ""


def _digest_file(module: str) -> str:
    """Return the digest of the file that would be imported; an empty text without one."""
    for folder in (*sys.path, "."):  # the current folder comes last, as when it is imported
        for end in (".py", "/__init__.py"):
            if (path := Path(folder, module.replace(".", "/") + end)).is_file():
                return blake2b(path.read_bytes(), digest_size=8).hexdigest()
    return ""


def suggest_path(name: str) -> str | None:
    """Return how to name an object of a Python file that is named alone or by a path, as `nets`, `nets.py:Net`.

    The file is read and not run. None where no such file lies in the current folder.
    """
    module, _, own = name.replace("/", ".").replace(".py:", ":").partition(":")
    module = module.removesuffix(".py")
    if not own and not Path(f"{module.replace('.', '/')}.py").is_file():  # as in nets.Net
        module, _, own = module.rpartition(".")
    if not _PATH.fullmatch(f"{module}:{own or 'x'}"):
        return None
    file = Path(f"{module.replace('.', '/')}.py")
    if own:
        return f"{module}:{own}" if file.is_file() else None
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return f"{module}:NAME" if file.is_file() else None
    found = [node.name for node in tree.body if _may_be_named(node)]
    return f"{module}:NAME with one of {shorten(found)}" if len(found) > 1 else f"{module}:{(found or ['NAME'])[0]}"


def _may_be_named(node: ast.stmt) -> TypeGuard[ast.ClassDef | ast.FunctionDef]:
    """Whether it is a public class, or a public function whose arguments all have defaults, as settings have."""
    match node:
        case ast.ClassDef(name=name):
            return not name.startswith("_")
        case ast.FunctionDef(name=name, args=given):
            return not name.startswith("_") and len(given.defaults) == len(given.posonlyargs + given.args)
    return False


# ---- what a person gave

ALLOW = "COTERIE_ALLOW"
"""The environment variable that allows names, apart by commas."""

_given: set[str] = set()
_command: Sequence[str] | None = None
"""The words behind `coterie`, where this process carries out a command."""


def give(names: Iterable[str]) -> None:
    """Count names as given by the person whom this process works for: typed, or passed in Python."""
    _given.update(names)


def allow(names: Iterable[str]) -> None:
    """Let this process import what a file may name: modules, and objects as `package.module:object`.

    Raises:
        BadInput: one sentence for each that is no such name.
    """
    names = [names] if isinstance(names, str) else list(names)
    if wrong := [name for name in names if not (is_path(name) or _MODULE.fullmatch(name))]:
        raise BadInput([f"--allow {name!r} is not possible; write package.module:object" for name in wrong])
    give(names)


def consent() -> frozenset[str]:
    """Return the modules and objects that this process may import for a name; they travel with its work."""
    return frozenset(_given) | allowed_by_environment()


def allowed_by_environment() -> frozenset[str]:
    """Return the names that the variable `COTERIE_ALLOW` allows to this process."""
    return frozenset(re.split(r"[,\s]+", os.environ.get(ALLOW, "")))


@contextmanager
def fresh_consent(words: Sequence[str] | None) -> Iterator[None]:
    """Carry out the command `coterie WORDS`, or a program where there are none, which begins with nothing given."""
    global _given, _command
    before = _given, _command
    _given, _command = set(), words
    try:
        yield
    finally:
        _given, _command = before


def needs_consent(name: str) -> bool:
    """Whether a person must give this module or `package.module:object`: all but what is in `torch.nn`."""
    return not f"{name.partition(':')[0]}.".startswith("torch.nn.")


def find_refusal(named: Mapping[str, str]) -> str:
    """Return the sentence on what nobody gave to this process, with the way to allow it; empty where there is none.

    Args:
        named: modules and objects by where they stand, as `network.name = 'package.module:Net'`.
    """
    if standard := [what for what, name in named.items() if _is_standard(name)]:
        why = "an experiment may use nothing of Python's standard library, not even with --allow"
        return f"{_join(standard)} cannot be used: {why}; name something of Coterie or of your own"
    if not (
        lacking := {what: name for what, name in named.items() if needs_consent(name) and name not in consent()}
    ):
        return ""
    names = list(dict.fromkeys(lacking.values()))
    remedy = f"give allow={names}"
    if _command is not None:
        flags = [word for name in names for word in ("--allow", name)]
        remedy = f"write: {shlex.join(['coterie', *_command, *flags])}"
    verb, them = ("is", "it") if len(lacking) == 1 else ("are", "them")
    why = "not allowed, because a file may import nothing by itself"
    return f"{_join(list(lacking))} {verb} {why}; if you trust {them}, {remedy}"


def _join(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _is_standard(name: str) -> bool:
    """Whether a module is called as one of the standard library, wherever it lies."""
    return re.split(r"[.:]", name)[0] in sys.stdlib_module_names


# ---- modules and objects


def import_modules(names: Iterable[str]) -> None:
    """Import modules for what they register.

    Raises:
        BadInput: one sentence for each that is not there, fails, or was not given.
    """
    problems: list[str] = []
    for name in names:
        try:
            if not _MODULE.fullmatch(name):
                raise BadInput(
                    f"module {name!r} is not possible; write it as in an import statement: package.module"
                )
            _refuse({f"module {name!r}": name})
            _import(name, f"module {name!r}")
        except BadInput as problem:
            problems += problem.problems
    if problems:
        raise BadInput(problems)


def import_object(kind: str, path: str) -> Any:
    """Import what `package.module:object` names.

    Raises:
        BadInput: it was not given, there is no such module or object, its module fails to import, or the object is
            not of this module.
    """
    module, _, qualname = path.partition(":")
    what = f"{kind} {path!r}"
    _refuse({what: path})
    home = _import(module, what)
    found = _follow(home, qualname, what)
    # Else a name could lead through what a module imports to anything that is installed.
    defined = str(getattr(found, "__module__", ""))
    is_own = sys.modules.get(defined) is home or defined.startswith(f"{module}.")
    if callable(found) and not is_own:
        raise BadInput(f"{what} is defined in {defined}, not in {module}; name an object that {module} defines")
    if not needs_consent(path) and path not in consent() and not _is_layer(found):
        raise BadInput(f"{what} is not a class derived from torch.nn.Module; nothing else of torch.nn can be named")
    return found


def _refuse(named: Mapping[str, str]) -> None:
    if refusal := find_refusal(named):
        raise BadInput(refusal)


def _is_layer(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, import_module("torch.nn").Module)


def _follow(module: Any, qualname: str, what: str) -> Any:
    found = module
    for part in qualname.split("."):
        if not hasattr(found, part):
            names = _own_names(module) if found is module else []
            raise BadInput(unknown(f"{what} cannot be imported: object", part, names, f"in {module.__name__}"))
        found = getattr(found, part)
    return found


def _own_names(module: Any) -> list[str]:
    """Return what a path may name in a module: public objects that it, or a module of its package, defines."""
    return [
        name
        for name, held in vars(module).items()
        if not name.startswith("_") and f"{getattr(held, '__module__', '')}.".startswith(f"{module.__name__}.")
    ]


def _import(name: str, what: str) -> Any:
    """Import a module; `what` begins the sentence on why it cannot be."""
    if name in sys.modules:
        return sys.modules[name]
    _see_current_folder()
    try:
        with _same_draws():
            return import_module(name)
    except BadInput:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            path = suggest_path(name)
            hint = f"to take it from that file, write {path}" if path else WHERE
            raise BadInput(f"{what} cannot be imported: there is no module {error.name}; {hint}") from None
        raise BadInput(f"{what} cannot be imported: it needs {error.name}, which is not installed") from None
    except (Exception, SystemExit) as error:  # whatever somebody's module does when it is imported
        said = str(error).strip().partition("\n")[0]
        raise BadInput(f"{what} cannot be imported: {type(error).__name__}: {said}") from error


@contextmanager
def _same_draws() -> Iterator[None]:
    """Let what a module draws when it is imported, as a network's weights, be the same in every process."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _see_current_folder() -> None:
    """Let modules of the current folder be found, after all others. A program has its own folder there instead."""
    with suppress(OSError):  # it may have been removed
        here = str(Path.cwd())
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)


@contextmanager
def current_folder_last() -> Iterator[None]:
    """Start Python processes in the block that look for no module in the current folder first.

    Those of `multiprocessing` are `python -c`, which would take a `pickle.py` of that folder for Python's own.
    """
    former = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        os.environ.pop("PYTHONSAFEPATH")
        os.environ |= {} if former is None else {"PYTHONSAFEPATH": former}


# ---- entry points


@dataclass(frozen=True)
class Offer:
    """A name that an installed package offers."""

    name: str
    path: str
    """`package.module:object`, or a module that registers the name itself."""
    package: str
    """The distribution, as one installs it."""
    file: Path | None = None
    """The module's file, where it can be told without importing anything."""

    @property
    def module(self) -> str:
        return self.path.partition(":")[0]

    def summary(self) -> str:
        """Return the docstring of the object, read off the source; empty where it cannot be found there."""
        try:
            tree = ast.parse(self.file.read_text("utf-8")) if self.file is not None else ast.Module([], [])
        except (OSError, SyntaxError, ValueError):
            return ""
        name = self.path.partition(":")[2]
        kinds = (ast.FunctionDef, ast.ClassDef)
        return next((ast.get_docstring(d) or "" for d in tree.body if isinstance(d, kinds) and d.name == name), "")


def offers(group: str) -> dict[str, list[Offer]]:
    """Return what packages that are installed outside the current folder offer in a group, by name."""
    try:
        here = Path.cwd()
    except OSError:  # it has been removed
        here = Path(os.sep)
    return _offers(group, tuple(sys.path), here)


@cache
def _offers(group: str, path: tuple[str, ...], here: Path) -> dict[str, list[Offer]]:
    from importlib.metadata import entry_points

    found: dict[str, list[Offer]] = {}
    for point in entry_points(group=group):
        if not _is_installed(point.dist, here):
            continue
        package = "" if point.dist is None else point.dist.name
        module, _, name = point.value.partition(":")
        whole = ":".join(part for part in (module.strip(), name.partition("[")[0].strip()) if part)
        some = found.setdefault(point.name, [])
        if whole not in [offer.path for offer in some]:
            some.append(Offer(point.name, whole, package, _find_file(point.dist, module.strip())))
    return found


def _is_installed(distribution: Any, here: Path) -> bool:
    """Whether a distribution lies outside a folder, or in this Python's own place for packages."""
    if distribution is None:
        return False
    place = Path(distribution.locate_file("")).resolve()
    own = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    return place in {Path(path).resolve() for path in (*own, *site.getsitepackages())} or here not in (
        place,
        *place.parents,
    )


def _find_file(distribution: Any, module: str) -> Path | None:
    """Return the file of a distribution's module; None where it lies elsewhere, as when it is being developed."""
    if distribution is None:
        return None
    place = module.replace(".", "/")
    paths = [Path(distribution.locate_file(f"{place}{end}")) for end in (".py", "/__init__.py")]
    return next((path for path in paths if path.is_file()), None)


def find_offer(kind: str, group: str, name: str) -> Offer | None:
    """Return what a package offers under a name; None where none does.

    Raises:
        BadInput: several packages claim the name.
    """
    some = offers(group).get(name, [])
    if len(some) > 1:
        raise BadInput(describe_clash(kind, some))
    return some[0] if some else None


def describe_clash(kind: str, some: Sequence[Offer]) -> str:
    """Return the sentence on a name that several packages claim."""
    claims = " and ".join(f"{offer.package} ({offer.path})" for offer in some)
    return f"{kind} {some[0].name!r} is claimed by {len(some)} packages: {claims}; write the path of one of them"


def import_offer(kind: str, offer: Offer) -> Any:
    """Import what a package offers; the module where that registers the name itself.

    Raises:
        BadInput: it cannot be imported.
    """
    what = f"{kind} {offer.name!r} of the package {offer.package}"
    module, _, qualname = offer.path.partition(":")
    found = _import(module, what)
    return _follow(found, qualname, what) if qualname else found
