"""Clustered and personalised federated learning: find out which clients belong together.

import coterie

result = coterie.run(coterie.Experiment(method="fesem", data="digits"))
for round in coterie.rounds(coterie.Experiment(method="ifca")):
    print(round.number, round.metrics["macro_accuracy"])
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.comparing import compare as compare
    from coterie.events import Observer as Observer
    from coterie.events import Result as Result
    from coterie.events import Round as Round
    from coterie.experiment import Experiment as Experiment
    from coterie.experiment import check as check
    from coterie.explaining import explain as explain
    from coterie.federation.federation import Federation as Federation
    from coterie.problems import BadInput as BadInput
    from coterie.running import resume as resume
    from coterie.running import rounds as rounds
    from coterie.running import run as run
    from coterie.runs import RunFolder as RunFolder

__version__ = version("coterie")

_HOMES = {
    "BadInput": "coterie.problems",
    "Experiment": "coterie.experiment",
    "Federation": "coterie.federation.federation",
    "Observer": "coterie.events",
    "Result": "coterie.events",
    "Round": "coterie.events",
    "RunFolder": "coterie.runs",
    "check": "coterie.experiment",
    "compare": "coterie.comparing",
    "explain": "coterie.explaining",
    "resume": "coterie.running",
    "rounds": "coterie.running",
    "run": "coterie.running",
}

__all__ = [
    "BadInput",
    "Experiment",
    "Federation",
    "Observer",
    "Result",
    "Round",
    "RunFolder",
    "__version__",
    "check",
    "compare",
    "explain",
    "resume",
    "rounds",
    "run",
]


def __getattr__(name: str) -> Any:
    # Public names are fetched when first used, for most of them bring torch, which takes seconds to import.
    if name not in _HOMES:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
