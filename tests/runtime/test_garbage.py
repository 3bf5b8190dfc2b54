"""What garbage collection is spared, and that it is spared no longer than that."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch

from coterie.runtime.garbage import freeze_imports, freeze_objects

pytestmark = pytest.mark.usefixtures("nothing_frozen")


class Cycle:
    """Refers to itself, so that only a collection ends it."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.slow
def test_what_is_there_is_left_alone_until_the_end() -> None:
    dead = weakref.ref(Cycle())
    assert dead() is not None
    with freeze_objects():
        assert dead() is None, "what was garbage already is not kept"
        held = gc.get_freeze_count()
        assert held > 0
        with freeze_objects():
            assert 0 < gc.get_freeze_count() <= held, "what others let go of may be gone, and nothing came"
        assert 0 < gc.get_freeze_count() <= held, "the inner one leaves the end to the outer one"
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
def test_importing_is_for_a_process_that_begins() -> None:
    assert torch.__version__
    with freeze_imports():  # torch is here
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    code = (
        "import gc\n"
        "from coterie.runtime.garbage import freeze_imports\n"
        "with freeze_imports():\n"
        "    assert not gc.isenabled()\n"
        "    import json.tool\n"
        "assert gc.isenabled() and gc.get_freeze_count()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
