"""What one client does: the rules, what they ask of an engine, and the losses that they bring.

This is the public home of all that a method or a new rule imports. A rule is one file: its objective where it has a
loss of its own, and a generator of requests. Importing the package imports each of its files, which fills `RULES`
and `OBJECTIVES`. What a single method asks of its clients is not listed here.
"""

from importlib import import_module
from pkgutil import iter_modules

from coterie.clients.rules.before_and_after import BeforeAndAfter
from coterie.clients.rules.choose import Choose, ChooseThenTrain
from coterie.clients.rules.client import Client
from coterie.clients.rules.evaluate import AdaptThenEvaluate, Evaluate
from coterie.clients.rules.gaussian import ClassGaussians
from coterie.clients.rules.gradient import FullGradient
from coterie.clients.rules.invariant import Invariant
from coterie.clients.rules.local_update import LocalUpdate, ObjectiveUpdate, TrainOwn, UpdateKeepingSolver
from coterie.clients.rules.meta import MetaTrain
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.objective import OBJECTIVES, LocalModel, Loss, Objective, TaskLoss, objective
from coterie.clients.rules.private_layers import PrivateUpdate
from coterie.clients.rules.proximal import PLUThenEvaluate
from coterie.clients.rules.requests import Gradients, Inspect, Losses, Request, Score, Scored, Train, Trained
from coterie.clients.rules.rule import RULES, Answer, Item, Order, Rule, Work, rule
from coterie.clients.rules.training import Training

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "OBJECTIVES",
    "RULES",
    "AdaptThenEvaluate",
    "Answer",
    "Batch",
    "BeforeAndAfter",
    "Choose",
    "ChooseThenTrain",
    "ClassGaussians",
    "Client",
    "Evaluate",
    "FullGradient",
    "Gradients",
    "Inspect",
    "Invariant",
    "Item",
    "LocalModel",
    "LocalUpdate",
    "Loss",
    "Losses",
    "MetaTrain",
    "Objective",
    "ObjectiveUpdate",
    "Order",
    "PLUThenEvaluate",
    "PrivateUpdate",
    "Request",
    "Rule",
    "Score",
    "Scored",
    "TaskLoss",
    "Train",
    "TrainOwn",
    "Trained",
    "Training",
    "UpdateKeepingSolver",
    "Work",
    "objective",
    "rule",
]
