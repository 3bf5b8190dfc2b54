"""Kinds of skew, from profiles of halves of planted clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.clients.rules.profile import FEATURES, random_features
from coterie.grouping.skew import Share, Skew, are_sound, find_skew

CLIENTS, SIZE, CLASSES = 24, 40, 4


def profiles(kind: str, seed: int = 0, hostile: float = 0.0) -> np.ndarray:
    """Of clients with Gaussian classes, in two groups that differ in `kind`."""
    rng = np.random.default_rng(seed)
    centres, shift = 2 * rng.normal(size=(CLASSES, 5)), 2 * rng.normal(size=5)
    found = np.zeros((CLIENTS, 2, CLASSES, 1 + FEATURES))
    scale = torch.stack([torch.zeros(5), torch.full((5,), 2.0)]).double()
    for client in range(CLIENTS):
        odd = client % 2 == 1
        often = [0.4, 0.4, 0.1, 0.1] if kind == "labels" and odd else [0.1, 0.1, 0.4, 0.4]
        often = often if kind == "labels" else [0.25] * CLASSES
        for half in (0, 1):
            labels = rng.choice(CLASSES, SIZE, p=often)
            inputs = centres[labels] + rng.normal(size=(SIZE, 5)) + (shift if kind == "features" and odd else 0)
            if (kind == "concept" and odd) or client < hostile * CLIENTS:
                labels = (labels + 1) % CLASSES
            features = random_features(torch.from_numpy(inputs), scale, 7).numpy()
            rows = np.concatenate([np.ones((SIZE, 1)), features], 1)
            np.add.at(found[client, half], labels, rows)
    return found


def skew(kind: str, seed: int = 0, hostile: float = 0.0) -> Skew:
    return find_skew(profiles(kind, seed, hostile), np.random.default_rng(seed))


@pytest.mark.parametrize("kind", ["labels", "features", "concept"])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_kind_is_told_from_the_others(kind: str, seed: int) -> None:
    assert skew(kind, seed).kinds(0.05) == (kind,)


def test_one_population_has_no_kind_and_no_share() -> None:
    found = [skew("none", seed) for seed in range(40)]
    for name in ("classes", "inputs", "within"):
        shares = [getattr(one, name) for one in found]
        assert abs(np.mean([share.share for share in shares])) < 0.005
        assert np.mean([share.p <= 0.05 for share in shares]) <= 0.15
    assert sum(one.kinds(0.05) != () for one in found) <= 3


def test_a_fifth_that_shifts_its_labels_is_no_concept_shift() -> None:
    assert skew("none", hostile=0.16).kinds(0.05) == ()
    assert skew("features", hostile=0.16).kinds(0.05) == ("features",)


def test_a_share_is_that_of_the_variance_between_clients() -> None:
    """Half of the clients hold one pair of classes with 0.4 each, the others the other pair."""
    found = skew("labels").classes
    assert found is not None
    assert found.share == pytest.approx(0.09 / 0.75, abs=0.05)  # four times 0.15 squared, over 1 - 4 / 16
    assert found.p < 0.01


def test_what_is_small_does_not_count() -> None:
    assert not Share(0.001, 0.001).is_there(0.05)
    assert not Share(0.5, 0.06).is_there(0.05)
    without = Skew(None, Share(0.2, 0.001), Share(0.2, 0.001))
    assert without.kinds(0.05) == ("features",)
    meaning = Skew(Share(0, 1), Share(0.005, 0.001), Share(0.2, 0.001))
    assert meaning.kinds(0.05) == ("concept",)
    both = Skew(Share(0.1, 0.001), Share(0.05, 0.001), Share(0.2, 0.001))
    assert both.kinds(0.05) == ("labels", "features")


def test_profiles_that_no_samples_have_are_not_sound() -> None:
    right = profiles("none")[0]
    wrong = [-right, 100 * right, right + np.nan, 0 * right]
    big = right.copy()
    big[..., 5] *= 50
    assert are_sound(np.stack([right, *wrong, big]), SIZE).tolist() == [True, *[False] * 5]


def test_features_of_equal_inputs_are_equal_and_of_strangers_are_not() -> None:
    inputs = torch.from_numpy(np.random.default_rng(0).normal(3, 2, (300, 20)))
    scale = torch.stack([torch.full((20,), 3.0), torch.full((20,), 2.0)]).double()
    features = random_features(inputs, scale, 0)
    kernel = 2 * features @ features.T / FEATURES
    assert kernel.diagonal().mean() == pytest.approx(1, abs=0.1)
    off = kernel[~torch.eye(300, dtype=torch.bool)]
    assert off.mean() == pytest.approx(0.37, abs=0.1)
    assert torch.equal(features, random_features(inputs, scale, 0))
