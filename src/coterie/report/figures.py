"""`coterie.draw`: the figures of a run, a comparison or a diagnosis, as their pages have them."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.advice.diagnose.diagnosis import Diagnosis
from coterie.errors import BadInput
from coterie.report import diagnosis_page
from coterie.report.charts import draw_run
from coterie.report.comparison.charts import draw_setting
from coterie.report.comparison.view import views
from coterie.report.drawing.figure import Figure
from coterie.runs.events import Result
from coterie.runs.folder.reading import read_runs
from coterie.runs.folder.run_folder import RunFolder
from coterie.studies.compare.compare import Compared


def draw(
    of: Result | RunFolder | Compared | Diagnosis, *, against: Sequence[Result | RunFolder] = ()
) -> dict[str, Figure]:
    """Draw the figures of a run, a comparison or a diagnosis, and return them by name, in the order of its page.

    In a notebook a figure shows itself as a picture: `coterie.draw(result)["accuracy"]`. One for which there are no
    data has a caption that says why.

    Args:
        of: what `coterie.run`, `coterie.compare` or `coterie.diagnose` returned, or the folder of a run.
        against: of a run alone, other runs that are drawn as further lines.

    Raises:
        BadInput: no run of the comparison is finished, a file of a run is damaged, `of` is nothing of these, or
            `against` is given beside something else than a run.
    """
    if isinstance(of, Result | RunFolder):
        run, *others = read_runs([_folder_of(one) for one in (of, *against)])
        return {figure.name: figure for figure in draw_run(run, others)}
    if against:
        raise BadInput("against has no effect here; it must be left out, for only a run is drawn beside others")
    if isinstance(of, Diagnosis):
        return {figure.name: figure for figure in diagnosis_page.draw(of)}
    if not isinstance(of, Compared):
        raise BadInput(
            f"{of!r} cannot be drawn; it must be what coterie.run, coterie.compare or coterie.diagnose returned"
        )
    if of.frames is None or of.summary is None:
        raise BadInput(f"comparison {str(of.folder.path)!r} has no finished run yet; go on with it first")
    parts = views(of.comparison, of.frames, of.summary)
    return {figure.name: figure for part in parts for figure in draw_setting(part)}


def _folder_of(run: Result | RunFolder) -> RunFolder:
    return run if isinstance(run, RunFolder) else RunFolder(run.folder)
