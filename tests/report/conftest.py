from pathlib import Path

import pytest

from coterie.runs.folder.run_folder import RunFolder

from .stories import everything
from .synthesis import synthesise


@pytest.fixture(scope="session")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def clustered(parent: Path) -> RunFolder:
    return synthesise(parent, "fesem-rotated")


@pytest.fixture(scope="session")
def together(parent: Path) -> RunFolder:
    return synthesise(parent, "fedavg-rotated", groups=1, method="fedavg", ceiling=0.8, picture=False)


@pytest.fixture(scope="session")
def mixed(parent: Path) -> RunFolder:
    """A run whose log has everything that any figure knows."""
    return synthesise(parent, "mixed", clients=12, rounds=12, story=everything(12, 12), newcomers=9)
