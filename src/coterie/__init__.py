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
    from coterie.clients.data.federation import Federation as Federation
    from coterie.errors import BadInput as BadInput
    from coterie.experiments.diagnose.diagnose import diagnose as diagnose
    from coterie.experiments.explain.explain import explain as explain
    from coterie.experiments.folder.run_folder import RunFolder
    from coterie.experiments.run.events import Observer as Observer
    from coterie.experiments.run.events import Result as Result
    from coterie.experiments.run.events import Round as Round
    from coterie.experiments.run.loop import resume as resume
    from coterie.experiments.run.loop import rounds as rounds
    from coterie.experiments.run.loop import run as run
    from coterie.experiments.schema.experiment import Experiment as Experiment
    from coterie.experiments.schema.experiment import check as check
    from coterie.report.comparison.compare import compare as compare
    from coterie.report.figures import draw as draw

__version__ = version("coterie")

_HOMES = {
    "BadInput": "coterie.errors",
    "Experiment": "coterie.experiments.schema.experiment",
    "Federation": "coterie.clients.data.federation",
    "Observer": "coterie.experiments.run.events",
    "Result": "coterie.experiments.run.events",
    "Round": "coterie.experiments.run.events",
    "RunFolder": "coterie.experiments.folder.run_folder",
    "check": "coterie.experiments.schema.experiment",
    "compare": "coterie.report.comparison.compare",
    "diagnose": "coterie.experiments.diagnose.diagnose",
    "draw": "coterie.report.figures",
    "explain": "coterie.experiments.explain.explain",
    "resume": "coterie.experiments.run.loop",
    "rounds": "coterie.experiments.run.loop",
    "run": "coterie.experiments.run.loop",
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
    "diagnose",
    "draw",
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
