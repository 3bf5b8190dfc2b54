"""What the public samples of one method take from everybody in a comparison."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from coterie.errors import BadInput
from coterie.runs.schema.check import build_method
from coterie.runs.schema.experiment import Experiment
from coterie.runs.setup import load_federation

if TYPE_CHECKING:
    from coterie.studies.compare.spec import Comparison


def describe(comparison: Comparison) -> list[str]:
    """Return a sentence for each setting whose server holds public samples: for whom, and what they take.

    All methods of a setting have the same number of them, also those that never look, for it may change what is
    left for the clients.

    Raises:
        BadInput: an experiment is not possible.
    """
    found = []
    for setting in comparison.settings:
        cells = [
            cell
            for cell in comparison.cells()
            if cell.setting == setting.name and cell.seed == comparison.seeds[0] and not cell.is_adapted
        ]
        needing = [cell for cell in cells if build_method(cell.experiment.method).needs.public]
        if not needing or not needing[0].experiment.data.public:
            continue
        one = needing[0].experiment
        count, taken, whole = _count_taken(
            Experiment.from_tables({"data": one.data, "task": one.task, "run": one.run}).to_toml()
        )
        methods = ", ".join(dict.fromkeys(cell.method for cell in needing))
        said = f"{setting.name}: " if setting.name else ""
        said += f"{methods} look{'s' * (len(needing) == 1)} at {count:,} public samples on the server; "
        if not taken:
            said += "they lie beside the clients' data and take nothing from anybody"
        else:
            said += f"they were taken from the clients' data, for all methods alike: {taken:,} of {whole:,} samples"
        found.append(said)
    return found


@cache
def _count_taken(text: str) -> tuple[int, int, int]:
    """Return how many public samples an experiment in TOML has, how many clients lack, and how many there are."""
    experiment = Experiment.from_toml(text).resolved()
    method = build_method(experiment.method)
    kept = load_federation(experiment, method)
    try:
        whole = load_federation(experiment.updated({"data.public": 0}), method)
    except BadInput:  # a split that needs what was set aside to be gone
        return 0 if kept.public is None else len(kept.public), 0, len(kept.labels)
    public = 0 if kept.public is None else len(kept.public)
    return public, max(0, len(whole.labels) - len(kept.labels)), len(whole.labels)
