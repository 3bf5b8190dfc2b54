"""Weights in a file, which a network starts from (`network.start`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from coterie.errors import BadInput

ENDINGS = (".safetensors", ".pt", ".pth", ".bin")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors or PyTorch file by name; nothing in it is run.

    Raises:
        BadInput: it cannot be read, or holds something else.
    """
    wrong = f"network.start = {str(path)!r} is not possible"
    if path.suffix not in ENDINGS:
        raise BadInput(f"{wrong}; it must be a file of weights: {', '.join(ENDINGS)}")
    if not path.is_file():
        raise BadInput(f"{wrong}; there is no such file")
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  # whatever a reader says of a damaged file
        reason = str(error).strip().split("\n", 1)[0].split(". ", 1)[0]
        raise BadInput(f"{wrong}; it is damaged, or holds more than weights ({reason})") from None
    while isinstance(found, Mapping):
        inner = next((found[key] for key in ("state_dict", "model_state_dict", "model") if key in found), None)
        if not isinstance(inner, Mapping):
            break
        found = inner
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()) or not found:
        raise BadInput(f"{wrong}; it must hold a state dict, tensors by name")
    prefix = "module."  # of nn.DataParallel
    cut = len(prefix) if all(str(name).startswith(prefix) for name in found) else 0
    return {str(name)[cut:]: tensor for name, tensor in found.items()}
