"""How a client trains, whatever the method: the solver, its schedule, its learning rate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from coterie.catalogue import Grid, Section
from coterie.models.layout import Layout

Precision = Literal["fp32", "bf16"]
"""Of the arithmetic of training; models are float32 whatever it is."""


class Training(Section):
    """Settings of the local solver (docs/methods/conventions.md, convention 2).

    Optimiser state is discarded at the end of every round, unless a rule carries it over (`Train.solver`); a round
    makes full passes over the client's training samples and keeps the last short batch.
    """

    title = "training"
    epochs: Annotated[int, Field(ge=0, le=10_000, description="passes over the client's data in a round (E)")] = 1
    batch_size: Annotated[int, Field(ge=1, description="samples in a minibatch (B)")] = 32
    lr: Annotated[
        float, Field(ge=0, description="learning rate in the first round"), Grid(0.001, 0.005, 0.01, 0.05, 0.1, 0.5)
    ] = 0.05
    lr_decay: Annotated[float, Field(gt=0, le=1, description="factor on the learning rate after each round")] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum inside a round (SGD)")] = 0.0
    weight_decay: Annotated[float, Field(ge=0, description="L2 penalty's factor in every gradient")] = 0.0
    optimizer: Annotated[Literal["sgd", "adam"], Field(description="the local solver"), Grid("sgd", "adam")] = "sgd"
    stop: Annotated[
        Literal["validation"] | None,
        Field(
            description="end the run when the clients' validation loss has not fallen for 5 rounds, with the "
            "models of the best round; run.rounds is then the largest number of rounds; without it, all are played"
        ),
    ] = None
    precision: Annotated[
        Precision,
        Field(description="arithmetic of training: float32, or bfloat16 with float32 models (faster, less exact)"),
    ] = "fp32"

    def lr_at(self, round: int) -> float:
        """The learning rate in round `round` (1, 2, …; a warm-up, round 0, uses that of round 1)."""
        return float(self.lr * self.lr_decay ** max(round - 1, 0))


def solver_size(training: Training, layout: Layout) -> int:
    """Scalars that the local solver remembers from one step to the next (`Train.solver`), for models of size P.

    SGD with momentum: P, the velocity. Adam: 2 P + 1, first moments, second moments, and the number of steps.
    SGD without momentum: none.
    """
    if training.optimizer == "adam":
        return 2 * layout.size + 1
    return layout.size if training.momentum else 0
