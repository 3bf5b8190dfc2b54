"""The package brings a method when it is asked for, and the catalogue whole."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_what_crosses_is_imported_without_the_methods() -> None:
    """Runtimes and clients on other machines need `exchange` alone; the catalogue is full all the same."""
    code = (
        "import sys\n"
        "import coterie.methods.exchange\n"
        "from coterie.methods import Cohort, Method\n"
        "assert not any(m.endswith(('.fedavg', '.ifca', '.catalog')) for m in sys.modules)\n"
        "from coterie.methods import METHODS, FedRep\n"
        "assert METHODS['fedrep'].target is FedRep\n"
        "assert {'fedavg', 'grouped-layers', 'robust-tkm'} <= set(METHODS.names())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
