"""A made dataset: people of two dialects, in which the same sounds mean other words."""

from __future__ import annotations

import numpy as np

from coterie.clients.data.read.datasets import Dataset, dataset

PEOPLE, SAMPLES, SOUNDS, WORDS = 12, 60, 16, 4


@dataset("two-dialects", users=True)  # the samples name their users, who become the clients
def two_dialects(public: bool) -> Dataset:
    """Twelve people with 60 utterances each, in two dialects that swap the meaning of words; made, not loaded.

    `public` asks for unlabelled samples on the server; there are none.
    """
    rng = np.random.default_rng(0)
    sounds = 2 * rng.normal(size=(WORDS, SOUNDS))
    heard = rng.integers(0, WORDS, PEOPLE * SAMPLES)
    inputs = (sounds[heard] + rng.normal(size=(len(heard), SOUNDS))).astype(np.float32)
    people = np.repeat(np.arange(PEOPLE), SAMPLES)
    dialect = np.arange(PEOPLE) % 2
    meant = np.where(dialect[people] == 1, WORDS - 1 - heard, heard)
    names = tuple(f"speaker {number}" for number in range(PEOPLE))
    return Dataset("two-dialects", inputs, meant, WORDS, people, names, user_groups=dialect)
