"""Federations built whole: no sample in two places, same seed same bits, users and recordings kept whole."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie.clients.data import Dataset, Federation, build
from coterie.clients.data.divide.holdout import hold_out
from coterie.clients.data.divide.small_clients import choose_clients
from coterie.clients.data.federation import divide
from coterie.errors import BadInput
from coterie.grouping.labels import relabel

SPLITS = [
    "iid",
    "dirichlet(0.5)",
    "dirichlet(2.0) + rotated(4)",
    "classes(2) + permuted-labels(2)",
    "shards(3)",
    "by-user",
    "by-user + rotated(2)",
    "label-groups(3, 0.6)",
    "label-blocks(2) + rotated(4)",
    "primary-secondary(low)",
    "few-shot(0.5, 4, 2)",
    "rotated(2) + permuted-labels(3)",
    "dirichlet(0.5, equal)",
    "classes(3, windows)",
]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """900 images of 2 x 2 that carry their own number, with labels 0 to 5 and 30 users."""
    path = tmp_path_factory.mktemp("data") / "numbered.npz"
    number = np.arange(900)
    image = np.stack([number * 4 + k for k in range(4)], axis=1).reshape(-1, 2, 2, 1)
    label = np.random.default_rng(5).permutation(number % 6)
    np.savez(path, image=image.astype(np.float32), label=label, user=number * 7 % 30)
    return str(path)


def original(federation: Federation) -> NDArray[np.int64]:
    """The number of every row, however it was rotated."""
    return federation.inputs.flatten(1).amin(dim=1).numpy().astype(np.int64) // 4


@pytest.mark.medium
@settings(max_examples=60)
@given(st.sampled_from(SPLITS), st.integers(4, 20), st.integers(0, 2**40), st.sampled_from([None, 12, 25]))
def test_no_sample_is_in_two_places(numbered: str, split: str, clients: int, seed: int, cap: int | None) -> None:
    federation = build(numbered, split, clients, seed, samples_per_client=cap)
    rows = original(federation)
    assert len(np.unique(rows)) == len(rows)
    assert federation.n == clients == len(federation.names)
    bounds = federation.bounds
    assert bounds[0, 0] == 0
    assert bounds[-1, 3] == len(rows) == len(federation.labels)
    assert np.array_equal(bounds[1:, 0], bounds[:-1, 3])
    sizes = np.diff(bounds, axis=1)
    total = sizes.sum(axis=1)
    assert (total >= 10).all()
    assert cap is None or total.max() <= cap
    assert (sizes[:, 0] >= 1).all()
    assert np.abs(sizes[:, 1] - 0.1 * total).max() <= 0.5
    assert np.abs(sizes[:, 2] - 0.2 * total).max() <= 0.5
    if federation.true_groups is not None:
        assert np.array_equal(federation.true_groups, relabel(federation.true_groups))
    if "permuted" not in split:
        assert np.array_equal(federation.labels.numpy(), np.load(numbered, allow_pickle=False)["label"][rows])


@pytest.mark.parametrize("split", SPLITS)
def test_same_seed_same_bits(numbered: str, split: str) -> None:
    one, again, other = (build(numbered, split, 8, seed, samples_per_client=25) for seed in (3, 3, 4))
    assert torch.equal(one.inputs, again.inputs)
    assert torch.equal(one.labels, again.labels)
    assert np.array_equal(one.bounds, again.bounds)
    assert not np.array_equal(original(one), original(other))


def test_one_setting_does_not_disturb_the_others(numbered: str) -> None:
    plain, skewed = build(numbered, "shards(2)", 10, 0), build(numbered, "shards(2) + rotated(4)", 10, 0)
    assert np.array_equal(original(plain), original(skewed))
    longer = build(numbered, "shards(2)", 10, 0, test=0.3)
    for i in range(10):
        mine, other = (set(original(f)[f.bounds[i, 0] : f.bounds[i, 3]]) for f in (plain, longer))
        assert mine == other


def test_planted_groups_multiply(numbered: str) -> None:
    federation = build(numbered, "label-blocks(2) + permuted-labels(3)", 12, 0)
    assert federation.true_groups is not None
    assert federation.true_groups.tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert build(numbered, "dirichlet", 12, 0).true_groups is None


def test_slices_are_views(numbered: str) -> None:
    federation = build(numbered, "iid", 5, 0)
    for i in range(5):
        for split in ("train", "validation", "test"):
            inputs, labels = federation.slice(i, split)
            assert inputs.untyped_storage().data_ptr() == federation.inputs.untyped_storage().data_ptr()
            assert labels.untyped_storage().data_ptr() == federation.labels.untyped_storage().data_ptr()
    assert federation.features == (2, 2, 1)
    assert federation.samples.sum() + federation.test_samples.sum() == 810
    assert federation.inputs.dtype == torch.float32
    assert federation.labels.dtype == torch.int64


def test_few_shot_clients_train_on_few_classes_and_are_tested_on_all(numbered: str) -> None:
    federation = build(numbered, "few-shot(0.5, samples_per_class=10, held_out=regular)", 16, 0, test=0.4)
    assert federation.few_shot is not None
    for client, few in enumerate(federation.few_shot):
        trained, tested = (np.unique(federation.slice(client, part)[1]) for part in ("train", "test"))
        assert len(trained) == (2 if few else 5)
        assert len(tested) == 5
    assert len(set(original(federation))) == len(federation.labels)
    assert len(set(federation.test_samples)) == 1  # 0.4 of 10 samples of each of 5 classes


def test_of_few_samples_a_few_shot_client_is_tested_on_all_classes_alike(numbered: str) -> None:
    split = "few-shot(0.5, samples_per_class=10, held_out=regular)"
    federation = build(numbered, split, 16, 0, test=0.4, samples_per_client=10, min_samples=2)
    assert federation.few_shot is not None
    whole = build(numbered, split, 16, 0, test=0.4)
    for client in np.flatnonzero(federation.few_shot).tolist():
        # 10 of the 20 samples of two classes are left: of the three other classes half as many as before.
        trained = set(federation.slice(client, "train")[1].tolist())
        further = [
            sum(label not in trained for label in each.slice(client, "test")[1].tolist())
            for each in (federation, whole)
        ]
        assert further == [6, 12]


def test_further_test_samples_need_data_whose_samples_do_not_overlap(data_folder: Path) -> None:
    with pytest.raises(BadInput, match=r"held_out = 'regular'.*uci-har.*overlap"):
        build("uci-har", "few-shot(0.5, classes=4, held_out=regular)", 8, 0)


@pytest.mark.parametrize(
    ("split", "digest"),
    [
        ("dirichlet(0.5)", "f933e6fbb0de39aaf137a83282d2b348a7b844635411933d4bf98543b4438402"),
        ("label-groups(4, 0.8) + rotated(4)", "3cd85c8db09ed3befc6199f21801c8e66062eec7fa7d95998c361d3ea19aa201"),
    ],
)
def test_digits_are_cut_as_ever(split: str, digest: str) -> None:
    federation = build("digits", split, 12, 2026)
    assert sha256(federation.bounds.tobytes() + federation.labels.numpy().tobytes()).hexdigest() == digest


def test_the_number_of_clients_left_open(numbered: str) -> None:
    assert build("digits", "iid", None, 0).n == 20
    assert build(numbered, "by-user", None, 0).n == 30


def test_recordings_that_several_clients_share_keep_one_side() -> None:
    rng = np.random.default_rng(0)
    units = rng.integers(0, 150, 2000)
    parts = np.array_split(rng.permutation(2000), 12)
    held = hold_out(parts, units, 0.1, 0.2, 7)
    sides = [set(units[np.concatenate([own[which] for own in held])]) for which in range(3)]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 150
    for part, own in zip(parts, held, strict=True):
        assert sorted(np.concatenate(own)) == sorted(part)
        assert 0.1 < len(own[2]) / len(part) < 0.3
    stuck = hold_out([np.arange(40), np.arange(40, 60)], np.arange(60) // 20, 0.1, 0.2, 0)
    with pytest.raises(BadInput, match=r"1 of 2 clients.* b;"):
        choose_clients(stuck, [40, 20], None, ["a", "b"], min_samples=2)


@pytest.mark.parametrize(
    ("split", "clients", "public", "says"),
    [
        ("iid", 5, 1797, "public = 1797.*digits has 1797"),
        ("iid", 1798, 0, "clients = 1798.*digits has 1,797"),
        ("by-user", 5, 0, "'by-user'.*users.*digits"),
        ("idd", 5, 0, "'idd'"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(split: str, clients: int, public: int, says: str) -> None:
    with pytest.raises(BadInput, match=f"^.*{says}.*$"):
        build("digits", split, clients, 0, public=public)


def test_small_clients_are_named() -> None:
    with pytest.raises(BadInput, match=r"^200 of 200.*data\.min_samples = 10.*: client 0 \(9\), .* 190 more.*$"):
        build("digits", "iid", 200, 0)
    assert build("digits", "iid", 200, 0, min_samples=5).samples.min() >= 1


def test_public_samples_are_set_aside_where_there_is_no_official_test_set() -> None:
    federation, whole = build("digits", "iid", 5, 0, public=100), build("digits", "iid", 5, 0)
    assert federation.public is not None
    assert len(federation.public) == 100
    assert len(federation.labels) == len(whole.labels) - 100
    clients = {image.tobytes() for image in federation.inputs.numpy()}
    public = {image.tobytes() for image in federation.public.numpy()}
    every = {image.tobytes() for image in whole.inputs.numpy()}
    assert clients | public == every
    assert len(clients & public) == len(clients) + len(public) - len(every)  # twins in the data only


def test_the_usual_number_of_public_samples_is_bounded_by_what_there_is() -> None:
    federation = build("digits", "iid", 5, 0, public=None, usual_public=1000)
    assert federation.public is not None
    assert len(federation.public) == 179
    assert build("digits", "iid", 5, 0, public=None).public is None


def test_whole_units_are_set_aside() -> None:
    """No sample that the server holds shares measurements with one that a client holds."""
    values, units = np.arange(300, dtype=np.float32)[:, None], np.arange(300) // 7
    federation = divide(Dataset("own", values, np.arange(300) % 3, 3, units=units), "iid", 4, 0, public=30)
    assert federation.public is not None
    assert len(federation.public) == 30
    held, public = ({int(value) // 7 for value in part[:, 0]} for part in (federation.inputs, federation.public))
    assert not held & public
    assert 30 <= 300 - len(federation.labels) <= 36


def test_reordered_clients_keep_their_data() -> None:
    federation = build("digits", "rotated(2)", 6, 0)
    some = federation.reordered(np.array([4, 1, 5]))
    assert some.names == tuple(federation.names[i] for i in (4, 1, 5))
    assert torch.equal(some.slice(0, "test")[0], federation.slice(4, "test")[0])
    assert some.true_groups is not None
    assert some.true_groups.tolist() == [0, 1, 1]


def test_public_samples_are_official_ones_where_there_are_such() -> None:
    values = np.arange(80, dtype=np.float32)[:, None]
    data = Dataset("own", values, np.arange(80) % 2, 2, public=-values[:9] - 1)
    federation = divide(data, "iid", 4, 0, public=5)
    assert federation.public is not None
    assert len(set(federation.public[:, 0].tolist())) == 5
    assert federation.public.max() < 0
    assert len(federation.labels) == 80
    assert divide(data, "iid", 4, 0, public=50, at_most=True).public is not None
    with pytest.raises(BadInput, match=r"public = 10.*own has 9"):
        divide(data, "iid", 4, 0, public=10)
