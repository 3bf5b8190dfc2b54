"""Addressed randomness: a stream is named by (seed, purpose, client, round), never consumed in turn.

Two purposes never share a stream, so a method that draws extra numbers for clustering cannot disturb the
order of the minibatches, and neither the number of workers nor the runtime changes a bit
(docs/methods/conventions.md, convention 1).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

NOBODY = -1
"""The client or round of a stream that belongs to no client or no round."""


def address(seed: int, purpose: str, client: int = NOBODY, round: int = NOBODY) -> int:
    """A 63-bit number that is a pure function of its arguments, the same on every machine."""
    text = f"{seed}/{purpose}/{client}/{round}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def stream(seed: int, purpose: str, client: int = NOBODY, round: int = NOBODY) -> np.random.Generator:
    """The NumPy generator at that address; asking twice gives the same numbers twice."""
    return np.random.Generator(np.random.Philox(key=address(seed, purpose, client, round)))


def make_secret() -> bytes:
    """Return 256 bits of the operating system's randomness."""
    return secrets.token_bytes(32)


@dataclass(frozen=True)
class PrivateRandomness:
    """Where a private run's noise comes from, and the draws of clients and samples on which its promise counts.

    Whoever knows it can take the noise off, so that the run's seed, which everybody may know, has no part in it.

    Attributes:
        secret: what streams are addressed by, besides their address; without it and a seed, each stream is new.
        seed: makes the same streams again for whoever knows it.
    """

    secret: bytes = field(default=b"", repr=False)
    seed: int | None = None

    def stream(self, purpose: str, client: int = NOBODY, round: int = NOBODY) -> np.random.Generator:
        """Return the generator at that address."""
        if self.seed is not None:
            return stream(self.seed, purpose, client, round)
        text = f"{purpose}/{client}/{round}".encode()
        digest = blake2b(text, key=self.secret or make_secret(), digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
