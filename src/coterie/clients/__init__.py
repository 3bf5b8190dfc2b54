"""What one client does: the rules, and the work they ask of an engine. Importing this package fills `RULES`."""

from coterie.clients.admm import RelatedUpdate
from coterie.clients.choose import Choose, ChooseThenTrain
from coterie.clients.converged import TrainToConvergence
from coterie.clients.evaluate import AdaptThenEvaluate, Evaluate
from coterie.clients.gaussian import EvaluateDraws, GaussianUpdate, InvariantUpdate
from coterie.clients.gradient import CorrectedUpdate, FullGradient, SendGradient
from coterie.clients.half_data import HalfDataSpread
from coterie.clients.hand_over import HandOver
from coterie.clients.local import LocalUpdate, TrainOwn, UpdateKeepingSolver
from coterie.clients.meta import MetaUpdate
from coterie.clients.plu import PLU, ChooseIdentity, PLUThenEvaluate
from coterie.clients.private import AlternatingUpdate, FrozenHeadUpdate, PrivateUpdate
from coterie.clients.rule import RULES, Answer, Client, Item, Order, Rule, Work, rule
from coterie.clients.train_each import TrainEach
from coterie.clients.training import Training
from coterie.clients.trial import Receive, TakeBranch, TrainBranches
from coterie.clients.two_models import TwoModels
from coterie.clients.work import (
    Gradients,
    Losses,
    MetaTrain,
    Score,
    Scored,
    Train,
    Trained,
    TrainGaussian,
    TrainInvariant,
)

__all__ = [
    "PLU",
    "RULES",
    "AdaptThenEvaluate",
    "AlternatingUpdate",
    "Answer",
    "Choose",
    "ChooseIdentity",
    "ChooseThenTrain",
    "Client",
    "CorrectedUpdate",
    "Evaluate",
    "EvaluateDraws",
    "FrozenHeadUpdate",
    "FullGradient",
    "GaussianUpdate",
    "Gradients",
    "HalfDataSpread",
    "HandOver",
    "InvariantUpdate",
    "Item",
    "LocalUpdate",
    "Losses",
    "MetaTrain",
    "MetaUpdate",
    "Order",
    "PLUThenEvaluate",
    "PrivateUpdate",
    "Receive",
    "RelatedUpdate",
    "Rule",
    "Score",
    "Scored",
    "SendGradient",
    "TakeBranch",
    "Train",
    "TrainBranches",
    "TrainEach",
    "TrainGaussian",
    "TrainInvariant",
    "TrainOwn",
    "TrainToConvergence",
    "Trained",
    "Training",
    "TwoModels",
    "UpdateKeepingSolver",
    "Work",
    "rule",
]
