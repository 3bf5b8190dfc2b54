"""Server optimizers: in place of the mean of its clients' models, a group's model takes a step towards it.

FedAvgM (Hsu, Qi and Brown, 2019), FedAdagrad, FedAdam and FedYogi (Reddi et al., 2021) for every method that
averages. Whose moments are whose, and sources: docs/server-optimizers.md
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.catalogue import state
from coterie.grouping.exact_sums import Grid, Reduce
from coterie.grouping.server_step import ServerStep
from coterie.methods.aggregation import Aggregator
from coterie.methods.exchange import Replies
from coterie.models.layout import Layout, Part


@state("server-moments")
@dataclass(frozen=True, eq=False)
class ServerMoments:
    """Of each group: its model as a round left it, and both moments of the optimizer, each `[K, P]`.

    Without second moments `second` is `[K, 0]`.
    """

    models: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True, eq=False)
class _Group:
    """One row of `ServerMoments`."""

    model: Tensor
    first: Tensor
    second: Tensor

    def copy(self) -> _Group:
        return _Group(self.model.clone(), self.first.clone(), self.second.clone())


@dataclass(eq=False)
class SteppingAggregation(Aggregator):
    """How models become centres in one round under a server optimizer; it takes the place of `Aggregation`.

    A group is known by the model from which its round begins: it goes on with the moments of the group that the
    last round left with that model, bit for bit. So both sides of a split inherit, a merged group follows the one
    whose model it takes over, and one that begins with a model of nobody's begins without moments.

    Attributes:
        inner: makes the centres towards which steps are taken.
        step: how they are taken.
        layout: of the models.
        last: what the last round left; None before the first.
    """

    inner: Aggregator
    step: ServerStep
    layout: Layout
    last: ServerMoments | None
    _groups: list[tuple[_Group, _Group]] = field(default_factory=list)
    """Of this round: as it began with each, and as it leaves it."""

    is_mean = False

    def average_groups(
        self,
        models: Tensor,
        groups: NDArray[np.int64],
        previous: Tensor,
        weights: ArrayLike | None = None,
        part: Part | None = None,
        step: bool = True,
    ) -> Tensor:
        """Return each group's model after its step `[K, P]`; see `Aggregator.average_groups`."""
        means = self.inner.average_groups(models, groups, previous, weights, step=step)
        return self._step(means, groups, previous, part) if step else means

    @property
    def takes_sums(self) -> bool:
        return self.inner.takes_sums

    @property
    def grid(self) -> Grid | None:
        return self.inner.grid

    def centres(
        self,
        replies: Replies,
        name: str,
        reduce: Reduce,
        previous: Tensor,
        part: Part | None = None,
        step: bool = True,
    ) -> Tensor:
        means = self.inner.centres(replies, name, reduce, previous, part, step)
        groups = reduce.groups_of(replies.clients, replies.numbers)
        return self._step(means, groups, previous, part) if step and reduce.is_model else means

    def _step(self, means: Tensor, groups: NDArray[np.int64], previous: Tensor, part: Part | None) -> Tensor:
        """Move each group's model `[K, P]` towards the mean of its models, in place of the means."""
        part = self.layout.everything if part is None else part
        inside = part if previous.shape[1] == self.layout.size else Part.of([(0, part.size)])
        known = self._groups[:]
        for k, before in enumerate(inside.take(previous)):
            same = known[k : k + 1] if len(known) == len(previous) else known
            there = [group for group in same if torch.equal(part.take(group[0].model), before)]
            if not there:
                there = [self._begin(before, part)]
                self._groups += there
            mean = inside.take(means[k])
            if (groups == k).any() or not torch.equal(mean, before):
                for began, left in there:
                    self._move(began, left, mean, part)
                inside.put(means[k], part.take(there[0][1].model))
        return means

    @property
    def moments(self) -> ServerMoments | None:
        """What this round leaves; what the last one left where nothing was averaged."""
        if not self._groups:
            return self.last
        models, first, second = zip(*((g.model, g.first, g.second) for _, g in self._groups), strict=True)
        return ServerMoments(torch.stack(models), torch.stack(first), torch.stack(second))

    def _begin(self, before: Tensor, part: Part) -> tuple[_Group, _Group]:
        """Return a group that begins its round with `before` in `part`, twice."""
        size = self.layout.size
        began = _Group(torch.zeros(size), *self.step.begin(size))
        if (last := self.last) is not None:
            same = (k for k, model in enumerate(last.models) if torch.equal(part.take(model), before))
            if (k := next(same, None)) is not None:
                began = _Group(last.models[k], last.first[k], last.second[k]).copy()
        part.put(began.model, before)
        return began, began.copy()

    def _move(self, began: _Group, left: _Group, mean: Tensor, part: Part) -> None:
        """Take a group's step; running statistics have no gradient, and become their mean."""
        part.put(left.model, mean)
        moved = part & self.layout.trainable
        second = moved if len(began.second) else Part(())
        x, m, v = self.step.take(
            moved.take(began.model), moved.take(left.model), moved.take(began.first), second.take(began.second)
        )
        moved.put(left.model, x)
        moved.put(left.first, m)
        second.put(left.second, v)
