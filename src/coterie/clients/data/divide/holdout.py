"""Each client's own training, validation and test samples, without leaks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coterie.errors import BadInput
from coterie.randomness import stream

Indices = NDArray[np.int64]

TRAIN, VALIDATION, TEST, FREE = 0, 1, 2, -1
"""What a sample is for; `FREE` is one of which the data do not say it, beside others of which they do."""


def hold_out(
    parts: list[Indices],
    units: Indices | None,
    validation: float,
    test: float,
    seed: int,
    given: NDArray[np.int8] | None = None,
    validation_seed: int | None = None,
) -> list[list[Indices]]:
    """Cut each client's samples into [train, validation, test].

    `parts` are sample indices per client. `validation` and `test` are shares of a client's samples; every client of
    at least two gets a training and a test sample. Samples with the same number in `units` `[N]` share
    measurements: they all get the same role, in whichever client they are. A client of too few units then lacks
    samples to train on or to test with.

    Where the data say themselves what samples are for, in `given` `[N]`, that is kept, and no other sample is taken
    for testing. Of those that are `FREE` the share for validation is drawn, and the others are for training.

    With a `validation_seed` of its own, validation samples are drawn anew from those that are not for testing.
    Where samples share measurements, `seed` decides everything.
    """
    own = seed if validation_seed is None else validation_seed
    if given is not None:
        return _hold_out_of_given(parts, units, validation, own, given)
    if units is None:
        return [_cut(part, validation, test, seed, own, i) for i, part in enumerate(parts)]
    role = np.full(int(units.max()) + 1, FREE)
    held = []
    for client, part in enumerate(parts):
        _assign(role, units[part], _counts(len(part), validation, test), stream(seed, "hold-out", client))
        held.append(_by_role(part, role[units[part]]))
    return held


def _hold_out_of_given(
    parts: list[Indices], units: Indices | None, validation: float, seed: int, given: NDArray[np.int8]
) -> list[list[Indices]]:
    roles = given.astype(np.int64)
    role = None
    if units is not None:
        role = np.full(int(units.max()) + 1, FREE)
        role[units[roles != FREE]] = roles[roles != FREE]  # a unit of which something is given goes there whole
        roles = role[units]
    for client, part in enumerate(parts):
        free, rng = part[roles[part] == FREE], stream(seed, "hold-out", client)
        count = min(int(validation * len(free) + 0.5), max(len(free) - 1, 0))
        if units is None or role is None:
            roles[free] = TRAIN
            roles[rng.permutation(free)[:count]] = VALIDATION
        elif len(free):
            _assign(role, units[free], (count, 0), rng)
            roles = role[units]
    return [_by_role(part, roles[part]) for part in parts]


def check_given(given: NDArray[np.int8], units: Indices | None, name: str) -> None:
    """Refuse a given split that has no training or no test samples, or puts samples of one unit on several sides.

    Raises:
        BadInput: it has.
    """
    for role, what in ((TRAIN, "train on"), (TEST, "test with")):
        wanted = (given == role) | ((given == FREE) if role == TRAIN else False)
        if not wanted.any():
            raise BadInput(f"{name}: split leaves no sample to {what}; it must leave both kinds, or be left out")
    if units is None:
        return
    sides = np.zeros((int(units.max()) + 1, 3), np.bool_)
    for which in (TRAIN, VALIDATION, TEST):
        sides[units[given == which], which] = True
    open_units = np.zeros(len(sides), np.bool_)
    open_units[units[given == FREE]] = True  # for training or validation
    torn = (sides.sum(1) > 1) | (open_units & sides[:, TEST])
    if torn.any():
        raise BadInput(
            f"{name}: split puts samples of {int(torn.sum())} of {len(np.unique(units))} segments on several "
            "sides, though those that share a segment must stay together; mend split, or leave out split or segment"
        )


def _by_role(part: Indices, roles: Indices) -> list[Indices]:
    return [part[roles == which] for which in (TRAIN, VALIDATION, TEST)]


def _counts(total: int, validation: float, test: float) -> tuple[int, int]:
    """Validation and test samples out of `total`; of at least 2 a test and a training sample remain."""
    held = max(0, min(max(1, int(test * total + 0.5)), total - 1))
    return max(0, min(int(validation * total + 0.5), total - 1 - held)), held


def _cut(
    part: Indices, validation: float, test: float, seed: int, validation_seed: int, client: int
) -> list[Indices]:
    order = stream(seed, "hold-out", client).permutation(part)
    checked, held = _counts(len(part), validation, test)
    tested, rest = order[:held], order[held:]
    if validation_seed != seed:
        rest = stream(validation_seed, "validation", client).permutation(rest)
    return [rest[checked:], rest[:checked], tested]


def _assign(role: Indices, own: Indices, counts: tuple[int, int], rng: np.random.Generator) -> None:
    """Give a client's units that are still free a role, aiming at `counts` for validation and test, in place.

    Units that an earlier client holds too keep the role they got there. Without wanted test samples none are given.
    """
    wanted = dict(zip((VALIDATION, TEST), counts, strict=True))
    present, sizes = np.unique(own, return_counts=True)
    have = {which: int(sizes[role[present] == which].sum()) for which in (TRAIN, VALIDATION, TEST)}
    free = np.flatnonzero(role[present] == FREE)
    order = rng.permutation(free)
    for number, k in enumerate(order):
        size, last = int(sizes[k]), number == len(order) - 1
        needed = last and have[TRAIN] == 0
        if not needed and wanted[TEST] and (have[TEST] == 0 or have[TEST] + size / 2 <= wanted[TEST]):
            which = TEST
        elif not needed and have[VALIDATION] + size / 2 <= wanted[VALIDATION]:
            which = VALIDATION
        else:
            which = TRAIN
        role[present[k]] = which
        have[which] += size
