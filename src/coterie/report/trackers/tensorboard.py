"""TensorBoard: event files in the run's folder, or in one that several runs share."""

from __future__ import annotations

import time
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
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._place))
            # Readers drop what an earlier file says of this round and of those after it.
            self._add(round, session_log=SessionLog(status=SessionLog.START))
            self._add_text("settings", self._settings)
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(round, summary=Summary(value=scalars))
        self._writer.flush()

    def keep(self, folder: Path, files: Sequence[Path], summary: Mapping[str, float]) -> None:
        """Tell what the run came to; files stay where they are, in the folder beside the events."""
        if self._writer is not None:
            self._add_text("summary", summary)

    def end(self, status: str) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _add(self, step: int, **what: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, **what))

    def _add_text(self, tag: str, values: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        lines = "\n".join(f"    {name} = {value}" for name, value in values.items())  # as code, each in its line
        text = TensorProto(dtype=DT_STRING, string_val=[lines.encode()])
        plugin = create_summary_metadata(display_name=tag, description="")
        self._add(
            0, summary=Summary(value=[Summary.Value(tag=f"{tag}/text_summary", metadata=plugin, tensor=text)])
        )
