"""How far apart clients are: distances, coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.models.layout import Part

Scaling = Literal["common", "layer", "whole"]
"""What maps models to 0 ... 1: one range for all models, each layer's own range, or each whole model's own."""

_Range = tuple[Tensor, Tensor]
"""What each row of a matrix starts at, and how far it ranges `[n, 1]`."""

_TILE = 1 << 10
"""Columns, and rows, in a product of tiles."""

_COLUMNS = 1 << 13
_NUMBERS = 1 << 16
"""Columns, and numbers in all, of differences at a time: they stay in a core's own cache."""


def squared_distances(models: Tensor, centres: Tensor) -> NDArray[np.float64]:
    """`||w_i - W_k||^2` for models `[n, P]` and centres `[K, P]`, as `[n, K]`.

    Differences are taken in float64, and summed client by client, so that one client's distances do not depend,
    to the bit, on who else is in the matrix.
    """
    found = torch.zeros(len(models), len(centres), dtype=torch.float64)
    width = max(1, min(_COLUMNS, models.shape[1]))
    block = _NUMBERS // width
    for start in range(0, models.shape[1], width):
        columns = slice(start, start + width)
        wide = centres[:, columns].double()
        apart = torch.empty(block, wide.shape[1], dtype=torch.float64)
        for at in range(0, len(models), block):
            some = models[at : at + block, columns].double()
            for k, centre in enumerate(wide):
                difference = torch.sub(some, centre, out=apart[: len(some)])
                found[at : at + block, k] += difference.square_().sum(1)
    return found.numpy()


def gram(tiles: Iterable[Tensor], n: int) -> NDArray[np.float64]:
    """The sum of `tile @ tile.T` over tiles `[n, columns]`, as `[n, n]`.

    Products are taken in the tiles' own precision, above the diagonal alone, and added up in float64.
    """
    found = np.zeros((n, n))
    for tile in tiles:
        rows = tile.numpy()
        for i in range(0, n, _TILE):
            # NumPy takes half the time for the product of a matrix and its own transpose.
            found[i : i + _TILE, i:] += rows[i : i + _TILE] @ rows[i:].T
    for i in range(0, n, _TILE):
        block = slice(i, i + _TILE)
        found[i + _TILE :, block] = found[block, i + _TILE :].T
        found[block, block] = np.triu(found[block, block]) + np.triu(found[block, block], 1).T
    return found


def _tiles(models: Tensor) -> Iterator[Tensor]:
    """Tiles of columns of models `[n, P]` in float64."""
    for start in range(0, models.shape[1], _TILE):
        yield models[:, start : start + _TILE].double()


def _centred_gram(models: Tensor) -> NDArray[np.float64]:
    """Products `[n, n]` of models `[n, P]` less their mean.

    In float64: tiles in float32 would take two thirds of the time, and be wrong by up to 1e-7 of the mean squared
    distance to the mean.
    """
    return gram((tile - tile.mean(0) for tile in _tiles(models)), len(models))


def gram_coordinates(models: Tensor) -> NDArray[np.float64]:
    """Coordinates `[n, min(n, P)]` with the same pairwise distances as the models `[n, P]`.

    From the eigenvectors of the centred Gram matrix; K-means on them takes the same steps as on the models, at
    a cost that no longer depends on P. Where there are more models than parameters, from those of the scatter
    matrix `[P, P]`, which are the same axes.
    """
    n, size = models.shape
    if n > size:
        centre = models.mean(0, dtype=torch.float64)
        blocks = (models[at : at + _TILE] - centre for at in range(0, n, _TILE))
        _, vectors = np.linalg.eigh(gram((block.T for block in blocks), size))
        axes, coordinates = np.ascontiguousarray(vectors[:, ::-1]), np.empty((n, size))
        for at in range(0, n, _TILE):
            coordinates[at : at + _TILE] = (models[at : at + _TILE] - centre).numpy() @ axes
    else:
        values, vectors = np.linalg.eigh(_centred_gram(models))
        coordinates = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0))
    # An eigenvector's sign is arbitrary; fixed, so that every machine draws the same picture.
    signs = np.sign(coordinates[np.abs(coordinates).argmax(0), np.arange(coordinates.shape[1])])
    return np.asarray(coordinates * np.where(signs == 0, 1.0, signs))


def model_distances(models: Tensor) -> NDArray[np.float64]:
    """Euclidean distances `[n, n]` between models `[n, P]`, from products of what sets them apart from their mean.

    A squared distance is wrong by some 1e-14 of the longest squared distance to the mean, so that of two models
    that are nearly the same only the order of magnitude is right.
    """
    return distances_from_products(_centred_gram(models))


def distances_from_products(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean distances `[n, n]` between points of which the inner products `[n, n]` are known."""
    squares = products.diagonal()
    found = squares[:, None] + squares
    found -= 2 * products
    np.fill_diagonal(found, 0.0)
    return np.sqrt(np.maximum(found, 0.0, out=found), out=found)


def pairwise_distances(
    points: NDArray[np.float64], metric: Literal["euclidean", "cityblock"] = "euclidean"
) -> NDArray[np.float64]:
    """Distances `[n, n]` between points `[n, d]`, Euclidean ones or sums of absolute differences."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(points, points, metric))


def cosines(updates: Tensor) -> NDArray[np.float64]:
    """Cosine similarities `[n, n]` of updates `[n, P]`; 0 where an update is 0 (docs/methods/layercfl.md)."""
    return cosines_from_products(inner_products(updates))


def cosines_from_products(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosine similarities `[n, n]` between vectors of which the inner products `[n, n]` are known."""
    norms = np.sqrt(products.diagonal())
    norms[norms == 0] = 1.0
    found = products / norms[:, None]
    found /= norms
    return np.clip(found, -1.0, 1.0, out=found)


def singular_coordinates(rows: Tensor, count: int) -> NDArray[np.float64]:
    """Return the coordinates `[n, min(count, n)]` of rows `[n, P]` along their leading singular directions.

    That is the first columns of `U S`, where `U S V^T` are the rows, which are not centred. They have six digits of
    the largest, so that equal rows have equal coordinates.
    """
    values, vectors = np.linalg.eigh(inner_products(rows))
    found = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1][:, :count]
    scale = np.abs(found).max(initial=0.0) or 1.0
    return np.asarray(np.round(found / scale, 6) * scale)


def decomposed_cosines(updates: Tensor, count: int) -> NDArray[np.float64]:
    """Return the cosines `[n, min(count, n)]` of updates `[n, P]` with their leading singular directions.

    The distance of two rows is EDC (docs/methods/fedgroup.md). Of an update that is 0 they are 0.
    """
    lengths = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)[:, None]
    found = singular_coordinates(updates, count) / torch.where(lengths == 0, 1.0, lengths).numpy()
    return np.asarray(found, np.float64)


def inner_products(rows: Tensor) -> NDArray[np.float64]:
    """Inner products `[n, n]` of rows `[n, P]`, in float64."""
    return gram(_tiles(rows), len(rows))


def _scale(models: Sequence[Tensor], part: Part, common: bool = False) -> list[_Range]:
    """What each row of `part` of each matrix `[n, P]` starts at, and how far it ranges, `[n, 1]` in float64.

    With `common`, of all rows together. What has no range, such as a constant model, is said to range over 1.
    """
    ends = []
    for rows in models:
        # `aminmax` takes ten times as long.
        lows, highs = ([f(rows[:, a:b], 1) for a, b in part.ranges] for f in (torch.amin, torch.amax))
        ends.append([torch.stack(lows).amin(0).double()[:, None], torch.stack(highs).amax(0).double()[:, None]])
    if common:
        low, high = min(low.amin() for low, _ in ends), max(high.amax() for _, high in ends)
        ends = [[low.expand_as(own), high.expand_as(own)] for own, _ in ends]
    return [(low, torch.where(high > low, high - low, torch.ones_like(high))) for low, high in ends]


def _scaled(models: Sequence[Tensor], part: Part, scale: Sequence[_Range]) -> Iterator[list[Tensor]]:
    """Tiles of columns of `part` of each matrix `[n, P]`, its rows mapped by `scale`, in float64."""
    width = max(16, min(512, (1 << 22) // max(1, *map(len, models))))
    for start, stop in part.ranges:
        for at in range(start, stop, width):
            tiles = (rows[:, at : min(at + width, stop)] for rows in models)
            yield [(tile - low).div_(span) for tile, (low, span) in zip(tiles, scale, strict=True)]


def scaled_l1(models: Tensor, *, parts: Sequence[Part] | None = None, common: bool = False) -> NDArray[np.float64]:
    """Mean absolute differences `[n, n]` between models `[n, P]`, each scaled to 0 ... 1 by its own range.

    A constant model counts as 0 everywhere (docs/methods/dcpfl.md).

    Args:
        models: the rows.
        parts: what counts, each part scaled by its own range there; without them, everything together.
        common: scale all models by the range that they have together.
    """
    from scipy.spatial.distance import squareform

    parts = parts or [Part.of([(0, models.shape[1])])]
    size, n = sum(part.size for part in parts), len(models)
    pairs = np.zeros(n * (n - 1) // 2)
    for part in parts:
        for (rows,) in _scaled([models], part, _scale([models], part, common)):
            pairs += torch.pdist(rows, p=1).numpy()
    return np.asarray(squareform(pairs / size)) if n > 1 else np.zeros((n, n))


def layer_discrepancies(
    models: Tensor,
    groups: NDArray[np.int64],
    centres: Tensor,
    parts: Sequence[Part],
    scale: Scaling = "layer",
) -> NDArray[np.float64]:
    """How much members differ from their group's model, layer by layer: `[K, L]` (DC-PFL, Eq. 5).

    The mean over members of the mean absolute difference. NaN for a group without members.

    Args:
        models: `[r, P]`, whole models.
        groups: the group of each row `[r]`.
        centres: the groups' models `[K, P]`.
        parts: the L layers.
        scale: what maps a model to 0 ... 1: the one range of all models and centres, the range of each model, or
            that of each of its layers.
    """
    whole = Part.of(span for part in parts for span in part.ranges)
    one = [] if scale == "layer" else _scale([models, centres], whole, scale == "common")
    found, centre_of = np.full((len(centres), len(parts)), np.nan), torch.from_numpy(groups)
    present, sizes = np.unique(groups, return_counts=True)
    for layer, part in enumerate(parts):
        sums = torch.zeros(len(models), dtype=torch.float64)
        scaling = _scale([models, centres], part) if scale == "layer" else one
        for own, centre in _scaled([models, centres], part, scaling):
            sums += own.sub_(centre[centre_of]).abs_().sum(1)
        for group, members in zip(present, sizes, strict=True):
            found[group, layer] = float(sums[centre_of == int(group)].sum()) / (members * part.size)
    return found


def gap(similarities: NDArray[np.float64], groups: NDArray[np.int64]) -> float:
    """The least similarity `[n, n]` inside groups `[n]` minus the greatest between them (LayerCFL, Gap1).

    Above 0 exactly if every pair of one group is more alike than every pair of two. Of negated distances it is
    Gap2. NaN where no two clients share a group, or all share one.
    """
    alike = groups[:, None] == groups
    same = alike & ~np.eye(len(groups), dtype=bool)
    if not same.any() or alike.all():
        return float("nan")
    return float(similarities[same].min() - similarities[~alike].max())


def quartiles(distances: NDArray[np.float64]) -> dict[str, float]:
    """Smallest, quartiles and largest of the distances `[n, n]` of different clients; nothing for one client."""
    pairs = distances[np.triu_indices(len(distances), 1)]
    if not len(pairs):
        return {}
    names = ("min", "q1", "median", "q3", "max")
    return dict(zip(names, np.quantile(pairs, (0, 0.25, 0.5, 0.75, 1)).tolist(), strict=True))
