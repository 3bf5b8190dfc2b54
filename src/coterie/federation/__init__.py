"""Who the clients are and what each holds."""

from coterie.federation.datasets import DATASETS, Dataset, load
from coterie.federation.description import Description, describe
from coterie.federation.federation import Federation, build, check_build
from coterie.federation.partition import SPLITS
from coterie.federation.split import check_split, parse

__all__ = [
    "DATASETS",
    "SPLITS",
    "Dataset",
    "Description",
    "Federation",
    "build",
    "check_build",
    "check_split",
    "describe",
    "load",
    "parse",
]
