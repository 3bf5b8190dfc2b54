"""What methods share in which every client picks one of K models (IFCA, FedCPS; in parts FeSEM and DC-PFL).

How the models start, which one each client picked, and K models with a common base.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.rules.choose import Choose
from coterie.clients.rules.local_update import LocalUpdate
from coterie.errors import BadInput
from coterie.grouping.affinity import model_distances
from coterie.grouping.cluster import average_linkage, better_separated, kmeans
from coterie.grouping.exact_sums import Reduce
from coterie.methods.aggregation import Aggregator
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send
from coterie.methods.method import UNKNOWN, Assignment, Cohort, Method, ServerView
from coterie.models.layout import Layout, Part

MAX_REDRAWS = 100

RESTARTS = 20
"""K-means runs, of which the best is taken."""

Init = Literal["redraw", "plain", "kmeans", "silhouette"]
"""How K models start: redrawn until all are picked, drawn once, or from the clusters that a local round shows."""


def warn_of_one_choice(groups: NDArray[np.int64], clusters: int, init: Init) -> list[str]:
    """Say so if all clients whose group is known chose one of the K models, which leaves one group.

    Of fewer clients than models this says nothing.

    Args:
        groups: what each client chose `[n]`, `UNKNOWN` for a client that has not.
        clusters: the number of models K.
        init: how the models started.
    """
    known = groups[groups != UNKNOWN]
    if clusters == 1 or len(known) < clusters or len(np.unique(known)) > 1:
        return []
    others = " or ".join(f"'{other}'" for other in get_args(Init) if other != init)
    return [
        f"no groups came about: all clients chose the same one of {clusters} models; method.init = {others}, or "
        "another seed, starts from other models"
    ]


def draw_models(server: ServerView, clusters: int, attempt: int = 0) -> Tensor:
    """Return K independent initial models `[K, P]`; the first of attempt 0 is the common initial model."""
    first = attempt * clusters
    return torch.stack([server.initial(first + k) for k in range(clusters)])


def redraw_until_all_picked(
    draw: Callable[[int], Tensor], probe: Callable[[Tensor], Exchange], share: float
) -> Exchanges[Tensor]:
    """Draw models until each is picked by a share of the clients that answer; return the best draw if none is.

    Independent initial models can leave a cluster that nobody ever picks. The authors of IFCA draw anew until all
    are picked; here at most `MAX_REDRAWS` times (docs/methods/ifca.md; docs/methods/fedcps.md, D6).

    Args:
        draw: the models `[K, P]` of attempt 0, 1, …
        probe: the exchange that asks the cohort which of some models each would pick, as the number `choice`.
        share: of the cohort, for each model.
    """
    best, best_share = draw(0), -1.0
    for attempt in range(MAX_REDRAWS):
        models = draw(attempt) if attempt else best
        replies: Replies = yield probe(models)
        counts = np.bincount(read_choices(replies), minlength=len(models))
        found = float(counts.min() / max(len(replies), 1))
        if found > best_share:
            best, best_share = models, found
        # Fewer clients than models cannot pick them all, and each draw would cost the cohort K downloads.
        if found >= share or len(replies) < len(models):
            break
    return best


def cluster_first_models(
    start: Tensor, clusters: int, cohort: Cohort, init: Init = "kmeans", epochs: int | None = None
) -> Exchanges[tuple[Replies, NDArray[np.int64]]]:
    """Let all clients train from the model `start` `[P]`, for `epochs` or as in any round, and cluster the results.

    That is by K-means, or with `init = "silhouette"` by the better separated of what K-means and average linkage
    find. K-means halves a large group sooner than to leave a small one alone, and average linkage leaves an outlier
    alone sooner than to part two groups. Above `scale.sketch_above` clients it is always by K-means, for the other
    needs the distances of all pairs.

    Returns:
        The replies, with the trained models, and the cluster of each of them.
    """
    server, everyone = cohort.server, cohort.server.everyone
    replies: Replies = yield Exchange(everyone, LocalUpdate(epochs), {"model": Send.same(start, everyone)})
    if not len(replies):
        return replies, np.empty(0, np.int64)
    seen, rng = server.layout.trainable.take(replies.models), server.stream("kmeans", cohort.round)
    labels = kmeans(seen, clusters, RESTARTS, rng, server.scale.sketch_above)
    if init == "silhouette" and len(seen) <= server.scale.sketch_above:
        distances = model_distances(seen)
        labels = better_separated(distances, [labels, average_linkage(distances, clusters)])
    return replies, labels


def describe_first_clustering(init: str, clusters: int) -> str:
    """Return what `Needs.models` says of a method that begins by `cluster_first_models`; empty if it does not."""
    begins = init in ("silhouette", "kmeans") and clusters > 1
    return "its server clusters clients by their first models" * begins


def begin_from_first(models: Tensor, labels: NDArray[np.int64]) -> Tensor:
    """Return `models` `[K, P]` in which each of the clusters that were found begins with the first model.

    From that one all clients trained before `labels` `[r]` were found.
    """
    begun = models.clone()
    begun[torch.from_numpy(np.unique(labels))] = models[0]
    return begun


def warn_of_sketches(server: ServerView) -> list[str]:
    """Warn, in one sentence, where there are so many clients that K-means starts from sketches of their models."""
    n, above = server.n, server.scale.sketch_above
    many = (
        f"{n:,} clients are more than scale.sketch_above = {above:,}: K-means starts from sketches of their models"
    )
    return [many] * (n > above)


def read_choices(replies: Replies) -> NDArray[np.int64]:
    """Return the model that each client that answered picked `[r]`."""
    return replies.numbers.get("choice", np.empty(0)).astype(np.int64)


def place_by_loss(models: Tensor, groups: NDArray[np.int64], clients: Ids) -> Exchanges[NDArray[np.int64]]:
    """Let those of `clients` without a group pick the model with the smallest loss on their data.

    Args:
        models: of the groups `[K, P]`.
        groups: of all clients `[n]`, `UNKNOWN` for those without one.
        clients: who is asked.

    Returns:
        The groups anew `[n]`.
    """
    late = clients[groups[clients] == UNKNOWN]
    if not len(late):
        return groups
    replies: Replies = yield Exchange(late, Choose(), {"models": Send.all(models, late)})
    groups = groups.copy()
    groups[replies.clients] = read_choices(replies)
    return groups


def train_groups(
    models: Tensor,
    groups: NDArray[np.int64],
    clients: Ids,
    server: ServerView,
    mu: float = 0.0,
    weights: Literal["samples", "uniform"] = "samples",
) -> Exchanges[Tensor]:
    """Let clients train the models of their groups; return the models anew `[K, P]`, each the mean of its clients'.

    A group of which nobody answers keeps its model.

    Args:
        models: of the groups `[K, P]`.
        groups: of all clients `[n]`; one that is `UNKNOWN` is not asked.
        clients: who takes part.
        server: that asks them.
        mu: strength of the pull to the group's model.
        weights: a client's weight in the mean: its samples, or 1.
    """
    placed = clients[groups[clients] != UNKNOWN]
    own, send = groups[placed], {"model": Send(models, groups[placed])}
    shares = server.samples[placed] if weights == "samples" else np.ones_like(placed)
    means = Reduce(placed, shares, own, len(models))
    pull = {"mu": np.full(len(placed), mu)} if mu else {}
    replies: Replies = yield Exchange(placed, LocalUpdate(), send, pull, reduce={"model": means})
    return server.aggregation.centres(replies, "model", means, models)


def serve_picked(models: Tensor, clients: Ids, replies: Replies) -> Assignment:
    """Serve newcomers the models `[K, P]` that they picked; one that did not answer has none yet."""
    groups = np.full(len(clients), UNKNOWN, np.int64)
    groups[np.isin(clients, replies.clients)] = read_choices(replies)
    return Assignment(models, groups)


class HasGroups(Protocol):
    """A state with a model for each group `[K, P]`, and the group of each client `[n]`."""

    @property
    def models(self) -> Tensor: ...

    @property
    def groups(self) -> NDArray[np.int64]: ...


G = TypeVar("G", bound=HasGroups)


class ServesGroups(Method[G]):
    """A method that serves each client the model of its group."""

    def assignment(self, state: G, server: ServerView) -> Assignment:
        return Assignment(state.models, state.groups)

    def newcomer(self, state: G, clients: Ids, server: ServerView) -> Exchanges[Assignment]:
        """Let newcomers pick the group whose model has the smallest loss on their data."""
        replies: Replies = yield Exchange(clients, Choose(), {"models": Send.all(state.models, clients)})
        return serve_picked(state.models, clients, replies)


@dataclass(frozen=True)
class SharedBase:
    """The part of a model that all clusters share, and the part that each has; buffers go with their layer."""

    base: Part
    head: Part

    @classmethod
    def below(cls, layers: int | Literal["all"], layout: Layout) -> SharedBase:
        """Return the base below the last `layers`.

        Raises:
            BadInput: the network has no such number of layers.
        """
        if layers == "all":
            return cls(layout.nothing, layout.everything)
        there = len(layout.layers)
        if not 1 <= layers <= there:
            raise BadInput(
                f"method.personal_layers = {layers} is not possible; it must be 1 to {there}, because this network "
                f"has {there} layer{'s' * (there > 1)}, or 'all'"
            )
        head = layout.last_layers(layers)
        return cls(layout.everything - head, head)

    def copy_base(self, models: Tensor, common: Tensor) -> Tensor:
        """Copy the base of the model `common` `[P]` into all of `models` `[K, P]`, in place, and return them."""
        return self.base.copy(models, common)

    def average_heads(self, models: Tensor, replies: Replies, picked: Reduce, aggregation: Aggregator) -> Tensor:
        """Return `[K, P]`: the mean of each group's heads over the mean of everybody's base.

        Args:
            models: as they were `[K, P]`; of a group without members the head stays.
            replies: with the clients' models.
            picked: the group of each of them, and how much it counts.
            aggregation: how models become a mean.
        """
        means = aggregation.centres(replies, "model", picked, models)
        if not self.base:
            return means
        return self.copy_base(
            means, aggregation.centres(replies, "model", picked.together(), models[:1], self.base)[0]
        )

    def send(self, models: Tensor, rows: Ids, to: NDArray[np.bool_] | None = None) -> dict[str, Send]:
        """Return what clients are sent: the base, and one head or all of them to choose among.

        Args:
            models: `[K, P]`.
            rows: of the head that each client is sent as `head` `[m]`; -1 for all of them, as `heads`.
            to: who of them is sent anything `[m]`; everybody where not given.
        """
        there = np.ones(len(rows), np.bool_) if to is None else to
        every = there & (rows == UNKNOWN)
        sends = {
            "base": Send(models, np.where(there, 0, UNKNOWN), self.base),
            "head": Send(models, np.where(there, rows, UNKNOWN), self.head),
            "heads": Send(models, np.where(every[:, None], np.arange(len(models)), UNKNOWN), self.head),
        }
        return sends if self.base else {name: send for name, send in sends.items() if name != "base"}
