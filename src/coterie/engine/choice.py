"""Which engine suits an experiment, and how many clients one kernel takes.

Both are functions of the network, the sizes and the settings, never of a clock, so that a run that is resumed,
or that runs elsewhere, chooses what it chose before. The limits were measured on one core with AVX-512.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from coterie.clients.training import Training
from coterie.models.layout import Layout
from coterie.problems import BadInput, unknown

ENGINES = ("auto", "sequential", "batched")

PARAMETERS = 200_000
"""Largest perceptron for which batching gains: beyond it, one model fills a cache of 1 MiB."""

WORK = 3_000_000
"""Largest product of parameters and minibatch size for which the overhead of a step is worth sharing.

Below it, training is 1.3 times (784-200-10, batches of 10) to 10 times (64-32-10, batches of 10) as fast.
"""

CHUNK_SCALARS = 1 << 20
"""Scalars of models and activations that a chunk of clients may touch in one step: a few MiB of cache."""

LARGEST_CHUNK = 64


def choose_engine(
    network: nn.Module, layout: Layout, training: Training, features: tuple[int, ...], wanted: str
) -> tuple[str, str]:
    """`sequential` or `batched`, and the reason in one clause.

    Args:
        network: what the clients train.
        layout: of that network.
        training: the local solver's settings.
        features: shape of one sample.
        wanted: `auto` for the faster one, or the name of an engine.

    Raises:
        BadInput: `wanted` is no engine, or is `batched` for a network that cannot be batched.
    """
    if wanted not in ENGINES:
        raise BadInput(unknown("engine", wanted, ENGINES))
    if wanted == "sequential":
        return "sequential", "as asked"
    obstacle = _obstacle(network, features)
    if wanted == "batched":
        _refuse(obstacle)
        return "batched", "as asked"
    if obstacle:
        return "sequential", obstacle
    size, work = layout.size, layout.size * training.batch_size
    if size > PARAMETERS:
        return "sequential", f"a model of {size} parameters keeps a core busy by itself"
    if work > WORK:
        return "sequential", f"{size} parameters and minibatches of {training.batch_size} keep a core busy"
    return "batched", f"{size} parameters and minibatches of {training.batch_size} are mostly overhead"


def chunk_size(layout: Layout, batch_size: int = 32) -> int:
    """How many clients one kernel of a perceptron takes, so that what it touches stays in the cache."""
    units = sum(sum(e.shape) for e in layout.tensors if e.role == "weight")
    return max(2, min(LARGEST_CHUNK, CHUNK_SCALARS // max(layout.size + batch_size * units, 1)))


def refuse_unbatchable(network: nn.Module) -> None:
    """Let a network pass that is nothing but dense layers with ReLU between them.

    Raises:
        BadInput: any other network.
    """
    _refuse(_obstacle(network))


def _refuse(obstacle: str) -> None:
    if obstacle:
        raise BadInput(f"engine = 'batched' is not possible: {obstacle}; it must be sequential or auto")


def _obstacle(network: nn.Module, features: tuple[int, ...] = ()) -> str:
    """What keeps a network from being batched, in one clause; empty where nothing does."""
    modules = [(path, m) for path, m in network.named_modules() if type(m) is not nn.Sequential]
    for path, module in modules:
        if not isinstance(module, nn.Linear | nn.ReLU | nn.Flatten):
            return f"only dense layers can be batched, and {path or 'the network'} is a {type(module).__name__}"
        if isinstance(module, nn.Linear) and module.bias is None:
            return f"only dense layers with a bias can be batched, and {path} has none"
    flattened = bool(modules) and isinstance(modules[0][1], nn.Flatten)
    if len(features) > 1 and not flattened:
        return "only networks that begin by flattening the samples can be batched"
    kinds = [type(m) is nn.ReLU for _, m in modules[flattened:]]
    alternating = all(a != b for a, b in pairwise(kinds)) and kinds[:1] == kinds[-1:] == [False]
    if not alternating or any(isinstance(m, nn.Flatten) for _, m in modules[flattened:]):
        return "only dense layers with one ReLU between each two can be batched"
    return ""
