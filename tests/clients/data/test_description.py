from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from coterie.clients.data import build, describe
from coterie.clients.data.federation import divide
from coterie.clients.data.read.datasets import Dataset
from coterie.clients.tasks import Language
from coterie.grouping.label_divergence import SMOOTHING, label_divergence


@settings(max_examples=20)
@given(st.integers(2, 9), st.integers(2, 10), st.integers(0, 1000))
def test_divergence_is_the_mean_over_pairs(n: int, classes: int, seed: int) -> None:
    counts = np.random.default_rng(seed).poisson(2.0, (n, classes)) + np.eye(n, classes, dtype=np.int64)
    counts[:, 0] += 1
    shares = counts / counts.sum(axis=1, keepdims=True) + SMOOTHING
    shares /= shares.sum(axis=1, keepdims=True)
    pairs = [
        (entropy(shares[i], shares[j]) + entropy(shares[j], shares[i])) / 2 for i in range(n) for j in range(i)
    ]
    assert label_divergence(counts) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_divergence_of_the_same_and_of_one() -> None:
    assert label_divergence(np.tile([3, 4, 5], (6, 1))) == pytest.approx(0, abs=1e-12)
    assert label_divergence(np.array([[1, 2]])) == 0


def test_describe_counts_what_is_there() -> None:
    federation = build("digits", "few-shot(0.5, 4, 2) + rotated(2)", 6, 0)
    labels = [federation.slice(i, "train")[1].tolist() for i in range(6)]
    counts = np.array([[own.count(c) for c in range(10)] for own in labels])
    text = "\n".join(describe(federation))
    for said in (
        f"6 clients, {len(federation.labels):,} samples of 8 x 8 x 1, 10 classes",
        f"{label_divergence(counts):.4f} nats",
        f"training: {counts.sum():,} samples; per client {min(map(len, labels))} to {max(map(len, labels))}, ",
        f"test: {federation.test_samples.sum()} samples",
        "classes per client: 2 to 4, mean 3.0",
        "true groups: 2, of 3, 3 clients",
        "few-shot clients: 3",
    ):
        assert said in text


def test_lines_say_nothing_of_what_is_not_there() -> None:
    text = "\n".join(describe(build("digits", "iid", 6, 0)))
    assert not any(word in text for word in ("true groups", "few-shot", "public"))


def test_of_data_without_classes_the_task_is_told() -> None:
    texts = np.zeros((60, 5), np.int64)
    data = Dataset("texts", texts, texts, 0, np.arange(60) % 3, ("a", "b", "c"), task=Language(), outputs=7)
    lines = describe(divide(data, "by-user", None, 0, count_twins=False))
    assert lines[0] == "texts: 3 clients, 60 samples of 5 inputs, language with 7 outputs"
    assert not any(word in line for line in lines for word in ("classes", "divergence"))
