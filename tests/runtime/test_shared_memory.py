"""Memory that processes share: all of it is there before anybody touches it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.errors import BadInput
from coterie.methods.exchange import Send
from coterie.runtime import shared_memory
from coterie.runtime.shared_memory import Arena, make_file, map_file
from coterie.runtime.states import ClientStates
from tests.runtime.local.test_pool import arenas, mixed, runtime_of

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


@pytest.fixture(params=[True, False])
def nameless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Memory as on Linux, and as where a file needs a name."""
    if request.param and not shared_memory.NAMELESS:
        pytest.skip("there are no files without names")
    monkeypatch.setattr(shared_memory, "NAMELESS", request.param)
    return bool(request.param)


@pytest.mark.parametrize("folder", [None, "disk"])
def test_a_file_is_there_whole(folder: str | None, nameless: bool, tmp_path: Path) -> None:
    path, handle = make_file(SCALARS, None if folder is None else tmp_path)
    try:
        found = Path(path).stat()
        assert found.st_size == 4 * SCALARS
        if handle is None or folder is not None:  # on a disk, and where a name says where it is: no holes
            assert found.st_blocks * 512 >= 4 * SCALARS
        if folder is None and handle is None:
            assert Path(path).parent == next(folder for folder in shared_memory.FOLDERS if folder.is_dir())
        map_file(path, SCALARS)[-1] = 5.0
        assert map_file(path, SCALARS)[-1] == 5.0
        assert list(tmp_path.iterdir()) == ([Path(path)] if folder is not None and handle is None else [])
    finally:
        if handle is None:
            Path(path).unlink()
        else:
            os.close(handle)


def test_a_folder_that_cannot_be_used_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "NAMELESS", False)
    monkeypatch.setattr(shared_memory, "FOLDERS", (tmp_path / "missing", tmp_path))
    assert Path(make_file(10)[0]).parent == tmp_path


def test_no_room_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    monkeypatch.setattr(shared_memory, "NAMELESS", False)
    monkeypatch.setattr(shared_memory, "FOLDERS", (tmp_path / "one", tmp_path))
    says = f"12.0 MB .*{tmp_path / 'one'} .*{tmp_path} .*run.workers = 1 .*run.client_timeout"
    with _files_up_to(1_000_000), pytest.raises(BadInput, match=says):
        make_file(SCALARS)
    assert [p.name for p in tmp_path.iterdir()] == ["one"]
    assert list((tmp_path / "one").iterdir()) == []


def test_no_room_on_a_disk_names_the_setting(nameless: bool, tmp_path: Path) -> None:
    states = ClientStates(3, limit_mb=0)
    states.folder = tmp_path
    with _files_up_to(1_000_000), pytest.raises(BadInput, match=rf"12\.0 MB .*{tmp_path}.*scale\.states_mb"):
        states.update(1, {"model": torch.ones(SCALARS)})
    assert list(tmp_path.iterdir()) == []


def test_more_than_a_process_can_map_is_said_in_one_sentence() -> None:
    with pytest.raises(BadInput, match=r"run\.participation"):
        Arena().lease(1 << 45)


def test_leased_memory_is_used_again_only_when_nobody_looks_at_it(nameless: bool) -> None:
    held = Arena()
    first = held.lease(1000).fill_(1.0)
    second = held.lease(1000).fill_(2.0)
    assert held.place(first) != held.place(second)
    view, where = first.view(10, 100)[3].numpy()[5:], held.place(first)
    del first
    third = held.lease(1000).fill_(3.0)
    assert held.place(third) != where
    assert (view == 1.0).all()
    del view
    fourth = held.lease(900)
    assert where is not None
    assert held.place(fourth) == where._replace(shape=(900,))
    assert (second == 2.0).all()
    assert len(held.paths()) == 3
    del fourth
    fifth = held.lease(10)  # a small thing in much too large a place would keep it
    assert len(held.paths()) == 3
    found = held.place(fifth)
    assert found is not None
    assert held.place(fifth[3:8]) == found._replace(offset=3, shape=(5,))
    assert held.place(torch.ones(5)) is None
    assert held.place(second[::2]) is None
    held.close()
    assert held.paths() == {}
    assert (second == 2.0).all()


def test_memory_that_nobody_looks_at_is_given_back(nameless: bool) -> None:
    before, held = arenas(), Arena()
    blocks = [held.block(SCALARS) for _ in range(3)]
    assert len(arenas() - before) == (0 if nameless else 3)
    row = blocks[0].view(100, -1)[7].fill_(7.0)
    (number, (path, scalars)) = next(iter(held.paths().items()))
    del blocks
    assert held.paths() == {number: (path, scalars)}
    assert map_file(path, scalars).view(100, -1)[7].eq(7.0).all()
    del row
    assert held.paths() == {}
    assert arenas() == before


def test_workers_go_on_after_an_exchange_for_which_there_was_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "NAMELESS", False)
    runtime = runtime_of()
    before = arenas()
    small = {"model": Send.same(torch.ones(runtime.layout.size), np.arange(6))}
    large = {"models": Send.all(torch.ones(300, runtime.layout.size), np.arange(6))}
    try:
        expected = mixed(runtime, small).models
        with _files_up_to(1_000_000), pytest.raises(BadInput, match="room"):
            mixed(runtime, large)
        assert torch.equal(mixed(runtime, small).models, expected)
        assert mixed(runtime, large).numbers["rows"].tolist() == [300.0] * 6
    finally:
        runtime.close()
    assert arenas() == before
