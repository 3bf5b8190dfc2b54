"""The command line in an empty folder, for tests of what runs many cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commandline import Terminal


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], forked_cells: None
) -> Terminal:
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys)
