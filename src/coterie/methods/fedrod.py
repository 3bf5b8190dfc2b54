"""FedRoD: one model that treats all classes alike, and heads of one's own beside it (Chen and Chao, ICLR 2022).

On bridging generic and personalized federated learning for image classification, https://arxiv.org/abs/2107.00778

Every round:
    1. The server sends the model W. Each client trains it on the balanced softmax, as if it had all classes alike.
    2. On the same minibatches it trains a head of its own, whose logits are added to those of W, on its plain loss.
    3. It uploads the model and keeps the head. W becomes the mean of the models, weighted by samples.
Clients are served W with their own head added to its; a newcomer is served W.
Decisions where the paper is silent, and cost: docs/methods/fedrod.md
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.clients.rules.two_heads import EvaluateTwoHeads, TwoHeadsUpdate, find_head
from coterie.methods.exchange import Exchange, Exchanges, Ids, Send
from coterie.methods.method import Cohort, Needs, ServerView, Split
from coterie.methods.one_model import GlobalState, OneModel, train_model
from coterie.methods.privacy import PrivacySupport
from coterie.methods.registry import METHODS


@METHODS.add("fedrod")
@dataclass(frozen=True)
class FedRoD(OneModel):
    """A generic model of a balanced loss, and for each client a head that is added (Chen and Chao, 2022).

    Per round: down and up `m P b` bytes (docs/methods/fedrod.md).
    """

    family = "personal layers"

    needs = Needs(classes=True)

    privacy_support = PrivacySupport("", "", "its clients use counts of their classes")

    def start(self, server: ServerView) -> GlobalState:
        """Start as FedAvg does.

        Raises:
            BadInput: the network does not end in a dense layer.
        """
        find_head(server.layout)
        return super().start(server)

    def round(self, state: GlobalState, cohort: Cohort) -> Exchanges[GlobalState]:
        model, _ = yield from train_model(state.model, cohort, TwoHeadsUpdate())
        return GlobalState(model)

    def evaluation(
        self, state: GlobalState, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        return Exchange(clients, EvaluateTwoHeads(split), {"model": Send.same(state.model[0], clients)})
