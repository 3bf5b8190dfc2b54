"""A network that was given in Python: the run's folder has its weights, and its code is given again."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from coterie.errors import BadInput
from coterie.models.factory import GIVEN, digest, give, split_given
from coterie.models.networks import NETWORKS
from coterie.runs.folder.files import damaged_file
from coterie.runs.folder.run_folder import RunFolder

FILE = "network.safetensors"
"""In a run's folder: every parameter and buffer of a module that was given, as it was given."""


def write_given(folder: RunFolder, name: str) -> None:
    """Write the weights of a module that was given into a run's folder; of any other network, nothing."""
    if not split_given(name)[1]:
        return
    module = NETWORKS[name].target.target  # type: ignore[attr-defined]  # a factory of somebody's own
    frozen = [n for n, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad]
    tensors = {n: t.detach().cpu().contiguous().clone() for n, t in module.state_dict().items()}
    save_file(tensors, folder.path / FILE, {"frozen": json.dumps(frozen)})


def take_given(folder: RunFolder, name: str, network: nn.Module | Callable[..., Any] | None) -> None:
    """Make the network of a run known again; its weights are those in the run's folder.

    Args:
        folder: of the run.
        name: of its network.
        network: a module with the same tensors, or the class or function that was given; None without one.

    Raises:
        BadInput: it is needed and not given, or another.
    """
    if network is None:
        if name.startswith(GIVEN) and name not in NETWORKS:
            what = split_given(name)[0]
            raise BadInput(
                f"run {folder.name} trains {what}, which was given in Python; give it again as network=, as in "
                f"coterie.resume({str(folder.path)!r}, network={what.rpartition('.')[2]}(...))"
            )
        return
    what, weights = split_given(name)
    if not weights:
        if name.startswith(GIVEN) and not isinstance(network, nn.Module):
            NETWORKS.add_own(name, network)
        elif give(network, NETWORKS) != name:
            raise BadInput(f"network = {network!r} is not possible; run {folder.name} trains {name}")
        return
    module = deepcopy(network) if isinstance(network, nn.Module) else network()
    path = folder.path / FILE
    try:
        with safe_open(path, framework="pt") as file:
            frozen = set(json.loads((file.metadata() or {}).get("frozen", "[]")))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # no mapping
    except (OSError, SafetensorError, ValueError) as error:
        raise damaged_file(path, error) from None
    try:
        module.load_state_dict(tensors)
    except (RuntimeError, AttributeError):
        raise BadInput(f"network = {type(module).__name__} is not what run {folder.name} trains") from None
    for key, parameter in module.named_parameters(remove_duplicate=False):
        parameter.requires_grad_(key not in frozen)
    if digest(module) != weights:
        raise damaged_file(path, ValueError("it is not what the run began with"))
    NETWORKS.add_own(name, module)
