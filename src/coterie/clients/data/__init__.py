"""Who the clients are and what each holds."""

from coterie.clients.data.agree.description import describe
from coterie.clients.data.divide.partition import SPLITS
from coterie.clients.data.divide.split import check_split, parse_split
from coterie.clients.data.federation import Federation, build
from coterie.clients.data.read.datasets import DATASETS, Dataset, load

__all__ = [
    "DATASETS",
    "SPLITS",
    "Dataset",
    "Federation",
    "build",
    "check_split",
    "describe",
    "load",
    "parse_split",
]
