"""One case of the fuzzer: files in an empty folder, and what is done with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Step = tuple[str, ...] | Callable[[Path], None]
"""Words of a command line; or a function of the folder, which returns or raises `BadInput`."""


@dataclass(frozen=True)
class Case:
    """What is done, step after step, in a folder of its own."""

    steps: tuple[Step, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by path in the folder."""
    with_run: bool = False
    """Whether a finished run lies in `runs/first`."""

    def describe(self) -> str:
        """Return the steps and the beginnings of the files, for somebody who looks at a finding."""
        steps = [" ".join(map(repr, s)) if isinstance(s, tuple) else s.__qualname__ for s in self.steps]
        files = [f"{name} ({len(content):,} bytes): {content[:1500]!r}" for name, content in self.files.items()]
        return "\n".join([*(step[:3000] for step in steps), *files])
