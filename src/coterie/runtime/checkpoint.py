"""What a run remembers, on disk: one safetensors file a checkpoint, everything that is no tensor in its header.

A checkpoint is written under a new name, flushed to the disk and renamed, so that a kill at any moment leaves
the previous one. Its header carries a digest of all it holds; a damaged or foreign file is refused. Nothing is
pickled and nothing imported: what is built again are tensors, plain values and dataclasses already loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from coterie.catalogue import find_state, state_name
from coterie.clients.open_files import remove_when_unmapped
from coterie.errors import BadInput
from coterie.runtime.tensor_file import Stacked, as_tensor, digest, read_file, replace_file

FORMAT = "coterie-checkpoint/2"
KEPT_CHECKPOINTS = 2
"""How many are kept: if the newest is damaged, there is one before it."""


class _Foreign(BadInput):
    """A checkpoint of another experiment."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they are; made when first needed.
        identity: of the experiment. A checkpoint of another one is refused.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder = folder
        self._identity = identity

    def save(self, round: int, memory: Mapping[str, Any]) -> Path:
        """Write what is remembered after `round`, and drop all but the last few checkpoints."""
        tensors: dict[str, Stacked] = {}
        tree = {name: _plain(value, name, tensors) for name, value in memory.items()}
        header = json.dumps({"round": round, "tree": tree})
        found = digest(f"{self._identity}\n{header}", tensors)
        meta = {"format": FORMAT, "identity": self._identity, "header": header, "digest": found}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{round:06d}.safetensors"
        replace_file(path, tensors, meta)
        for old in [*self._paths()[:-KEPT_CHECKPOINTS], *self.folder.glob(".*.new")]:
            remove_when_unmapped(old)  # also what a kill left half written
        return path

    def latest(self) -> tuple[int, dict[str, Any], list[str]] | None:
        """Read the newest sound checkpoint; return its round, what was saved, and a sentence on each damaged one.

        None where there is no checkpoint at all.

        Raises:
            BadInput: there are checkpoints, and none can be used.
        """
        passed: list[str] = []
        foreign = True
        for path in reversed(self._paths()):
            try:
                round, memory = self.load(path)
            except BadInput as problem:
                passed += problem.problems
                foreign = foreign and isinstance(problem, _Foreign)
                continue
            return round, memory, passed
        if passed and foreign:
            raise BadInput(
                f"the checkpoints in {self.folder} belong to another experiment than the experiment.toml beside "
                "them; put it back as it was, or start a new run"
            )
        if passed:
            raise BadInput([*passed, "no checkpoint is left to go on from; start a new run"])
        return None

    def load(self, path: Path) -> tuple[int, dict[str, Any]]:
        """Read one checkpoint; return its round, and what was saved.

        Raises:
            BadInput: the file is damaged, no checkpoint, or of another experiment.
        """
        meta, tensors = read_file(path, "checkpoint", FORMAT, ("identity", "header"))
        if meta["identity"] != self._identity:
            raise _Foreign(f"checkpoint {path} belongs to another experiment than the one that is resumed")
        header = json.loads(meta["header"])
        try:
            return header["round"], {name: self._rich(value, tensors) for name, value in header["tree"].items()}
        except (KeyError, TypeError) as error:
            # Sound, but the method's state has other fields by now.
            raise BadInput(
                f"checkpoint {path} was written by another version of the method ({error}); "
                "resume it with that version"
            ) from None

    def _paths(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("*.safetensors") if p.stem.isdigit())

    def _rich(self, value: Any, tensors: Mapping[str, Tensor]) -> Any:
        if isinstance(value, list):
            return [self._rich(v, tensors) for v in value]
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        match kind:
            case "tensor":
                return tensors[inner]
            case "array":
                return tensors[inner].numpy()
            case "scalar":
                return tensors[inner].numpy()[()]
            case "tuple":
                return tuple(self._rich(v, tensors) for v in inner)
            case "dict":
                return {self._rich(k, tensors): self._rich(v, tensors) for k, v in inner}
            case _:
                state: Any = find_state(kind)
                if not (isinstance(state, type) and is_dataclass(state)):  # a name may lead to any function
                    raise KeyError(f"{kind} is no dataclass that is loaded")
                return state(**{k: self._rich(v, tensors) for k, v in inner.items()})


def _plain(value: Any, path: str, tensors: dict[str, Stacked]) -> Any:
    """`value` as JSON, its tensors put into `tensors` under the path by which they are reached."""
    if isinstance(value, Tensor):
        tensors[path] = Stacked.of(value.detach())
        return {"tensor": path}
    if isinstance(value, Stacked):
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, np.ndarray):
        tensors[path] = Stacked.of(as_tensor(value))
        return {"array": path}
    if isinstance(value, np.number | np.bool_):
        # A float32 scalar that came back as a float would make later sums come out in other digits.
        tensors[path] = Stacked.of(as_tensor(np.array(value)))
        return {"scalar": path}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(v, f"{path}.{i}", tensors) for i, v in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [_plain(v, f"{path}.{i}", tensors) for i, v in enumerate(value)]}
    if isinstance(value, Mapping):
        keys = [_plain(k, f"{path}.{i}/key", tensors) for i, k in enumerate(value)]
        values = [_plain(v, f"{path}.{i}", tensors) for i, v in enumerate(value.values())]
        return {"dict": [list(pair) for pair in zip(keys, values, strict=True)]}
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: _plain(getattr(value, f.name), f"{path}.{f.name}", tensors) for f in fields(value)}
        name = state_name(type(value))
        if find_state(name) is not type(value):
            raise TypeError(f"{path} is a {type(value).__qualname__}; a state's dataclasses must be found by name")
        return {name: own}
    raise TypeError(f"{path} is a {type(value).__name__}; a state holds tensors, arrays and plain values only")


def check_state(state: Any) -> None:
    """Refuse a state that a checkpoint could not hold, before any work is done with it.

    Raises:
        TypeError: something in it is no tensor, array, plain value, or dataclass that can be found by name.
    """
    _plain(state, "state", {})
