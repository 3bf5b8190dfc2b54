"""Calls of the command line in this process, written down as a transcript."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from shlex import join
from unittest.mock import patch

from coterie.cli.app import main

COLOURS = ("FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE", "GITHUB_ACTIONS")
"""Variables that ask for colour where there is no terminal."""

COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@contextmanager
def plain_terminal() -> Iterator[None]:
    """Let the command line write for 80 columns, without colour."""
    with patch.dict(os.environ, {"COLUMNS": "80", "LINES": "24", "NO_COLOR": "1", "TERM": "dumb"}):
        for name in COLOURS:
            os.environ.pop(name, None)
        yield


def call(*words: str) -> tuple[int, str, str]:
    """Call the command line; return its exit code, its output and its error output."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def transcript(calls: Iterable[tuple[str, ...]]) -> str:
    """Make these calls one after the other, and return what a user would see."""
    with plain_terminal():
        return "\n".join(_seen(words) for words in calls)


def _seen(words: tuple[str, ...]) -> str:
    code, out, err = call(*words)
    lines = [f"$ coterie {join(words)}".rstrip(), *_plain(out), *(f"error: {line}" for line in _plain(err))]
    return "\n".join([*lines, f"exit code {code}"]) + "\n"


def _plain(text: str) -> list[str]:
    return [line.rstrip() for line in COLOUR.sub("", text).splitlines()]
