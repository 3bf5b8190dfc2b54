from io import StringIO
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from coterie.report import run_tables
from coterie.runs.folder.run_folder import RunFolder

from .synthesis import synthesise


def printed(what: object, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


@pytest.mark.medium
def test_table_has_the_last_round_and_the_totals(clustered: RunFolder, together: RunFolder, tmp_path: Path) -> None:
    fresh = RunFolder.create(tmp_path, "fresh")
    fresh.write_experiment('method = "ifca"\n')
    found = run_tables.last_rounds([clustered, together, fresh])
    first, second, third = (dict(zip(found.header, row, strict=True)) for row in found.rows)
    assert [row["run"] for row in (first, second, third)] == ["fesem-rotated", "fedavg-rotated", "fresh"]
    assert [row["method"] for row in (first, second, third)] == ["fesem", "fedavg", "ifca"]
    rounds = clustered.rounds()
    assert first["accuracy"] == f"{rounds['macro_accuracy'][-1]:.1%}"
    assert first["up"] == f"{sum(rounds['up_bytes'].to_list()) / 1e6:.1f} MB"
    assert (first["rounds"], first["seconds"]) == ("15", f"{15 * 1.25:.1f}")
    assert [*third.values()][2:] == ["0", *["–"] * (len(third) - 3)]


def test_show_thins_a_long_run_and_ends_with_the_summary(clustered: RunFolder, tmp_path: Path) -> None:
    table = run_tables.show(synthesise(tmp_path, "long", clients=2, groups=1, rounds=50, picture=False))
    assert 15 <= table.row_count <= run_tables.MOST_ROUNDS + 1
    assert "50 rounds" in printed(table)
    assert run_tables.show(clustered).row_count == 15


def test_markup_in_a_name_is_text(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "plain")
    folder.write_experiment('method = "[red]x[/red][/b]"\n')
    assert "[red]x[/red][/b]" in printed(run_tables.render([folder]))
    assert "[red]x[/red][/b]" in printed(run_tables.show(folder))
    assert run_tables.show(folder).row_count == 0


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_loses_columns_and_no_number(
    clustered: RunFolder, together: RunFolder, width: int
) -> None:
    where = Console(width=width, file=StringIO(), color_system=None)
    last = clustered.rounds().row(-1, named=True)
    where.print(run_tables.render([clustered, together], width), run_tables.show(clustered, width))
    text = where.file.getvalue() if isinstance(where.file, StringIO) else ""
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for shown in ("fesem-rotated", "fedavg-rotated", f"{last['macro_accuracy']:.1%}", f"{last['worst10']:.1%}"):
        assert shown in text
    assert ("seconds" in text) == (width == 120)


def test_a_name_too_long_for_a_line_goes_on_in_the_next(tmp_path: Path) -> None:
    name = "".join(chr(97 + i % 26) for i in range(80))
    folder = synthesise(tmp_path, name, clients=4, rounds=2)
    where = Console(width=80, file=StringIO(), color_system=None)
    where.print(run_tables.render([folder], 80))
    text = where.file.getvalue() if isinstance(where.file, StringIO) else ""
    cells = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert "".join(cells) == name


def test_a_loss_that_has_run_away_is_short(tmp_path: Path) -> None:
    folder = synthesise(tmp_path, "away", clients=4, rounds=2, failing=False)
    second = folder.rounds().filter(pl.col("round") == 2).with_columns(loss=pl.lit(2.8e34), ari=pl.lit(-0.001))
    rest = (frame.filter(pl.col("round") == 2) for frame in (folder.clients(), folder.ledger(), folder.failures()))
    folder.write_round(2, second, *rest)
    text = printed(run_tables.show(folder, 120))
    assert "2.8e+34" in text
    assert "-0.00" not in text
    assert "0 failures" in text
