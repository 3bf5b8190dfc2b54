"""Folders of images: `client/class/file.png`, `split/class/file.png` or `class/file.png`."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clients.data.read import storage
from coterie.clients.data.read.columns import SPLIT_WORDS, Columns, read_split
from coterie.errors import BadInput

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
DEPTHS = (1, 2, 3)
"""Parts of an image's path in the folder: the file alone without a class, behind its class, behind a client."""


def _files(folder: Path) -> list[Path]:
    """Find the images of a folder; one that lies too deep is found too, but nothing below it: a disk is large."""
    found = []
    for place, folders, names in os.walk(folder):
        if len(Path(place).relative_to(folder).parts) >= max(DEPTHS):
            folders.clear()
        found += [Path(place) / name for name in names if Path(name).suffix.lower() in ENDINGS]
    return sorted(file for file in found if file.is_file())


def _depths(folder: Path, files: list[Path]) -> set[int]:
    return {len(file.relative_to(folder).parts) for file in files}


def check_folder(folder: Path, labelled: bool) -> list[str]:
    """Return why a folder without tables or archives is none of images, from names alone."""
    files = _files(folder)
    if not files:
        return [
            f"data = {str(folder)!r} has no .csv, .npz or .parquet file, and no images; a folder holds one such "
            "file per client, or images as client/class/file.png or class/file.png"
        ]
    depths = _depths(folder, files)
    if len(depths) > 1 or not depths <= set(DEPTHS[labelled:]):
        odd = files[0].relative_to(folder)
        return [
            f"data = {str(folder)!r}: images must all lie as client/class/file.png or all as class/file.png; the "
            f"first is {odd}"
        ]
    if find_spec("PIL") is None:
        return [f"data = {str(folder)!r} holds images; install pillow to read them"]
    return []


def names_clients(folder: Path) -> bool:
    """Return whether the images of a folder lie in folders of clients."""
    files = _files(folder)
    return max(_depths(folder, files)) == 3 and not _are_splits(files, folder)


def _are_splits(files: list[Path], folder: Path) -> bool:
    return all(file.relative_to(folder).parts[0].lower() in SPLIT_WORDS for file in files)


def read_images(folder: Path, labelled: bool) -> Columns:
    """Read all images of a folder as `[N, height, width, channels]` uint8, of one channel where none is coloured.

    Raises:
        BadInput: one of them is damaged, or they are not equally large.
    """
    if problems := check_folder(folder, labelled):
        raise BadInput(problems)
    files = _files(folder)
    places = np.array([file.relative_to(folder).parts for file in files])
    above = places.shape[1] - 1
    outer = places[:, 0] if above == 2 else None
    splits = outer is not None and _are_splits(files, folder)
    return Columns(
        str(folder),
        _pixels(files),
        places[:, above - 1] if above else None,
        None if splits else outer,
        feature_key="image",
        given_split=read_split(outer, str(folder)) if splits else None,
    )


def _pixels(files: list[Path]) -> NDArray[np.uint8]:
    from PIL import Image

    coloured, size = False, None
    for file in files:
        try:
            with Image.open(file) as image:
                coloured = coloured or image.mode not in ("1", "L", "LA")
                shape = image.size
        except OSError as error:
            raise BadInput(f"{file} is no image that can be read ({type(error).__name__}); replace it") from None
        if size is None:
            size = shape
        elif shape != size:
            raise BadInput(
                f"{file} is {shape[0]} x {shape[1]} pixels and {files[0]} {size[0]} x {size[1]}; make all images "
                "equally large"
            )
    assert size is not None
    channels = 3 if coloured else 1
    found = storage.allocate((len(files), size[1], size[0], channels), np.uint8)
    for row, file in enumerate(files):
        found[row] = _decode(file, "RGB" if coloured else "L").reshape(found.shape[1:])
    return found


def _decode(file: Path, mode: str) -> NDArray[Any]:
    from PIL import Image

    try:
        with Image.open(file) as image:
            return np.asarray(image.convert(mode))
    except OSError as error:
        raise BadInput(f"{file} is no image that can be read ({type(error).__name__}); replace it") from None
