"""Other signals than directions of updates: the same test, by what the models of halves do. They decide nothing."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.errors import count_of
from coterie.grouping.halves import PairingTest

MOST_CLIENTS = 64
"""Clients whose halves are compared by their models."""

MOST_PUBLIC = 500
"""Public samples that models predict."""


@dataclass(frozen=True)
class Signal:
    """What another signal than the directions of updates says."""

    name: str
    """`losses` or `predictions`."""
    clients: int
    """How many were compared."""
    samples: int
    """Samples in a half on which a model loses, or public samples that it predicts."""
    test: PairingTest
    """Of the same halves."""

    @property
    def title(self) -> str:
        """What it is called."""
        return _TITLES[self.name].format(samples=f"{self.samples:,}")


_TITLES = {
    "losses": "losses under each other's models",
    "predictions": "predictions on {samples} public samples",
}


def say_p(test: PairingTest, draws: int) -> str:
    """Say a p-value; the smallest that there can be is said as a bound."""
    return f"p = {test.p:.3g}" if test.p > 1 / (1 + draws) else f"p < {2 / (1 + draws):.3g}"


def say_signals(signals: tuple[Signal, ...], structure: bool, alpha: float, draws: int) -> tuple[str, ...]:
    """Return one sentence about the other signals; none where there are none.

    Args:
        signals: as they came out.
        structure: whether the directions say that clients differ.
        alpha: the error level.
        draws: random pairings a test.
    """
    if not signals:
        return ()
    said, agree = [], True
    for signal in signals:
        found = signal.test.p <= alpha
        what = f"tell clients apart{', too' * structure}" if found else "do not tell clients apart"
        said.append(f"{signal.title} {what} ({say_p(signal.test, draws)}, {count_of(signal.clients, 'client')})")
        agree &= found == structure
    end = "" if agree else "; where signals disagree, the directions of updates alone decide"
    whole = "; ".join(said)
    return (f"Other signals? {whole[:1].upper()}{whole[1:]}{end}",)
