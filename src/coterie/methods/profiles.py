"""How profiles of classes and inputs are gathered, where clients may tell them (`coterie diagnose`)."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.clients.rules.profile import CUTS, HalfProfiles, InputMoments
from coterie.grouping.skew import are_sound
from coterie.methods.exchange import Exchange, Exchanges, Ids, Replies, Send


def gather_profiles(
    clients: Ids, size: int, features: tuple[int, ...], classes: int, targets: int = 0
) -> Exchanges[tuple[Ids, NDArray[np.float64]]]:
    """Return whose profiles are sound `[r]`, and these `[r, 2, C, 1 + d]` (`grouping.skew`).

    First each tells means and deviations of its inputs, by whose medians over the clients they are standardised for
    all, with how far means are apart; and those of its targets, where these are numbers.

    Args:
        clients: whom to ask `[m]`.
        size: samples in a half.
        features: shape of an input. Numbers of a row are standardised one by one, pixels of an image by what all
            vary.
        classes: C, of samples that are of one class; else 0.
        targets: numbers of a target, which are cut into C = 4 parts; 0 where they are none, and then C = 1 without
            classes.
    """
    classes = len(CUTS) + 1 if targets else max(1, classes)
    nothing = clients[:0], np.empty((0, 2, classes, 1))
    width = prod(features)
    told: Replies = yield Exchange(clients, InputMoments(width, targets))
    if not len(told):
        return nothing
    moments = told.uploads["moments"].double().numpy()
    moments = moments[(moments != 0).any((1, 2))]  # nobody who has no sample whose targets are known
    if not len(moments):
        return nothing
    means = np.median(moments[:, 0], axis=0)
    deviations = np.sqrt(np.median(moments[:, 1] ** 2 + (moments[:, 0] - means) ** 2, axis=0))
    if len(features) > 2:
        deviations[:width] = np.sqrt(np.square(deviations[:width]).mean())
    scale = np.concatenate([means, deviations])
    send = {"scale": Send.same(torch.from_numpy(scale).float(), clients)}
    replies: Replies = yield Exchange(clients, HalfProfiles(size, classes, targets), send)
    if not len(replies):
        return nothing
    profiles = replies.uploads["profile"].double().numpy()
    sound = are_sound(profiles, size)
    return replies.clients[sound], profiles[sound]
