"""How profiles of classes and inputs are gathered, where clients may tell them (`coterie diagnose`)."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.clients.rules.profile import HalfProfiles, InputMoments
from coterie.grouping.skew import are_sound
from coterie.methods.exchange import Exchange, Ids, Replies, Round, Send


def gather_profiles(clients: Ids, size: int, features: tuple[int, ...], classes: int) -> Round[NDArray[np.float64]]:
    """Return the sound profiles `[r, 2, C, 1 + d]` of clients (`grouping.skew`).

    First each tells means and squares of its inputs, of which the median over the clients standardises them for
    all.

    Args:
        clients: whom to ask `[m]`.
        size: samples in a half.
        features: shape of an input. Numbers of a row are standardised one by one, pixels of an image by what all
            vary.
        classes: C; 1 where samples are of none.
    """
    nothing = np.empty((0, 2, classes, 1))
    told: Replies = yield Exchange(clients, InputMoments(prod(features)))
    if not len(told):
        return nothing
    means, squares = np.median(told.uploads["moments"].double().numpy(), axis=0)
    deviations = np.sqrt(np.maximum(squares - means**2, 0.0))
    if len(features) > 2:
        deviations[:] = np.sqrt(np.square(deviations).mean())
    scale = np.concatenate([means, deviations])
    send = {"scale": Send.same(torch.from_numpy(scale).float(), clients)}
    replies: Replies = yield Exchange(clients, HalfProfiles(size, classes), send)
    if not len(replies):
        return nothing
    profiles = replies.uploads["profile"].double().numpy()
    return profiles[are_sound(profiles, size)]
