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
    from coterie.advice.diagnose.diagnose import diagnose as diagnose
    from coterie.advice.explain.explain import explain as explain
    from coterie.clients.data.federation import Federation as Federation
    from coterie.errors import BadInput as BadInput
    from coterie.report.comparison.auto import auto as auto
    from coterie.report.comparison.compare import compare as compare
    from coterie.report.figures import draw as draw
    from coterie.runs.events import Observer as Observer
    from coterie.runs.events import Result as Result
    from coterie.runs.events import Round as Round
    from coterie.runs.folder.run_folder import RunFolder as RunFolder
    from coterie.runs.loop import resume as resume
    from coterie.runs.loop import rounds as rounds
    from coterie.runs.loop import run as run
    from coterie.runs.schema.experiment import Experiment as Experiment
    from coterie.runs.schema.experiment import check as check
    from coterie.shipping.model.finished import load as load

__version__ = version("coterie")

_HOMES = {
    "BadInput": "coterie.errors",
    "Experiment": "coterie.runs.schema.experiment",
    "Federation": "coterie.clients.data.federation",
    "Observer": "coterie.runs.events",
    "Result": "coterie.runs.events",
    "Round": "coterie.runs.events",
    "RunFolder": "coterie.runs.folder.run_folder",
    "auto": "coterie.report.comparison.auto",
    "check": "coterie.runs.schema.experiment",
    "compare": "coterie.report.comparison.compare",
    "diagnose": "coterie.advice.diagnose.diagnose",
    "draw": "coterie.report.figures",
    "explain": "coterie.advice.explain.explain",
    "load": "coterie.shipping.model.finished",
    "resume": "coterie.runs.loop",
    "rounds": "coterie.runs.loop",
    "run": "coterie.runs.loop",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    # Public names are fetched when first used, for most of them bring torch, which takes seconds to import.
    if name not in _HOMES:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
