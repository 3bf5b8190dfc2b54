"""Plays odd inputs against Coterie: `python -m tests.fuzz --cases 1000 --seed 0 [--only KIND] [--case NUMBER]`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import torch

from tests.fuzz.campaign import KINDS, answer_worker, list_cases, make_case, play_apart
from tests.fuzz.playing import play

EVERY_SECONDS = 10.0
"""Between two lines of progress."""


def main() -> int:
    """Play cases, say what was found, and return 1 if anything was."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*KINDS])
    parser.add_argument("--case", type=int, help="play this one of --only again, in this process")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.play:
        answer_worker(options.seed)
        return 0
    if options.case is not None:
        if options.only is None:
            parser.error("--case needs --only, the kind of the case")
        return _replay(options.seed, options.only, options.case)
    return _play_many(options.seed, options.cases, options.only)


def _replay(seed: int, kind: str, number: int) -> int:
    case = make_case(seed, kind, number)
    print(case.describe())
    wrong = play(case)
    print(wrong or "nothing is wrong")
    return 0 if wrong is None else 1


def _play_many(seed: int, count: int, only: str | None) -> int:
    cases = list_cases(count, only)
    found: Counter[str] = Counter()
    begun = said = time.monotonic()
    for done, finding in enumerate(play_apart(seed, cases), start=1):
        if finding is not None:
            found[finding.kind] += 1
            print(f"--seed {seed} --only {finding.kind} --case {finding.number}: {finding.wrong}\n", flush=True)
        if time.monotonic() - said > EVERY_SECONDS:
            said = time.monotonic()
            print(f"{done:,} of {count:,} cases in {said - begun:.0f} s, {found.total()} findings", file=sys.stderr)
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.items()) or "no finding"
    print(f"{count:,} cases under seed {seed} in {time.monotonic() - begun:.0f} s: {kinds}")
    return 1 if found else 0


sys.exit(main())
