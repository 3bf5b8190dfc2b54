"""What scripts share whose originals are written for TensorFlow 1: that language, and the tiny network in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.golden.vectors import CLASSES, FEATURES, HIDDEN


def use_tensorflow_one() -> Any:
    """Let `import tensorflow` mean the part of today's that speaks the language of version 1, and return it."""
    tf: Any = import_module("tensorflow.compat.v1")
    tf.disable_v2_behavior()
    sys.modules["tensorflow"] = tf
    return tf


def build_mlp(tf: Any) -> tuple[Any, Any, Any, Any]:
    """Add the tiny network to the graph; return its inputs, labels, mean loss and predicted classes."""
    features = tf.placeholder(tf.float32, [None, FEATURES])
    labels = tf.placeholder(tf.int64, [None])
    kernel = tf.get_variable("dense/kernel", [FEATURES, HIDDEN])
    hidden = tf.nn.relu(features @ kernel + tf.get_variable("dense/bias", [HIDDEN]))
    last = tf.get_variable("dense_1/kernel", [HIDDEN, CLASSES])
    logits = hidden @ last + tf.get_variable("dense_1/bias", [CLASSES])
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    return features, labels, loss, tf.argmax(logits, axis=1)


def note_batches(
    module: Any, rows: Callable[[], Mapping[bytes, int]], passes: Callable[[], list[list[int]]]
) -> None:
    """Let their `batch_data` in a module of theirs note which rows each pass hands out, as numbers by `rows`."""
    batches = module.batch_data

    def noted(data: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
        order: list[int] = []
        passes().append(order)
        for x, y in batches(data, batch_size):
            order += [rows()[row.tobytes()] for row in x]
            yield x, y

    module.batch_data = noted


def flat(variables: Sequence[Any]) -> NDArray[np.float32]:
    """Return a model of theirs as one vector, in the order and the shape of PyTorch."""
    kernel, bias, last, last_bias = variables
    return np.concatenate([kernel.T.ravel(), bias, last.T.ravel(), last_bias]).astype(np.float32)
