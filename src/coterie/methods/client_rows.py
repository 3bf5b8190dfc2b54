"""Matrices with a row for each client, of which a round changes some: copies are made of no more than is needed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.catalogue import state
from coterie.methods.exchange import Ids

_BLOCK = 1 << 17
"""Numbers that are added at a time, so that they stay in a core's cache."""


def replace_rows(matrix: Tensor, clients: Ids, rows: Tensor) -> Tensor:
    """Return `matrix` `[n, P]` with `rows` `[r, P]` in the places of ascending `clients`; `rows` if r is n."""
    return rows if len(rows) == len(matrix) else matrix.index_copy(0, torch.from_numpy(clients), rows)


def add_rows(rows: Tensor, by: Tensor, which: Ids, alpha: float = 1.0) -> Tensor:
    """Return `rows[i] + alpha * by[which[i]]` `[r, P]`, without a matrix of what is added."""
    found, at = torch.empty(rows.shape), torch.from_numpy(which)
    size = max(1, _BLOCK // max(1, rows.shape[1]))
    for start in range(0, len(rows), size):
        some = slice(start, start + size)
        torch.add(rows[some], by[at[some]], alpha=alpha, out=found[some])
    return found


@state("model-versions")
@dataclass(eq=False)
class VersionedRows:
    """A matrix `[n, P]` with versions: an older one keeps only the rows that differ from a newer one (Baker, 1991).

    There is one buffer. The newest version holds it; each older one stores its own rows as a diff. Reading an older
    version restores its rows in the buffer, and the newer version then stores its changes as a diff. So a tensor
    that was read from one version changes when another version is read. With 50 of 333 clients a round and 1.7
    million parameters (FeSEM's rows), this takes a tenth of a copy's time, and 3 GB of memory instead of 7.
    """

    matrix: Tensor

    def replace_rows(self, clients: Ids, rows: Tensor) -> VersionedRows:
        """Return the version with `rows` `[r, P]` in the places of `clients`; with all rows new, a new buffer."""
        if len(rows) == len(self.matrix):
            return VersionedRows(rows)
        newer = VersionedRows(self.matrix)
        self._pass_buffer(newer, torch.from_numpy(clients), rows)
        return newer

    def _pass_buffer(self, to: VersionedRows, at: Tensor, rows: Tensor) -> None:
        """Hand the buffer to another version, which has `rows` in the places `at`; keep a diff."""
        matrix = self.matrix
        vars(self)["_diff"] = to, at, matrix[at]
        matrix[at] = rows
        del self.matrix

    def __getattr__(self, name: str) -> Tensor:
        if name != "matrix" or "_diff" not in vars(self):
            raise AttributeError(name)
        holder, at, rows = vars(self).pop("_diff")
        self.matrix = holder.matrix  # the holder may itself have to restore it first
        holder._pass_buffer(self, at, rows)
        return self.matrix
