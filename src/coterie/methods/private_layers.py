"""What methods share in which clients keep some layers to themselves.

`SharedLayers` is the base of those that average the other layers over everybody. The functions say what crosses;
they serve methods with groups too.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.catalogue import state
from coterie.clients.rules.evaluate import Evaluate
from coterie.clients.rules.rule import Rule
from coterie.errors import BadInput
from coterie.grouping.exact_sums import Reduce
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.method import Assignment, Cohort, ServerView, Split
from coterie.methods.one_model import ServesOneModel
from coterie.models.layout import Layout, Part


@state("partly-shared")
@dataclass(frozen=True, eq=False)
class PartlyShared:
    """The server's model `[1, P]`, in whose private columns is what clients start from; who has started `[n]`."""

    model: Tensor
    started: NDArray[np.bool_]


class SharedLayers(ServesOneModel[PartlyShared]):
    """A method that averages the shared layers; what a client keeps is under the name `model`.

    Each way `m b P_shared` bytes a round; a client's first download is a whole model, the private layers an item of
    their own (docs/methods/conventions.md, convention 10).
    """

    uniform: ClassVar[bool] = False
    """Whether clients count alike in the mean, and not by their samples."""

    @abstractmethod
    def shared(self, layout: Layout) -> Part:
        """Return the layers that are averaged."""

    @abstractmethod
    def update(self, cohort: Cohort) -> Rule:
        """Return the rule that a client runs in a round."""

    def start(self, server: ServerView) -> PartlyShared:
        self.shared(server.layout)  # raises if the network has too few layers
        return PartlyShared(server.initial(0)[None], np.zeros(server.n, np.bool_))

    def round(self, state: PartlyShared, cohort: Cohort) -> Exchanges[PartlyShared]:
        clients, layout = cohort.clients, cohort.server.layout
        shared = self.shared(layout)
        rows = np.zeros(len(clients), np.int64)
        send = send_shared_part(state.model, rows, shared, layout, state.started[clients])
        mean = Reduce.mean(clients, None if self.uniform else cohort.server.samples[clients])
        replies: Replies = yield Exchange(
            clients, self.update(cohort), send, self.settings(cohort), {"model": shared}, {"model": mean}
        )
        means = cohort.server.aggregation.centres(replies, "model", mean, shared.take(state.model), shared)
        started = state.started.copy()
        started[replies.clients] = True
        return replace(state, model=shared.put(state.model.clone(), means), started=started)

    def settings(self, cohort: Cohort) -> dict[str, NDArray[np.float64]]:
        """Return numbers that steer the rule by name, `[m]`: one a client."""
        return {}

    def assignment(self, state: PartlyShared, server: ServerView) -> Assignment:
        return Assignment(state.model, np.zeros(server.n, np.int64), part=self.shared(server.layout), own="model")

    def evaluation(
        self, state: PartlyShared, server: ServerView, clients: Ids, split: Split = "test", last: bool = False
    ) -> Exchange:
        """Evaluate the shared layers over the client's own model; a client without one is sent a whole model."""
        shared, rows = self.shared(server.layout), np.zeros(len(clients), np.int64)
        rule, started = self.measure(split, last), state.started[clients]
        return evaluate_kept_models(rule, clients, state.model, rows, shared, server.layout, started)

    def measure(self, split: Split, last: bool) -> Rule:
        """Return the rule by which a client is evaluated."""
        return Evaluate(split, "model")


def send_shared_part(
    models: Tensor, rows: Ids, shared: Part, layout: Layout, started: NDArray[np.bool_]
) -> dict[str, Send]:
    """Send the shared part of each client's row as `model`, and the rest as `initial` on its first participation.

    The initial broadcast is so an item of its own in the ledger, sent once (docs/methods/conventions.md, convention
    10), and a client's first download is a whole model.

    Args:
        models: `[K, P]`.
        rows: of the clients of the exchange `[m]`.
        shared: the part that everybody gets.
        layout: of the models.
        started: whether each of these clients has a model of its own already `[m]`.
    """
    private = layout.everything - shared
    sends = {"model": Send(models, rows, shared)} if shared else {}
    if private and not started.all():
        sends["initial"] = Send(models, np.where(started, -1, rows), private)
    return sends


def evaluate_kept_models(
    rule: Rule,
    clients: Ids,
    models: Tensor,
    rows: Ids,
    shared: Part,
    layout: Layout,
    started: NDArray[np.bool_],
) -> Exchange:
    """Evaluate kept models under the shared part of their row; a client that keeps none is sent a whole row.

    Args:
        rule: how they evaluate.
        clients: their ids `[m]`.
        models: `[K, P]`.
        rows: `[m]`.
        shared: the part that is shared.
        layout: of the models.
        started: whether each of them has a model of its own `[m]`.
    """
    parts = [shared if own else layout.everything for own in started]
    return Exchange(clients, rule, {"model": Send(models, rows, parts)})


def select_last_layers(layout: Layout, count: int, setting: str, most: int) -> Part:
    """Return the last `count` layers.

    Raises:
        BadInput: `setting` asks for more than `most` of them.
    """
    if count > most:
        there = len(layout.layers)
        network = f"a network with {there} layer{'s' * (there > 1)}"
        instead = f"it must be 1 … {most}" if most else "take a deeper one"
        raise BadInput(f"method.{setting} = {count} is not possible in {network}; {instead}")
    return layout.last_layers(count)
