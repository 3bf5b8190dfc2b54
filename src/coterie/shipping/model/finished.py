"""A run read back in Python: its rounds, what it came to, its models, and what these predict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from coterie.clients.data.read.given import to_polars
from coterie.runs.folder.run_folder import RunFolder
from coterie.runs.loop import summarise
from coterie.shipping.model.predict import clients_of, load_samples, named_in, predict, predict_each
from coterie.shipping.model.predicted import Predictions
from coterie.shipping.model.served import client_models, knows_one_of, trained_model
from coterie.shipping.model.trained import Trained


class LoadedRun:
    """A run on disk, finished or interrupted. Tables and models are read when they are asked for."""

    def __init__(
        self,
        folder: RunFolder,
        network: nn.Module | Callable[..., Any] | None = None,
        allow: Iterable[str] = (),
    ) -> None:
        self.folder = folder
        """Where all of it lies."""
        self._network = network
        self._allow = tuple(allow)

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
        return trained_model(self.folder, client, group, self._network, self._allow)[0]

    def predict(self, data: Any, client: str | None = None, *, group: int | None = None) -> Predictions:
        """Return what models predict for a file, a folder, a named dataset or a frame, as `coterie predict` does.

        With neither a client nor a group, each row is answered by the model of its own client where the data name
        clients whom the run trained. Rows of others get the model of the only group, or are left out.

        Args:
            data: as `coterie predict --data` takes it, or a frame of polars or pandas; labels are optional.
            client: as for `model`.
            group: as for `model`.

        Raises:
            BadInput: as for `model`, or the data do not fit the model.
        """
        samples = str(data) if isinstance(data, Path | str) else to_polars(data, "the data given")
        clients = clients_of(samples, named_in(self.folder)) if client is None and group is None else []
        if knows_one_of(self.folder, clients):
            models, _ = client_models(self.folder, clients, self._network, self._allow)
            return predict_each(models, samples)[0]
        trained = self.model(client, group=group)
        return predict(trained, load_samples(samples, trained.about))


def load(
    run: str | Path,
    folder: str | Path = "runs",
    *,
    network: nn.Module | Callable[..., Any] | None = None,
    allow: Iterable[str] = (),
) -> LoadedRun:
    """Return a run that was trained before.

    Args:
        run: its path, its name, or the beginning of exactly one name.
        folder: that holds runs by their names.
        network: as for `resume`, where the run's network was given in Python.
        allow: as for `resume`: what the run's experiment may import.

    Raises:
        BadInput: there is no such run, or there are several.
    """
    return LoadedRun(RunFolder.find(str(run), folder), network, allow)
