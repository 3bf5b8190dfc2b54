"""A trained model as a file for other programs: safetensors for who reads tensors, ONNX for who runs networks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.clients.tasks import Task
from coterie.errors import BadInput
from coterie.models.calling import takes_whole_numbers
from coterie.models.networks import channels_first
from coterie.runs.folder.files import write_whole
from coterie.shipping.model.trained import Trained, write_model

ENDINGS = (".safetensors", ".onnx", ".pt")


def check_export(path: Path) -> list[str]:
    """What is wrong with a file to export to, before anything is loaded."""
    if path.suffix not in ENDINGS:
        return [
            f"--to {str(path)!r} ends in {path.suffix or 'nothing'!r}; it must be a .safetensors, .onnx or .pt file"
        ]
    absent = [name for name in ("onnx", "onnxscript") if path.suffix == ".onnx" and find_spec(name) is None]
    return [f"--to {str(path)!r} needs {' and '.join(absent)}; install coterie[onnx]"] * bool(absent)


def export(trained: Trained, path: Path) -> None:
    """Write a model to a .safetensors, .onnx or .pt file, whole or not at all; the same model gives the same bytes.

    A .pt file holds the network's `state_dict`, for `torch.load(path, weights_only=True)`.

    Raises:
        BadInput: the name has another ending, what writes ONNX is not installed, or the network is none that can be
            written as ONNX.
    """
    if problems := check_export(path):
        raise BadInput(problems)
    if path.suffix == ".onnx":
        write_whole(path, onnx_bytes(trained))
    elif path.suffix == ".pt":
        state = {name: values.contiguous() for name, values in trained.network().state_dict().items()}
        buffer = BytesIO()
        torch.save(state, buffer)
        write_whole(path, buffer.getvalue())
    else:
        write_model(path, trained.vector, trained.layout, trained.about, trained.rest)


def onnx_bytes(trained: Trained) -> bytes:
    """The network as an ONNX model: `input` `[batch, *features]`, as data are stored; `logits` `[batch, classes]`;
    `outputs` for a task whose predictions are numbers.

    The metadata property `coterie` holds what is known of the model (`About`), as JSON. Layers may be fused, as a
    batch normalisation into the convolution before it.

    Raises:
        BadInput: the network does something that PyTorch cannot write as ONNX.
    """
    about, task = trained.about, trained.about.build_task()
    output = "logits" if task.distributes or task.probable else "outputs"
    # Two samples: PyTorch takes a length of one for a constant.
    network = trained.network()
    sample = torch.zeros(2, *about.features, dtype=torch.int64 if takes_whole_numbers(network) else torch.float32)
    with warnings.catch_warnings(), _silence():
        warnings.simplefilter("ignore")  # of its own use of old names
        try:
            program: Any = torch.onnx.export(
                _AsStored(network, task).eval(),
                (sample,),
                input_names=["input"],
                output_names=[output],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
        except Exception as raised:  # noqa: BLE001  # whatever a network does that cannot be traced
            error: BaseException = raised
            while error.__cause__ is not None:  # PyTorch wraps what went wrong in a page of advice
                error = error.__cause__
            reason = str(error).strip().split("\n", 1)[0]
            raise BadInput(
                f"network {about.network} cannot be written as ONNX ({type(error).__name__}: {reason}); export it "
                "as .safetensors"
            ) from None
    model = program.model_proto
    if not model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise BadInput(
            f"network {about.network} cannot be written as ONNX: its code makes the number of samples a constant, "
            "as len(x) does when it is traced; write x.shape[0], or export it as .safetensors"
        )
    # Where in which source file each node comes from: nothing that a reader needs, and other on every machine.
    graph = model.graph
    for piece in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        del piece.metadata_props[:]
    known = model.metadata_props.add()
    known.key, known.value = "coterie", about.to_json()
    written: bytes = model.SerializeToString(deterministic=True)
    return written


@contextmanager
def _silence() -> Iterator[None]:
    """Let nothing be logged or printed: PyTorch tells of libraries that it misses, and of all that it traced."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


class _AsStored(nn.Module):
    """A network that takes samples as they are stored, channels last, and gives targets in their own units."""

    def __init__(self, network: nn.Module, task: Task) -> None:
        super().__init__()
        self.network, self.task = network, task

    def forward(self, batch: Tensor) -> Tensor:
        """`[B, *features]` to outputs `[B, ...]`."""
        outputs: Tensor = self.network(channels_first(batch))
        return self.task.in_own_units(outputs)
