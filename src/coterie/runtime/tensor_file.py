"""Tensors written to a safetensors file from where they lie: nothing is copied that has no gaps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from coterie.clients.open_files import replace_whole
from coterie.errors import BadInput

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_SMALL = 1 << 20
"""Bytes of rows that are worth putting side by side first."""
_BLOCK = 1 << 26
"""Bytes handed to the system at a time."""


@dataclass(frozen=True, eq=False)
class Stacked:
    """One tensor, as rows `[r, *shape]` that may lie anywhere, or alone."""

    rows: Sequence[Tensor]
    alone: bool = False

    @classmethod
    def of(cls, values: Tensor) -> Stacked:
        """A tensor as it is."""
        return cls([values], alone=True)

    @property
    def dtype(self) -> torch.dtype:
        return self.rows[0].dtype if self.rows else torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        if self.alone:
            return tuple(self.rows[0].shape)
        return (len(self.rows), *(self.rows[0].shape if self.rows else ()))

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    def blocks(self) -> Iterator[memoryview]:
        """Its bytes in order."""
        size = self.rows[0].nbytes if self.rows else 0
        some = max(1, _SMALL // max(size, 1))
        rows = self.rows
        if some > 1 and len(rows) > 1:  # small ones together: each block is a call of the system
            rows = [torch.stack(list(rows[a : a + some])) for a in range(0, len(rows), some)]
        for row in rows:
            if row.numel():
                content = row.contiguous().reshape(-1).view(torch.uint8).numpy().data
                for start in range(0, len(content), _BLOCK):
                    yield content[start : start + _BLOCK]


def as_tensor(array: NDArray[Any]) -> Tensor:
    """An array as a tensor, copied only where PyTorch knows no such strides or may not write to it."""
    plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(np.asarray(array) if plain else array.copy(order="C"))


def replace_file(
    path: Path, tensors: Mapping[str, Stacked], metadata: Mapping[str, str], *, private: bool = False
) -> None:
    """Write a safetensors file so that it appears whole or not at all, and wait until it is on the disk.

    The format: eight bytes with the length of a JSON header, the header, then the tensors without a gap, those of
    wide numbers first so that all are aligned.

    Args:
        path: of the file, whose folder is there.
        tensors: by name.
        metadata: beside them.
        private: for its owner alone.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        kind, shape = _NAMES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    written += b" " * (-len(written) % 8)
    with replace_whole(path, private=private) as file:
        file.write(len(written).to_bytes(8, "little") + written)
        for name in names:
            file.writelines(tensors[name].blocks())


def read_file(
    path: Path, what: str, format: str, signed: Sequence[str]
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read the metadata and the tensors of a file that `replace_file` wrote.

    Args:
        path: of the file.
        what: it is, for a sentence.
        format: what its metadata must say that it is.
        signed: the names of the metadata that its `digest` is of, beside the tensors.

    Raises:
        BadInput: it is damaged, or something else.
    """
    if not path.is_file():  # to open a pipe would wait for ever
        raise BadInput(f"{what} {str(path)!r} is damaged (it is no regular file); restore it")
    try:
        with safe_open(path, framework="pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            whole = {name: Stacked.of(values) for name, values in tensors.items()}
    except (SafetensorError, OSError, ValueError, EOFError) as error:
        reason = str(error).split("\n", 1)[0]
        raise BadInput(f"{what} {str(path)!r} is damaged or no safetensors file ({reason}); restore it") from None
    if meta.get("format") != format:
        found = f"the format {meta['format']!r}" if "format" in meta else "no format"
        raise BadInput(f"{what} {str(path)!r} has {found}; it must have the format {format!r}")
    if meta.get("digest") != digest("\n".join(meta.get(name, "") for name in signed), whole):
        raise BadInput(f"{what} {str(path)!r} is damaged (its contents do not match its digest); restore it")
    return meta, tensors


def digest(text: str, tensors: Mapping[str, Stacked]) -> str:
    """Of a text, and of all tensors with their names, kinds and shapes."""
    found = blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        found.update(f"{name}:{tensors[name].dtype}:{tensors[name].shape}".encode())
        for block in tensors[name].blocks():
            found.update(block)
    return found.hexdigest()
