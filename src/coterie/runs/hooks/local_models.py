"""What each client itself trained last, by which it is evaluated with `evaluation.evaluated = "local"`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.methods import Cohort
from coterie.methods.exchange import Exchange, Replies
from coterie.runs.hooks.hook import Hook
from coterie.runs.record import RoundResult

if TYPE_CHECKING:
    from coterie.runs.session import Session


class LocalModels(Hook):
    """The models that clients trained last, those of a round that goes on included.

    A model that a client keeps under the name `model` stays with it; of one that it sends, the server has a copy.

    Attributes:
        models: `[n, P]`, of those who sent theirs; where a part was sent, the rest is the initial model's.
        sent: who did `[n]`.
        kept: who keeps its model itself `[n]`.
    """

    def __init__(self, run: Session) -> None:
        super().__init__(run)
        n = run.server.n
        self.models = torch.zeros(n, run.layout.size)
        self.sent, self.kept = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self._before: tuple[Tensor, NDArray[np.bool_], NDArray[np.bool_]] = self.models, self.sent, self.kept

    @classmethod
    def is_on(cls, run: Session) -> bool:
        return run.experiment.evaluation.evaluated == "local"

    def server_view(self, cohort: Cohort) -> Cohort:
        models, sent, kept = self._before
        self.models, self.sent, self.kept = models.clone(), sent.copy(), kept.copy()
        return cohort

    def reply(self, exchange: Exchange, replies: Replies, result: RoundResult) -> Replies:
        who = replies.clients
        if "model" in exchange.rule.client_state:
            self.kept[who], self.sent[who] = True, False
        elif "model" in exchange.rule.uploads:
            initial = self.run.server.initial(0)
            self.models[torch.from_numpy(who)] = torch.where(replies.models.isnan(), initial, replies.models)
            self.kept[who], self.sent[who] = False, True
        return replies

    def round_ended(self, result: RoundResult) -> None:
        self._before = self.models, self.sent, self.kept

    def to_checkpoint(self) -> Mapping[str, Any]:
        models, sent, kept = self._before
        return {"local": models, "local_sent": sent, "local_kept": kept}

    def restore(self, memory: Mapping[str, Any]) -> None:
        self._before = memory["local"], memory["local_sent"], memory["local_kept"]
        self.models, self.sent, self.kept = self._before
