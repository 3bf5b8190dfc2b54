"""Whether the clients of all methods of a comparison have trained equally long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from coterie.studies.compare.spec import Comparison

TOLERANCE = 1.1
"""How many times as many local passes as another a method may have before a note says so."""

REMEDIES = {
    "rounds": "--equal passes gives all methods the same number",
    "passes": "a method stops only after a whole round; more rounds or a lower method.warm_up bring them nearer",
}
"""What to do about it, by what the methods have as much of."""


def describe(comparison: Comparison, summary: pl.DataFrame) -> list[str]:
    """Return a sentence for each setting in which the methods' clients trained on unequally many samples.

    Args:
        comparison: what was compared.
        summary: of it (`coterie.studies.compare.table.summary_schema`).
    """
    found = []
    methods = summary.filter(pl.col("adapted_from").is_null()).drop_nulls("passes_mean").sort("passes_mean")
    for setting in comparison.settings:
        own = methods.filter(pl.col("setting") == setting.name)
        if own.height and own["passes_mean"][-1] > TOLERANCE * own["passes_mean"][0]:
            (least, few), (most, many) = (own.select("method", "passes_mean").row(i) for i in (0, -1))
            where = f"{setting.name}: " if setting.name else ""
            found.append(
                f"{where}the methods trained for different numbers of local passes: {many:.3g} with {most}, and "
                f"{few:.3g} with {least}; {REMEDIES[comparison.equal]}"
            )
    return found
