"""The hooks of a run, and the order in which they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.runs.hooks.attack import Hostile
from coterie.runs.hooks.divergence import Divergence
from coterie.runs.hooks.early_stopping import EarlyStopping
from coterie.runs.hooks.edge_servers import EdgeServers
from coterie.runs.hooks.group_traits import DescribeGroups
from coterie.runs.hooks.hook import Hook
from coterie.runs.hooks.intervals import Intervals
from coterie.runs.hooks.local_models import LocalModels
from coterie.runs.hooks.mixed_groups import MixedGroups
from coterie.runs.hooks.picture import ModelSketches
from coterie.runs.hooks.privacy import KeepPromise
from coterie.runs.hooks.quarantine import CountFailures
from coterie.runs.hooks.screening import Screening
from coterie.runs.hooks.server_optimizer import ServerOptimizer
from coterie.runs.hooks.unseen_clients import UnseenClients

if TYPE_CHECKING:
    from coterie.runs.session import Session

ORDER: tuple[type[Hook], ...] = (
    EdgeServers,  # of what crosses, before anything is done with it
    KeepPromise,
    ServerOptimizer,  # of sums with their noise
    Hostile,
    Screening,  # of what hostile clients send, as of anything
    CountFailures,  # also those of clients whose updates were screened out
    EarlyStopping,  # before anybody looks at the state, which may become that of an earlier round
    LocalModels,  # of what counts
    DescribeGroups,
    ModelSketches,
    Divergence,
    MixedGroups,
    UnseenClients,
    Intervals,
)


def make_hooks(run: Session) -> list[Hook]:
    """Return the hooks that a run has."""
    return [hook(run) for hook in ORDER if hook.is_on(run)]
