"""What a listing reads off the source is what the catalogues say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coterie.cli import catalogue_source
from coterie.cli.list import KINDS
from coterie.clients.tasks import MEASURES, TASKS
from coterie.methods.mixed_parts import PARTS
from coterie.models.networks import default_network
from coterie.runs.schema.check import catalog


@pytest.mark.parametrize("kind", catalogue_source.CATALOGUES)
def test_the_source_says_what_the_catalogue_says(kind: str) -> None:
    # Tests may have added entries of their own.
    entries = [e for e in catalog(kind) if e.target.__module__.startswith("coterie.")]
    expected = {e.name: (e.summary, bool(e.settings)) for e in entries}
    read = {e.name: (e.summary, e.has_settings) for e in catalogue_source.read_entries(kind)}
    assert {name: summary for name, (summary, _) in read.items()} == {n: s for n, (s, _) in expected.items()}
    assert any(has for _, has in read.values()) == any(has for _, has in expected.values())


def test_a_docstring_and_a_constant() -> None:
    read = catalogue_source.read_docstring("models/networks.py", "default_network")
    assert read.split() == (default_network.__doc__ or "").split()
    assert catalogue_source.read_constant("methods/mixed_parts.py", "PARTS") == PARTS
    with pytest.raises(KeyError):
        catalogue_source.read_constant("methods/mixed_parts.py", "PIECES")


def test_the_source_says_what_metrics_are_for() -> None:
    read = catalogue_source.read_metrics()
    assert set(read) == {m.name for m in MEASURES if m.target.__module__.startswith("coterie.")}
    tasks = [entry for entry in TASKS if entry.target.__module__.startswith("coterie.")]
    for name, listed in read.items():
        assert (listed.summary, listed.less_is_better) == (MEASURES[name].summary, MEASURES[name].less_is_better)
        assert set(listed.tasks) == {entry.name for entry in tasks if MEASURES[name].suits(entry.target())}


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_a_listing_brings_no_torch(kind: str, tmp_path: Path) -> None:
    code = f"import sys; from coterie.cli.app import main; main(['list', '{kind}']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    *listed, torch = done.stdout.splitlines()
    assert torch == "False"
    assert len(listed) > {"tasks": 0, "observers": 0}.get(kind, 5)  # Coterie has no observers of its own
