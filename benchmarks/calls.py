"""How much of Coterie a run goes through before the first client works.

    python -m benchmarks.calls [--smoke]

FeSEM runs on a table of a CSV file, with one worker, which is the process itself. Counted is every call of a
function in src/coterie, from `coterie.run` until an engine begins the first client's work. What is imported on
the way runs too, so the bodies of modules and classes count as functions that are called once.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.smoke import Arguments

SHOWN = 12
"""Functions that are listed, those called most often."""

BEGINS = ("clients/engine/engine.py", "run_rules")
"""The function with which the first client's work begins."""


def count_calls() -> Counter[CodeType]:
    """Return how often each function of Coterie is called in this process before the first client works."""
    import coterie

    package = str(Path(coterie.__file__).parent) + os.sep
    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            calls[code] += 1
            if (Path(code.co_filename).relative_to(package).as_posix(), code.co_name) == BEGINS:
                sys.setprofile(None)

    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "wards.csv")
        rows = [f"{i % 6},{i % 7},{i % 11 / 10},{int((i % 11 > 5) != (i % 6 > 2))}" for i in range(600)]
        table.write_text("\n".join(["ward,age,dose,label", *rows]) + "\n", "utf-8")
        wanted: dict[str, Any] = {
            "data": {"name": str(table), "client": "ward"},
            "method": {"name": "fesem", "clusters": 2},
            "run": {"rounds": 1, "workers": 1, "folder": str(Path(folder, "runs"))},
        }
        sys.setprofile(note)
        coterie.run(coterie.Experiment(**wanted))
    return calls


def main() -> None:
    """Count, and print."""
    Arguments("calls", __doc__, {}).read()
    calls = count_calls()
    files = {code.co_filename for code in calls}
    console = Console()
    console.print(f"{calls.total():,} calls of {len(calls):,} functions in {len(files):,} files")
    plain = Counter({code: count for code, count in calls.items() if code.co_flags & 1})
    console.print(
        f"of these {plain.total():,} calls of {len(plain):,} functions that are no body of a module or class"
    )
    table = Table("calls", "function", "file", box=None)
    for code, count in calls.most_common(SHOWN):
        table.add_row(f"{count:,}", code.co_qualname, "/".join(Path(code.co_filename).parts[-3:]))
    console.print(table)


if __name__ == "__main__":
    main()
