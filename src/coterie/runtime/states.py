"""The clients' states between rounds: in memory up to a limit, beyond it in files that are mapped."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from coterie.models.layout import BYTES_PER_SCALAR
from coterie.runtime.shared_memory import Arena
from coterie.runtime.tensor_file import Stacked

Key = tuple[str, tuple[int, ...]]
"""A name, and the shape of what is kept under it."""


class ClientStates:
    """Stores the vectors that clients keep, by name: a row for each client that keeps one, and none for the others.

    A vector that is replaced or deleted stays until the next commit, or the next mark where it came after the last
    commit, so that nothing has to be copied to go back.

    Args:
        clients: how many there are.
        arena: where rows lie that other processes shall see; without one they are this process's own.
        limit_mb: megabytes of rows in memory. Further rows lie in a mapped file without a name.
    """

    def __init__(self, clients: int, arena: Arena | None = None, limit_mb: float = float("inf")) -> None:
        self.folder: Path | None = None
        """Where that file is; None for the folder of temporary files."""
        self._clients = clients
        self._arena = arena
        self._files = Arena()
        self._limit = limit_mb * 1e6 / BYTES_PER_SCALAR
        self._in_memory: dict[Key, int] = {}
        self._rows: dict[str, dict[int, Tensor]] = {}
        self._stores: dict[Key, _Store] = {}
        self._before: dict[tuple[str, int], Tensor | None] = {}
        self._marked: dict[tuple[str, int], Tensor | None] = {}
        self._shows_marked = False

    def mark(self) -> None:
        """Remember the states as they are now, in place of those of the last mark."""
        for key, values in self._marked.items():
            if values is not None and self._before.get(key) is not values:
                self._store(key[0], values.shape).give(values)
        self._marked.clear()

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """Show the states of the last mark, or of the last commit if that came later."""
        self._shows_marked = True
        try:
            yield
        finally:
            self._shows_marked = False

    @property
    def shared(self) -> bool:
        """Whether other processes see the rows."""
        return self._arena is not None

    @property
    def names(self) -> list[str]:
        """Under which names anybody keeps something."""
        return [name for name, rows in self._rows.items() if rows]

    @property
    def has(self) -> dict[str, Tensor]:
        """Who keeps something, `[n]` by name."""
        found = {name: torch.zeros(self._clients, dtype=torch.bool) for name in self._rows}
        for name, has in found.items():
            has[list(self._rows[name])] = True
        return found

    @property
    def kept(self) -> dict[str, Tensor]:
        """A copy of all that is kept, `[n, *shape]` by name; 0 for whoever keeps nothing under it."""
        found = {}
        for name in self.names:
            rows = self._rows[name]
            found[name] = torch.zeros(self._clients, *next(iter(rows.values())).shape)
            for client, values in rows.items():
                found[name][client] = values
        return found

    @property
    def room(self) -> int:
        """How many scalars there is room for, in memory and in files, taken or free."""
        return sum(store.room for store in self._stores.values())

    def commit(self) -> None:
        """Make every update since the last commit permanent."""
        self.mark()
        for (name, _), values in self._before.items():
            if values is not None:
                self._store(name, values.shape).give(values)
        self._before.clear()
        self._free_unused()

    def roll_back(self) -> None:
        """Undo every update since the last commit."""
        self.mark()
        for (name, client), values in self._before.items():
            now = self._rows[name].pop(client, None)
            if now is not None and now is not values:
                self._store(name, now.shape).give(now)
            if values is not None:
                self._rows[name][client] = values
        self._before.clear()
        self._free_unused()

    def of(self, client: int) -> dict[str, Tensor]:
        """Return the state of one client, as views."""
        found = {name: rows[client] for name, rows in self._rows.items() if client in rows}
        if self._shows_marked:
            before = {name: self._marked[name, client] for name in self._rows if (name, client) in self._marked}
            found = {name: values for name, values in {**found, **before}.items() if values is not None}
        return found

    def reserve(self, name: str, shape: tuple[int, ...], count: int) -> list[Tensor]:
        """Allocate `count` vectors that may be kept under a name; `update` takes them over as they are.

        Those that it does not take over must be given back to `release`.
        """
        return self._store(name, shape).take(count)

    def release(self, name: str, rows: Iterable[Tensor]) -> None:
        """Free vectors that `reserve` allocated and `update` did not take over."""
        for values in rows:
            self._store(name, values.shape).give(values)

    def update(self, client: int, keep: Mapping[str, Tensor | None], *, own: bool = False) -> None:
        """Replace what one client keeps under the given names; None forgets it.

        Args:
            client: whose.
            keep: the new values by name, which are copied.
            own: take them over as they are: they are from `reserve`.

        Raises:
            ValueError: others keep something of another shape under a name.
        """
        for name, values in keep.items():
            rows = self._rows.setdefault(name, {})
            if values is not None and rows:
                shape = next(iter(rows.values())).shape
                if values.shape != shape:
                    had, other = tuple(values.shape), tuple(shape)
                    raise ValueError(f"client {client} keeps a {name} of the shape {had}; others keep {other}")
            if values is not None and not own:
                (room,) = self.reserve(name, tuple(values.shape), 1)
                values = room.copy_(values)
            old, is_wanted = rows.pop(client, None), False
            for log in (self._before, self._marked):
                if (name, client) not in log:
                    log[name, client], is_wanted = old, True
            if old is not None and not is_wanted:
                self._store(name, old.shape).give(old)
            if values is not None:
                rows[client] = values

    def rows(self, name: str) -> tuple[list[int], list[Tensor]]:
        """Return who keeps something under a name, ascending, and what, as views."""
        rows = self._rows.get(name, {})
        clients = sorted(rows)
        return clients, [rows[client] for client in clients]

    def to_checkpoint(self) -> dict[str, dict[str, Stacked] | dict[str, Tensor]]:
        """Return all that is kept: `has` says who keeps something under a name, `kept` says what."""
        rows = {name: self.rows(name) for name in self.names}
        return {
            "kept": {name: Stacked(values) for name, (_, values) in rows.items()},
            "has": {name: torch.tensor(clients) for name, (clients, _) in rows.items()},
        }

    def restore(self, kept: Mapping[str, Tensor], has: Mapping[str, Tensor]) -> None:
        """Keep what `to_checkpoint` returned, `[r, *shape]` by name, and nothing else.

        A checkpoint of an earlier version holds a row for every client, and for each whether it counts.
        """
        for forgotten in (self._rows, self._stores, self._in_memory, self._before, self._marked):
            forgotten.clear()
        for name, rows in kept.items():
            dense = has[name].dtype == torch.bool
            clients = has[name].nonzero().flatten() if dense else has[name]
            if not len(clients):
                continue
            room = self.reserve(name, tuple(rows.shape[1:]), len(clients))
            for i, (client, own) in enumerate(zip(clients.tolist(), room, strict=True)):
                self._rows.setdefault(name, {})[client] = own.copy_(rows[client if dense else i])

    def close(self) -> None:
        """Close the files. What is kept can still be read."""
        self._files.close()

    def _store(self, name: str, shape: Sequence[int]) -> _Store:
        key = (name, tuple(shape))
        if key not in self._stores:
            self._stores[key] = _Store(tuple(shape), lambda scalars: self._block(key, scalars))
        return self._stores[key]

    def _block(self, key: Key, scalars: int) -> Tensor:
        if sum(self._in_memory.values()) + scalars > self._limit:
            folder = self.folder or Path(tempfile.gettempdir())
            return (self._arena or self._files).block(scalars, folder)
        self._in_memory[key] = self._in_memory.get(key, 0) + scalars
        return torch.empty(scalars) if self._arena is None else self._arena.block(scalars)

    def _free_unused(self) -> None:
        """Free the memory of names that no client keeps any more; before a commit it may be needed to go back."""
        for key, store in list(self._stores.items()):
            if store.unused:
                self._in_memory.pop(key, None)
                del self._stores[key]
        self._rows = {name: rows for name, rows in self._rows.items() if rows}


class _Store:
    """Rows of one shape."""

    def __init__(self, shape: tuple[int, ...], block: Callable[[int], Tensor]) -> None:
        self._shape = shape
        self._size = torch.Size(shape).numel()
        self._block = block
        self._free: list[Tensor] = []
        self._rows = 0

    def take(self, count: int) -> list[Tensor]:
        """Some rows, with anything in them."""
        if count > len(self._free):
            # At least half as many again, so that pieces of memory stay few.
            more = max(count - len(self._free), self._rows // 2)
            self._free += self._block(more * self._size).view(more, *self._shape).unbind()
            self._rows += more
        taken = self._free[-count:] if count else []
        del self._free[len(self._free) - count :]
        return taken

    def give(self, row: Tensor) -> None:
        self._free.append(row)

    @property
    def room(self) -> int:
        """Scalars of all rows, taken or free."""
        return self._rows * self._size

    @property
    def unused(self) -> bool:
        """Whether all rows are free."""
        return len(self._free) == self._rows
