"""Whose public samples all methods of a comparison do without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.runs.schema.names import build_method

if TYPE_CHECKING:
    from coterie.studies.compare.spec import Comparison


def describe(comparison: Comparison) -> list[str]:
    """Return a sentence for each setting whose server holds public samples: for whom, and how many.

    All methods of a setting have the same number of them, also those that never look, for it may change what is
    left for the clients.

    Raises:
        BadInput: an experiment is not possible.
    """
    found, first = [], replace(comparison, seeds=comparison.seeds[:1]).cells()
    for setting in comparison.settings:
        cells = [cell for cell in first if cell.setting == setting.name and not cell.is_adapted]
        needing = [cell for cell in cells if build_method(cell.experiment.method).needs.public]
        if not needing or not needing[0].experiment.data.public:
            continue
        methods = ", ".join(cell.method for cell in needing)
        count = f"{needing[0].experiment.data.public:,} public samples on the server"
        where = f"{setting.name}: " if setting.name else ""
        found.append(
            f"{where}{methods} look{'s' * (len(needing) == 1)} at {count}; if the data have none, they are taken "
            "from the clients, in the same way for all methods"
        )
    return found
