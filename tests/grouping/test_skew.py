"""Kinds of skew, from profiles of halves of planted clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.rules.profile import CUTS, FEATURES, cut_targets, random_features
from coterie.grouping.skew import Share, Skew, are_sound, find_group_skew, find_skew

CLIENTS, SIZE, CLASSES = 24, 40, 4


def profiles(
    kind: str,
    seed: int = 0,
    hostile: float = 0.0,
    every: int = 2,
    small: tuple[np.ndarray, int] = (np.zeros(CLIENTS, bool), SIZE),
) -> np.ndarray:
    """Of clients with Gaussian classes, one of `every` of whom is of a group that differs in `kind`.

    Some are `small`, with so many samples a half.
    """
    rng = np.random.default_rng(seed)
    centres, shift = 2 * rng.normal(size=(CLASSES, 5)), 2 * rng.normal(size=5)
    found = np.zeros((CLIENTS, 2, CLASSES, 1 + FEATURES))
    scale = torch.stack([torch.zeros(5), torch.full((5,), 2.0)]).double()
    for client in range(CLIENTS):
        odd = client % every == 1
        often = [0.4, 0.4, 0.1, 0.1] if kind == "labels" and odd else [0.1, 0.1, 0.4, 0.4]
        rare = [0.49, 0.49, 0.01, 0.01] if odd else [0.01, 0.01, 0.49, 0.49]
        often = rare if kind == "rare" else often if kind == "labels" else [0.25] * CLASSES
        size = small[1] if small[0][client] else SIZE
        for half in (0, 1):
            labels = rng.choice(CLASSES, size, p=often)
            inputs = centres[labels] + rng.normal(size=(size, 5)) + (shift if kind == "features" and odd else 0)
            if (kind == "concept" and odd) or client < hostile * CLIENTS:
                labels = (labels + 1) % CLASSES
            features = random_features(torch.from_numpy(inputs), scale, 7).numpy()
            rows = np.concatenate([np.ones((size, 1)), features], 1)
            np.add.at(found[client, half], labels, rows)
    return found


def skew(kind: str, seed: int = 0, hostile: float = 0.0) -> Skew:
    return find_skew(profiles(kind, seed, hostile), np.random.default_rng(seed))


@pytest.mark.parametrize("kind", ["labels", "features", "concept"])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_kind_is_told_from_the_others(kind: str, seed: int) -> None:
    assert skew(kind, seed).kinds(0.05) == (kind,)


@pytest.mark.parametrize("kind", ["labels", "features", "concept"])
@pytest.mark.parametrize("every", [2, 4, 8])
def test_in_what_a_group_differs_is_told_however_small_it_is(kind: str, every: int) -> None:
    members = np.arange(CLIENTS) % every == 1
    found = profiles(kind, every=every)
    if every == 8:
        assert find_skew(found, np.random.default_rng(0)).kinds(0.05) == ()
    for group in (members, ~members):
        assert find_group_skew(found, group, np.random.default_rng(0)).kinds(0.025) == (kind,)


def levels(federations: list[np.ndarray], members: np.ndarray) -> dict[str, float]:
    """How often each test of a group rejects at 5 %."""
    skews = [find_group_skew(one, members, np.random.default_rng(s), 199) for s, one in enumerate(federations)]
    return {
        name: float(np.mean([getattr(one, name).p <= 0.05 for one in skews]))
        for name in ("classes", "inputs", "within")
    }


def test_groups_that_are_none_differ_in_nothing_more_often_than_the_level_says() -> None:
    found = levels([profiles("none", s) for s in range(50)], np.arange(CLIENTS) % 3 == 1)
    assert max(found.values()) <= 0.12


def test_a_group_with_other_classes_has_inputs_that_differ_no_more_often_than_the_level_says() -> None:
    """Nearly no sample of some classes is in the group, so that the means of these are uncertain."""
    found = levels([profiles("rare", s) for s in range(50)], np.arange(CLIENTS) % 2 == 1)
    assert found["classes"] == 1
    assert found["within"] <= 0.12


@pytest.mark.slow
@pytest.mark.parametrize(("every", "size"), [(8, 8), (6, 16)])
def test_a_group_of_small_halves_differs_no_more_often_than_the_level_says(every: int, size: int) -> None:
    small = np.arange(CLIENTS) % every == 1
    found = levels([profiles("none", s, small=(small, size)) for s in range(100)], small)
    assert max(found.values()) <= 0.12


def test_a_part_of_a_group_is_held_against_all_others() -> None:
    """Clients of one population, but for one of eight that hold the other classes: who is of it decides."""
    found = profiles("labels", every=8)
    few, strangers = np.arange(CLIENTS) % 8 == 1, np.arange(CLIENTS) % 8 == 2
    assert find_group_skew(found, few, np.random.default_rng(0)).kinds(0.05) == ("labels",)
    assert find_group_skew(found, strangers, np.random.default_rng(0)).kinds(0.05) == ()


def numbers(kind: str, seed: int) -> np.ndarray:
    """Profiles of clients whose targets are numbers, in two groups: inputs, offset or slope differ."""
    rng, found = np.random.default_rng(seed), np.zeros((CLIENTS, 2, 1 + len(CUTS), 1 + FEATURES))
    slopes = rng.normal(size=(2, 4))
    scale = torch.stack([torch.zeros(4), torch.ones(4)]).double()
    of_targets = torch.tensor([[0.0], [1.0]]).double() * float(np.linalg.norm(slopes[0]))
    for client in range(CLIENTS):
        odd = client % 2
        for half in (0, 1):
            inputs = rng.normal(size=(SIZE, 4)) + (odd if kind == "inputs" else 0)
            targets = inputs @ slopes[odd if kind == "slope" else 0] + 0.3 * rng.normal(size=SIZE)
            targets += 2 * odd * (kind == "offset")
            parts = cut_targets(torch.from_numpy(targets[:, None]), of_targets, 7).numpy()
            features = random_features(torch.from_numpy(inputs), scale, 7).numpy()
            np.add.at(found[client, half], parts, np.concatenate([np.ones((SIZE, 1)), features], 1))
    return found


@pytest.mark.parametrize(("kind", "named"), [("none", ()), ("inputs", "features"), ("slope", "concept")])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_how_numbers_depend_on_inputs_is_told_from_other_inputs(kind: str, named: Any, seed: int) -> None:
    found, members = numbers(kind, seed), np.arange(CLIENTS) % 2 == 1
    for skew in (
        find_skew(found, np.random.default_rng(seed), numbers=True),
        find_group_skew(found, members, np.random.default_rng(seed), numbers=True),
    ):
        kinds = set(skew.kinds(0.01))
        assert kinds - {"labels"} == ({named} if named else set())
        assert named or not kinds


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_offset_of_numbers_is_one_of_targets_and_of_no_inputs(seed: int) -> None:
    skew = find_skew(numbers("offset", seed), np.random.default_rng(seed), numbers=True)
    assert "labels" in skew.kinds(0.05)
    assert "features" not in skew.kinds(0.05)


def test_targets_are_cut_at_their_quartiles() -> None:
    drawn = np.random.default_rng(0).normal(5, 3, (4000, 1))
    scale = torch.tensor([[5.0], [3.0]]).double()
    parts = cut_targets(torch.from_numpy(drawn), scale, 0)
    assert (torch.bincount(parts) / 4000).numpy() == pytest.approx(0.25, abs=0.03)
    several = torch.from_numpy(np.random.default_rng(1).normal(0, 1, (4000, 3)))
    shuffled = several[:, [1, 2, 0]]
    unit = torch.tensor([[0.0] * 3, [1.0] * 3]).double()
    assert (cut_targets(several, unit, 0) != cut_targets(shuffled, unit, 0)).double().mean() > 0.3


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
