"""How models become centres, for every method that averages: by the mean, or by a robust estimate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor

from coterie.catalogue import Grid as Tried
from coterie.catalogue import Section
from coterie.grouping import aggregate
from coterie.grouping.exact_sums import Grid, Reduce
from coterie.grouping.robust import clip_updates, robust_centres
from coterie.grouping.server_step import Optimizer, ServerStep
from coterie.methods.exchange import Replies
from coterie.models.layout import Part

HOSTILE = 0.2
"""The share of a group's clients that are taken to be hostile where nobody says another."""

_WITH_SHARE = ("trimmed-mean", "krum", "multi-krum", "bulyan")
_ADAPTIVE = ("adagrad", "adam", "yogi")
_WITH_SETTING = {
    "server_lr": ("sgd", *_ADAPTIVE),
    "server_momentum": ("sgd", *_ADAPTIVE),
    "server_decay": ("adam", "yogi"),
    "tau": _ADAPTIVE,
}
"""With which optimizers each of their settings means something."""


class Aggregator(ABC):
    """How models become centres, whoever decides it: settings alone, noise, or a server optimizer around either."""

    @property
    @abstractmethod
    def is_mean(self) -> bool:
        """Whether models are averaged as they came."""

    @abstractmethod
    def average_groups(
        self,
        models: Tensor,
        groups: NDArray[np.int64],
        previous: Tensor,
        weights: ArrayLike | None = None,
        part: Part | None = None,
        step: bool = True,
    ) -> Tensor:
        """Return the centre of each group's models `[K, P]`.

        Args:
            models: `[r, P]`, rows in ascending client id.
            groups: the group of each row `[r]`, 0 … K-1; rows with -1 count nowhere.
            previous: `[K, P]`; a group without members keeps its row.
            weights: `[r]`, positive, for the mean; uniform where not given.
            part: the columns of a model that count, for a server optimizer; these are alone there, or all.
            step: whether a server optimizer may step; not from what is no model, such as gradients.

        Raises:
            ValueError: groups or weights are not there once for each model.
        """

    def centres(
        self,
        replies: Replies,
        name: str,
        reduce: Reduce,
        previous: Tensor,
        part: Part | None = None,
        step: bool = True,
    ) -> Tensor:
        """Return the centre of each group's uploads `[K, P]`, whether they came as rows or as sums.

        Args:
            replies: to an exchange that asked for `reduce`.
            name: of the upload.
            reduce: who is in which group, and counts how much; or all of that together.
            previous: `[K, P]`; a group of which nobody answered keeps its row.
            part: the columns of a model that count; `previous`, and what is returned, has all, or those alone of
                models of which no others crossed.
            step: whether a server optimizer may step.
        """
        models = _take_rows(replies.uploads[name], previous, part)
        groups, weights = reduce.groups_of(replies.clients, replies.numbers), reduce.weights_of(replies.clients)
        return self.average_groups(models, groups, previous, weights, part, step and reduce.is_model)

    @property
    def takes_sums(self) -> bool:
        """Whether `centres` can do without rows."""
        return False

    @property
    def grid(self) -> Grid | None:
        """In which the means of all cohorts are; None where it is not known who may be in one."""
        return None

    def mix(self, weights: NDArray[Any], models: Tensor) -> Tensor:
        """Return the mean of models for each row of weights; by another rule, the centre of those that count.

        Not under noise, where mixtures would give a client's model to several sums, nor under a server optimizer,
        for a mixture is no step from an earlier model.

        Args:
            weights: `[K, r]`, none negative; a row of zeros gives zeros.
            models: `[r, P]`, rows in ascending client id.

        Raises:
            TypeError: models may not be mixed here.
        """
        raise TypeError(f"{type(self).__name__} mixes no models")

    def average(
        self,
        models: Tensor,
        previous: Tensor,
        weights: ArrayLike | None = None,
        part: Part | None = None,
        step: bool = True,
    ) -> Tensor:
        """Return the centre of all models `[r, P]`, or `previous` `[1, P]` where there are none; `[1, P]`."""
        return self.average_groups(models, np.zeros(len(models), np.int64), previous, weights, part, step)


def _check_lengths(models: Tensor, **given: ArrayLike | None) -> None:
    for name, some in given.items():
        if some is not None and np.shape(some) != (len(models),):
            raise ValueError(
                f"{name} have shape {np.shape(some)}; there must be one for each of the {len(models)} models, as "
                "in replies.samples"
            )


def _take_rows(uploads: Tensor, previous: Tensor, part: Part | None) -> Tensor:
    """Return uploads `[r, P]`, or `[r, K, P]` one after the other, with the columns that `previous` has."""
    rows = uploads.flatten(0, -2)
    return rows if part is None or previous.shape[1] == rows.shape[1] else part.take(rows)


class Aggregation(Aggregator, Section):
    """What becomes of models that clients send: which are left out, how much one counts, how they are averaged."""

    title = "aggregation"
    rule: Annotated[
        Literal[
            "mean",
            "median",
            "trimmed-mean",
            "krum",
            "multi-krum",
            "bulyan",
            "geometric-median",
            "centred-clipping",
            "fltrust",
        ],
        Field(
            description="how the models of a group are averaged: by the weighted mean, or by a robust estimate, "
            "which a few hostile clients cannot move far and in which every client counts once"
        ),
    ] = "mean"
    hostile: Annotated[
        float | None,
        Field(
            ge=0,
            lt=0.5,
            description="assumed share of hostile clients in each group (trimmed-mean, krum, multi-krum, bulyan); "
            "without it, 0.2",
        ),
    ] = None
    trusted: Annotated[
        tuple[str, ...] | None,
        Field(
            min_length=1,
            description="names of the trusted clients, with whose updates all others are compared (fltrust)",
        ),
    ] = None
    clip_norm: Annotated[
        float | None,
        Field(gt=0, description="norm to which a model's distance from its group's last centre is clipped"),
    ] = None
    norm_bound: Annotated[
        Annotated[float, Field(ge=1)] | Literal["off"],
        Field(
            description="leave an update out of the round if it is so many times as long as the median of its "
            "cohort"
        ),
    ] = 100.0
    max_weight: Annotated[
        Annotated[float, Field(ge=1)] | Literal["off"],
        Field(description="largest weight of a client, as a multiple of the median number of samples"),
    ] = 100.0
    optimizer: Annotated[
        Literal["none"] | Optimizer,
        Field(
            description="the server's step from a group's model towards its clients' mean: sgd (FedAvgM), "
            "adagrad, adam or yogi; with none, the mean replaces the model"
        ),
        Tried("none", "sgd", "adam"),
    ] = "none"
    server_lr: Annotated[
        float | None,
        Field(gt=0, description="the optimizer's learning rate; without it, 1 for sgd, and 0.01 for the others"),
    ] = None
    server_momentum: Annotated[
        float | None,
        Field(ge=0, lt=1, description="momentum (beta 1); without it, 0.9, and 0 for adagrad"),
    ] = None
    server_decay: Annotated[
        float | None,
        Field(ge=0, lt=1, description="decay of the squares in adam and yogi (beta 2); without it, 0.99"),
    ] = None
    tau: Annotated[
        float | None,
        Field(
            gt=0, description="tau of adagrad, adam and yogi: the larger, the less they adapt; without it, 0.001"
        ),
    ] = None

    _grid: Grid | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _counts(self) -> Aggregation:
        if self.hostile is not None and self.rule not in _WITH_SHARE:
            raise ValueError(f"hostile needs rule = {', '.join(_WITH_SHARE[:-1])} or {_WITH_SHARE[-1]}")
        if (self.trusted is None) == (self.rule == "fltrust"):
            raise ValueError("write rule = fltrust and trusted together, or neither")
        for name, optimizers in _WITH_SETTING.items():
            if getattr(self, name) is not None and self.optimizer not in optimizers:
                raise ValueError(f"{name} needs optimizer = {', '.join(optimizers[:-1])} or {optimizers[-1]}")
        return self

    @property
    def server_step(self) -> ServerStep | None:
        """How the server's optimizer steps; None without one."""
        if self.optimizer == "none":
            return None
        usual = 1.0 if self.optimizer == "sgd" else 0.01, 0.0 if self.optimizer == "adagrad" else 0.9, 0.99, 1e-3
        given = (getattr(self, name) for name in _WITH_SETTING)
        return ServerStep(self.optimizer, *(u if g is None else g for g, u in zip(given, usual, strict=True)))

    @property
    def is_mean(self) -> bool:
        """Whether models are averaged as they came."""
        return self.rule == "mean" and self.clip_norm is None

    @property
    def takes_sums(self) -> bool:
        return self.is_mean

    def centres(
        self,
        replies: Replies,
        name: str,
        reduce: Reduce,
        previous: Tensor,
        part: Part | None = None,
        step: bool = True,
    ) -> Tensor:
        if not self.is_mean:
            return super().centres(replies, name, reduce, previous, part, step)
        if (summed := replies.sums.get(name)) is not None:
            models, sums, who = summed.models, summed.sums, summed.rows
            sums = sums if len(sums.table) == len(previous) else sums.together()
        else:
            models, sums, who = replies.uploads[name], None, np.arange(len(replies))
        clients, numbers = replies.clients[who], {n: values[who] for n, values in replies.numbers.items()}
        groups, weights = reduce.groups_of(clients, numbers), reduce.weights_of(clients)
        grid = reduce.grid if self._grid is None else replace(reduce, of_run=self._grid).grid
        return aggregate.group_means(_take_rows(models, previous, part), groups, previous, weights, grid, sums)

    def for_clients(self, samples: NDArray[np.int64]) -> Aggregation:
        """Return the same for clients with so many samples `[n]`: the means of all cohorts are in one grid."""
        own = self.model_copy()
        own._grid = Grid.for_weights(np.maximum(samples, 1))
        return own

    @property
    def grid(self) -> Grid | None:
        return self._grid

    def cap_samples(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what clients count as, from the samples that they say they have `[n]`."""
        if self.max_weight == "off" or not len(samples):
            return samples
        most = max(1, int(min(self.max_weight * float(np.median(samples)), 2.0**62)))
        return np.minimum(samples, most) if samples.max() > most else samples

    def average_groups(
        self,
        models: Tensor,
        groups: NDArray[np.int64],
        previous: Tensor,
        weights: ArrayLike | None = None,
        part: Part | None = None,
        step: bool = True,
    ) -> Tensor:
        _check_lengths(models, groups=groups, weights=weights)
        if self.clip_norm is not None:
            models = clip_updates(models, previous[torch.from_numpy(np.maximum(groups, 0))], self.clip_norm)
        if self.rule == "mean":
            share = np.ones(len(groups), np.int64) if weights is None else np.asarray(weights)
            return aggregate.group_means(models, groups, previous, share, self._grid_of(share, step))
        if self.rule == "fltrust":  # the updates came weighed
            return aggregate.group_means(models, groups, previous)
        return robust_centres(models, groups, previous, self.rule, self._share)

    def mix(self, weights: NDArray[Any], models: Tensor) -> Tensor:
        if self.is_mean:
            return aggregate.mean_mixes(weights, models, self._grid_of(weights))
        distinct, which = np.unique(weights != 0, axis=0, return_inverse=True)
        found = torch.stack([self._centre_of(models, np.flatnonzero(row)) for row in distinct])
        return found[torch.from_numpy(which.ravel())]

    def _grid_of(self, weights: NDArray[Any], is_model: bool = True) -> Grid | None:
        """Return the run's grid for models with whole numbers as weights; None, for the finest, otherwise."""
        return self._grid if is_model and self._grid is not None and self._grid.holds(weights) else None

    def _centre_of(self, models: Tensor, rows: NDArray[np.int64]) -> Tensor:
        some = models[torch.from_numpy(rows)]
        start = robust_centres(some, np.zeros(len(some), np.int64), some[:1], "median", 0.0)
        return self.average(some, start)[0]

    @property
    def _share(self) -> float:
        return HOSTILE if self.hostile is None else self.hostile
