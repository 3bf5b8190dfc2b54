"""Datasets by hub name, through the `datasets` library (extra coterie[hub])."""

from __future__ import annotations

import importlib.util
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import polars as pl

from coterie.clients.data.read.columns import (
    ROLES,
    USUAL,
    Columns,
    Named,
    find_mask,
    join_mask,
    make_columns,
    pick_roles,
    read_split,
)
from coterie.clients.data.read.tables import read_table
from coterie.errors import BadInput

USUAL_NAMES = {
    "label": (*ROLES["label"].names, "fine_label", "character", "smiling"),
    "client": (*ROLES["client"].names, "celeb_id"),
}
"""How CIFAR-100, FEMNIST and CelebA call their label and their users on the hub, beside the usual names."""

CELEBA = "flwrlabs/celeba"
"""Taken as LEAF (Caldas et al., 2018) has it: all its splits together, 9,343 people of 200,288 images."""

CONNECT_SECONDS = 5
"""How long the hub may take to answer before it counts as out of reach."""


def is_installed() -> bool:
    """Whether the `datasets` library is there."""
    return importlib.util.find_spec("datasets") is not None


def explain_missing(data: str) -> str:
    """The sentence for data that only the hub has, where the library is not installed."""
    return f"data = {data!r} needs the datasets library; install coterie[hub]"


def fetch(repository: str, split: str = "train", named: Named = USUAL) -> Columns:
    """Return one split of a hub dataset as columns; see `download`.

    Raises:
        BadInput: the library is missing, or it could not get or read the dataset.
    """
    return read_hub_columns(download(repository, split), f"hub:{repository}", named=named)


def download(
    repository: str, split: str = "train", *, name: str = "", remedy: str = "check the name and the connection"
) -> Any:
    """Download one split of a hub dataset, `owner/name` or `owner/name/configuration`, or take it from the cache.

    Of `CELEBA` it is all splits, prepared as the benchmark has them.

    Args:
        repository: which one.
        split: the split.
        name: what the user called it; `hub:` and the repository if not given.
        remedy: what the user can do where it cannot be had.

    Returns:
        The `datasets.Dataset`.

    Raises:
        BadInput: the library is missing, or it could not get the dataset.
    """
    name = name or f"hub:{repository}"
    if not is_installed():
        raise BadInput(explain_missing(name))
    import datasets

    config, was_offline = datasets.config, datasets.config.HF_HUB_OFFLINE
    reached = is_reachable(config.HF_ENDPOINT)
    try:
        config.HF_HUB_OFFLINE = was_offline or not reached  # the cache is then taken, and nothing tried again
        owner, title, *configuration = repository.split("/")
        is_celeba = f"{owner}/{title}" == CELEBA
        table = datasets.load_dataset(f"{owner}/{title}", *configuration, split="all" if is_celeba else split)
        return prepare_celeba(table, name) if is_celeba else table
    except Exception as error:  # noqa: BLE001  # the library lets errors of many transports and formats through
        first = next(iter(str(error).splitlines()), "")
        why = f"{type(error).__name__}: {first}" if reached else f"{config.HF_ENDPOINT} is out of reach"
        raise BadInput(f"data = {name!r} could not be loaded ({why}); {remedy}") from None
    finally:
        config.HF_HUB_OFFLINE = was_offline


def is_reachable(endpoint: str) -> bool:
    """Return whether a connection to the hub can be made; behind a proxy none is tried, and the answer is yes."""
    if getproxies():
        return True
    place = urlsplit(endpoint)
    try:
        port = place.port or {"http": 80}.get(place.scheme, 443)
        socket.create_connection((place.hostname or "", port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def prepare_celeba(table: Any, where: str, size: int = 84, least: int = 5) -> Any:
    """Return a `datasets.Dataset` without users of fewer than `least` images, which are shrunk to a square."""
    import datasets

    users = np.asarray(table[pick_roles(table.column_names, where, labelled=False, usual=USUAL_NAMES)["client"]])
    _, which, counts = np.unique(users, return_inverse=True, return_counts=True)
    table = table.select(np.flatnonzero(counts[which] >= least))
    for name, kind in table.features.items():
        if isinstance(kind, datasets.Image):
            table = table.map(_shrink, batched=True, fn_kwargs={"name": name, "side": (size, size)})
    return table


def _shrink(rows: dict[str, Any], name: str, side: tuple[int, int]) -> dict[str, Any]:
    return {name: [image.resize(side) for image in rows[name]]}


def read_hub_columns(table: Any, where: str, labelled: bool = True, named: Named = USUAL) -> Columns:
    """A `datasets.Dataset` as columns: one image or list column, or all other columns by name, are the features.

    Raises:
        BadInput: there is no label, or there are no features.
    """
    import datasets

    roles = pick_roles(table.column_names, where, labelled, named, USUAL_NAMES)
    beside = [name for name in roles.values() if name is not None]
    rest = {name: kind for name, kind in table.features.items() if name not in beside}
    images = [name for name, kind in rest.items() if isinstance(kind, datasets.Image)]
    lists = [name for name, kind in rest.items() if not isinstance(kind, datasets.Value | datasets.ClassLabel)]
    usual = [name for name in lists if name.lower() in ROLES["features"].names]
    chosen = images or usual or lists
    if len(chosen) > 1:
        there = ", ".join(f"{name} ({kind})" for name, kind in rest.items()) or "nothing else"
        raise BadInput(
            f"{where} needs one image or list column, or columns of numbers, beside its label; it has {there}"
        )
    if not chosen:
        frame = pl.DataFrame(table.with_format("arrow")[:])
        return read_table(frame, where, labelled, Named(roles["label"], roles["client"]))
    mask = find_mask(chosen[0], lists)
    chosen += [] if mask is None else [mask]
    held = table.select_columns([*chosen, *beside]).with_format("numpy")[:]
    features = np.asarray(held[chosen[0]])
    if mask is not None:
        features = join_mask(features, np.asarray(held[mask]), where)
    ignored = [name for name in rest if name not in chosen]
    return make_columns(where, features, roles, held, "image" if images else chosen[0], ignored)


def read_saved(path: Path, labelled: bool = True, named: Named = USUAL) -> Columns:
    """Read what `datasets.save_to_disk` wrote; of several splits, each says what its samples are for.

    Raises:
        BadInput: the library is missing, or it cannot read the folder.
    """
    if not is_installed():
        raise BadInput(explain_missing(str(path)))
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # noqa: BLE001  # the library lets errors of many formats through
        first = next(iter(str(error).splitlines()), "")
        raise BadInput(
            f"{path} cannot be read by datasets ({type(error).__name__}: {first}); save it again",
            told=f"{path} cannot be read by datasets ({type(error).__name__}); save it again",
        ) from None
    return read_given(saved, str(path), labelled, named)


def read_given(saved: Any, where: str, labelled: bool = True, named: Named = USUAL) -> Columns:
    """A `datasets.Dataset` or `DatasetDict` as columns.

    Raises:
        BadInput: a split of it is called neither train, validation nor test, or its columns cannot be used.
    """
    import datasets

    if not isinstance(saved, datasets.DatasetDict):
        return read_hub_columns(saved, where, labelled, named)
    roles = np.concatenate([np.full(len(table), name) for name, table in saved.items()])
    columns = read_hub_columns(datasets.concatenate_datasets(list(saved.values())), where, labelled, named)
    return replace(columns, given_split=read_split(roles, where))


def names_clients(path: Path, named: Named = USUAL) -> bool:
    """Return whether a saved dataset says who each sample belongs to; nothing else of it is read.

    Raises:
        BadInput: the library is missing.
    """
    if not is_installed():
        raise BadInput(explain_missing(str(path)))
    texts = [file.read_text("utf-8") for file in path.rglob("dataset_info.json")]
    names = [name for text in texts for name in json.loads(text).get("features") or {}]
    if named.client is not None:
        return named.client in names
    return any(name.lower() in USUAL_NAMES["client"] for name in names)
