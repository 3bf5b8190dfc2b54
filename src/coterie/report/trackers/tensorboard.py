"""TensorBoard: event files in the run's folder, or in one that several runs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from coterie.report.trackers.tracker import Tracker


@dataclass
class TensorBoard(Tracker):
    """Writes event files, which `tensorboard --logdir runs` shows."""

    folder: Annotated[str, Field(description="where; without it, tensorboard in the run's folder")] = ""

    library = extra = "tensorboard"

    def begin(self, folder: Path, settings: Mapping[str, str]) -> None:
        """Say where; the file is opened at the first round that is told, and takes the place of later ones."""
        self._place = Path(self.folder) / folder.name if self.folder else folder / "tensorboard"
        self._writer: Any = None
        self._settings = settings

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each number."""
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is None:
            # Readers drop what an earlier file says of this round and of those after it.
            self._writer = SummaryWriter(str(self._place), purge_step=round)
            self._add_text("settings", self._settings)
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def keep(self, folder: Path, files: Sequence[Path], summary: Mapping[str, float]) -> None:
        """Tell what the run came to; files stay where they are, in the folder beside the events."""
        if self._writer is not None:
            self._add_text("summary", summary)

    def end(self, status: str) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _add_text(self, tag: str, values: Mapping[str, Any]) -> None:
        # As code, each in its line.
        self._writer.add_text(tag, "\n".join(f"    {name} = {value}" for name, value in values.items()), 0)
