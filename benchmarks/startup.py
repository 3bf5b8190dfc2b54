"""How long people wait before anything happens, and for a small experiment as a whole.

    python -m benchmarks.startup [--repeats 5] [--json FILE] [--smoke]

Each command is a fresh process, timed from its start to its end, in turn with the others; one run of each comes
first and is not counted. `import coterie` is timed inside its process, without the start of Python.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import arguments, measured, median, write

ROUNDS = 20
IMPORT = """
import json, sys, time
start = time.perf_counter()
import coterie
print(json.dumps([time.perf_counter() - start, "torch" in sys.modules]))
"""


def importing() -> tuple[float, bool]:
    """Seconds that `import coterie` takes in a fresh process, and whether it loads PyTorch."""
    found = subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True)
    seconds, torch = json.loads(found.stdout)
    return float(seconds), bool(torch)


def command(*words: str) -> Callable[[], None]:
    """A command of coterie in a fresh process and an empty folder."""

    def once() -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "coterie", *words], cwd=folder, check=True, capture_output=True)

    return once


def rows(repeats: int, rounds: int) -> list[dict[str, Any]]:
    """One row a thing to wait for: its seconds, and whether PyTorch was loaded where that counts."""
    ways = {
        "coterie list methods": command("list", "methods"),
        f"{rounds} rounds on digits": command("run", "fedavg", "--data", "digits", "--rounds", str(rounds)),
    }
    imports = [importing() for _ in range(repeats + 1)][1:]
    found = {"import coterie": [seconds for seconds, _ in imports], **measured(ways, repeats)}
    return [
        {
            "what": what,
            "seconds": median(seconds),
            "seconds_least": min(seconds),
            "seconds_most": max(seconds),
            "loads_torch": any(torch for _, torch in imports) if what == "import coterie" else None,
        }
        for what, seconds in found.items()
    ]


def main() -> None:
    """Print the table."""
    given = arguments("startup", __doc__, {"repeats": 1}).read()
    found = rows(given.repeats, 2 if given.smoke else ROUNDS)
    table = Table("what", "seconds", "from … to", "loads PyTorch")
    for row in found:
        spread = f"{row['seconds_least']:.2f} … {row['seconds_most']:.2f}"
        table.add_row(
            row["what"], f"{row['seconds']:.2f}", spread, {True: "yes", False: "no", None: ""}[row["loads_torch"]]
        )
    Console().print(table)
    write(given.json, "startup", found)


if __name__ == "__main__":
    main()
