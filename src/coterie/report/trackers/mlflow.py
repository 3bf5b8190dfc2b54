"""MLflow: a run on its server, or in its local store, with settings, metrics and the run's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from coterie.report.trackers.tracker import Tracker, identify

TAG = "coterie.folder"
LONGEST = 6000
"""Characters of a setting's value that MLflow takes."""


@dataclass
class MLflow(Tracker):
    """Logs to MLflow's tracking server; a run that is resumed goes on with the same run there."""

    uri: Annotated[str, Field(description="of the server or store; without it, MLFLOW_TRACKING_URI says")] = ""
    experiment: Annotated[str, Field(description="name of the experiment there")] = "coterie"

    library = extra = "mlflow"

    def begin(self, folder: Path, settings: Mapping[str, str]) -> None:
        """Begin a run on the server, or go on with the one of this folder."""
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self.uri or None)
        known = self._client.get_experiment_by_name(self.experiment)
        number = self._client.create_experiment(self.experiment) if known is None else known.experiment_id
        found = self._client.search_runs([number], f"tags.`{TAG}` = '{identify(folder)}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, "RUNNING")
            return
        self._run = self._client.create_run(number, run_name=folder.name, tags={TAG: identify(folder)}).info.run_id
        for key, value in settings.items():
            self._client.log_param(self._run, key, value[:LONGEST])

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log the round's numbers in one call."""
        import time

        from mlflow.entities import Metric

        now = int(1000 * time.time())
        named = [Metric(name.replace("%", " percent"), value, now, round) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=named)

    def keep(self, folder: Path, files: Sequence[Path], summary: Mapping[str, float]) -> None:
        """Log the summary and upload the files."""
        for name, value in summary.items():
            self._client.log_metric(self._run, f"final/{name}", value)
        for path in files:
            self._client.log_artifact(self._run, str(path))

    def end(self, status: str) -> None:
        """Say that the run ended."""
        self._client.set_terminated(self._run, "FINISHED" if status == "finished" else "KILLED")
