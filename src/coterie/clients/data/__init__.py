"""Who the clients are and what each holds."""

from coterie.clients.data.agree.description import Description, describe
from coterie.clients.data.divide.partition import SPLITS
from coterie.clients.data.divide.split import check_split, parse_split
from coterie.clients.data.federation import Federation, build, check_build
from coterie.clients.data.read.datasets import DATASETS, Dataset, load

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
    "parse_split",
]
