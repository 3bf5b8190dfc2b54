"""Processes of a test that run beside it: begun, waited for, and ended with all that they have begun."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from coterie.shipping.flower.deployment import kill_group
from tests import process_table

LONG = 300.0
"""Seconds that a machine with much else to do may take for anything."""

Begin = Callable[[str, Sequence[str], Path, Mapping[str, str]], None]
"""Starts a process: its name, under which its log is found, its command, its folder and its environment."""


def until(condition: Callable[[], object], seconds: float = LONG) -> None:
    """Wait until a condition holds."""
    assert process_table.until(condition, seconds)


@contextmanager
def beginning(logs: Path) -> Iterator[Begin]:
    """Have processes begin, each with a log `NAME.log`, which are ended afterwards with all that they began."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        with (logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        begun.append(process)

    try:
        yield begin
    finally:
        for process in begun:
            kill_group(process)
