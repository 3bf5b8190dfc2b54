"""A run read back in Python: its rounds, what it came to, its models, and what these predict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.loop import summarise
from coterie.shipping.model.predict import load_samples, predict
from coterie.shipping.model.predicted import Predictions
from coterie.shipping.model.served import trained_model
from coterie.shipping.model.trained import Trained


class LoadedRun:
    """A run on disk, finished or interrupted. Tables and models are read when they are asked for."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        """Where all of it lies."""

    def __repr__(self) -> str:
        return f"<LoadedRun {str(self.folder.path)!r}>"

    @property
    def rounds(self) -> pl.DataFrame:
        """One row a finished round, ascending.

        Raises:
            BadInput: a file is damaged or missing.
        """
        return self.folder.rounds()

    @property
    def summary(self) -> Mapping[str, Any]:
        """The final metrics, as `coterie.Result.summary`; empty before the first round.

        Raises:
            BadInput: a file is damaged or missing.
        """
        return summarise(self.folder)

    def model(self, client: str | None = None, *, group: int | None = None) -> Trained:
        """Return the model of a client or a group; with neither, that of the only group.

        Args:
            client: its name or, where nobody has that name, its number.
            group: its number in the run's tables.

        Raises:
            BadInput: there is no such client or group, or it has no model of its own.
        """
        return trained_model(self.folder, client, group)[0]

    def predict(self, data: Path | str, client: str | None = None, *, group: int | None = None) -> Predictions:
        """Return what the model of a client or a group predicts for a file, a folder or a named dataset.

        Args:
            data: as `coterie predict --data` takes it; labels are optional.
            client: as for `model`.
            group: as for `model`.

        Raises:
            BadInput: as for `model`, or the data do not fit the model.
        """
        trained = self.model(client, group=group)
        return predict(trained, load_samples(str(data), trained.about))


def load(run: str | Path, folder: str | Path = "runs") -> LoadedRun:
    """Return a run that was trained before.

    Args:
        run: its path, its name, or the beginning of exactly one name.
        folder: that holds runs by their names.

    Raises:
        BadInput: there is no such run, or there are several.
    """
    return LoadedRun(RunFolder.find(str(run), folder))
