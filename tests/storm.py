"""A storm of kills: runs and single workers are killed at random moments, and end in the bits of undisturbed runs.

`python -m tests.storm --kills 1000 --seed 0`, or `make storm`. It needs Linux, which says who
a process's workers are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np

from coterie.runs.folder.run_folder import RunFolder
from tests.interrupted import assert_same_run, left_overs
from tests.process_table import children, has_ended, until
from tests.processes import Process, Processes

ROUNDS = 20
SETTINGS = (
    f"--rounds={ROUNDS} --clients=8 --participation=0.5 --network=mlp --set=network.hidden=8 "
    "--set=client_dropout=0.1 --set=samples_per_client=60 --set=training.momentum=0.5 --quiet"
).split()
CASES = (
    ("fesem", "--workers=2"),
    ("fedavg", "--workers=1", "--holdout-clients=0.25"),
    ("local-only", "--workers=2", "--set=states_mb=0", "--set=checkpoint_every=3"),
    ("ifca", "--workers=1", "--set=every=3"),
    ("fedtsdp", "--workers=2", "--set=h=0.3", "--set=psi=0.8", "--set=eps1=0.05"),
)
KINDS = {"run": 0.55, "worker": 0.25, "SIGTERM": 0.08, "SIGINT": 0.07, "SIGINT twice": 0.05}
"""What is killed, or how a run is stopped, and how often."""
TRAINED, BEGUN = 0.6, 0.2
"""Shares of an undisturbed run's time: what follows is the page; what comes before, where a third of the kills are,
is set-up."""
CALLS = 8
"""After so many calls that were killed, a run is given twice the time."""
WORKER_SECONDS = 0.3
"""Least time between two kills of workers: a client whose work ends a process again and again is left out."""
PATIENCE_SECONDS = 120.0
"""By then a call has ended, or it hangs."""
WORKERS_GONE_SECONDS = 20.0
"""By then the workers of a run that was killed have ended."""


class Storm:
    """Kills runs until there were enough kills, each run until it is finished.

    Args:
        processes: starts the command line.
        kills: how many there shall be.
        seed: of what is killed when. How far a run has come by then is the machine's business.
        report: is told how it gets on, every 50 kills.
    """

    def __init__(self, processes: Processes, kills: int, seed: int, report: Callable[[str], None]) -> None:
        self.kinds: Counter[str] = Counter()
        self.runs = self.resumed = self.removed = 0
        self._processes, self._kills, self._report = processes, kills, report
        self._rng = np.random.default_rng(seed)
        self._seconds: dict[tuple[str, ...], float] = {}
        self._orphans: list[int] = []
        self._started = time.monotonic()

    @property
    def kills(self) -> int:
        return self.kinds.total()

    def rage(self) -> str:
        """Kill; return what came of it, in a few lines."""
        while self.kills < self._kills:
            self._disturb(CASES[self.runs % len(CASES)])
            self.runs += 1
        each = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kinds.items()))
        return (
            f"{self.kills} kills ({each}) of {self.runs} runs, which were resumed {self.resumed} times\n"
            f"every run ended in the bits of an undisturbed one; of {self.removed} files that a kill had left "
            "half written none is there any more"
        )

    def _disturb(self, case: tuple[str, ...]) -> None:
        """Take one run to its end, with kills on the way, and hold it against the undisturbed one."""
        whole = self._undisturbed(case)
        folder = RunFolder(whole.path.with_name(f"run-{self.runs}"))
        for calls in count():
            # Each call goes on for longer, on average: also on a machine that has slowed down the run ends.
            longest = TRAINED * self._seconds[case] * (1 + calls / CALLS)
            if self._is_over(self._start(case, folder), folder, case, longest):
                break
        assert_same_run(whole, folder)
        assert left_overs(folder.path) == []
        shutil.rmtree(folder.path)

    def _undisturbed(self, case: tuple[str, ...]) -> RunFolder:
        folder = RunFolder(self._processes.folder / "runs" / f"whole-{case[0]}")
        if case not in self._seconds:
            started = time.monotonic()
            call = self._start(case, folder)
            assert call.wait() == 0, call.printed
            self._seconds[case] = time.monotonic() - started
        return folder

    def _start(self, case: tuple[str, ...], folder: RunFolder) -> Process:
        """Resume the run, or begin it where a kill came before there was anything to resume."""
        if (folder.path / "experiment.toml").exists():
            self.resumed += 1
            return self._processes.start("resume", folder.name, "--quiet")
        shutil.rmtree(folder.path, ignore_errors=True)
        return self._processes.start("run", *case, *SETTINGS, f"--name={folder.name}")

    def _is_over(self, call: Process, folder: RunFolder, case: tuple[str, ...], longest: float) -> bool:
        """Kill workers of a call, and by `longest` seconds the call; return whether it has finished the run."""
        left = left_overs(folder.path)
        while self.kills < self._kills:
            kind = str(self._rng.choice(list(KINDS), p=list(KINDS.values())))
            if kind == "worker" and "--workers=2" in case:
                until(lambda: bool(children(call.pid)) or has_ended(call.pid), longest)
                if until(lambda: has_ended(call.pid), self._rng.uniform(WORKER_SECONDS, longest / 2)):
                    break
                if workers := children(call.pid):
                    send(int(self._rng.choice(workers)), signal.SIGKILL)
                    self._count(kind)
            else:
                share = BEGUN / TRAINED if self._rng.random() < 1 / 3 else 1.0
                if not until(lambda: has_ended(call.pid), self._rng.uniform(0.0, share * longest)):
                    self._count("run" if kind == "worker" else kind)
                    self._stop(call, kind)
                break
        assert until(lambda: has_ended(call.pid), PATIENCE_SECONDS), f"{folder.name} hangs: {call.printed}"
        code, printed = call.wait(), call.printed
        assert "Traceback" not in printed, printed
        assert code in (0, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT), printed
        self._check_left_overs(call, folder, left, code)
        return code == 0

    def _count(self, kind: str) -> None:
        self.kinds[kind] += 1
        if self.kills % 50 == 0:
            seconds = time.monotonic() - self._started
            self._report(f"{self.kills} kills, {self.runs} runs finished, {seconds:.0f} s")

    def _stop(self, call: Process, kind: str) -> None:
        """Send the signal; before, the workers of those that were killed earlier must have gone."""
        gone = until(lambda: all(map(has_ended, self._orphans)), WORKERS_GONE_SECONDS)
        assert gone, f"workers outlive their run: {self._orphans}"
        self._orphans = children(call.pid)
        number = signal.Signals[kind.split()[0]] if kind.startswith("SIG") else signal.SIGKILL
        send(call.pid, number)
        if kind.endswith("twice"):
            time.sleep(self._rng.uniform(0.0, 0.05))
            send(call.pid, number)

    def _check_left_overs(self, call: Process, folder: RunFolder, before: list[str], code: int) -> None:
        """Whoever has gone on with a run has removed what was half written, and leaves nothing, if it could."""
        progress = folder.progress()
        if progress is None or progress.pid != call.pid:
            return
        now = left_overs(folder.path)
        assert not set(before) & set(now), now
        assert code < 0 or not now, now
        self.removed += len(before)


def send(pid: int, number: int) -> None:
    """Send a signal to a process, which may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kill runs and workers at random moments, and resume them.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        print(Storm(Processes(Path(folder)), given.kills, given.seed, lambda line: print(line, flush=True)).rage())
    return 0


if __name__ == "__main__":
    sys.exit(main())
