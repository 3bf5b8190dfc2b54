"""The folders of examples: their commands, run as a reader runs them, print what their README shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.guide import blocks
from tests.processes import call, run_apart, run_script

FOLDERS = sorted(path.parent for path in Path(__file__).parents[1].glob("examples/*/experiment.toml"))
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
NEAR = 0.1
"""How far a number may be from the printed one, as a share of it: other processors round otherwise."""


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_folder_shows_what_its_commands_print(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / folder.name
    shutil.copytree(folder, here)
    monkeypatch.chdir(here)
    commands, shown = blocks(here / "README.md")
    log = tmp_path / "log"
    for command in commands.commands:
        program, *words = shlex.split(command)
        what, given = (call, [words]) if program == "coterie" else (run_script, words)
        code = run_apart(what, *given, output=log, seconds=1800)
        assert code == 0, log.read_text("utf-8")
    printed = log.read_text("utf-8").splitlines()
    missing = [line for line in shown.source.splitlines() if not any(is_shown(line, other) for other in printed)]
    assert missing == [], printed
    (page,) = here.glob("runs/*/report.html")
    assert 'id="why"' in page.read_text("utf-8")
    assert (here / "diagnosis.html").exists()


def is_shown(line: str, printed: str) -> bool:
    """Whether a printed line begins as the shown one does up to its dots, with numbers near those."""
    start, dots, _ = line.partition("…")
    words = [NUMBER.sub("#", text) for text in (start, printed)]
    if not words[1].startswith(words[0]) or not (dots or words[0] == words[1]):
        return False
    wanted, found = (list(map(float, NUMBER.findall(text))) for text in (start, printed))
    return all(abs(a - b) <= max(NEAR * abs(a), 2.5) for a, b in zip(wanted, found, strict=False))
