"""Weights & Biases: a run of a project, also without a network (WANDB_MODE=offline)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from coterie.report.trackers.tracker import Tracker, identify


@dataclass
class WandB(Tracker):
    """Logs to Weights & Biases; a run that is resumed goes on with the same run there."""

    project: Annotated[str, Field(description="name of the project there")] = "coterie"
    folder: Annotated[str, Field(description="where its files are; without it, the run's folder")] = ""

    library = extra = "wandb"

    def begin(self, folder: Path, settings: Mapping[str, str]) -> None:
        """Begin a run of the project, or go on with the one of this folder."""
        import wandb

        place = Path(self.folder) if self.folder else folder
        place.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=self.project,
            name=folder.name,
            id=identify(folder),
            resume="allow",
            config=dict(settings),
            dir=str(place),
        )

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log the round's numbers as one step."""
        self._run.log(dict(values), step=round)

    def keep(self, folder: Path, files: Sequence[Path], summary: Mapping[str, float]) -> None:
        """Log the summary, and the files as one artefact."""
        self._run.summary.update({f"final/{name}": value for name, value in summary.items()})
        import wandb

        artefact = wandb.Artifact(f"run-{identify(folder)}", type="run")
        for path in files:
            artefact.add_file(str(path))
        self._run.log_artifact(artefact)

    def end(self, status: str) -> None:
        """Say that the run ended."""
        self._run.finish(exit_code=0 if status == "finished" else 1)
