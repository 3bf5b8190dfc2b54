"""Memory that processes share: all of it is there before anybody touches it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.exchange import Send
from coterie.problems import BadInput
from coterie.runtime import arena
from coterie.runtime.arena import make_file, mapped
from tests.runtime.test_workers import arenas, mixed, runtime_of

SCALARS = 3_000_000


@contextmanager
def _files_up_to(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_has_no_holes() -> None:
    file = make_file(SCALARS)
    try:
        assert file.parent == next(folder for folder in arena.FOLDERS if folder.is_dir())
        assert file.stat().st_size == 4 * SCALARS
        assert file.stat().st_blocks * 512 >= 4 * SCALARS
        mapped(file, SCALARS)[-1] = 5.0
        assert mapped(file, SCALARS)[-1] == 5.0
    finally:
        file.unlink()


def test_a_folder_that_cannot_be_used_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "FOLDERS", (tmp_path / "missing", tmp_path))
    assert make_file(10).parent == tmp_path


def test_no_room_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    monkeypatch.setattr(arena, "FOLDERS", (tmp_path / "one", tmp_path))
    with _files_up_to(1_000_000), pytest.raises(BadInput) as raised:
        make_file(SCALARS)
    (said,) = raised.value.problems
    assert said == (
        f"the models of one exchange need 12.0 MB that the workers share, and neither {tmp_path / 'one'} nor "
        f"{tmp_path} has room for them; make room, or set run.workers = 1 and no run.client_timeout"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["one"]
    assert list((tmp_path / "one").iterdir()) == []


def test_workers_go_on_after_an_exchange_for_which_there_was_no_room() -> None:
    runtime = runtime_of()
    before = arenas()
    small = {"model": Send.same(torch.ones(runtime.layout.size), np.arange(6))}
    large = {"models": Send.all(torch.ones(300, runtime.layout.size), np.arange(6))}
    try:
        expected = mixed(runtime, small).models
        with _files_up_to(1_000_000), pytest.raises(BadInput, match="has room for them"):
            mixed(runtime, large)
        assert arenas() == before
        assert torch.equal(mixed(runtime, small).models, expected)
        assert mixed(runtime, large).numbers["rows"].tolist() == [300.0] * 6
    finally:
        runtime.close()
