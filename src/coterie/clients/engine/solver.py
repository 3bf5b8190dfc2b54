"""The local solver, step by step, for one client."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from coterie.clients.rules.requests import Train
from coterie.clients.rules.training import Training, solver_size
from coterie.models.layout import Entry, Layout, Part


def overshoots(training: Training, lr: float, pull: float) -> bool:
    """Whether an explicit step of SGD along a pull ends beyond the anchor; then it is taken implicitly.

    `w - lr pull (w - anchor)` grows without bound where lr pull is above 2. The implicit (proximal) step shrinks
    what is left of `w - anchor` by `1 / (1 + lr pull)`, whatever the strength, and has the same fixed points. Steps
    of Adam are bounded as they are.
    """
    return training.optimizer == "sgd" and lr * pull > 1


class Solver:
    """One step: w <- w - lr (g + pull (w - anchor) + linear + decay w), with momentum or Adam.

    A pull that `overshoots` is no part of that: after the step, w <- anchor + (w - anchor) / (1 + lr pull).

    Args:
        training: the settings, of which the learning rate is not taken.
        lr: the learning rate.
        parameters: what moves, in place.
        pull: strength of the pull to `anchor`.
        anchor: tensors like the parameters; without it there is no pull.
        linear: the linear term, tensors like the parameters.
        carried: what the solver remembers, as `memory_views` gives it; it is read, and written in every step.
            Without it the solver starts afresh.
    """

    def __init__(
        self,
        training: Training,
        lr: float,
        parameters: list[Tensor],
        pull: float = 0.0,
        anchor: list[Tensor] | None = None,
        linear: list[Tensor] | None = None,
        carried: Sequence[list[Tensor]] = (),
    ) -> None:
        self._parameters = parameters
        self._lr = lr
        implicit = anchor is not None and overshoots(training, lr, pull)
        self._pull, self._shrink = (0.0, 1 / (1 + lr * pull)) if implicit else (pull, 1.0)
        self._anchor = anchor
        self._linear = linear
        self._decay = training.weight_decay
        self._momentum = training.momentum
        self._velocity: list[Tensor] | None = None
        self._adam = (
            torch.optim.Adam(parameters, lr=lr, capturable=parameters[0].is_cuda)
            if training.optimizer == "adam" and parameters
            else None
        )
        if self._adam is not None:
            for parameter, first, second, steps in zip(parameters, *carried, strict=True) if carried else ():
                self._adam.state[parameter] = {"exp_avg": first, "exp_avg_sq": second, "step": steps}
        elif carried:
            (self._velocity,) = carried

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Move the parameters."""
        # Nothing is added in place: a gradient may be one number seen many times.
        direction: tuple[Tensor, ...] | list[Tensor] = list(gradients)
        if self._pull and self._anchor is not None:
            away = torch._foreach_sub(self._parameters, self._anchor)
            direction = torch._foreach_add(direction, away, alpha=self._pull)
        if self._linear is not None:
            direction = torch._foreach_add(direction, self._linear)
        if self._decay:
            direction = torch._foreach_add(direction, self._parameters, alpha=self._decay)
        if self._adam is not None:
            for parameter, gradient in zip(self._parameters, direction, strict=True):
                parameter.grad = gradient
            self._adam.step()
            return
        if self._momentum:
            if self._velocity is None:
                self._velocity = [g.clone() for g in direction]
            else:
                torch._foreach_mul_(self._velocity, self._momentum)
                torch._foreach_add_(self._velocity, direction)
            direction = self._velocity
        torch._foreach_add_(self._parameters, direction, alpha=-self._lr)
        if self._shrink < 1 and self._anchor is not None:
            away = torch._foreach_sub(self._parameters, self._anchor)
            torch._foreach_copy_(self._parameters, torch._foreach_add(self._anchor, away, alpha=self._shrink))


def takes_plain_steps(training: Training, request: Train) -> bool:
    """Whether steps go down the cross-entropy, with weights and a pull to the start at most; none is remembered."""
    remembers = training.optimizer == "adam" or training.momentum
    adds = training.weight_decay or request.linear is not None or request.clip
    elsewhere = request.pull and request.anchor is not None
    return not (remembers or adds or elsewhere or request.objective is not None)


def is_plain_sgd(training: Training, request: Train) -> bool:
    """Whether steps go down the cross-entropy of equal samples, nothing is added, and no step is remembered."""
    return takes_plain_steps(training, request) and not request.pull and request.weights is None


def split_pull(training: Training, lr: float, pull: float) -> tuple[float, float]:
    """Return `lr'` and a factor: a step of lr' without the pull, and then all that is left of `w - anchor` by it.

    It is the step with the pull, explicit or implicit. Where lr pull is 1, there is none such, and lr' is infinite.
    """
    if overshoots(training, lr, pull):
        return lr, 1 / (1 + lr * pull)
    kept = 1 - lr * pull
    return (lr / kept if kept else inf), kept


def initial_memory(request: Train, training: Training, layout: Layout) -> Tensor | None:
    """What a solver starts from and writes into, a vector of its own; None where the request carries nothing over.

    Raises:
        ValueError: the request's `solver` is not of the size that `solver_size` says.
    """
    size = solver_size(training, layout)
    if request.solver is None:
        return request.start.new_zeros(size) if request.keep_solver else None
    if request.solver.shape != (size,):
        raise ValueError(f"solver has the shape {tuple(request.solver.shape)}; it must be ({size},)")
    return request.solver.clone()


def memory_views(
    memory: Tensor, training: Training, layout: Layout, entries: Sequence[Entry]
) -> list[list[Tensor]]:
    """A solver's memory tensor by tensor: velocities; or Adam's first moments, second ones, and counts of steps."""
    if not entries:
        return []
    moments = [
        [e.view(memory[a : a + layout.size]) for e in entries]
        for a in range(0, len(memory) - layout.size + 1, layout.size)
    ]
    if training.optimizer == "adam":
        # Each tensor counts for itself; the first of them counts in the memory.
        moments.append([memory[-1] if number == 0 else memory[-1].clone() for number in range(len(entries))])
    return moments


def tensors_to_train(layout: Layout, part: Part | None) -> list[Entry]:
    """The tensors that training restricted to `part` trains; buffers are not its matter.

    Raises:
        ValueError: the part holds some scalars of a tensor and leaves out others; a tensor is trained as a whole.
    """
    if part is None:
        return list(layout.tensors)
    held = {e: (Part.of([(e.start, e.stop)]) & part).size for e in layout.tensors}
    cut = [f"{size} of the {e.size} scalars of {e.name}" for e, size in held.items() if 0 < size < e.size]
    if cut:
        raise ValueError(
            f"the part to train holds {', '.join(cut)}; it must hold all or none of a tensor's scalars"
        )
    return [e for e, size in held.items() if size]


def clip_gradients(gradients: Sequence[Tensor], limit: float) -> Sequence[Tensor]:
    """The gradients, scaled down to the norm `limit` of all of them together where it is larger; 0 is no limit."""
    if not limit:
        return gradients
    norm = torch.nn.utils.get_total_norm(gradients)
    return torch._foreach_mul(list(gradients), torch.clamp(limit / (norm + 1e-6), max=1.0))
