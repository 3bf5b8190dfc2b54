"""Clients with too little data: which they are, and whether they are refused, left out or kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.clients.data.divide.holdout import Indices
from coterie.errors import BadInput, count_of, shorten

Fate = Literal["refuse", "leave-out", "keep"]
"""What becomes of clients with too little data."""

MOST_NAMED = 10


def choose_clients(
    held: Sequence[Sequence[Indices]],
    sizes: Sequence[int],
    labels: NDArray[Any] | None,
    names: Sequence[str],
    *,
    min_samples: int,
    min_classes: int = 1,
    fate: Fate = "refuse",
    overlapping: bool = False,
    aside: int = 0,
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the clients that take part, ascending, and a sentence on each kind of small ones.

    Args:
        held: training, validation and test samples of each client.
        sizes: its samples before a cap.
        labels: the classes of all samples; None where they have none.
        names: of the clients.
        min_samples: a client with fewer samples, all splits together, is small.
        min_classes: so is one whose training samples are of fewer classes.
        fate: of small clients, and of those without a sample to test with. One without a sample to train on is
            never kept.
        overlapping: whether samples share measurements, so that they cannot be split one by one.
        aside: public samples that were set aside.

    Raises:
        BadInput: small clients are refused, or nobody is left.
    """
    few, keep = np.asarray(sizes) < min_samples, fate == "keep"
    train, test = (np.array([not len(own[which]) for own in held], np.bool_) for which in (0, 2))
    classes = np.zeros(len(held), np.bool_)
    if labels is not None and min_classes > 1:
        classes = np.array([len(np.unique(labels[own[0]])) < min_classes for own in held])
    if keep:
        few = few & ~train & ~test  # those without a test are told of by themselves
    fewer = f", or fewer than the {aside} public samples that were set aside" if aside else ""
    leave_out = "leave them out: data.small_clients = 'leave-out'"
    recorded = "they hold too few recordings; use fewer clients or another split, or " if overlapping else ""
    # Each is counted once: what they have, what becomes of them with `keep`, what to do where they are refused.
    kinds = (
        (
            few,
            f"fewer than data.min_samples = {count_of(min_samples, 'sample')}",
            "kept",
            f"lower data.min_samples, use fewer clients or another split{fewer}",
        ),
        (train & ~few, "no sample to train on", "left out", recorded + leave_out),
        (
            test & ~train & ~few,
            "no sample to test with",
            "kept: they train, and no mean counts them",
            recorded + leave_out,
        ),
        (
            classes & ~few & ~train & ~test,
            f"training samples of fewer than data.min_classes = {min_classes} classes",
            "kept",
            f"lower data.min_classes, or {leave_out}",
        ),
    )
    out = train if keep else few | train | test | classes
    refused, fates = [], []
    for own, what, kept, remedy in kinds:
        if not own.any():
            continue
        who = f"{own.sum()} of {len(names)} clients {_have(own)} {what}"
        listed = _list(names, own, sizes if own is few else None)
        if fate != "refuse":
            remedy = "no client is left; lower data.min_samples or data.min_classes, or use another split"
        refused.append(f"{who}: {listed}; {remedy}")
        fates.append(f"{who} and {'is' if own.sum() == 1 else 'are'} {kept if keep else 'left out'}: {listed}")
    if refused and (fate == "refuse" or out.all()):
        raise BadInput(refused)
    return np.flatnonzero(~out), fates


def say_one_class(held: Sequence[Sequence[Indices]], labels: NDArray[Any], names: Sequence[str]) -> list[str]:
    """Return a sentence on the clients whose training samples are of one class; none where there are no such."""
    alone = np.array([len(np.unique(labels[own[0]])) == 1 for own in held])
    if not alone.any() or alone.all():
        return []
    return [
        f"{alone.sum()} of {len(names)} clients {_have(alone)} training samples of one class alone: "
        f"{_list(names, alone)}; data.min_classes = 2 treats them as small"
    ]


def _have(clients: NDArray[np.bool_]) -> str:
    return "has" if clients.sum() == 1 else "have"


def _list(names: Sequence[str], clients: NDArray[np.bool_], sizes: Sequence[int] | None = None) -> str:
    where = np.flatnonzero(clients).tolist()
    return shorten([names[i] if sizes is None else f"{names[i]} ({sizes[i]})" for i in where], MOST_NAMED)
