"""What a run says of itself: that nothing was shared, and a best round in which nobody was missing."""

from pathlib import Path

import polars as pl
import pytest

from coterie.runs.folder.reading import RunResults
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.folder.tables import FAILURES, NOT_EVALUATED
from tests.commandline import Terminal
from tests.studies.compare.by_hand import folder

SMALL = ["--clients", "4", "--network", "mlp", "--set", "network.hidden=[8]", "--set", "samples_per_client=40"]
SMALL += ["--rounds", "2", "--baselines", "none"]


@pytest.mark.slow
def test_a_method_that_shares_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    terminal = Terminal(capsys)
    for words, shares in (("fedper(private=2)", False), ("fedper(private=1)", True), ("local-only", True)):
        name, _, setting = words.rstrip(")").partition("(")
        more = ["--set", setting] if setting else []
        ended = terminal("run", name, *SMALL, *more, "--name", "mine")
        path = Path(next(line for line in ended.out.splitlines() if line.startswith("folder")).split()[-1])
        warned = [sentence for sentence in RunFolder(path).warnings() if "local-only" in sentence]
        assert bool(warned) != shares
        if warned:
            assert warned[0].split(";")[0] in " ".join((ended.out + ended.err).split())


@pytest.mark.medium
@pytest.mark.parametrize("rounds", ["1", "2"])
def test_a_short_run_in_which_nobody_answers_is_no_success(
    rounds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is it said that its clients have trained alone."""
    monkeypatch.chdir(tmp_path)
    words = ("--clients", "4", "--rounds", rounds, "--workers", "1", "--network", "tests.own_networks:Untrainable")
    code, out, said = Terminal(capsys)("run", "fedavg", *words, "--name", "mine")
    assert code == 2
    assert "no electricity" in said
    assert "local-only" not in out + said


@pytest.mark.parametrize(
    ("away", "best"),
    [
        ({1: "away", 3: "away"}, 3),
        ({1: "away", 3: f"{NOT_EVALUATED}away"}, 2),
        (dict.fromkeys(range(1, 5), f"{NOT_EVALUATED}away"), 3),
    ],
)
def test_the_best_round_is_one_in_which_nobody_was_missing(tmp_path: Path, away: dict[int, str], best: int) -> None:
    run = folder(tmp_path, "run", [0.5, 0.7, 0.9, 0.6])
    lost = [(number, 0, reason) for number, reason in away.items()]
    pl.DataFrame(lost, FAILURES, orient="row").write_parquet(run.path / "failures.parquet")
    assert RunResults(run, "run").summary["best_round"] == best
