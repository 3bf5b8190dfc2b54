"""Partitioners of `flwr-datasets` by class name (extra coterie[hub]): `flwr:PathologicalPartitioner(...)`."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coterie.clients.data.divide.partition import Partition, Pool
from coterie.errors import BadInput, nearest, unknown
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


def find_setting_problems(name: str, settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with a partitioner's settings by its signature; the values are its own to check."""
    parameters = inspect.signature(partitioner(name)).parameters
    problems = []
    for key in settings:
        if key not in parameters:
            close = nearest(key, parameters)
            hint = f"did you mean {close}?" if close else f"known: {', '.join(parameters)}"
            problems.append(f"{PREFIX}{name}.{key} is not a setting; {hint}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in (*settings, "num_partitions"):
            problems.append(f"{PREFIX}{name}.{key} is missing; give it a value")
    return problems


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
    table = {"label": pool.labels, "index": np.arange(len(pool.labels))}
    if pool.users is not None:
        table["client"] = pool.users
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
