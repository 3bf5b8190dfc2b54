"""One published system per file, or one family; `exchange.py` and `method.py` say what a method is.

Names are imported when first used. `METHODS` is then always full: every module of this folder is imported for it.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.methods.adacfl import AdaCFL as AdaCFL
    from coterie.methods.apfl import APFL as APFL
    from coterie.methods.cfl import CFL as CFL
    from coterie.methods.cfl_gp import CFLGP as CFLGP
    from coterie.methods.clusterfl import ClusterFL as ClusterFL
    from coterie.methods.dcpfl import DCPFL as DCPFL
    from coterie.methods.ditto import Ditto as Ditto
    from coterie.methods.em_groups import EMGroups as EMGroups
    from coterie.methods.fedala import FedALA as FedALA
    from coterie.methods.fedamp import FedAMP as FedAMP
    from coterie.methods.fedavg import FedAvg as FedAvg
    from coterie.methods.fedbabu import FedBABU as FedBABU
    from coterie.methods.fedbn import FedBN as FedBN
    from coterie.methods.fedcps import FedCPS as FedCPS
    from coterie.methods.fedcr import FedCR as FedCR
    from coterie.methods.feddane import FedDANE as FedDANE
    from coterie.methods.feddist import FedDist as FedDist
    from coterie.methods.fedem import FedEM as FedEM
    from coterie.methods.fedgroup import FedGroup as FedGroup
    from coterie.methods.fedpac import FedPAC as FedPAC
    from coterie.methods.fedper import FedPer as FedPer
    from coterie.methods.fedprox import FedProx as FedProx
    from coterie.methods.fedrc import FedRC as FedRC
    from coterie.methods.fedrep import FedRep as FedRep
    from coterie.methods.fedrod import FedRoD as FedRoD
    from coterie.methods.fedsgd import FedSGD as FedSGD
    from coterie.methods.fedsoft import FedSoft as FedSoft
    from coterie.methods.fedsr import FedSR as FedSR
    from coterie.methods.fedtsdp import FedTSDP as FedTSDP
    from coterie.methods.fesem import FeSEM as FeSEM
    from coterie.methods.fesem_ma import FeSEMMA as FeSEMMA
    from coterie.methods.flhc import FLHC as FLHC
    from coterie.methods.flis import FLIS as FLIS
    from coterie.methods.flux import FLUX as FLUX
    from coterie.methods.grouped_layers import GroupedLayers as GroupedLayers
    from coterie.methods.halves import Halves as Halves
    from coterie.methods.ifca import IFCA as IFCA
    from coterie.methods.knn_per import KNNPer as KNNPer
    from coterie.methods.layercfl import LayerCFL as LayerCFL
    from coterie.methods.lbfgs import LBFGS as LBFGS
    from coterie.methods.lg_fedavg import LGFedAvg as LGFedAvg
    from coterie.methods.local_only import LocalOnly as LocalOnly
    from coterie.methods.method import Affinity as Affinity
    from coterie.methods.method import Assignment as Assignment
    from coterie.methods.method import Cohort as Cohort
    from coterie.methods.method import Method as Method
    from coterie.methods.method import Needs as Needs
    from coterie.methods.method import ServerView as ServerView
    from coterie.methods.pacfl import PACFL as PACFL
    from coterie.methods.partial_pooling import PartialPooling as PartialPooling
    from coterie.methods.per_fedavg import PerFedAvg as PerFedAvg
    from coterie.methods.pfedme import PFedMe as PFedMe
    from coterie.methods.pooled_groups import PooledGroups as PooledGroups
    from coterie.methods.registry import METHODS as METHODS
    from coterie.methods.robust_tkm import RobustTKM as RobustTKM
    from coterie.methods.scaffold import Scaffold as Scaffold
    from coterie.methods.stocfl import StoCFL as StoCFL

_OF_METHOD = ("Affinity", "Assignment", "Cohort", "Method", "Needs", "ServerView")


def __getattr__(name: str) -> Any:
    if name in _OF_METHOD:
        return getattr(import_module(f"{__name__}.method"), name)
    if name.islower():  # a module, which the import system then looks for; or a dunder name
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    # A class is that of the module that defines it. The catalogue is in many, and the same in all.
    for values in map(vars, modules):
        if name in values and (name == "METHODS" or getattr(values[name], "__module__", "") == values["__name__"]):
            globals()[name] = values[name]
            return values[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
