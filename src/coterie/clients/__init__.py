"""What one client does: the rules, and the work they ask of an engine."""

from coterie.clients.choose import Choose, ChooseThenTrain
from coterie.clients.evaluate import Evaluate
from coterie.clients.local import LocalUpdate, TrainOwn
from coterie.clients.rule import RULES, Answer, Client, Item, Order, Rule, Work, rule
from coterie.clients.training import Training
from coterie.clients.work import Gradients, Losses, Score, Scored, Train, Trained

__all__ = [
    "RULES",
    "Answer",
    "Choose",
    "ChooseThenTrain",
    "Client",
    "Evaluate",
    "Gradients",
    "Item",
    "LocalUpdate",
    "Losses",
    "Order",
    "Rule",
    "Score",
    "Scored",
    "Train",
    "TrainOwn",
    "Trained",
    "Training",
    "Work",
    "rule",
]
