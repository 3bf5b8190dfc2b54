"""How the clients compare in each layer, and the choice of one layer while the model is still on its way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coterie.exchange import Ids, Log, LogGap, Round
from coterie.grouping.layers import FEW, Measure, candidates, compared, decided, looked
from coterie.methods.layercfl_settings import LayerCFLSettings
from coterie.methods.layercfl_state import LayerCFLState
from coterie.methods.method import UNKNOWN, Cohort

MEASURES: tuple[Measure, ...] = ("cosine", "l2")


def compare(
    settings: LayerCFLSettings, state: LayerCFLState, cohort: Cohort, known: Ids
) -> Round[tuple[LayerCFLState, NDArray[np.float64]]]:
    """How alike or how far apart the `known` clients are in the layers that decide, `[r, r]`.

    With `layers = "auto"` every round before `t_min` in which all clients are known is a look at every layer, and
    in round `t_min` one is chosen (specification D2). Until then `all` decides.
    """
    people, choosing = cohort.people, state.chosen == UNKNOWN
    parts, _ = candidates(people.layout, settings.layers)
    if choosing and cohort.round >= settings.t_min:
        state = decided(state)
    names = list(parts)
    name = names[state.chosen]
    if state.chosen != UNKNOWN and (choosing or cohort.round == 1):
        yield Log("chosen", {name: 1.0})
    choosing = state.chosen == UNKNOWN
    if not len(known):
        return state, np.zeros((0, 0))
    signals = state.signals(known, settings.signal, people.layout.trainable)
    seen = names if choosing or people.n <= FEW else [name]
    matrices = {}
    for of in seen:
        rows = parts[of].take(signals)
        both = {measure: compared(rows, measure) for measure in MEASURES}
        yield LogGap(of, known, both["cosine"], "similarity")  # Gap1
        yield LogGap(of, known, both["l2"], "distance")  # Gap2
        matrices[of] = both[settings.distance]
    if choosing and len(known) == people.n > 2:
        state, gaps = looked(state, list(matrices.values()), settings.linkage)
        yield Log("self-gap", dict(zip(names, gaps.tolist(), strict=True)))
    return state, matrices[name]
