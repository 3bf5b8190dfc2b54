"""What a promise of privacy costs in noise, and what noise promises: epsilon for a delta, by dp-accounting.

Epsilon is an upper bound: the distribution of privacy loss is put together on a grid of `GRID`, rounded up.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from coterie.errors import BadInput

GRID = 1e-3
"""The step of the grid of privacy losses; a tenth of it changes epsilon by less than a thousandth."""

LARGEST = 100.0
"""An epsilon from which on a bound by Renyi divergences does: of so large losses a grid would be too long."""

MOST_NOISE = 1e4
"""A noise multiplier that is never needed; beyond it no epsilon is looked for."""


@dataclass(frozen=True)
class Releases:
    """How often something is told of a client's data under noise.

    Attributes:
        times: how often.
        share: the chance that a client's data play a part in one of them (Poisson sampling); 1 for always.
    """

    times: int
    share: float = 1.0

    def repeated(self, rounds: int) -> Releases:
        """Return the same in each of several rounds."""
        return Releases(self.times * rounds, self.share)


def find_epsilon(multiplier: float, releases: Releases, delta: float) -> float:
    """Return the epsilon that Gaussian noise promises, for adding or removing one unit."""
    if not releases.times:
        return 0.0
    return _epsilon(multiplier, releases.times, releases.share, delta)


def find_noise(epsilon: float, releases: Releases, delta: float) -> float:
    """Return the least noise multiplier that promises `epsilon`, to a thousandth.

    Raises:
        BadInput: no noise does.
    """
    low, high = 0.01, 1.0
    while find_epsilon(high, releases, delta) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise BadInput(
                f"privacy.epsilon = {epsilon:g} is not possible with {releases.times:,} noisy releases; "
                "it must be larger"
            )
    while low > 0.02 and find_epsilon(low, releases, delta) <= epsilon:
        low /= 2

    def excess(multiplier: float) -> float:
        return min(find_epsilon(multiplier, releases, delta), 1e6) - epsilon

    if excess(low) <= 0:
        return low
    from scipy.optimize import brentq  # takes long to load, and few runs need it

    found = float(brentq(excess, low, high, xtol=1e-4 * high, rtol=1e-4))
    while excess(found) > 0:  # the promise holds, whatever side the root was found from
        found *= 1.0005
    return found


@lru_cache(maxsize=512)
def _epsilon(multiplier: float, times: int, share: float, delta: float) -> float:
    accounting = _load()
    event = accounting.GaussianDpEvent(multiplier)
    if share < 1:
        event = accounting.PoissonSampledDpEvent(share, event)
    rough = accounting.rdp.RdpAccountant().compose(event, times).get_epsilon(delta)
    if rough > LARGEST:
        return float(rough)
    fine = accounting.pld.PLDAccountant(value_discretization_interval=GRID).compose(event, times)
    return float(fine.get_epsilon(delta))


def _load() -> Any:
    """Import dp-accounting, which comes with the extra `privacy`.

    Raises:
        BadInput: it is not installed.
    """
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError:
        raise BadInput("privacy.unit needs the library dp-accounting; pip install 'coterie[privacy]'") from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # orders that do not converge are left out, which is sound
    return dp_accounting
