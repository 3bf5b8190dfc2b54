"""What every test runs under, and the folder of real datasets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Results depend on the number of threads, and the suite already runs one process per core.
torch.set_num_threads(1)

# The same examples on every machine, and no deadline that a busy machine would miss.
settings.register_profile("coterie", derandomize=True, deadline=None)
settings.load_profile("coterie")


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
