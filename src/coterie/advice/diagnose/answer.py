"""What suits the clients, in one of seven kinds: what to train for whom, or that it cannot be told."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from coterie.advice.diagnose.pay import TITLES, Option, Pay

Answer = Literal["one", "constants", "gradual", "groups", "gradual-groups", "alone", "unknown"]

ANSWERS: dict[str, Answer] = {
    "global": "one",
    "constants": "constants",
    "tuned": "gradual",
    "personal": "gradual",
    "group": "groups",
    "group-tuned": "gradual-groups",
    "local": "alone",
}
"""The kind of answer that each option of `Pay` is."""

WORDS: dict[Answer, str] = {
    "one": "one model for all",
    "constants": "one model for all, with a constant of each client's own",
    "gradual": "one model for all, from which each client departs: they differ gradually, in no clear groups",
    "groups": "a model for each of {groups} groups",
    "gradual-groups": "a model for each of {groups} groups, and each client departs from its own",
    "alone": "a model for each client, which it trains alone",
}

OPEN = 0.02
"""What another option may gain at most where one model for all is the answer: of accuracy, or of the score."""

LEANING = 0.25
"""The p of the test of structure above which it speaks for one population; below, it may have too little power."""


@dataclass(frozen=True)
class Suits:
    """What suits the clients.

    Attributes:
        kind: of the answer.
        sentence: that says it.
    """

    kind: Answer
    sentence: str


def judge(option: str, pay: Pay | None, p: float, groups: int, why_not: str) -> Suits:
    """Return what suits the clients.

    Args:
        option: that is chosen, or expected where nobody was asked.
        pay: what each option is worth; None where nobody was asked.
        p: of the test of structure.
        groups: how many were found.
        why_not: why nothing can be told; else empty.
    """
    if why_not:
        return Suits("unknown", f"What suits the clients? It cannot be answered, because {why_not}")
    kind = ANSWERS[option]
    if pay is not None and kind == "one" and p <= LEANING and (other := _find_open(pay)) is not None:
        return Suits(
            "unknown",
            f"What suits the clients? It is open: so far {TITLES[other.name]} is not clearly better than one model "
            f"for all, but its gain of {pay.say_gain(other.gain)} may be as large as the upper end; more samples "
            "would decide",
        )
    by = "" if pay is None else " (scores on held-out samples decide it: see Does it pay?)"
    return Suits(kind, f"What suits the clients? {WORDS[kind].format(groups=groups).capitalize()}{by}")


def _find_open(pay: Pay) -> Option | None:
    """Return the next best option if its interval reaches beyond a gain of `OPEN` over one model for all."""
    limit = OPEN if pay.measure == "accuracy" else OPEN * abs(pay.score("global"))
    other = next(option for option in pay.options if option.name == pay.weighed)
    return other if isfinite(other.gain.high) and other.gain.high > limit else None
