"""What a run remembers, on disk: it comes back bit for bit, and a kill or damage costs one checkpoint at most."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from coterie.errors import BadInput
from coterie.runtime.checkpoint import KEPT_CHECKPOINTS, Checkpoints, check_state
from tests.federated import same


@dataclass(frozen=True, eq=False)
class Inner:
    key: torch.Tensor
    share: np.float32


@dataclass(frozen=True, eq=False)
class Outer:
    inner: Inner
    several: tuple[Inner, ...]
    top: dict[Any, Any]


@dataclass
class Unknown:
    value: int


INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
KINDS = ["bool", *INTEGERS, "float16", "float32", "float64"]
SHAPES: list[tuple[int, ...]] = [(), (0,), (0, 4), (1,), (2, 3), (2, 1, 3)]


def arrays(kind: str, shape: tuple[int, ...]) -> np.ndarray:
    return (np.random.default_rng(1).normal(size=shape) * 100).astype(np.int64).astype(kind)


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", "mine")


def there_and_back(kept: Checkpoints, value: Any) -> Any:
    kept.save(7, {"value": value})
    found = kept.latest()
    assert found is not None
    number, memory, passed = found
    assert (number, passed) == (7, [])
    return memory["value"]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_and_scalars_of_every_kind(kept: Checkpoints, kind: str) -> None:
    value = [arrays(kind, shape) for shape in SHAPES] + [arrays(kind, (3,))[1]]
    assert same(there_and_back(kept, value), value)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool])
def test_tensors_of_every_kind(kept: Checkpoints, kind: torch.dtype) -> None:
    value = [(torch.randn(shape) * 10).to(kind) for shape in SHAPES]
    assert same(there_and_back(kept, value), value)


def test_what_a_state_may_hold(kept: Checkpoints) -> None:
    shared = torch.randn(3, 4)
    inner = Inner(shared, np.float32(0.1))
    value: dict[str, Any] = {
        "nothing": None,
        "plain": [1, -(2**60), 0.1, float("inf"), float("nan"), True, "ä\n", ""],
        "empty": [[], (), {}],
        "views": (shared, shared, shared[1:], shared.T, shared[:1].expand(5, -1)),
        "strided": arrays("float32", (4, 6))[::-2, ::3],
        "columns": np.asfortranarray(arrays("float64", (2, 3))),
        "outer": Outer(
            inner, (inner, inner), {3: inner, np.int64(4): {"deep": (shared, {1: 2})}, "key": 1, (1, "a"): 2}
        ),
        "keys": {"0/key": 1, "0": {"key": 2}},
    }
    back = there_and_back(kept, value)
    assert same(back, value)
    back["views"][0][0, 0] = 99.0  # what shared memory does so no longer
    assert not (back["views"][1] == 99.0).any()
    back["strided"][0, 0] = 1  # and arrays can be written to


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", Path("a"), 1j])
def test_what_a_state_may_not_hold(kept: Checkpoints, value: Any) -> None:
    kept.save(1, {"value": 1})
    with pytest.raises(TypeError, match=r"value\.0 is a \w+; "):
        kept.save(2, {"value": [value]})
    found = kept.latest()
    assert found is not None
    assert found[0] == 1


def test_only_the_last_two_are_kept(kept: Checkpoints) -> None:
    assert kept.latest() is None
    for number in (1, 2, 5, 12):
        path = kept.save(number, {"number": number})
        assert path.stem == f"{number:06d}"
    assert sorted(p.name for p in kept.folder.iterdir()) == ["000005.safetensors", "000012.safetensors"]


def test_nothing_is_pickled(kept: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError("something was pickled")

    for module in (pickle, torch):
        for name in ("load", "dump", "save", "loads", "dumps"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, refuse)
    value = [torch.ones(3), arrays("bool", (3,)), Inner(torch.ones(1), np.float32(1))]
    assert same(there_and_back(kept, value), value)
    content = (kept.folder / "000007.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["header"])["tree"]["value"][0] == {"tensor": "value.0"}


# ---- a kill in between


class Killed(BaseException):
    """Raised in place of a kill: nothing may catch it."""


OPERATIONS = [(os, "write"), (os, "fsync"), (Path, "replace"), (Path, "unlink")]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("nth", range(8))
def test_a_kill_between_any_two_operations_leaves_a_checkpoint(
    kept: Checkpoints, monkeypatch: pytest.MonkeyPatch, nth: int, after: bool
) -> None:
    for number in (1, 2, 3):
        kept.save(number, {"number": number, "model": torch.full((4,), float(number))})
    count = 0

    def dying(operation: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count > nth + after:  # who is dead does nothing more
                raise Killed
            result = operation(*given, **named)
            if count == nth + 1:
                raise Killed
            return result

        return call

    with monkeypatch.context() as patch:
        for place, name in OPERATIONS:
            patch.setattr(place, name, dying(getattr(place, name)))
        try:
            kept.save(4, {"number": 4, "model": torch.full((4,), 4.0)})
        except Killed:
            assert nth < 6
        else:
            assert nth >= 5
            assert count >= 5
    found = kept.latest()
    assert found is not None
    number, memory, passed = found
    assert number in (3, 4)
    assert passed == []
    assert memory["number"] == number
    assert memory["model"].tolist() == [float(number)] * 4
    kept.save(5, {"number": 5})
    assert len(list(kept.folder.iterdir())) == KEPT_CHECKPOINTS  # and nothing half written stays


# ---- damage


def two(folder: Path) -> Checkpoints:
    kept = Checkpoints(folder, "mine")
    for number in (1, 2):
        kept.save(
            number, {"number": number, "inner": Inner(torch.randn(5), np.float32(2)), "who": np.arange(3) > 0}
        )
    return kept


def assert_passed_over(kept: Checkpoints, what: str) -> None:
    found = kept.latest()
    assert found is not None
    number, memory, passed = found
    assert number == memory["number"] == 1
    (sentence,) = passed
    assert what in sentence
    assert "000002.safetensors" in sentence
    assert "\n" not in sentence


@pytest.mark.medium
@given(st.data())
def test_a_flipped_byte_is_found(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    kept = two(folder)
    path = folder / "000002.safetensors"
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    found = kept.latest()
    assert found is not None
    if found[0] == 2:  # JSON that means the same, such as another space
        assert same(found[1]["who"], np.arange(3) > 0)
        assert place < 8 + int.from_bytes(content[:8], "little")
    else:
        assert found[0] == found[1]["number"] == 1
        (sentence,) = found[2]
        assert str(path) in sentence
        assert "\n" not in sentence
    shutil.rmtree(folder)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_cut_file_is_found(tmp_path: Path, share: float) -> None:
    kept = two(tmp_path)
    path = tmp_path / "000002.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert_passed_over(kept, "damaged")


def test_other_files_are_refused(tmp_path: Path) -> None:
    kept = two(tmp_path)
    path = tmp_path / "000002.safetensors"
    with safe_open(path, framework="pt") as file:
        meta = file.metadata()
    tensors = {"model": torch.ones(3)}
    for others, what in (
        (None, "'coterie-checkpoint/2'"),
        ({"format": "pt"}, "'pt'"),
        ({"format": meta["format"]}, "digest"),
        ({**meta, "identity": "yours"}, "digest"),
        ({**meta, "header": meta["header"].replace('"round": 2', '"round": 3')}, "digest"),
    ):
        save_file(tensors, path, others)
        assert_passed_over(kept, what)
    path.write_bytes(pickle.dumps({"round": 2}))
    assert_passed_over(kept, "damaged")
    path.unlink()
    path.mkdir()
    assert_passed_over(kept, "damaged")


def test_another_experiments_checkpoint_is_refused(tmp_path: Path) -> None:
    kept = two(tmp_path)
    Checkpoints(tmp_path / "theirs", "yours").save(2, {"number": 2})
    (tmp_path / "theirs/000002.safetensors").replace(tmp_path / "000002.safetensors")
    assert_passed_over(kept, "another experiment")
    with pytest.raises(BadInput) as raised:
        Checkpoints(tmp_path, "nobody's").latest()
    (sentence,) = raised.value.problems
    assert "experiment.toml" in sentence


def test_a_state_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = two(tmp_path)
    path = tmp_path / "000002.safetensors"
    for other in (Unknown, None, exec):
        with monkeypatch.context() as changed:
            changed.setattr(sys.modules[__name__], "Inner", other)
            with pytest.raises(BadInput, match="another version"):
                kept.load(path)
    assert kept.load(path)[0] == 2


def test_a_state_that_could_not_come_back_is_refused_before_it_is_needed() -> None:
    @dataclass(frozen=True)
    class Local:
        number: int

    with pytest.raises(TypeError, match="Local"):
        check_state(Local(3))
    with pytest.raises(TypeError, match=" set"):
        check_state({"names": {1, 2}})
    check_state(Inner(torch.ones(2), np.float32(0.5)))


def test_no_sound_checkpoint_is_said_for_each(tmp_path: Path) -> None:
    kept = two(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.raises(BadInput) as raised:
        kept.latest()
    *each, last = raised.value.problems
    assert len(each) == 2
    assert all("damaged" in sentence for sentence in each)
    assert "no checkpoint" in last
