"""Addressed randomness: a stream is named by (seed, purpose, client, round), never consumed in turn.

Two purposes never share a stream, so a method that draws extra numbers for clustering cannot disturb the
order of the minibatches, and neither the number of workers nor the runtime changes a bit
(docs/methods/conventions.md, convention 1).
"""

from __future__ import annotations

import secrets
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


def draw_secretly() -> np.random.Generator:
    """Return a generator that begins with 128 bits of the operating system, which nobody can draw again."""
    return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))
