"""Partitioners of `flwr-datasets` by class name (extra coterie[hub]): `flwr:PathologicalPartitioner(...)`."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coterie.clients.data.divide.partition import Partition, Pool
from coterie.errors import BadInput, unknown
from coterie.randomness import address

PREFIX = "flwr:"


def partitioner(name: str) -> Callable[..., Any]:
    """The partitioner class called `name`, without the prefix.

    Raises:
        BadInput: the library is missing, or it has no such class.
    """
    if importlib.util.find_spec("flwr_datasets") is None:
        raise BadInput(f"split = '{PREFIX}{name}' needs the flwr-datasets library; install coterie[hub]")
    from flwr_datasets import partitioner as module

    known = [each for each in module.__all__ if each != "Partitioner"]
    if name not in known:
        raise BadInput(unknown("flwr partitioner", name, known))
    found: Callable[..., Any] = getattr(module, name)
    return found


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a partitioner's signature does not take; the values are its own to check.

    Raises:
        BadInput: one is missing, or unknown.
    """
    signature = inspect.signature(partitioner(name))
    own = {"num_partitions": 1} if "num_partitions" in signature.parameters else {}
    try:
        signature.bind(**{**own, **settings})
    except TypeError as error:
        known = ", ".join(signature.parameters)
        raise BadInput(f"split = '{PREFIX}{name}' has other settings ({error}); it takes {known}") from None


def partition(pool: Pool, name: str, settings: Mapping[str, Any]) -> Partition:
    """Let the partitioner cut a table with the columns `label`, `index` and, where the data have users, `client`.

    The number of partitions and the seed are the federation's unless the settings name them.

    Raises:
        BadInput: the partitioner refuses its settings or does not give every client its own samples.
    """
    import datasets

    target = partitioner(name)
    parameters = inspect.signature(target).parameters
    given = dict(settings)
    if "num_partitions" in parameters:
        given.setdefault("num_partitions", pool.n)
    if "seed" in parameters:
        given.setdefault("seed", address(pool.seed, "partition") % 2**31)
    table = {"label": pool.data.labels, "index": np.arange(len(pool.data.labels))}
    if pool.data.users is not None:
        table["client"] = pool.data.users
    try:
        cutter = target(**given)
        cutter.dataset = datasets.Dataset.from_dict(table)
        parts = [np.array(cutter.load_partition(i)["index"], np.int64) for i in range(cutter.num_partitions)]
    except Exception as error:  # noqa: BLE001  # whatever another library objects to is bad input here
        raise BadInput(f"split = '{PREFIX}{name}' failed: {' '.join(str(error).split())}") from None
    if pool.clients is not None and len(parts) != pool.clients:
        raise BadInput(
            f"clients = {pool.clients} does not agree with split = '{PREFIX}{name}', which makes {len(parts)}"
        )
    together = np.concatenate(parts)
    if len(np.unique(together)) < len(together):
        raise BadInput(
            f"split = '{PREFIX}{name}' gives a sample to several clients; choose a partitioner that does not"
        )
    return Partition(parts)
