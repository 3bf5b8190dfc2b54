"""What every test runs under: threads, examples, which suite a test is in, and the folder of real datasets."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from coterie.plugins import fresh_consent
from tests.commandline import Terminal
from tests.processes import serve_or_spawn

# Results depend on the number of threads, and the suite already runs one process per core.
torch.set_num_threads(1)

# The same examples on every machine, and no deadline that a busy machine would miss.
settings.register_profile("coterie", derandomize=True, deadline=None)
settings.load_profile("coterie")

# A shell that starts the suite in the background leaves Ctrl-C ignored; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


# pytest-xdist sets it to 80 in its processes, and tables that go to a file would be cut to that.
os.environ.pop("COLUMNS", None)


LONGEST_FIRST = (
    "test_docs.py",
    "shipping/flower/test_real.py",
    "test_benchmarks.py",
    "systems/test_systems.py",
    "studies/compare/test_tuning.py",
    "studies/compare/test_compare_command.py",
    "shipping/flower/test_deploy.py",
    "runtime/ray/test_ray.py",
    "runs/test_resume.py",
    "freeze/test_digests.py",
)
"""Files that take longest. A worker process takes whole files, so these begin before the others."""


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files; leave to `make test-all` what is `thinned`, and drop cases of `each_once`."""
    tests = Path(__file__).parent
    order = {tests / name: place for place, name in enumerate(LONGEST_FIRST)}
    assert all(path.is_file() for path in order), "LONGEST_FIRST names a file that is no longer there"
    items.sort(key=lambda item: order.get(item.path, len(order)))
    for product, lengths in _products(items, "thinned"):
        (step,) = next(product[0].iter_markers("thinned")).args
        for case, places in zip(product, np.ndindex(*lengths), strict=True):
            if sum(places) % step:  # what is left has every value of every long list
                case.add_marker("slow")
    dropped: set[pytest.Item] = set()
    for product, lengths in _products(items, "each_once"):
        kept = {tuple(k % length for length in lengths) for k in range(max(lengths))}
        at = zip(product, np.ndindex(*lengths), strict=True)
        dropped.update(case for case, places in at if places not in kept)
    items[:] = [item for item in items if item not in dropped]


def _products(items: list[pytest.Item], mark: str) -> Iterator[tuple[list[pytest.Item], list[int]]]:
    """The cases of each test with a mark, and the lengths of its lists; not where some were asked for by name."""
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker(mark) is not None:
            assert isinstance(item, pytest.Function)
            cases.setdefault((item.path, item.originalname), []).append(item)
    for product in cases.values():
        lengths = [len(mark.args[1]) for mark in product[0].iter_markers("parametrize")]
        if len(product) == prod(lengths):
            yield product, lengths


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude modules and collected tests from garbage collection: each run begins with one that scans them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """As in a process that excludes nothing from garbage collection."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_is_given() -> Iterator[None]:
    """Each test begins like a process: nobody has given a name of an object of one's own."""
    with fresh_consent(None):
        yield


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """The command line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys)


@pytest.fixture
def forked_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of cells off one that has imported everything. Users have them spawned, as has `whole`."""
    monkeypatch.setattr(multiprocessing, "get_context", serve_or_spawn)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real datasets that COTERIE_DATA names; the test is skipped where it names none."""
    named = os.environ.get("COTERIE_DATA")
    if not named:
        pytest.skip("COTERIE_DATA is not set; set it to a folder of datasets to run the tests on real data")
    folder = Path(named)
    if not folder.is_dir():
        pytest.fail(f"COTERIE_DATA = {named!r} is not possible; it must be a folder of datasets")
    return folder
