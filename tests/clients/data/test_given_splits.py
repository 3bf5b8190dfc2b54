"""What data say of themselves is kept: given splits, segments, groups; small clients, and copies of samples."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie.clients.data import Federation, build
from coterie.clients.data.divide.duplicates import say_shared_rows
from coterie.clients.data.federation import divide
from coterie.clients.data.read.datasets import Dataset
from coterie.clients.data.read.preparation import Preparation
from coterie.errors import BadInput
from coterie.runs.schema.experiment import Experiment
from coterie.studies.compare.spec import key_of


def make(
    sizes: list[int],
    seed: int = 0,
    given_split: NDArray[np.int8] | None = None,
    units: NDArray[np.int64] | None = None,
    groups: list[int] | None = None,
) -> Dataset:
    """Samples `[N, 2]` that carry their own number, of users `u0`, `u1`, … with so many each, of three classes."""
    total = sum(sizes)
    rng = np.random.default_rng(seed)
    return Dataset(
        "numbered",
        np.stack([np.arange(total), np.ones(total)], axis=1).astype(np.float32),
        rng.permutation(np.arange(total) % 3),
        3,
        np.repeat(np.arange(len(sizes)), sizes),
        tuple(f"u{i}" for i in range(len(sizes))),
        units,
        None if groups is None else np.array(groups),
        given_split=given_split,
    )


def rows(federation: Federation, client: int, split: Any) -> set[int]:
    return set(federation.slice(client, split)[0][:, 0].long().tolist())


SPLITS = ["by-user", "iid", "dirichlet(5.0)", "classes(2)"]
SIDES: tuple[Any, ...] = ("train", "validation", "test")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SPLITS),
    st.lists(st.integers(20, 40), min_size=4, max_size=6),
    st.integers(0, 2**20),
    st.sampled_from([None, 15]),
    st.sampled_from([0, 9]),
)
def test_a_given_split_is_kept_exactly(
    split: str, sizes: list[int], seed: int, cap: int | None, public: int
) -> None:
    roles = np.random.default_rng(seed).choice([0, 0, 0, 1, 2, 2], sum(sizes)).astype(np.int8)
    data = make(sizes, seed, roles)
    found = divide(
        data,
        split,
        None if split == "by-user" else 4,
        seed,
        samples_per_client=cap,
        small_clients="leave-out",
        public=public,
        min_samples=2,
    )
    seen = [i for client in range(found.n) for which in SIDES for i in rows(found, client, which)]
    assert len(seen) == len(set(seen)) == len(found.labels)
    for client in range(found.n):
        for role, which in enumerate(SIDES):
            own = rows(found, client, which)
            assert {int(roles[i]) for i in own} <= {role}
            if split == "by-user" and cap is None and not (public and role == 0):
                user = int(found.names[client][1:])
                assert own == set(np.flatnonzero((data.users == user) & (roles == role)).tolist())
    assert found.test_samples.min() >= 1
    if found.public is not None:
        assert {int(roles[int(i)]) for i in found.public[:, 0]} == {0}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SPLITS),
    st.integers(2, 12),
    st.integers(0, 2**20),
    st.sampled_from(["none", "test", "some free"]),
)
def test_no_segment_is_on_two_sides(split: str, size: int, seed: int, given_too: str) -> None:
    rng, total = np.random.default_rng(seed), 240
    units = rng.permutation(np.arange(total) // size)
    count = int(units.max()) + 1
    of_unit = rng.choice([0, 0, 0, 1, 2, 2], count)
    if given_too == "some free":
        of_unit = np.where(of_unit < 2, -1, 2)
    roles = None if given_too == "none" else of_unit[units].astype(np.int8)
    if roles is not None and (not (roles == 2).any() or (roles == 2).all()):
        return
    data = make([40] * 6, seed, roles, units)
    try:
        found = divide(data, split, None if split == "by-user" else 5, seed, small_clients="leave-out")
    except BadInput as error:
        if "data.min_samples" not in " ".join(error.problems):
            raise
        return
    sides = [{int(units[i]) for client in range(found.n) for i in rows(found, client, which)} for which in SIDES]
    assert sum(map(len, sides)) == len(set.union(*sides))
    assert found.test_samples.min() >= 1
    assert found.samples.min() >= 1


def test_own_test_samples_cost_no_training_samples() -> None:
    roles = np.full(100, -1, np.int8)
    roles[::5] = 2
    found = divide(make([50, 50], 0, roles), "by-user", None, 0, validation=0.1)
    assert np.diff(found.bounds, axis=1).tolist() == [[36, 4, 10]] * 2
    none = divide(make([50, 50], 0, roles), "by-user", None, 0, validation=0.0)
    assert np.diff(none.bounds, axis=1).tolist() == [[40, 0, 10]] * 2
    (note,) = none.notes
    assert all(part in note for part in ("data.test ", " 0 are", " 20 for", "data.validation = 0", " 80 "))


HALVES = (np.arange(20) % 2 * 2).astype(np.int8)


@pytest.mark.parametrize(
    ("data", "settings", "says"),
    [
        (make([20], 0, HALVES * 0), {}, "test"),
        (make([20], 0, HALVES * 0 + 2), {}, "train"),
        (make([20], 0, HALVES, np.arange(20) // 4), {}, "5 of 5"),
        (make([20, 3, 1]), {}, r"2 of 3 .*data\.min_samples = 10 .*: u1 \(3\), u2 \(1\)"),
        (make([3, 2]), {"small_clients": "leave-out"}, r"data\.min_samples"),
        (make([20, 20]), {"min_classes": 4}, r"2 of 2 .*data\.min_classes = 4 .*: u0, u1"),
        (
            make([20, 20], 0, np.repeat(HALVES[:2], 20)),
            {"split": "iid", "clients": 40, "min_samples": 1},
            "20 of 40 .*train",
        ),
    ],
)
def test_what_cannot_be_divided_is_one_sentence(data: Dataset, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        divide(data, **{"split": "by-user", "clients": None, "seed": 0, "small_clients": "refuse", **settings})


def test_one_small_client_does_not_block_the_others() -> None:
    found = divide(make([30, 3, 25, 1, 30]), "by-user", None, 0)
    assert found.names == ("u0", "u2", "u4")
    (note,) = found.notes
    assert re.search(r"^2 of 5 .*data\.min_samples = 10 .*: u1 \(3\), u3 \(1\)$", note)
    alone = divide(make([30, 25, 30]), "by-user", None, 0)
    assert alone.notes == ()
    assert found.test_samples.tolist() == alone.test_samples.tolist()


def test_small_clients_can_be_kept() -> None:
    found = divide(make([30, 3, 25, 1]), "by-user", None, 0, small_clients="keep")
    assert found.names == ("u0", "u1", "u2", "u3")
    assert np.diff(found.bounds, axis=1)[[1, 3]].tolist() == [[2, 0, 1], [1, 0, 0]]
    for note, says in zip(found.notes, (r"data\.min_samples = 10 .*: u1 \(3\)", "test.*: u3"), strict=False):
        assert re.search(f"^1 of 4 .*{says}$", note)


def test_clients_of_few_classes_can_be_left_out_and_are_told_of() -> None:
    data = make([30, 30, 30], 0)
    data.labels[30:60] = 1
    found = divide(data, "by-user", None, 0)
    (note,) = found.notes
    assert re.search(r"^1 of 3 .*: u1; data\.min_classes = 2", note)
    left = divide(data, "by-user", None, 0, min_classes=2)
    assert left.names == ("u0", "u2")
    (note,) = left.notes
    assert re.search(r"^1 of 3 .*data\.min_classes = 2 .*: u1$", note)


def test_small_users_are_replaced_where_some_are_drawn() -> None:
    sizes = [30, 2] * 10
    found = divide(make(sizes), "by-user", 8, 3)
    assert found.n == 8
    assert {int(name[1:]) % 2 for name in found.names} == {0}
    (note,) = found.notes
    assert "data.min_samples = 10" in note
    assert divide(make([30] * 20), "by-user", 8, 3).notes == ()


def test_true_groups_are_planted_and_otherwise_told_of() -> None:
    data = make([20, 20, 4, 20, 20], groups=[7, 3, 3, 7, 3])
    found = divide(data, "by-user", None, 0)
    assert found.true_groups is not None
    assert found.true_groups.tolist() == [0, 1, 0, 1]
    mixed = divide(data, "iid", 3, 0)
    assert mixed.true_groups is None
    assert any("split = 'iid'" in note for note in mixed.notes)


def write_csv(path: Path, users: list[str], first: int, order: str = "a,b") -> str:
    """Samples that carry their own number, times three, in `a`, in columns of that order."""
    lines = [f"client,{order},label"]
    for row, user in enumerate(users, first):
        values = {"a": 3 * row, "b": row % 7}  # not 1, 2, 3, …, which would be no feature
        lines.append(",".join([user, *(str(values[name]) for name in order.split(",")), "xyz"[row % 3]]))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_further_samples_are_for_testing_alone(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "train.csv", ["u", "v", "w"] * 20, 100)
    tests = write_csv(tmp_path / "test.csv", ["v", "u", "new"] * 4, 500, "b,a")
    found = build(path, "by-user", None, 0, test_path=tests)
    assert found.names == ("u", "v")
    assert np.diff(found.bounds, axis=1).tolist() == [[18, 2, 4]] * 2
    for client, start in ((0, 501), (1, 500)):
        assert rows(found, client, "test") == set(range(3 * start, 3 * start + 36, 9))
        assert max(rows(found, client, "train") | rows(found, client, "validation")) < 480
    for says in (r"data\.min_samples = 10 .*: new \(4\)", "test .*: w"):
        assert any(re.search(f"^1 of 4 .*{says}$", note) for note in found.notes)
    without = build(path, "iid", 3, 0, test_path=tests)
    assert without.test_samples.sum() == 12
    assert without.samples.sum() == 54


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("client,a,label\nu,1,x\n", "b"),
        ("a,b,label\n1,2,x\n", "client column"),
        ("client,a,b,label,split\nu,1,2,x,train\n", "split .*row 0"),
    ],
)
def test_further_samples_must_go_with_the_data(tmp_path: Path, content: str, says: str) -> None:
    path = write_csv(tmp_path / "train.csv", ["u", "v", "w"] * 20, 100)
    (tmp_path / "test.csv").write_text(content)
    with pytest.raises(BadInput, match=f"^.*{says}.*$"):
        build(path, "by-user", None, 0, test_path=str(tmp_path / "test.csv"))


def test_copies_on_both_sides_are_counted() -> None:
    inputs = np.arange(40, dtype=np.float32).reshape(20, 2)
    inputs[1], inputs[2] = inputs[0], inputs[10]
    held = [
        [np.array([0, 3, 4]), np.array([5]), np.array([1, 2])],
        [np.array([10, 11, 12]), np.array([6]), np.array([13, 14])],
    ]
    (note,) = say_shared_rows(inputs, held)
    assert note.startswith("2 of 4 ")
    assert "(1 of them" in note
    data = make([40, 40])
    data.inputs[:] = np.arange(80)[:, None] // 4
    (note,) = divide(data, "iid", 2, 0).notes
    assert "missing values" not in note
    (note,) = divide(replace(data, preparation=Preparation(missing="zero")), "iid", 2, 0).notes
    assert "missing values" in note
    assert divide(make([40, 40]), "iid", 2, 0).notes == ()


def test_new_settings_at_their_default_change_no_key() -> None:
    plain = Experiment(data="digits")
    assert not {"small_clients", "min_classes", "augment", "test_path"} & set(plain.resolved().tables()["data"])
    assert key_of(plain) == key_of(plain.updated({"data.small_clients": None}))
    assert key_of(plain) != key_of(plain.updated({"data.small_clients": "keep"}))
