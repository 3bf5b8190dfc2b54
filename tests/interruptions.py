"""Ctrl-C at every moment of a run that Python allows, one run each: it ends, and goes on to the same bits.

`python -m tests.interruptions --moments 2000 --seed 0` takes moments at random; a moment is an instruction before
which Python looks whether a signal has arrived, in the files that make up the loop.
"""

from __future__ import annotations

import argparse
import contextlib
import dis
import gc
import multiprocessing
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

import coterie
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.schema.experiment import Experiment
from tests.interrupted import Stopping, assert_same_run, left_overs

SOURCE = Path(coterie.__file__).parent
WATCHED = frozenset(
    str(path)
    for place in ("runs", "runs/hooks", "runs/folder", "runtime", "runtime/local")
    for path in (SOURCE / place).glob("*.py")
) | {contextlib.__file__}
LOOKS = {"CALL", "CALL_FUNCTION_EX", "RESUME"}
"""Instructions after which Python looks for signals, beside jumps back."""
ROUNDS = 3
NEVER = 99


class Moment(NamedTuple):
    """The n-th time that an instruction is reached."""

    file: str
    function: str
    line: int
    offset: int
    visit: int


@cache
def looking(code: CodeType) -> dict[int, int]:
    """The instructions of a function before which Python looks for signals, with their lines."""
    lines, line, found = {}, code.co_firstlineno, set()
    instructions = list(dis.get_instructions(code))
    for one, following in pairwise(instructions):
        line = one.starts_line or line
        lines[following.offset] = following.starts_line or line
        if one.opname in LOOKS:
            found.add(following.offset)
        if "BACKWARD" in one.opname:
            found.add(one.argval)
    return {offset: lines.get(offset, code.co_firstlineno) for offset in found}


class Interrupter:
    """Calls the handler of Ctrl-C at a moment.

    Args:
        moment: when; None to interrupt nothing and list all moments.
        folder: of the run; it says how far the run has come.

    Attributes:
        seen: every moment so far, where none is given.
        reached: after which round the run was interrupted; None before.
    """

    def __init__(self, moment: Moment | None, folder: RunFolder) -> None:
        self.seen: list[Moment] = []
        self.reached: int | None = None
        self._moment, self._folder = moment, folder
        self._visits: Counter[tuple[str, str, int]] = Counter()

    @contextmanager
    def watching(self) -> Iterator[None]:
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in WATCHED:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        code, offset = frame.f_code, frame.f_lasti
        if event != "opcode" or offset not in looking(code) or self.reached is not None:
            return self._step
        key = code.co_filename, code.co_qualname, offset
        self._visits[key] += 1
        here = Moment(key[0], key[1], looking(code)[offset], offset, self._visits[key])
        if self._moment is None:
            self.seen.append(here)
        elif here == self._moment:
            progress = self._folder.progress()
            self.reached = 0 if progress is None else progress.round
            handler = signal.getsignal(signal.SIGINT)
            assert callable(handler)
            handler(signal.SIGINT, frame)
        return self._step


class Interruptions:
    """Interrupts one small experiment again and again; `folder` holds its runs."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self._parent = folder
        self._experiment = Experiment(
            method="fesem",
            data={"clients": 6, "samples_per_client": 40},
            network={"name": "mlp", "hidden": [4]},
            run={
                "rounds": ROUNDS,
                "workers": workers,
                "checkpoint_every": 1,
                "client_dropout": 0.2,
                "holdout_clients": 0.25,
                "folder": str(folder),
            },
        )
        self.whole = RunFolder(folder / "whole")
        self.run("whole", None)  # loads all modules
        self.moments = self.run("again", None).seen

    def run(self, name: str, moment: Moment | None) -> Interrupter:
        """One run, interrupted at a moment; then it is resumed, and must come to the same bits."""
        folder = RunFolder(self._parent / name)
        interrupter = Interrupter(moment, folder)
        dropped: list[sys.UnraisableHookArgs] = []
        before = _settings()
        former, sys.unraisablehook = sys.unraisablehook, dropped.append
        try:
            status = self._run(name, interrupter)
        finally:
            sys.unraisablehook = former
        gc.collect()
        assert _settings() == before
        assert multiprocessing.active_children() == []
        assert all(issubclass(one.exc_type, KeyboardInterrupt) for one in dropped)
        if interrupter.reached is None:
            assert status == "finished"
        elif interrupter.reached < ROUNDS:
            assert status != "finished"
        if status != "finished":
            assert left_overs(folder.path) == []
            self._go_on(folder)
        if name != "whole":
            assert_same_run(self.whole, RunFolder(folder.path))
        assert left_overs(folder.path) == []
        if name != "whole":
            shutil.rmtree(folder.path)
        return interrupter

    def _run(self, name: str, interrupter: Interrupter) -> str:
        experiment = self._experiment.updated({"run.name": name})
        try:
            with interrupter.watching():
                return coterie.run(experiment, observers=[Stopping(NEVER)]).status
        except KeyboardInterrupt:
            return "none"  # before the run had begun, or when it was saved already

    def _go_on(self, folder: RunFolder) -> None:
        if (folder.path / "experiment.toml").exists():
            assert coterie.resume(folder.path, observers=[Stopping(NEVER)]).status == "finished"
        else:
            shutil.rmtree(folder.path, ignore_errors=True)
            self._run(folder.name, Interrupter(None, folder))


def _settings() -> tuple[Any, ...]:
    """What a run changes while it goes on, and must leave as it was."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    return *handlers, torch.get_num_threads(), gc.get_freeze_count(), gc.isenabled()


def draw_moments(moments: list[Moment], count: int, rng: np.random.Generator) -> list[Moment]:
    """Moments at random: every instruction once before one comes again, at any of its visits."""
    places: dict[tuple[str, str, int], list[Moment]] = {}
    for moment in moments:
        places.setdefault((moment.file, moment.function, moment.offset), []).append(moment)
    found: list[Moment] = []
    while len(found) < count:
        keys = list(places)
        for number in rng.permutation(len(keys))[: count - len(found)]:
            of_place = places[keys[number]]
            found.append(of_place[rng.integers(len(of_place))])
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Interrupt a run at many moments, one run each.")
    parser.add_argument("--moments", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng, started, failed = np.random.default_rng(given.seed), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        interruptions = Interruptions(Path(folder), given.workers)
        places = len({moment[:4] for moment in interruptions.moments})
        print(f"{len(interruptions.moments):,} moments at {places:,} places", flush=True)
        for number, moment in enumerate(draw_moments(interruptions.moments, given.moments, rng), 1):
            try:
                interruptions.run(f"run-{number}", moment)
            except Exception as error:  # noqa: BLE001  # all are to be seen
                failed += 1
                where = f"{Path(moment.file).name}:{moment.line} {moment.function}, visit {moment.visit}"
                print(f"FAILED at {where}", flush=True)
                traceback.print_exception(error, limit=-3)
            if number % 100 == 0:
                print(f"{number} moments, {failed} failed, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{given.moments} moments, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
