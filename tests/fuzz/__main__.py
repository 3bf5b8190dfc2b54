"""Plays odd inputs against Coterie: `python -m tests.fuzz --cases 1000 --seed 0 [--only KIND] [--case NUMBER]`."""

from __future__ import annotations

import argparse
import faulthandler
import sys
from collections import Counter

import torch

from tests.fuzz.campaign import KINDS, list_cases, make_case, play_cases


def main() -> int:
    """Play cases, say what was found, and return 1 if anything was."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*KINDS])
    parser.add_argument("--case", type=int, help="play this one of --only again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    faulthandler.enable()
    cases = list_cases(options.cases, options.only)
    if options.case is not None:
        if options.only is None:
            parser.error("--case needs --only, the kind of the case")
        cases = [(options.only, options.case)]
        print(make_case(options.seed, *cases[0]).describe())
    found: Counter[str] = Counter()
    # The case is named before it is played: one may end the process.
    for finding in play_cases(options.seed, cases, lambda text: print(f"\r{text} ", end="", file=sys.stderr)):
        found[finding.kind] += 1
        words = f"--seed {options.seed} --only {finding.kind} --case {finding.number}"
        print(f"{words}: {finding.wrong}\n", flush=True)
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.items()) or "no finding"
    print(f"{len(cases):,} cases under seed {options.seed}: {kinds}")
    return 1 if found else 0


sys.exit(main())
