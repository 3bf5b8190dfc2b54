"""Partitions and skews on real digits: disjoint, deterministic, and what each of them promises about labels."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie.clients.data.divide.partition import SPLITS, Partition, Pool
from coterie.clients.data.divide.skew import Rows, permutations
from coterie.clients.data.read.datasets import load
from coterie.errors import BadInput
from coterie.grouping.label_divergence import label_divergence
from coterie.grouping.labels import relabel

DIGITS = load("digits")
WRITTEN = replace(
    DIGITS,
    users=np.arange(len(DIGITS.labels)) % 60,
    user_names=tuple(f"writer {i}" for i in range(60)),
    user_groups=np.arange(60) // 7 % 3,
)


def pool(clients: int, seed: int = 0, minimum: int = 10) -> Pool:
    return Pool(WRITTEN, clients, minimum, seed)


def cut(name: str, pool: Pool, **settings: Any) -> Partition:
    entry = SPLITS[name]
    partition: Partition = entry.target(pool, **entry.bind(settings))
    return partition


def histograms(partition: Partition) -> NDArray[np.int64]:
    return np.stack([np.bincount(DIGITS.labels[part], minlength=10) for part in partition.parts])


@given(st.integers(1, 40), st.integers(0, 1000))
def test_iid_gives_everything_in_equal_sizes(clients: int, seed: int) -> None:
    sizes = [len(part) for part in cut("iid", pool(clients, seed)).parts]
    assert sum(sizes) == len(DIGITS.labels)
    assert max(sizes) - min(sizes) <= 1


def test_dirichlet_gives_everything_and_small_alpha_separates() -> None:
    divergence = []
    for alpha in (0.2, 1.0, 100.0):
        held = histograms(cut("dirichlet", pool(10), alpha=alpha))
        assert held.sum() == len(DIGITS.labels)
        divergence.append(label_divergence(held))
    assert divergence[0] > 2 * divergence[1] > 4 * divergence[2]


def test_dirichlet_shares_have_the_variance_of_the_distribution() -> None:
    # A class's share of one of n clients has variance (1/n)(1 - 1/n) / (n alpha + 1).
    n, alpha = 5, 2.0
    shares = [histograms(cut("dirichlet", pool(n, seed, 1), alpha=alpha)) / DIGITS_SIZES for seed in range(150)]
    expected = (1 / n) * (1 - 1 / n) / (n * alpha + 1)
    assert np.var(np.stack(shares)) == pytest.approx(expected, rel=0.1)


DIGITS_SIZES = np.bincount(DIGITS.labels)


@pytest.mark.parametrize(("clients", "alpha", "minimum"), [(300, 0.5, 10), (60, 0.01, 10), (20, 1e-9, 2)])
def test_dirichlet_gives_up_and_says_what_to_change(clients: int, alpha: float, minimum: int) -> None:
    with pytest.raises(BadInput, match=rf"min_samples = {minimum} .*alpha.*min_samples.*clients"):
        cut("dirichlet", pool(clients, minimum=minimum), alpha=alpha)


@given(st.integers(1, 10), st.integers(2, 30), st.integers(0, 1000))
def test_classes_gives_each_client_as_many(per_client: int, clients: int, seed: int) -> None:
    held = histograms(cut("classes", pool(clients, seed), per_client=per_client))
    assert (np.count_nonzero(held, axis=1) == per_client).all()
    holders = np.count_nonzero(held, axis=0)
    assert holders.max() - holders.min() <= 1
    for c in np.flatnonzero(holders):
        own = held[held[:, c] > 0, c]
        assert own.sum() == DIGITS_SIZES[c]
        assert own.max() - own.min() <= 1


def test_shards_are_few_runs_of_sorted_labels() -> None:
    held = histograms(cut("shards", pool(20), per_client=2))
    assert held.sum() == len(DIGITS.labels)
    # A shard of 1797 / 40 samples spans at most two classes of about 180.
    assert np.count_nonzero(held, axis=1).max() <= 4


def test_by_user_keeps_people_whole() -> None:
    whole = pool(60)
    partition = cut("by-user", replace(whole, clients=None))
    assert WRITTEN.users is not None
    assert [set(WRITTEN.users[part]) for part in partition.parts] == [{i} for i in range(60)]
    assert sum(map(len, partition.parts)) == len(DIGITS.labels)
    some = cut("by-user", replace(whole, clients=12))
    assert some.names is not None
    chosen = [int(name.removeprefix("writer ")) for name in some.names]
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 12
    assert [set(WRITTEN.users[part]) for part in some.parts] == [{i} for i in chosen]
    assert some.true_groups is not None
    assert np.array_equal(some.true_groups, relabel(np.array(chosen) // 7 % 3))
    with pytest.raises(BadInput, match=r"clients = 61 .*digits .*60 "):
        cut("by-user", replace(whole, clients=61))


@given(st.integers(1, 5), st.sampled_from([0.3, 0.5, 0.8, 1.0]), st.integers(5, 20))
def test_label_groups_give_the_groups_class_its_share(groups: int, share: float, clients: int) -> None:
    partition = cut("label-groups", pool(clients), groups=groups, share=share)
    held = histograms(partition)
    assert partition.true_groups is not None
    assert np.array_equal(partition.true_groups, np.arange(clients) % groups)
    sizes = held.sum(axis=1)
    assert (sizes == sizes[0]).all()
    own = held[np.arange(clients), np.arange(clients) % groups]
    assert np.abs(own - share * sizes).max() <= 1
    others = held.copy()
    others[np.arange(clients), np.arange(clients) % groups] = 0
    assert np.abs(others[others > 0] - (1 - share) * sizes[0] / 9).max(initial=0) <= 1
    # The clients are as large as the data allow: the most wanted class is all but used up.
    assert (held.sum(axis=0) + 2 * clients > DIGITS_SIZES).any()


@given(st.integers(1, 5), st.integers(5, 20))
def test_label_blocks_do_not_share_classes(groups: int, clients: int) -> None:
    partition = cut("label-blocks", pool(clients), groups=groups)
    held = histograms(partition) > 0
    assert partition.true_groups is not None
    for i, j in combinations(range(clients), 2):
        same = partition.true_groups[i] == partition.true_groups[j]
        assert (held[i] == held[j]).all() if same else not (held[i] & held[j]).any()
    assert held.any(axis=0).all()


def test_primary_secondary_has_its_proportions_and_levels() -> None:
    divergence = {}
    for level in ("low", "mid", "high"):
        held = histograms(cut("primary-secondary", pool(20), level=level))
        shares = np.sort(held / held.sum(axis=1, keepdims=True), axis=1)[:, ::-1]
        slack = 1.5 / held.sum(axis=1).min()
        assert ((shares[:, 0] > 0.4 - slack) & (shares[:, 0] < 0.6 + slack)).all()
        assert ((shares[:, 1] > 0.2 - slack) & (shares[:, 1] < 0.4 + slack)).all()
        rest = held[held < 0.2 * held.sum(axis=1, keepdims=True) - 1]
        assert len(rest) == 8 * 20
        divergence[level] = label_divergence(held)
    assert divergence["low"] < divergence["mid"] < divergence["high"]
    with pytest.raises(BadInput, match=r" 2 .* 3 .* 1 .* 10"):
        cut("primary-secondary", pool(1))


@given(st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]), st.integers(4, 20), st.integers(0, 1000))
def test_few_shot_has_equal_samples_of_few_classes(share: float, clients: int, seed: int) -> None:
    partition = cut("few-shot", pool(clients, seed), share=share, classes=5, few_classes=2, samples_per_class=11)
    held = histograms(partition)
    assert partition.few_shot is not None
    assert partition.few_shot.sum() == int(share * clients + 0.5)
    assert np.array_equal(np.count_nonzero(held, axis=1), np.where(partition.few_shot, 2, 5))
    assert set(held[held > 0]) == {11}


def test_few_shot_takes_the_most_possible_and_refuses_more() -> None:
    held = histograms(cut("few-shot", pool(20)))
    each = held.max()
    holders = np.count_nonzero(held, axis=0)
    assert (each * holders <= DIGITS_SIZES).all()
    assert ((each + 1) * holders > DIGITS_SIZES).any()
    with pytest.raises(BadInput, match=rf"samples_per_class = {each + 1} .*digits .*{each}"):
        cut("few-shot", pool(20), samples_per_class=int(each) + 1)


@pytest.mark.parametrize(
    ("name", "given_settings", "says"),
    [
        ("classes", {"per_client": 11}, r"^classes\.per_client = 11 .*digits .*10 "),
        ("label-groups", {"groups": 11}, r"^label-groups\.groups = 11 .*digits .*10 "),
        ("label-blocks", {"groups": 9}, r"'label-blocks\(groups=9\)'.* 9 clients; clients = 8"),
        ("few-shot", {"classes": 12}, r"^few-shot\.classes = 12 .*digits .*10 "),
    ],
)
def test_what_the_data_do_not_allow(name: str, given_settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        cut(name, pool(8), **given_settings)


@pytest.mark.parametrize(("name", "setting"), [("classes", "per_client"), ("few-shot", "classes")])
def test_windows_of_classes_repeat_after_ten_clients(name: str, setting: str) -> None:
    partition = cut(
        name, pool(24), sets="windows", **{setting: 5}, **({"share": 0.0} if name == "few-shot" else {})
    )
    for client, held in enumerate(histograms(partition) > 0):
        assert set(np.flatnonzero(held)) == {(client + k) % 10 for k in range(5)}
    assert partition.true_groups is not None
    assert np.array_equal(partition.true_groups, np.arange(24) % 10)


@given(st.sampled_from([0.1, 0.6, 10.0]), st.integers(2, 60), st.integers(0, 1000))
def test_equal_dirichlet_clients_have_one_size(alpha: float, clients: int, seed: int) -> None:
    held = histograms(cut("dirichlet", pool(clients, seed, 2), alpha=alpha, sizes="equal"))
    assert set(held.sum(axis=1)) == {len(DIGITS.labels) // clients}
    assert (held.sum(axis=0) <= DIGITS_SIZES).all()


@pytest.mark.parametrize("sets", ["balanced", "windows"])
def test_few_shot_clients_are_tested_on_the_classes_of_a_regular_one(sets: str) -> None:
    partition = cut("few-shot", pool(20), share=0.5, samples_per_class=11, sets=sets, held_out="regular")
    assert partition.few_shot is not None
    assert partition.untrained is not None
    for few, own, further in zip(partition.few_shot, partition.parts, partition.untrained, strict=True):
        trained, tested = np.unique(DIGITS.labels[own]), np.unique(DIGITS.labels[further])
        assert (len(trained), len(tested)) == ((2, 3) if few else (5, 0))
        assert not set(trained) & set(tested)
        assert not set(own) & set(further)


def rows(inputs: NDArray[np.float32], clients: int) -> Rows:
    edges = np.linspace(0, len(inputs), clients + 1).astype(np.int64)
    return Rows("x", inputs, np.arange(len(inputs)) % 10, 10, np.column_stack([edges[:-1], edges[1:]]), 3)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_rotations_are_right(groups: int) -> None:
    images = np.random.default_rng(0).normal(size=(40, 5, 5, 2)).astype(np.float32)
    turned = rows(images.copy(), 8)
    group = SPLITS["rotated"].target(turned, groups=groups)
    assert np.array_equal(group, np.arange(8) % groups)
    for client, (start, stop) in enumerate(turned.runs):
        quarter = 4 // groups * (client % groups)
        for k in range(start, stop):
            for y in range(5):
                for x in range(5):
                    # A quarter turn counter-clockwise brings the pixel at (x, size - 1 - y) to (y, x).
                    source = [(y, x), (x, 4 - y), (4 - y, 4 - x), (4 - x, y)][quarter]
                    assert np.array_equal(turned.inputs[k, y, x], images[k, *source])


@pytest.mark.parametrize("shape", [(20, 9), (20, 4, 5, 1), (20, 128, 9)])
def test_only_square_images_are_rotated(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match=r"square .* x "):
        SPLITS["rotated"].target(rows(np.zeros(shape, np.float32), 4), groups=4)


@given(st.integers(2, 30), st.integers(0, 10**6), st.data())
def test_permutations_differ_in_every_label(classes: int, seed: int, data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, classes))
    table = permutations(groups, classes, seed)
    assert np.array_equal(table[0], np.arange(classes))
    assert (np.sort(table, axis=1) == np.arange(classes)).all()
    assert all((a != b).all() for a, b in combinations(table, 2))


def test_permuted_labels_of_each_client() -> None:
    before = rows(np.zeros((40, 1), np.float32), 8)
    labels = before.labels.copy()
    group = SPLITS["permuted-labels"].target(before, groups=3)
    table = permutations(3, 10, before.seed)
    for (start, stop), own in zip(before.runs, group, strict=True):
        assert np.array_equal(before.labels[start:stop], table[own][labels[start:stop]])
    with pytest.raises(BadInput, match=r"groups = 11 .*x .*10 classes"):
        SPLITS["permuted-labels"].target(before, groups=11)


@pytest.mark.parametrize(("skew", "features"), [("permuted-labels", (1,)), ("rotated", (2, 2, 1))])
def test_groups_of_unequal_sizes(skew: str, features: tuple[int, ...]) -> None:
    skewed = rows(np.zeros((44, *features), np.float32), 22)
    group = SPLITS[skew].target(skewed, groups=4, sizes=(12, 6, 3, 1))
    assert np.array_equal(group, np.repeat(np.arange(4), (12, 6, 3, 1)))
    for wrong in ((12, 10), (12, 6, 3, 2)):
        with pytest.raises(BadInput, match=rf"^{skew}.sizes = .* 4 .* 22 clients"):
            SPLITS[skew].target(skewed, groups=4, sizes=wrong)
