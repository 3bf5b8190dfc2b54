"""What the command line prints of itself: the help of every command, and every list."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.freeze.expected import read_text, seen_afresh, write_text
from tests.freeze.terminal import call, plain_terminal, transcript

KINDS = ("methods", "datasets", "splits", "networks", "parts")


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


SCENES: dict[str, Callable[[], str]] = {
    "help.txt": see_help,
    "lists.txt": see_lists,
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
    return re.findall(r"^(?:  )?(\S+) {2,}", out, re.MULTILINE)
