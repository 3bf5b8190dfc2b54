"""Folders of images: `client/class/file.png`, `split/class/file.png` or `class/file.png`."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clients.data.read import storage
from coterie.clients.data.read.columns import SPLIT_WORDS, Columns, Named, read_split
from coterie.errors import BadInput, shorten

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
DEPTHS = (1, 2, 3)
"""Parts of an image's path in the folder: the file alone without a class, behind its class, behind a client."""


def _files(folder: Path) -> list[Path]:
    """Find the images of a folder; one that lies too deep is found too, but nothing below it: a disk is large."""
    found = []
    for place, folders, names in os.walk(folder):
        if len(Path(place).relative_to(folder).parts) >= max(DEPTHS):
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith((".", "__MACOSX"))]
        names = [name for name in names if not name.startswith(".")]
        found += [Path(place) / name for name in names if Path(name).suffix.lower() in ENDINGS]
    return sorted(file for file in found if file.is_file())


def names_clients(folder: Path, labelled: bool, named: Named) -> bool:
    """Return whether the images of a folder lie in folders of clients.

    Raises:
        BadInput: a folder without tables or archives is none of images.
    """
    files = _find_images(folder, labelled, named)
    return len(files[0].relative_to(folder).parts) == 3 and not _are_splits(files, folder)


def _find_images(folder: Path, labelled: bool, named: Named) -> list[Path]:
    """Return the images of a folder, of which all lie equally deep.

    Raises:
        BadInput: there are none, they do not, or they cannot be read.
    """
    files = _files(folder)
    if not files:
        names = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
        there = f", only {shorten(names)}" if names else "; it is empty"
        raise BadInput(
            f"data = {str(folder)!r} has no .csv, .npz or .parquet file, and no images{there}; a folder holds "
            "one such file per client, or images as client/class/file.png or class/file.png"
        )
    depths = [len(file.relative_to(folder).parts) for file in files]
    usual = Counter(depths).most_common(1)[0][0]
    possible = usual in DEPTHS[labelled:]
    strays = [file for file, depth in zip(files, depths, strict=True) if depth != usual or not possible]
    if strays:
        raise BadInput(
            f"data = {str(folder)!r}: images must all lie as client/class/file.png or all as class/file.png, not "
            f"{shorten([str(file.relative_to(folder)) for file in strays])}; move these, or take them out of the "
            "folder"
        )
    if find_spec("PIL") is None:
        raise BadInput(f"data = {str(folder)!r} holds images; install pillow to read them")
    if labelled and (wrong := named.refuse(str(folder), "the folders of images already name it")):
        raise BadInput(wrong)
    return files


def _are_splits(files: list[Path], folder: Path) -> bool:
    return all(file.relative_to(folder).parts[0].lower() in SPLIT_WORDS for file in files)


def read_images(folder: Path, labelled: bool, named: Named) -> Columns:
    """Read all images of a folder as `[N, height, width, channels]` uint8, of one channel where none is coloured.

    Raises:
        BadInput: one of them is damaged, or they are not equally large or deep.
    """
    files = _find_images(folder, labelled, named)
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
    coloured = False
    size = _open(files[0], lambda image: image.size)
    for file in files:
        mode, shape = _open(file, lambda image: (image.mode, image.size))
        coloured = coloured or mode not in ("1", "L", "LA")
        if shape != size:
            raise BadInput(
                f"{file} is {shape[0]} x {shape[1]} pixels and {files[0]} {size[0]} x {size[1]}; make all images "
                "equally large"
            )
    found = storage.allocate((len(files), size[1], size[0], 3 if coloured else 1), np.uint8)
    for row, file in enumerate(files):
        pixels = _open(file, lambda image: np.asarray(image.convert("RGB" if coloured else "L")))
        found[row] = pixels.reshape(found.shape[1:])
    return found


def _open(file: Path, look: Callable[[Any], Any]) -> Any:
    """Return what `look` finds of an image.

    Raises:
        BadInput: it cannot be read.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as image:
                return look(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadInput(f"{file} has more pixels than an image may have; make it smaller") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be read as an image ({type(error).__name__}); replace it") from None
