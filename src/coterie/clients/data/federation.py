"""The federation: every client's data, reorganised once so that each client is one run of rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clients.data.divide import flower_splits
from coterie.clients.data.divide.augmentation import Augmentation
from coterie.clients.data.divide.duplicates import say_shared_rows
from coterie.clients.data.divide.holdout import TRAIN, check_given, hold_out
from coterie.clients.data.divide.partition import SPLITS, Pool, goes_by_class
from coterie.clients.data.divide.skew import Rows
from coterie.clients.data.divide.small_clients import Fate, choose_clients, say_one_class
from coterie.clients.data.divide.split import Call, parse_split
from coterie.clients.data.read import datasets, storage
from coterie.clients.data.read.columns import sort_places
from coterie.clients.data.read.datasets import Dataset
from coterie.clients.data.read.normalisation import Standard
from coterie.clients.data.read.preparation import (
    AS_READ,
    Missing,
    Preparation,
    Standardise,
    fill_and_scale,
    fit_to_training,
    scale_bytes,
)
from coterie.clients.data.read.storage import MappedFile
from coterie.clients.rules.minibatch import to_numbers
from coterie.clients.tasks import CLASSIFICATION, Task
from coterie.errors import BadInput, count_of
from coterie.grouping.labels import relabel
from coterie.randomness import stream

Split = Literal["train", "validation", "test"]
_COLUMN = {"train": 0, "validation": 1, "test": 2}

KEPT_NUMBERS = 1 << 24
"""Numbers made of bytes that a process keeps: 64 MiB."""


class _KeptNumbers:
    """Numbers made of views of one memory of bytes that is never written to; those that come first are kept."""

    def __init__(self, storage: int) -> None:
        self.storage = storage
        self._made: dict[Hashable, Tensor] = {}
        self._room = KEPT_NUMBERS

    def get(self, stored: Tensor, scale: tuple[Tensor, Tensor] | None) -> Tensor:
        key = stored.data_ptr(), stored.shape, stored.stride()
        if (made := self._made.get(key)) is None:
            made = to_numbers(stored, scale)
            if made.numel() <= self._room:
                self._made[key] = made
                self._room -= made.numel()
        return made


@dataclass(frozen=True)
class Federation:
    """Who the clients are and what each holds.

    `inputs` is `[N, *features]` float32 (images `[N, height, width, channels]`), int64 (tokens), or uint8: images
    that become numbers when a minibatch is made of them (`to_numbers`). `labels` are the
    targets of `task`, `[N, *shape]`: int64 for classes and tokens, float32 for numbers; `classes` is 0 where a
    sample is not of one class. Client i's training samples are rows `bounds[i, 0]` to `bounds[i, 1]`, its
    validation samples end at `bounds[i, 2]`, its test samples at `bounds[i, 3]`. `true_groups` `[n]` is each
    client's true group, numbered by smallest member; `public` `[M, *features]` is unlabelled; `few_shot` `[n]`
    marks few-shot clients. A network gives `outputs` numbers for a prediction, as many as there are classes unless
    given.
    """

    name: str
    """What the data are called."""
    inputs: Tensor
    labels: Tensor
    classes: int
    bounds: NDArray[np.int64]
    names: tuple[str, ...]
    """What each client is called, in ascending order of id."""
    true_groups: NDArray[np.int64] | None
    public: Tensor | None
    few_shot: NDArray[np.bool_] | None
    notes: tuple[str, ...] = ()
    """What was done to the data on loading that its owner should know: renumbered labels, ignored columns."""
    task: Task = CLASSIFICATION
    outputs: int = 0
    preparation: Preparation = AS_READ
    """How samples were made of what was read; a trained model keeps it."""
    augment: Augmentation | None = None
    """What is done to every minibatch that is trained on."""
    target_names: tuple[str, ...] | None = None
    """What classes or outputs are called; None where they are called by their number."""
    scales: NDArray[np.float64] | None = None
    """Each client's own mean and deviation `[n, 2, channels]`, where samples are standardised by these."""
    file: MappedFile | None = None
    """What `inputs` are mapped from; None where they lie in memory."""
    standard: Standard | None = None
    """How bytes become numbers; None for a scale of 0 … 1."""

    def __post_init__(self) -> None:
        if not self.outputs:
            object.__setattr__(self, "outputs", self.classes)

    def __getstate__(self) -> dict[str, Any]:
        """Return all fields; inputs that are mapped do not travel, for the file is opened elsewhere too."""
        kept = {name: value for name, value in vars(self).items() if name != "_kept"}
        return kept if self.file is None else {**kept, "inputs": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.file is not None:
            object.__setattr__(self, "inputs", torch.from_numpy(self.file.open()))

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.bounds)

    @property
    def features(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.inputs.shape[1:])

    @property
    def samples(self) -> NDArray[np.int64]:
        """Training samples of each client, `[n]`."""
        return self.bounds[:, 1] - self.bounds[:, 0]

    @property
    def test_samples(self) -> NDArray[np.int64]:
        """Test samples of each client, `[n]`."""
        return self.bounds[:, 3] - self.bounds[:, 2]

    def reordered(self, clients: NDArray[np.int64]) -> Federation:
        """The same data with only `clients` `[k]`, numbered 0, 1, … in the order given."""
        return replace(
            self,
            bounds=self.bounds[clients],
            names=tuple(self.names[i] for i in clients),
            true_groups=None if self.true_groups is None else relabel(self.true_groups[clients]),
            few_shot=None if self.few_shot is None else self.few_shot[clients],
            scales=None if self.scales is None else self.scales[clients],
        )

    def preparation_of(self, client: int | None) -> Preparation:
        """How samples of a client are made of what is read; of None, as far as it is the same for all."""
        if self.scales is None or client is None:
            return self.preparation
        mean, deviation = (tuple(values.tolist()) for values in self.scales[client])
        return replace(self.preparation, mean=mean, deviation=deviation)

    @property
    def histograms(self) -> NDArray[np.int64] | None:
        """How many training samples of each class each client holds, `[n, classes]`; None without classes."""
        if not self.classes:
            return None
        own = [self.slice(i, "train")[1].numpy() for i in range(self.n)]
        return np.stack([np.bincount(labels, minlength=self.classes) for labels in own])

    @property
    def fingerprint(self) -> str:
        """A digest of who holds which samples, and of the public ones."""
        found = blake2b(np.ascontiguousarray(self.bounds).data, digest_size=16)
        for values in (self.labels, self.inputs, self.public):
            if values is not None:
                array = values.numpy()
                for rows in storage.blocks(array):
                    found.update(np.ascontiguousarray(scale_bytes(array[rows], self.standard)).data)
        return found.hexdigest()

    def to_numbers(self, stored: Tensor) -> Tensor:
        """Return stored inputs `[s, *features]` as networks take them, channels last; not to be written to.

        What is made of the federation's own bytes is kept, up to `KEPT_NUMBERS`: clients see it in every round.
        """
        if stored.dtype != torch.uint8 or stored.untyped_storage().data_ptr() != self._kept.storage:
            return to_numbers(stored, self._scale)
        return self._kept.get(stored, self._scale)

    @cached_property
    def _kept(self) -> _KeptNumbers:
        return _KeptNumbers(self.inputs.untyped_storage().data_ptr())

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor] | None:
        return None if self.standard is None else self.standard.spread(self.features)

    def slice(self, client: int, split: Split) -> tuple[Tensor, Tensor]:
        """The inputs `[s, *features]`, as they are stored, and labels of one split of one client, as views."""
        start, stop = self.bounds[client, _COLUMN[split] : _COLUMN[split] + 2].tolist()
        return self.inputs[start:stop], self.labels[start:stop]


def build(
    data: str,
    split: str,
    clients: int | None,
    seed: int,
    *,
    public: int | None = 0,
    usual_public: int = 0,
    task: Task | None = None,
    missing: Missing = "refuse",
    standardise: Standardise = "none",
    test_path: str | None = None,
    **division: Any,
) -> Federation:
    """Load data, give every client its samples, hold out each client's validation and test samples, skew.

    Args:
        data: as for `load`, and so are `task`, `missing`, `standardise` and `test_path`.
        split: as for `divide`, and so are `clients` and `seed`.
        public: how many unlabelled samples the server holds: official test samples where the data have such, else
            samples that are set aside and given to no client. None means `usual_public`, or as many as there are
            of the former, or a tenth of the data.
        division: the other settings of `divide`.

    Raises:
        BadInput: the data cannot be loaded, or not divided so.
    """
    wanted = usual_public if public is None else public
    whole = datasets.load(
        data, public=wanted > 0, task=task, missing=missing, standardise=standardise, test_path=test_path
    )
    division = {"count_twins": data not in datasets.DATASETS} | division
    return divide(whole, split, clients, seed, public=wanted, at_most=public is None, **division)


def divide(
    whole: Dataset,
    split: str,
    clients: int | None,
    seed: int,
    *,
    validation: float = 0.1,
    validation_seed: int | None = None,
    test: float = 0.2,
    min_samples: int = 10,
    samples_per_client: int | None = None,
    public: int = 0,
    at_most: bool = False,
    small_clients: Fate | None = None,
    min_classes: int = 1,
    count_twins: bool = True,
) -> Federation:
    """Give every client its samples of a dataset, hold out each client's validation and test samples, skew.

    Where the data say themselves what samples are for, that is kept, and `test` is not used.

    Args:
        whole: the samples.
        split: a partition and any skews, as in `dirichlet(0.5) + rotated(4)`.
        clients: how many; None means every user for `by-user`, else 20.
        seed: of all draws; the partition, the cap, the hold-out, the skews and the public samples have a
            stream each, so changing one setting does not disturb the others.
        validation: share of each client's own samples held out for validation.
        validation_seed: of which samples these are; `seed` without it.
        test: share of each client's own samples held out for testing; at least one sample.
        min_samples: a client with fewer samples, all its splits together, is small.
        samples_per_client: at most so many samples per client, drawn at random; None keeps all.
        public: how many samples the server holds (see `build`).
        at_most: whether it may have to do with fewer.
        small_clients: what becomes of small clients, and of those without a sample to test with: `refuse`,
            `leave-out` or `keep`. None leaves them out where the clients are the users of the data.
        min_classes: a client whose training samples are of fewer classes is small.
        count_twins: whether test samples that are identical to a training sample are counted, and told of.

    Raises:
        BadInput: the data cannot be divided so.
    """
    if clients is not None and clients > len(whole.labels):
        raise BadInput(
            f"clients = {clients} is not possible; {whole.name} has {len(whole.labels):,} samples, and each client "
            "needs at least one"
        )
    dataset, kept = _with_public(whole, public, at_most, seed)
    if dataset.given_split is not None:
        check_given(dataset.given_split, dataset.units, dataset.name)
    (name, settings), *skews = parse_split(split)
    if not dataset.classes:
        _refuse_splits_by_class(dataset, [name, *(skew for skew, _ in skews)])
    fate: Fate = small_clients or ("leave-out" if name == "by-user" else "refuse")
    pool = Pool(dataset, clients, min_samples, seed, redraws_small=fate == "leave-out")
    if name.startswith(flower_splits.PREFIX):
        partition = flower_splits.partition(pool, name.removeprefix(flower_splits.PREFIX), settings)
    else:
        partition = SPLITS[name].target(pool, **settings)
    names = partition.names or tuple(f"client {i}" for i in range(len(partition.parts)))
    aside = 0 if kept is None or dataset.public is not None else len(kept)
    parts = [_capped(part, dataset, samples_per_client, seed, i) for i, part in enumerate(partition.parts)]
    held = hold_out(parts, dataset.units, validation, test, seed, dataset.given_split, validation_seed)
    if partition.untrained is not None:
        kept_shares = [
            len(part) / max(len(all_own), 1) for part, all_own in zip(parts, partition.parts, strict=True)
        ]
        _add_untrained(held, partition.untrained, dataset, (validation, test), kept_shares, seed)
    classes = dataset.labels if dataset.classes else None
    sizes = [len(part) for part in partition.parts]
    chosen, notes = choose_clients(
        held,
        sizes,
        classes,
        names,
        min_samples=min_samples,
        min_classes=min_classes,
        fate=fate,
        overlapping=dataset.units is not None,
        aside=aside,
    )
    held, names = [held[i] for i in chosen], tuple(names[i] for i in chosen)
    true_groups = None if partition.true_groups is None else partition.true_groups[chosen]
    few_shot = None if partition.few_shot is None else partition.few_shot[chosen]
    if name == "iid" and clients is None and dataset.users is None and dataset.preparation.columns:
        notes.append(_say_dealt_out(dataset, len(partition.parts)))
    notes = [*dataset.notes, *_say_unused(dataset, name, validation), *partition.notes, *notes]
    if name == "by-user" and classes is not None and min_classes == 1:
        notes += say_one_class(held, classes, names)
    if count_twins:
        filled = dataset.preparation.missing in ("mean", "zero")
        notes += say_shared_rows(dataset.inputs, held, filled)
    return _assembled(replace(dataset, notes=tuple(notes)), true_groups, few_shot, skews, held, names, kept, seed)


def _say_dealt_out(dataset: Dataset, clients: int) -> str:
    """Say that the rows of a table go to clients at random, which whoever has real clients did not mean."""
    columns, inputs = dataset.preparation.columns, dataset.inputs
    held = dict(
        zip((each.name for each in columns), np.split(inputs, dataset.preparation.ends, axis=1), strict=False)
    )
    likely = [name for name in sort_places(held) if 1 < len(np.unique(held[name], axis=0)) < len(inputs)]
    column = f"--set client={likely[0]} if that column does" if likely else "--set client=COLUMN if a column does"
    return (
        f"nothing says whose a row of {dataset.name} is, so the rows are dealt to {count_of(clients, 'client')} at "
        f"random; give {column}, or --clients N to deal them to N"
    )


def _say_unused(dataset: Dataset, partition: str, validation: float) -> list[str]:
    """Return a sentence on each thing that the data or the settings give and that has no effect."""
    found = []
    if dataset.given_split is not None:
        counts = [int((dataset.given_split == role).sum()) for role in range(3)]
        free = int((dataset.given_split < 0).sum())
        drawn = f"; data.validation = {validation:g} draws from the {free} others" if free else ""
        found.append(
            "the data come with a split of their own, so data.test has no effect: "
            f"{counts[0]} are for training, {counts[1]} for validation, {counts[2]} for testing{drawn}"
        )
    if dataset.user_groups is not None and partition != "by-user":
        found.append(
            f"the groups of {dataset.name} were not used: they are groups of users, and split = {partition!r} "
            "mixes users"
        )
    return found


def _refuse_splits_by_class(dataset: Dataset, names: Sequence[str]) -> None:
    by_class = [name for name in names if name.startswith(flower_splits.PREFIX) or goes_by_class(name)]
    if by_class:
        raise BadInput(
            f"split = {by_class[0]!r} is not possible with {dataset.task.name}: it deals samples by their class, "
            f"and {dataset.name} has no classes; it must be iid, by-user or rotated"
        )


def _add_untrained(
    held: list[list[NDArray[np.int64]]],
    untrained: list[NDArray[np.int64]],
    dataset: Dataset,
    shares: tuple[float, float],
    kept_shares: Sequence[float],
    seed: int,
) -> None:
    """Add the shares of validation and test of each client's further samples to these, in place.

    Where a client keeps only a share of its own samples (`samples_per_client`), it gets that share of these too, so
    that its test has as many of each class.
    """
    if dataset.units is not None:
        raise BadInput(
            f"few-shot.held_out = 'regular' is not possible with {dataset.name}, whose samples overlap; use own"
        )
    for client, (further, kept) in enumerate(zip(untrained, kept_shares, strict=True)):
        if dataset.given_split is not None:
            for which in (1, 2):
                own = further[dataset.given_split[further] == which]
                held[client][which] = np.concatenate([held[client][which], own])
            continue
        order = stream(seed, "untrained", client).permutation(further)
        ends = np.cumsum([int(share * kept * len(further) + 0.5) for share in shares])
        for which, own in enumerate(np.split(order, ends)[:2], 1):
            held[client][which] = np.concatenate([held[client][which], own])


def _capped(
    part: NDArray[np.int64], dataset: Dataset, most: int | None, seed: int, client: int
) -> NDArray[np.int64]:
    """At most so many samples of a client; its share of each kind where the data say what they are for."""
    if most is None or len(part) <= most:
        return part
    rng = stream(seed, "cap", client)
    if dataset.given_split is None:
        return rng.choice(part, most, replace=False)
    kinds = [part[dataset.given_split[part] == role] for role in np.unique(dataset.given_split[part])]
    counts = [max(1, int(most * len(own) / len(part))) for own in kinds]
    return np.concatenate([rng.choice(own, count, replace=False) for own, count in zip(kinds, counts, strict=True)])


def _assembled(
    dataset: Dataset,
    true_groups: NDArray[np.int64] | None,
    few_shot: NDArray[np.bool_] | None,
    skews: list[Call],
    held: list[list[NDArray[np.int64]]],
    names: tuple[str, ...],
    public: NDArray[np.float32] | None,
    seed: int,
) -> Federation:
    """Copy every client's samples into one run of rows, skew them there, and note the true groups."""
    sizes = np.array([[len(rows) for rows in client] for client in held])
    ends = np.cumsum(sizes).reshape(sizes.shape)
    bounds = np.column_stack([ends[:, 0] - sizes[:, 0], ends]).astype(np.int64)
    order = np.concatenate([np.sort(rows) for client in held for rows in client])
    inputs = storage.take(dataset.inputs, order)
    labels = dataset.labels[order]
    preparation, scales = fit_to_training(inputs, bounds, dataset.preparation)
    if public is not None:
        fill_and_scale(public, preparation)
    rows = Rows(dataset.name, inputs, labels, dataset.classes, bounds[:, [0, 3]], seed)
    groupings = [] if true_groups is None else [true_groups]
    groupings += [SPLITS[name].target(rows, **settings) for name, settings in skews]
    targets = np.concatenate([labels[start:stop] for start, stop in bounds[:, :2].tolist()])
    fitted = dataset.task.fit(targets, dataset.outputs)
    return Federation(
        name=dataset.name,
        inputs=torch.from_numpy(inputs),
        labels=torch.from_numpy(labels),
        classes=dataset.classes,
        bounds=bounds,
        names=names,
        true_groups=_product(groupings),
        public=None if public is None else torch.from_numpy(public),
        few_shot=few_shot,
        notes=(*dataset.notes, *fitted.advise(targets)),
        task=fitted,
        outputs=dataset.outputs,
        preparation=preparation,
        scales=scales,
        target_names=dataset.target_names,
        file=storage.file_of(inputs),
        standard=dataset.standard,
    )


def _product(groupings: list[NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """Clients are together when all groupings say so."""
    if not groupings:
        return None
    return relabel(np.unique(np.stack(groupings, axis=1), axis=0, return_inverse=True)[1].reshape(-1))


def _with_public(
    dataset: Dataset, count: int, at_most: bool, seed: int
) -> tuple[Dataset, NDArray[np.float32] | None]:
    """The data that are left for the clients, and `count` samples for the server, or at most so many."""
    if count == 0:
        return dataset, None
    rng, official, total = stream(seed, "public"), dataset.public, len(dataset.labels)
    # Of the samples to train on alone: what is given for validation and testing stays whole.
    own = np.arange(total) if dataset.given_split is None else np.flatnonzero(dataset.given_split <= TRAIN)
    there, what = (
        (len(own), "samples to train on") if official is None else (len(official), "official test samples")
    )
    if at_most:
        count = max(1, min(count, total // 10)) if official is None else min(count, there)
    if count > there or (official is None and count == there):
        raise BadInput(f"public = {count} is not possible; {dataset.name} has {there} {what}")
    if official is not None:
        drawn = official[np.sort(rng.choice(there, count, replace=False))]
        return dataset, scale_bytes(drawn, dataset.standard)
    aside = np.zeros(total, np.bool_)
    aside[own] = _set_aside(None if dataset.units is None else dataset.units[own], there, count, rng)
    return dataset.take(~aside), scale_bytes(dataset.inputs[aside][:count], dataset.standard)


def _set_aside(
    units: NDArray[np.int64] | None, total: int, count: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Which of `total` samples go: `count` of them, or whole units until there are as many."""
    if units is None:
        aside = np.zeros(total, np.bool_)
        aside[rng.choice(total, count, replace=False)] = True
        return aside
    names, sizes = np.unique(units, return_counts=True)
    order = rng.permutation(len(names))
    taken = order[: int(np.searchsorted(np.cumsum(sizes[order]), count)) + 1]
    return np.isin(units, names[taken])
