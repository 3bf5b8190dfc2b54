"""What the command line prints: help, lists, new files, refusals, and a tiny run looked at in every way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.freeze.expected import empty_folder, read_text, seen_afresh, write_text
from tests.freeze.terminal import call, plain_terminal, transcript

KINDS = ("methods", "datasets", "splits", "networks", "parts")

SMALL = (
    *("--clients", "4", "--rounds", "2", "--network", "mlp", "--set", "network.hidden=8"),
    *("--set", "samples_per_client=40", "--set", "engine=sequential", "--set", "workers=1"),
)

BAD_INPUTS: tuple[tuple[str, ...], ...] = (
    ("rnu",),
    ("zzz",),
    ("run",),
    ("run", "fesm"),
    ("run", "fesem", "--round", "3"),
    ("run", "fesem", "--rounds", "0", "--seed", "x", "--participation", "2", "--engine", "tpu"),
    ("run", "ifca", "--set", "clustrs=3", "--set", "lr"),
    ("run", "ifca", "--set", "method.mu=1"),
    ("run", "ifca", "--clients", "3"),
    ("run", "ifca", "--against", "other"),
    ("run", "ifca", "--data", "mnits"),
    ("run", "ifca", "--data", "missing.npz"),
    ("run", "ifca", "--split", "rotatd(4)"),
    ("run", "fedcr", "--network", "gaussian-mlp", "--engine", "batched"),
    ("run", "fedcr", "--network", "mlp"),
    ("run", "fesem", "--set", "training.lr=-1", "--set", "training.optimizer=sdg", "--network", "mpl"),
    ("run", "a.toml"),
    ("run", "experiment.yaml"),
    ("run", "broken.toml"),
    ("run", "unknown.toml"),
    ("resume", "x"),
    ("show",),
    ("show", "x"),
    ("report", "x"),
    ("diagnose", "x"),
    ("diagnose", "digits", "--alpha", "2", "--starts", "0"),
    ("explain", "fesm"),
    ("compare", "fedavg", "fesm"),
    ("reproduce", "x"),
    ("predict", "x", "--data", "digits"),
    ("export", "x", "--to", "model.safetensors"),
    ("list", "method"),
    ("list", "models"),
    ("list", "methods", "fesm"),
    ("list", "parts", "clusters"),
    ("new", "a.txt"),
    ("new", "a.toml", "--method", "fesm"),
    ("new", "no/a.toml"),
    ("flower", "zzz"),
)


def see_help() -> str:
    """Ask every command and subcommand for its help."""
    return transcript([(), ("--help",), *((*command, "--help") for command in _commands(()))])


def see_lists() -> str:
    """List every kind, and every name of each with its settings; of parts, which have none, one file's."""
    calls: list[tuple[str, ...]] = []
    for kind in KINDS:
        names = ["cluster"] if kind == "parts" else _listed(kind)
        calls += [("list", kind), *(("list", kind, name) for name in names)]
    return transcript(calls)


def see_new_files() -> str:
    """Write experiment files, one of them twice. (What is in them is in `test_toml.py`.)"""
    with empty_folder():
        return transcript(
            [("new", "first.toml"), ("new", "first.toml"), ("new", "second.toml", "--method", "ifca")]
        )


def see_refusals() -> str:
    """Say what cannot be done, in many ways."""
    with empty_folder() as folder:
        (folder / "broken.toml").write_text("[run\nrounds = 3\n", encoding="utf-8")
        (folder / "unknown.toml").write_text(
            "[method]\nname = 'fesem'\nclustrs = 3\n[runs]\nrounds = 3\n[run]\nround = 3\n", encoding="utf-8"
        )
        return transcript(BAD_INPUTS)


def see_runs() -> str:
    """Train two tiny runs and a comparison, and look at them with every command that reads a run's folder."""
    with empty_folder():
        return transcript(
            [
                ("run", "fedavg", "--name", "first", *SMALL),
                ("run", "ifca", "--name", "second", *SMALL, "--set", "clusters=2", "--quiet"),
                ("run", "ifca", "--name", "second", *SMALL, "--set", "clusters=2", "--quiet"),
                ("resume", "first"),
                ("show", "first"),
                ("show", "first", "second"),
                ("report", "second", "--against", "first"),
                ("predict", "second", "--data", "digits", "--client", "1"),
                ("predict", "second", "--data", "digits"),
                ("export", "second", "--group", "0", "--to", "model.safetensors"),
                ("predict", "model.safetensors", "--data", "digits"),
                ("compare", "fedavg", "ifca(clusters=2)", "--seeds", "2", "--jobs", "1", "--name", "c", *SMALL),
                ("compare", "comparisons/c", "--quiet"),
                ("explain", "fesem", *SMALL),
                ("reproduce", "--list"),
            ]
        )


SCENES: dict[str, Callable[[], str]] = {
    "help.txt": see_help,
    "lists.txt": see_lists,
    "new.txt": see_new_files,
    "refusals.txt": see_refusals,
    "runs.txt": see_runs,
}


def write() -> None:
    """Freeze what is seen now."""
    for name, see in SCENES.items():
        write_text(name, see())


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_what_a_user_sees_stays(name: str) -> None:
    assert seen_afresh(name) == read_text(name)


def _commands(above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every command below this one, found in its help."""
    with plain_terminal():
        _, out, _ = call(*above, "--help")
    _, _, table = out.partition(" Commands ")
    for name in re.findall(r"^│ ([a-z][a-z-]*) ", table, re.MULTILINE):
        yield (*above, name)
        yield from _commands((*above, name))


def _listed(kind: str) -> list[str]:
    with plain_terminal():
        _, out, _ = call("list", kind)
    return [line.split()[0] for line in out.splitlines() if not line.startswith((" ", "settings: "))]
