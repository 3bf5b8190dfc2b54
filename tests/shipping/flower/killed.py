"""A server that is killed in mid-round.

`python -m tests.shipping.flower.killed FOLDER EXPERIMENT.toml CLIENTS MESSAGE`
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from coterie.runs.schema.experiment import Experiment
from coterie.runtime.remote.message import Message
from tests.shipping.flower.rehearsal import place


def main(folder: str, experiment: str, clients: str, message: str) -> None:
    """Kill this process when client 1 is sent its message of that number."""

    def kill(grid: Any, node: int, count: int, given: Message) -> None:
        if node == 1 and count == int(message):
            os.kill(os.getpid(), signal.SIGKILL)

    place(Path(folder), int(clients)).run(Experiment.from_toml(Path(experiment)), there=kill)


if __name__ == "__main__":
    main(*sys.argv[1:])
