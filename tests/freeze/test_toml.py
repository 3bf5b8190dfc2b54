"""Experiments as TOML, in and out, for every method."""

from __future__ import annotations

import re

import pytest

import coterie
from tests.freeze.expected import empty_folder, frozen_methods, read_text, seen_afresh, write_text
from tests.freeze.terminal import call

EXPECTED = "toml.txt"

SOME = """
[data]
name = "digits"
split = "dirichlet(0.5) + rotated(4)"
clients = 12

[network]
name = "mlp"
hidden = [8, 4]

[method]
name = "fesem"
clusters = 3

[training]
lr = 0.1

[run]
rounds = 3
participation = 0.5
"""


def new_file(method: str) -> str:
    """The file that `coterie new` writes for a method."""
    with empty_folder() as folder:
        code, _, _ = call("new", "experiment.toml", "--method", method)
        assert code == 0
        return (folder / "experiment.toml").read_text(encoding="utf-8")


def see() -> str:
    """Each method's new file, and the resolved experiment; then an experiment that was written by hand."""
    parts = []
    for method in frozen_methods():
        network = "gaussian-mlp" if method in ("fedcr", "fedsr") else "mlp"
        short = coterie.Experiment(method=method, network=network)
        parts += [
            (f"coterie new --method {method}", new_file(method)),
            (f"{method}, short", short.to_toml()),
            (f"{method}, resolved", short.resolved().to_toml()),
        ]
    some = coterie.Experiment.from_toml(SOME)
    parts += [("by hand", some.to_toml()), ("by hand, resolved", some.resolved().to_toml())]
    return "\n".join(f"=== {title}\n{text}" for title, text in parts)


def write() -> None:
    """Freeze what is written now."""
    write_text(EXPECTED, see())


@pytest.mark.slow
def test_what_is_written_stays() -> None:
    assert seen_afresh(EXPECTED) == read_text(EXPECTED)


def test_what_was_written_is_read_and_written_again() -> None:
    frozen = re.split(r"^=== (.*)\n", read_text(EXPECTED), flags=re.MULTILINE)[1:]
    for title, text in zip(frozen[::2], frozen[1::2], strict=True):
        experiment = coterie.Experiment.from_toml(text)
        assert coterie.Experiment.from_toml(experiment.to_toml()) == experiment, title
        if not title.startswith("coterie new"):
            assert experiment.to_toml().strip() == text.strip(), title
        elif "fedcr" not in title and "fedsr" not in title:
            experiment.check()
