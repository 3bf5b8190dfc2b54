"""A trained model as a file: safetensors that say how to build the network again, and whose model it is.

Every parameter and buffer is a tensor under its name in the network's `state_dict`, so that PyTorch alone can read
the file. The metadata hold what Coterie needs beside that (`About`), and a digest of everything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from coterie.models.features import written
from coterie.models.layout import Layout
from coterie.models.networks import build
from coterie.problems import BadInput
from coterie.runtime.tensor_file import Stacked, write_file

FORMAT = "coterie-model/1"

MODEL = "model.safetensors"
"""How a client of a real federation calls its model, in its own folder."""


@dataclass(frozen=True)
class About:
    """What must be known of a model beside its numbers.

    Attributes:
        network: a name in `NETWORKS`.
        settings: of the network; those left out take their defaults.
        features: shape of one sample: `(height, width, channels)`, `(time, channels)` or `(features,)`.
        classes: number of outputs.
        labels: what the classes are called, in order; None where they have numbers only.
        data: the named dataset that it was trained on, whose preparation its samples need; empty for other data.
        whose: whose model it is, in a few words, as in `group 2 of run first after round 30`.
        coterie: version of the package that wrote it.
    """

    network: str
    settings: Mapping[str, Any]
    features: tuple[int, ...]
    classes: int
    labels: tuple[str, ...] | None = None
    data: str = ""
    whose: str = ""
    coterie: str = field(default_factory=lambda: version("coterie"))

    def __str__(self) -> str:
        return f"network {self.network}, samples of {written(self.features)}, {self.classes} classes"

    def name_of(self, number: int) -> str:
        """What a class is called."""
        return str(number) if self.labels is None else self.labels[number]


@dataclass(frozen=True, eq=False)
class Trained:
    """A model `[P]`, where its tensors lie in it, and what else is known of it."""

    vector: Tensor
    layout: Layout
    about: About

    def network(self) -> nn.Module:
        """A network of its own with these numbers, in evaluation mode; it takes `channels_first` batches."""
        network, layout = _built(self.about)
        layout.bind(network, self.vector.clone())
        return network.eval()


def write_model(path: Path, vector: Tensor, layout: Layout, about: About) -> None:
    """Write a model so that the file appears whole or not at all; the same model gives the same bytes.

    Args:
        path: of the file; its folder is there.
        vector: `[P]`, float32.
        layout: of the network that `about` names.
        about: what is kept beside the numbers.

    Raises:
        ValueError: `vector` is not a float32 `[P]` of this layout.
    """
    if vector.dtype != torch.float32 or vector.shape != (layout.size,):
        raise ValueError(f"the model is {vector.dtype} {tuple(vector.shape)}; it must be float32 ({layout.size},)")
    text = json.dumps(asdict(about), sort_keys=True, ensure_ascii=False)
    vector = vector.detach().cpu().contiguous()
    tensors = {entry.name: Stacked.of(entry.view(vector)) for entry in layout.entries}
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        write_file(fresh, tensors, {"format": FORMAT, "about": text, "digest": _digest(text, vector)})
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def read_model(path: Path) -> Trained:
    """Read what `write_model` wrote.

    Raises:
        BadInput: the file is missing, damaged, not of this format, or of a network that is unknown here.
    """
    if not path.is_file():
        raise BadInput(f"model {str(path)!r} does not exist; name a file that coterie export wrote")
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, OSError, ValueError, EOFError) as error:
        reason = str(error).split("\n", 1)[0]
        raise BadInput(f"model {str(path)!r} is damaged or no safetensors file ({reason}); replace it") from None
    if meta.get("format") != FORMAT:
        found = f"the format {meta['format']!r}" if "format" in meta else "no format"
        raise BadInput(f"model {str(path)!r} has {found}; it must have {FORMAT!r}, as coterie export writes it")
    damaged = BadInput(f"model {str(path)!r} is damaged (its contents do not match its digest); replace it")
    about = _about(meta.get("about", ""))
    if about is None:
        raise damaged
    try:
        _, layout = _built(about)
    except BadInput as error:
        raise BadInput([f"model {str(path)!r} cannot be built: {problem}" for problem in error.problems]) from None
    shapes = {entry.name: entry.shape for entry in layout.entries}
    if shapes != {name: tuple(values.shape) for name, values in tensors.items()}:
        raise BadInput(
            f"model {str(path)!r} has other tensors than its network {about.network}, as version "
            f"{version('coterie')} builds it; read it with version {about.coterie}"
        )
    vector = torch.empty(layout.size)
    for entry in layout.entries:
        entry.view(vector).copy_(tensors[entry.name])
    if meta.get("digest") != _digest(meta["about"], vector):
        raise damaged
    return Trained(vector, layout, about)


def _built(about: About) -> tuple[nn.Module, Layout]:
    return build(about.network, about.settings, about.features, about.classes, seed=0)


def _about(text: str) -> About | None:
    """What the metadata say; None where they are not what `write_model` writes."""
    try:
        held = json.loads(text)
        features, labels = held.pop("features"), held.pop("labels")
        return About(features=tuple(features), labels=None if labels is None else tuple(labels), **held)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _digest(about: str, vector: Tensor) -> str:
    found = blake2b(about.encode(), digest_size=16)
    found.update(vector.numpy().data)
    return found.hexdigest()
