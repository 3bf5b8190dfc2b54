from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from coterie.report import compare
from coterie.runs import RunFolder


def printed(table: Table) -> str:
    console = Console(width=160, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_table_has_the_last_round_and_the_totals(clustered: RunFolder, together: RunFolder, tmp_path: Path) -> None:
    fresh = RunFolder.create(tmp_path, "fresh")
    fresh.write_experiment('method = "ifca"\n')
    found = compare.table([clustered, together, fresh])
    assert found.schema == compare.COLUMNS
    assert found["run"].to_list() == ["fesem-rotated", "fedavg-rotated", "fresh"]
    assert found["method"].to_list() == ["fesem", "fedavg", "ifca"]
    rounds = clustered.rounds()
    assert found["accuracy"][0] == rounds["macro_accuracy"][-1]
    assert found["up_mb"][0] == pytest.approx(sum(rounds["up_bytes"].to_list()) / 1e6)
    assert found["seconds"][0] == pytest.approx(15 * 1.25)
    assert found.row(2)[2:] == (0, *[None] * 7)
    lines = printed(compare.render(found))
    assert f"{rounds['macro_accuracy'][-1]:.1%}" in lines
    assert "–" in lines


def test_show_thins_a_long_run_and_ends_with_the_summary(large: RunFolder, clustered: RunFolder) -> None:
    table = compare.show(large)
    assert 15 <= table.row_count <= compare.MOST_ROUNDS + 1
    lines = printed(table)
    assert "200 rounds; best accuracy" in lines
    assert compare.show(clustered).row_count == 15


def test_markup_in_a_name_is_text(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "plain")
    folder.write_experiment('method = "[red]x[/red][/b]"\n')
    assert "[red]x[/red][/b]" in printed(compare.render(compare.table([folder])))
    assert "[red]x[/red][/b]" in printed(compare.show(folder))
    assert "No round is finished yet." in printed(compare.show(folder))
