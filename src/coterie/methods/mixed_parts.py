"""The parts that `mixed` is put together from: their names, the settings, and what does not go together.

Every part is a function of the packages `grouping` or `clients`; the published methods are made of the same ones.
The columns are those of docs/methods/mixed.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from coterie.errors import BadInput
from coterie.grouping.cluster import Eps
from coterie.grouping.share_map import Share, ShareMap
from coterie.methods.catalog import Grid
from coterie.methods.k_models import warn_of_sketches
from coterie.methods.method import ServerView, find_idle_settings
from coterie.models.layout import Layout

PARTS: dict[str, dict[str, str]] = {
    "signal": {
        "update": "how training moved the shared layers: w - W (CFL, LayerCFL)",
        "weights": "the shared layers' weights (FeSEM, DC-PFL, AdaCFL)",
        "outputs": "softmax outputs on public samples (FedTSDP, FLIS)",
        "losses": "the loss of every group's model on own data, seen by the client alone (IFCA, FedCPS)",
    },
    "layers": {
        "all": "every layer counts",
        "auto": "the layer that parts the clients most clearly and steadily (LayerCFL)",
        "LAYERS": "conv, dense, first:2, last:1, fc1,fc2, feature_skew, label_skew",
    },
    "distance": {
        "auto": "cosine for updates, l2 for weights and K-means, js for outputs",
        "cosine": "1 - cosine (CFL)",
        "l2": "Euclidean (FeSEM)",
        "l1": "mean absolute difference after scaling each to 0 ... 1 (DC-PFL)",
        "js": "Jensen-Shannon divergence of outputs (FedTSDP)",
    },
    "cluster": {
        "bipartition": "each group in two by complete linkage (CFL)",
        "dbscan": "who is within eps is together (FedTSDP)",
        "upgma": "average linkage cut at K groups, or at a share of its height (DC-PFL)",
        "kmeans": "K-means, anew each time",
        "nearest": "K-means first, then the nearest group's model (FeSEM)",
        "choose": "clients pick the model with the smallest loss (IFCA)",
        "none": "one group",
    },
    "trigger": {
        "every": "in every round from `after` on",
        "once": "in the first possible round from `after` on, and never again",
        "hopkins": "when the signal looks clusterable (FedTSDP)",
        "stationary": "when a group's mean update is short and some client's is long (CFL)",
        "rapid_decrease": "when the loss stops falling fast (DC-PFL)",
    },
    "accept": {
        "always": "whatever was found",
        "separation": "if the two sides are far enough apart, sqrt((1 - a) / 2) > gamma_max (CFL)",
        "trial": "if the new groups' models have the lower loss after a round trained with both (DC-PFL)",
    },
    "share": {
        "group": "all layers in groups",
        "global": "all layers over everybody; groups are only found",
        "private LAYERS": "these stay with the client, the others are the group's (FedPer)",
        "common LAYERS": "these are everybody's, the others the group's (FedCPS)",
        "moving": "the group's up to a boundary that moves towards the input at each search (FedTSDP)",
        "periodic": "the group's, layers that hardly differ only every alpha rounds (DC-PFL)",
    },
    "aggregate": {
        "mean": "weighted mean",
        "trimmed": "coordinate-wise trimmed mean, all clients alike (Robust-TKM)",
        "reptile": "a step of kappa towards the mean (FedDist)",
    },
    "local": {
        "sgd": "the solver alone",
        "proximal": "with a pull of mu to where training started (FedProx, FeSEM)",
    },
}
"""Every part by column and name, in a line each; parentheses name a method that is made of it."""

Signal = Literal["update", "weights", "outputs", "losses"]
Distance = Literal["auto", "cosine", "l2", "l1", "js"]
Cluster = Literal["bipartition", "dbscan", "upgma", "kmeans", "nearest", "choose", "none"]
Trigger = Literal["every", "once", "hopkins", "stationary", "rapid_decrease"]
Accept = Literal["always", "separation", "trial"]
Aggregate = Literal["mean", "trimmed", "reptile"]
Weights = Literal["samples", "uniform"]
Local = Literal["sgd", "proximal"]

COMPARED_SIGNALS = {
    "cosine": ("update", "weights"),
    "l2": ("update", "weights"),
    "l1": ("update", "weights"),
    "js": ("outputs",),
}
"""For each distance the signals that it compares."""


@dataclass(frozen=True)
class Parts:
    """One part for each column, and its settings.

    Raises:
        BadInput: some settings cannot be put together, or were given and count for nothing.
    """

    signal: Annotated[Signal, Field(description="what is observed of clients")] = "update"
    layers: Annotated[str, Field(description="layers that are looked at: all, auto, conv, last:1, fc1, …")] = "all"
    distance: Annotated[Distance, Field(description="how far apart two clients are")] = "auto"
    cluster: Annotated[Cluster, Field(description="how groups are found")] = "bipartition"
    clusters: Annotated[int, Field(ge=1, description="K: upgma, kmeans, nearest, choose"), Grid(2, 3, 4)] = 4
    eps: Annotated[
        Eps | Literal["auto"], Field(description="nearness: a number, inf, or auto: a test (dbscan)")
    ] = "auto"
    cut: Annotated[
        float | None, Field(ge=0, le=1, description="share of the tree's height, instead of K (upgma)")
    ] = None
    trigger: Annotated[Trigger, Field(description="when groups are looked for")] = "stationary"
    after: Annotated[int, Field(ge=1, description="the first round in which they are"), Grid(1, 5, 10)] = 5
    threshold: Annotated[
        float,
        Field(ge=0, le=1, description="Hopkins statistic: outputs 0.65, updates 0.55 (hopkins)"),
        Grid(0.55, 0.6, 0.65, 0.7),
    ] = 0.65
    eps1_frac: Annotated[
        float,
        Field(ge=0, description="short is below this share of the longest mean update (stationary)"),
        Grid(0.2, 0.5, 1.0),
    ] = 1.0
    ratio: Annotated[
        float, Field(ge=0, description="long is so many times short (stationary)"), Grid(1.0, 2.0, 4.0, 10.0)
    ] = 2.0
    accept: Annotated[Accept, Field(description="which groups count, once found")] = "always"
    gamma_max: Annotated[
        float, Field(ge=0, le=1, description="least separation of two sides (separation)"), Grid(0.13, 0.25, 0.5)
    ] = 0.5
    wait: Annotated[int, Field(ge=0, description="rounds without a search after a refusal"), Grid(3, 6, 10)] = 6
    share: Annotated[
        Share, Field(description="group, global, private LAYERS, common LAYERS, moving or periodic")
    ] = "group"
    psi: Annotated[
        float,
        Field(gt=0, le=1, description="factor on the shared layers at each search (moving)"),
        Grid(0.9, 0.95, 0.98),
    ] = 0.98
    alpha: Annotated[
        int, Field(ge=1, description="period of layers that hardly differ (periodic)"), Grid(2, 3, 5)
    ] = 3
    aggregate: Annotated[Aggregate, Field(description="what is made of the members' layers")] = "mean"
    weights: Annotated[Weights, Field(description="a client's weight in the mean")] = "samples"
    trim: Annotated[
        float, Field(ge=0, lt=0.5, description="share left out on each side (trimmed)"), Grid(0.05, 0.1, 0.2)
    ] = 0.1
    kappa: Annotated[
        float, Field(gt=0, le=1, description="length of the step to the mean (reptile)"), Grid(0.4, 0.6, 0.8, 1.0)
    ] = 0.6
    local: Annotated[Local, Field(description="how a client trains")] = "sgd"
    mu: Annotated[
        float, Field(ge=0, description="strength of the pull (proximal)"), Grid(0.001, 0.01, 0.1, 1.0)
    ] = 0.1

    def __post_init__(self) -> None:
        clashes = [f"method.{key} = {getattr(self, key)!r} {why}" for key, why in self._find_clashes()]
        found = clashes + self._find_idle()
        if found:
            raise BadInput(found)

    def warnings(self, server: ServerView, rounds: int) -> list[str]:
        """Warn of a run too short to look for groups, and of K-means on sketches."""
        late = self.searches and self.after > rounds
        found = [f"no groups are looked for before round {self.after} (after); this run has {rounds}"] * late
        return found + (warn_of_sketches(server) if self.cluster in ("kmeans", "nearest") else [])

    def amounts_to(self, layout: Layout, rounds: int) -> str:
        return "no search for groups" if self.searches and self.after > rounds else ""

    @property
    def is_given_groups(self) -> bool:
        return self.cluster in ("kmeans", "nearest", "choose") or (self.cluster == "upgma" and self.cut is None)

    @property
    def searches(self) -> bool:
        """Whether the server looks for groups."""
        return self.cluster not in ("none", "choose")

    @property
    def map(self) -> ShareMap:
        """Who shares which layers."""
        return ShareMap.read(self.share)

    @property
    def measure(self) -> str:
        """The distance; in place of `auto` the one that fits the signal."""
        if self.distance != "auto":
            return self.distance
        if self.cluster in ("kmeans", "nearest") and self.signal != "outputs":
            return "l2"
        return {"update": "cosine", "weights": "l2", "outputs": "js"}.get(self.signal, "l2")

    @property
    def takes_k(self) -> bool:
        """Whether `clusters` counts."""
        return self.cluster in ("kmeans", "nearest", "choose") or (self.cluster == "upgma" and self.cut is None)

    def _find_clashes(self) -> list[tuple[str, str]]:
        """Return the settings that cannot be put together, each with the reason (docs/methods/mixed.md)."""
        if self.cluster == "none":
            never = "moves when clients are regrouped, and cluster = 'none' never does; take private LAYERS"
            return [("share", never)] if self.map.kind == "moving" else []
        if self.cluster == "choose":
            return self._find_clashes_of_choosing()
        found = []
        if self.signal == "losses":
            return [("signal", "is what clients choose by, and nothing else; it needs cluster = 'choose'")]
        if self.signal not in COMPARED_SIGNALS[self.measure] and self.cluster != "nearest":
            fitting = ", ".join(name for name, signals in COMPARED_SIGNALS.items() if self.signal in signals)
            found.append(("distance", f"cannot compare signal = {self.signal!r}; take auto, {fitting}"))
        if self.signal == "outputs" and self.layers != "all":
            found.append(("layers", "has no meaning with signal = 'outputs', of whole models; it must be 'all'"))
        if self.cluster == "kmeans" and self.measure != "l2":
            found.append(("cluster", "needs points; take signal = 'update' or 'weights' with distance = 'l2'"))
        if self.cluster == "nearest" and (self.signal != "weights" or self.measure != "l2"):
            needs = "it needs signal = 'weights' and distance = 'l2'"
            found.append(("cluster", f"compares clients with the groups' models; {needs}"))
        cosines = self.cluster == "bipartition" and self.measure == "cosine"
        if self.layers == "auto" and (self.map.keeps or not cosines):
            found.append(
                (
                    "layers",
                    "watches bipartitions of cosines over all layers; it needs cluster = 'bipartition', distance = "
                    "'cosine' and a share map in which clients keep nothing: group, global, common LAYERS",
                )
            )
        if self.accept == "separation" and not cosines:
            found.append(
                ("accept", "tests cosines across two sides; it needs cluster = 'bipartition', distance = 'cosine'")
            )
        if self.cluster == "nearest" and self.map.kind == "global":
            found.append(("cluster", "needs groups whose models differ; with share = 'global' they are all one"))
        if self.accept == "trial" and self.local == "proximal":
            found.append(("local", "is not there in a trial; with accept = 'trial' it must be 'sgd'"))
        if self.accept == "trial" and self.map.kind != "group":
            found.append(("accept", "trains two whole models side by side; it needs share = 'group'"))
        return found

    def _find_clashes_of_choosing(self) -> list[tuple[str, str]]:
        """Return what does not go with clients that choose."""
        found = []
        if self.signal != "losses":
            found.append(("signal", "does not go with cluster = 'choose', by losses; it must be 'losses'"))
        if self.trigger != "every":
            found.append(("trigger", "has no meaning with cluster = 'choose'; it must be 'every'"))
        if self.accept != "always":
            found.append(("accept", "has no meaning with cluster = 'choose'; it must be 'always'"))
        if self.map.kind not in ("group", "common"):
            found.append(("share", "does not go with cluster = 'choose'; it must be group or common LAYERS"))
        if self.aggregate != "mean":
            found.append(("aggregate", "is not there for cluster = 'choose'; it must be 'mean'"))
        return found

    def _find_idle(self) -> list[str]:
        """Return a sentence for each setting that was given and counts for nothing."""
        grouped, server = self.cluster != "none", self.searches
        counts = {
            "mu": (self.local == "proximal", "local = 'proximal'"),
            "trim": (self.aggregate == "trimmed", "aggregate = 'trimmed'"),
            "kappa": (self.aggregate == "reptile", "aggregate = 'reptile'"),
            "clusters": (self.takes_k, "a clusterer that takes K: upgma without cut, kmeans, nearest, choose"),
            "cut": (self.cluster == "upgma", "cluster = 'upgma'"),
            "eps": (self.cluster == "dbscan", "cluster = 'dbscan'"),
            "threshold": (server and self.trigger == "hopkins", "trigger = 'hopkins'"),
            "eps1_frac": (server and self.trigger == "stationary", "trigger = 'stationary'"),
            "ratio": (server and self.trigger == "stationary", "trigger = 'stationary'"),
            "gamma_max": (self.accept == "separation", "accept = 'separation'"),
            "wait": (self.accept != "always", "accept = 'separation' or 'trial'"),
            "psi": (self.map.kind == "moving", "share = 'moving'"),
            "alpha": (self.map.kind == "periodic", "share = 'periodic'"),
            "signal": (grouped, "a cluster that is not 'none'"),
            "layers": (server, "groups that are found on the server"),
            "distance": (server, "groups that are found on the server"),
            "trigger": (grouped, "a cluster that is not 'none'"),
            "after": (server, "groups that are found on the server"),
            "accept": (grouped, "a cluster that is not 'none'"),
        }
        return find_idle_settings(self, counts)
