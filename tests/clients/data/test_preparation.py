"""Advice on inputs as they come."""

from __future__ import annotations

import numpy as np

from coterie.clients.data.preparation import Preparation, advise_standardising


def test_inputs_of_very_different_scales_are_noted_whatever_is_missing() -> None:
    inputs = np.array([[np.nan, 1, 5000, 7], [np.nan, 2, np.nan, 7], [np.nan, 3, 1000, 7]], np.float32)
    known = Preparation(input_names=("empty", "small", "large", "same"))
    (note,) = advise_standardising(inputs, known)
    assert note.startswith("large varies 2,449 times as much as small")
    assert advise_standardising(inputs[:, :2], known) == []
