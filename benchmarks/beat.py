"""Has a change cost a beat? Rounds of W1 and W2 by this tree and by an earlier commit, in turn, in one run.

    python -m benchmarks.beat [--against REF] [--workloads W2 W1] [--turns N] [--json FILE]

The earlier commit is checked out into a folder of its own, which goes when this ends. W1 and W2 are those of
`benchmarks.peers`, with a worker a core. Each turn is a process of its own. Printed are seconds a round (the median
of the rounds after the first, and of the turns), the peak memory of the process and of its largest worker, and the
ratio; more than 1.1 of it ends with exit code 1. On a busy machine trust only what several turns agree on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import arguments, median, write
from benchmarks.peers import WORKLOADS
from coterie.runtime.threads import cores

ROOT = Path(__file__).parents[1]
ROUNDS = {"W1": 5, "W2": 30}
SLOWER = 1.1
"""Times as long as before, from which on a round counts as slower."""

# The earlier tree runs it, too: it holds only what trees have had from the beginning.
ONE = """
import json, resource, statistics, sys, tempfile
source, keys = sys.argv[1], json.loads(sys.argv[2])
sys.path.insert(0, source)
import coterie
with tempfile.TemporaryDirectory() as folder:
    keys["run"] |= {"folder": folder, "name": "beat"}
    seconds = coterie.run(coterie.Experiment(**keys)).rounds["seconds"].to_list()[1:]
peak = [resource.getrusage(who).ru_maxrss // 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps([statistics.median(seconds), *peak]))
"""


def time_one(source: Path, name: str, smoke: bool) -> list[float]:
    """Return seconds a round by a tree, and the peaks of the process and of its largest worker in MiB."""
    _, sections = WORKLOADS[name]
    data, run = dict(sections["data"]), dict(sections["run"])
    if smoke:
        data |= {"clients": 6, "samples_per_client": 40}
        run |= {"participation": 1.0}
    keys = {
        "data": {"split": "iid", "validation": 0.0, **data},
        "network": sections["network"],
        "method": "fedavg",
        "training": {"epochs": 1, "batch_size": 10, "lr": 0.1},
        "run": {**run, "rounds": 2 if smoke else ROUNDS[name], "workers": cores()},
    }
    words = [sys.executable, "-c", ONE, str(source / "src"), json.dumps(keys)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} by {source}: {done.stderr.strip().splitlines()[-1]}")
    found: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> int:
    """Print a line for each workload."""
    smoke = {"workloads": ["W2"], "turns": 1, "against": "HEAD"}
    parser = arguments("beat", __doc__, smoke, repeats=None)
    parser.add_argument("--against", metavar="REF", default="HEAD", help="a commit; HEAD if not said")
    parser.add_argument("--workloads", nargs="+", default=["W2", "W1"], choices=WORKLOADS)
    parser.add_argument("--turns", type=int, default=5, help="how often each tree runs each workload")
    given = parser.read()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(before), given.against], check=True)
        try:
            for name in given.workloads:
                turns = [[time_one(tree, name, given.smoke) for tree in (before, ROOT)] for _ in range(given.turns)]
                rows.append(_row(name, given.against, turns))
                print(_sentence(rows[-1]), flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=False)
    write(given.json, "beat", rows)
    return int(not given.smoke and any(row["ratio"] > SLOWER for row in rows))


def _row(name: str, against: str, turns: list[list[list[float]]]) -> dict[str, Any]:
    (before, *peaks), (now, *peaks_now) = (
        [median(column) for column in zip(*of, strict=True)] for of in zip(*turns, strict=True)
    )
    each = [after[0] / earlier[0] for earlier, after in turns]
    return {
        "workload": name,
        "against": against,
        "turns": len(turns),
        "seconds_before": before,
        "seconds_now": now,
        "ratio": now / before,
        "least": min(each),
        "most": max(each),
        "peaks_before_mib": peaks,
        "peaks_now_mib": peaks_now,
    }


def _sentence(row: dict[str, Any]) -> str:
    before, now = ("+".join(f"{peak:.0f}" for peak in row[key]) for key in ("peaks_before_mib", "peaks_now_mib"))
    return (
        f"{row['workload']}: {row['seconds_before']:.4f} s a round before, {row['seconds_now']:.4f} now: "
        f"{row['ratio']:.2f} times ({row['least']:.2f} to {row['most']:.2f}); peak MiB {before} before, {now} now"
    )


if __name__ == "__main__":
    sys.exit(main())
