"""The examples run as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import run_apart, run_script

SEEN = {
    "imbalanced.py": "AUROC",
    "forecasting.py": "RMSE 1.28",
    "multilabel.py": "fedper  macro F1 9",
    "planted_groups.py": "ones: 1.00",
    "regression.py": " by 1.00",
    "segmentation.py": "ifca    IoU ",
    "shakespeare.py": "GPT cfl ",
    "table.py": "in age",
    "vit.py": "fedper ",
}
"""What an example prints, beside whatever else."""
LONGEST = 60
"""Lines of an example."""

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.medium
@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path.with_suffix(".log")
    code = run_apart(run_script, str(example), output=log, seconds=1800)
    printed = log.read_text("utf-8")
    assert code == 0, printed
    assert printed
    if printed.startswith("skipped: "):
        pytest.skip(printed.strip())
    assert SEEN.get(example.name, "") in printed


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_says_what_it_is(example: Path) -> None:
    text = example.read_text("utf-8")
    assert len(text.splitlines()) < LONGEST
    assert f"python examples/{example.name}" in text.split('"""')[1]
