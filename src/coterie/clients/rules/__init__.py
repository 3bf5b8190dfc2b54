"""What one client does: the rules, what they ask of an engine, and the losses that they bring.

This is the public home of all that a method or a new rule imports. A rule is one file: its objective where it has a
loss of its own, and a generator of requests. Importing the package fills `RULES` and `OBJECTIVES`.
"""

from coterie.clients.rules.adaptive_start import AdaptiveStartUpdate, AdaptStart
from coterie.clients.rules.admm import RelatedUpdate
from coterie.clients.rules.aligned import AlignedFeatures, AlignedUpdate
from coterie.clients.rules.before_and_after import BeforeAndAfter
from coterie.clients.rules.choose import Choose, ChooseThenTrain, ChooseTrainKeep
from coterie.clients.rules.class_bases import ClassBases
from coterie.clients.rules.client import Client
from coterie.clients.rules.cluster_pull import ClusterAndCommon
from coterie.clients.rules.control_variate import ControlVariateUpdate
from coterie.clients.rules.drawn import DrawnUpdate, GroupShares
from coterie.clients.rules.evaluate import AdaptThenEvaluate, Evaluate
from coterie.clients.rules.evaluated_model import HandOver
from coterie.clients.rules.fold import FoldScores, FoldUpdate, HalfUpdate
from coterie.clients.rules.gaussian import ClassGaussians, EvaluateDraws, GaussianUpdate
from coterie.clients.rules.gradient import CorrectedUpdate, FullGradient, SendGradient
from coterie.clients.rules.group_places import GroupPlaces
from coterie.clients.rules.half_data import HalfDirections
from coterie.clients.rules.invariant import Invariant, InvariantUpdate, OwnPriorUpdate
from coterie.clients.rules.latent_moments import LatentMoments
from coterie.clients.rules.local_and_personal import (
    EvaluateInterpolation,
    LocalAndPersonalTrain,
    LocalAndPersonalUpdate,
)
from coterie.clients.rules.local_update import (
    LocalUpdate,
    ObjectiveUpdate,
    TrainOwn,
    TrainOwnPulled,
    UpdateKeepingSolver,
)
from coterie.clients.rules.meta import MetaTrain, MetaUpdate
from coterie.clients.rules.minibatch import Batch
from coterie.clients.rules.mixture import ConceptUpdate, MixtureShares, MixtureUpdate
from coterie.clients.rules.moreau import MoreauTrain, MoreauUpdate
from coterie.clients.rules.objective import OBJECTIVES, LocalModel, Loss, Objective, TaskLoss, objective
from coterie.clients.rules.pooled import PooledUpdate
from coterie.clients.rules.private_layers import AlternatingUpdate, FrozenHeadUpdate, PrivateUpdate
from coterie.clients.rules.profile import HalfProfiles, InputMoments
from coterie.clients.rules.proximal import PLU, ChooseIdentity, PLUThenEvaluate
from coterie.clients.rules.requests import Gradients, Inspect, Losses, Request, Score, Scored, Train, Trained
from coterie.clients.rules.rule import RULES, Answer, Item, Order, Rule, Work, rule
from coterie.clients.rules.score_bounds import ScoreBounds
from coterie.clients.rules.soft_clusters import SampleShares, SoftClusterUpdate
from coterie.clients.rules.train_each import TrainEach
from coterie.clients.rules.training import Training
from coterie.clients.rules.two_branches import Receive, TakeBranch, TrainBranches
from coterie.clients.rules.two_heads import EvaluateHead, EvaluateTwoHeads, TwoHeads, TwoHeadsUpdate
from coterie.clients.rules.two_models import TwoModels

__all__ = [
    "OBJECTIVES",
    "PLU",
    "RULES",
    "AdaptStart",
    "AdaptThenEvaluate",
    "AdaptiveStartUpdate",
    "AlignedFeatures",
    "AlignedUpdate",
    "AlternatingUpdate",
    "Answer",
    "Batch",
    "BeforeAndAfter",
    "Choose",
    "ChooseIdentity",
    "ChooseThenTrain",
    "ChooseTrainKeep",
    "ClassBases",
    "ClassGaussians",
    "Client",
    "ClusterAndCommon",
    "ConceptUpdate",
    "ControlVariateUpdate",
    "CorrectedUpdate",
    "DrawnUpdate",
    "Evaluate",
    "EvaluateDraws",
    "EvaluateHead",
    "EvaluateInterpolation",
    "EvaluateTwoHeads",
    "FoldScores",
    "FoldUpdate",
    "FrozenHeadUpdate",
    "FullGradient",
    "GaussianUpdate",
    "Gradients",
    "GroupPlaces",
    "GroupShares",
    "HalfDirections",
    "HalfProfiles",
    "HalfUpdate",
    "HandOver",
    "InputMoments",
    "Inspect",
    "Invariant",
    "InvariantUpdate",
    "Item",
    "LatentMoments",
    "LocalAndPersonalTrain",
    "LocalAndPersonalUpdate",
    "LocalModel",
    "LocalUpdate",
    "Loss",
    "Losses",
    "MetaTrain",
    "MetaUpdate",
    "MixtureShares",
    "MixtureUpdate",
    "MoreauTrain",
    "MoreauUpdate",
    "Objective",
    "ObjectiveUpdate",
    "Order",
    "OwnPriorUpdate",
    "PLUThenEvaluate",
    "PooledUpdate",
    "PrivateUpdate",
    "Receive",
    "RelatedUpdate",
    "Request",
    "Rule",
    "SampleShares",
    "Score",
    "ScoreBounds",
    "Scored",
    "SendGradient",
    "SoftClusterUpdate",
    "TakeBranch",
    "TaskLoss",
    "Train",
    "TrainBranches",
    "TrainEach",
    "TrainOwn",
    "TrainOwnPulled",
    "Trained",
    "Training",
    "TwoHeads",
    "TwoHeadsUpdate",
    "TwoModels",
    "UpdateKeepingSolver",
    "Work",
    "objective",
    "rule",
]
