"""Which engine suits an experiment, and how many clients one kernel takes.

Both are functions of the network, the sizes and the settings, never of a clock, so that a run that is resumed,
or that runs elsewhere, chooses what it chose before. The limits were measured on one core with AVX-512.
"""

from __future__ import annotations

import torch
from torch import nn

from coterie.clients.engine.convolution import chain_modules, forward_cost, is_chain
from coterie.clients.engine.perceptron import count_units
from coterie.clients.engine.vectorised import count_operations, find_fixed_obstacle, find_obstacle_by_trial
from coterie.clients.rules.training import Training
from coterie.errors import BadInput, unknown
from coterie.models.features import format_shape
from coterie.models.gaussian import gaussian_dim
from coterie.models.layout import Layout

ENGINES = ("auto", "sequential", "batched", "gpu")

PARAMETERS = 400_000
"""Largest perceptron for which batching was measured to gain: 784-500-10 in batches of 10, twice as fast."""

WORK = 6_000_000
"""Largest product of parameters and minibatch size for which the overhead of a step is worth sharing.

Below it, training is 1.2 times (784-200-10, batches of 32, 640 samples a client) to over 10 times (64-32-10,
batches of 10) as fast; above it, no faster or slower (784-500-10, batches of 32).
"""

CONVOLUTIONS = 8_000_000
"""Most multiply-accumulates of a minibatch's forward pass for which a network with convolutions gains.

Below it, training is 1.6 times (12x12 images, batches of 32) to 3 times (8x8 images, batches of 10) as fast; a
plain CNN on 28x28 images gains little or nothing.
"""

TINY = 100_000
"""Most multiply-accumulates of one sample for which `auto` batches a network with convolutions.

Up to it, all of 100 clients agreed with `Sequential` to 1e-6 after 50 steps (a CNN on 8x8 images). Larger networks
gain too, but now and then a client meets a tie in a pooling that the last digits decide (see `batched`).
"""

OPERATION = 8_000
"""Most scalars that an operation of a module of somebody's own may touch, on average, for `auto` to vectorise it.

They are its parameters and what its operations write for a minibatch, over the number of operations. Below
5,000, training is 1.6 to 2.5 times as fast with 8 clients in a kernel as one after the other, and 1.7 to 7.8 times
with 32; from there to the limit 0.95 times (a GRU of 256 units) to 3.8 times (attention of 16); from 12,000 to
35,000, 1.0 to 1.7 times. `python -m benchmarks.modules --clients 32 --wide` measures it.
"""

CHUNK_SCALARS = 1 << 20
"""Scalars of models and activations that a chunk of clients may touch in one step: a few MiB of cache."""

LARGEST_CHUNK = 64
"""Most clients that are asked together, or share a kernel: with more, nothing is gained."""


def choose_engine(
    network: nn.Module,
    layout: Layout,
    training: Training,
    features: tuple[int, ...],
    wanted: str,
    augmented: bool = False,
    private: bool = False,
) -> tuple[str, str]:
    """`sequential`, `batched` or `gpu`, and the reason in one clause.

    Args:
        network: what the clients train.
        layout: of that network.
        training: the local solver's settings.
        features: shape of one sample.
        wanted: `auto` for the faster one, or the name of an engine.
        augmented: whether minibatches are altered before they are trained on.
        private: whether training hides any one sample.

    Raises:
        BadInput: `wanted` is no engine, or one that cannot train this network, with these settings, here.
    """
    if wanted not in ENGINES:
        raise BadInput(unknown("engine", wanted, ENGINES))
    half, stochastic = training.precision == "bf16", gaussian_dim(network) is not None
    if half and stochastic:
        raise BadInput(
            "training.precision = 'bf16' is not possible: stochastic features are trained in float32; "
            "it must be fp32"
        )
    if wanted == "gpu":
        _refuse_gpu(stochastic)
    if wanted in ("sequential", "gpu"):
        return wanted, "as asked"
    opaque, hindrance = not is_chain(network), ""
    if half:
        hindrance = "in bfloat16, clients are trained one after the other"
    elif opaque:
        hindrance = find_fixed_obstacle(network, layout)
    elif not is_chain(network, features):
        hindrance = f"the network is no plain chain of layers for samples of shape {format_shape(features)}"
    elif layout.head and not _is_in_order(network, layout):
        hindrance = "network.head is not what the network registers last"
    if not hindrance and (augmented or private):
        who = "whose minibatches are augmented" if augmented else "who hide single samples"
        hindrance = f"clients {who} are trained one after the other"
    reason, busy = "as asked", False
    if wanted == "auto" and not hindrance:
        reason, busy = _weigh(network, layout, training.batch_size, features, opaque)
    if opaque and not hindrance and not busy:
        hindrance = find_obstacle_by_trial(network, layout, features)
    if hindrance and wanted == "batched":
        raise BadInput(f"engine = 'batched' is not possible: {hindrance}; it must be sequential or auto")
    return "sequential" if hindrance or busy else "batched", hindrance or reason


def _weigh(
    network: nn.Module, layout: Layout, batch_size: int, features: tuple[int, ...], opaque: bool
) -> tuple[str, bool]:
    """Whether one client's training keeps a core busy, and why or why not, in one clause."""
    size = layout.size
    if size > PARAMETERS:
        return f"one client's model, of {size:,} parameters, keeps a core busy", True
    if opaque:
        counted = count_operations(network, features)
        each = (size + batch_size * counted.written) // max(counted.operations, 1)
        sizes, busy = f"whose operations handle {each:,} numbers on average", each > OPERATION
    elif any(e.kind == "conv" for e in layout.tensors):
        each, _ = forward_cost(network, features)
        sizes = f"with {each:,} multiply-accumulates a sample and minibatches of {batch_size}"
        busy = each > TINY or each * batch_size > CONVOLUTIONS
    else:
        sizes, busy = f"with {size:,} parameters and minibatches of {batch_size}", size * batch_size > WORK
    return f"one client, {sizes}, {'keeps' if busy else 'does not keep'} a core busy", busy


def _is_in_order(network: nn.Module, layout: Layout) -> bool:
    """Whether a model's tensors lie in the order in which the network registers them."""
    return [e.name for e in layout.tensors] == [name for name, p in network.named_parameters() if p.requires_grad]


def chunk_size(
    layout: Layout, batch_size: int = 32, activations: int | None = None, *, shared: bool = False
) -> int:
    """How many clients one kernel takes, so that what it touches stays in the cache.

    Args:
        layout: of the network.
        batch_size: samples in a minibatch.
        activations: scalars that one sample leaves behind in a forward pass; those of a perceptron, unless given.
        shared: whether all of them read one model.
    """
    activations = count_units(layout) if activations is None else activations
    scalars = (0 if shared else layout.size) + batch_size * activations
    return max(2, min(LARGEST_CHUNK, CHUNK_SCALARS // max(scalars, 1)))


def is_perceptron(network: nn.Module) -> bool:
    """Whether a network is nothing but dense layers with a bias and one ReLU between each two, after a flatten."""
    modules = [m for _, m in chain_modules(network)]
    modules = modules[isinstance(modules[0], nn.Flatten) :] if modules else []
    dense, between = modules[::2], modules[1::2]
    return (
        len(dense) == len(between) + 1
        and all(isinstance(m, nn.Linear) and m.bias is not None for m in dense)
        and all(isinstance(m, nn.ReLU) for m in between)
        and len(set(dense)) == len(dense)
    )


def _refuse_gpu(stochastic: bool) -> None:
    hindrance = "stochastic features are drawn on the CPU" if stochastic else "PyTorch finds no CUDA device"
    if stochastic or not torch.cuda.is_available():
        raise BadInput(f"run.engine = 'gpu' is not possible: {hindrance}; it must be auto, sequential or batched")
