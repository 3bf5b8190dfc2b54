"""The command line, for tests of what runs many cells."""

from __future__ import annotations

import pytest

from tests.commandline import Terminal


@pytest.fixture
def terminal(terminal: Terminal, forked_cells: None) -> Terminal:
    return terminal
