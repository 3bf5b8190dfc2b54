"""One published system per file. Importing this package fills `METHODS`."""

from coterie.methods.catalog import METHODS
from coterie.methods.fedavg import FedAvg
from coterie.methods.fesem import FeSEM
from coterie.methods.ifca import IFCA
from coterie.methods.local_only import LocalOnly
from coterie.methods.method import Affinity, Cohort, Method, Needs, People, Serving

__all__ = [
    "IFCA",
    "METHODS",
    "Affinity",
    "Cohort",
    "FeSEM",
    "FedAvg",
    "LocalOnly",
    "Method",
    "Needs",
    "People",
    "Serving",
]
