"""Writes each client's part of a simulated federation to a file of its own, for a rehearsal with real clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coterie.clients.data.agree.own import Holding
from coterie.clients.data.federation import Federation
from coterie.errors import BadInput, shorten


def write_parts(federation: Federation, folder: Path) -> list[Path]:
    """Write `client-0.npz`, `client-1.npz`, … in the order of the clients.

    A file has `features` `[N, *features]` float32, `label` `[N]` int64 and `split` `[N]` uint8 as `load_own` reads
    it. The samples are in the federation's order, so that a client that loads them trains on the same bits.

    Raises:
        BadInput: one of the files is there already.
    """
    paths = [folder / f"client-{client}.npz" for client in range(federation.n)]
    if existing := [path.name for path in paths if path.exists()]:
        raise BadInput(f"{str(folder)!r} has {shorten(existing, 3)} already; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for client, path in enumerate(paths):
        holding = Holding.of(federation, client)
        with path.open("xb") as file:  # where the name is a link to nothing, too, nothing is made behind it
            np.savez_compressed(
                file,
                features=np.concatenate([inputs.numpy() for inputs, _ in holding.parts]),
                label=np.concatenate([labels.numpy() for _, labels in holding.parts]),
                split=np.repeat(np.arange(len(holding.parts), dtype=np.uint8), holding.sizes),
            )
    return paths
