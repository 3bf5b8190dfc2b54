"""Which parts cannot be put together in a mixed method, and why."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.methods.parts import Parts

_COMPARED = {
    "cosine": ("update", "weights"),
    "l2": ("update", "weights"),
    "l1": ("update", "weights"),
    "js": ("outputs",),
}
"""The signals that a distance is between."""


def refusals(parts: Parts) -> list[tuple[str, str]]:
    """Which settings cannot be put together, and why."""
    if parts.cluster == "none":
        never = "moves when clients are regrouped, and cluster = 'none' never does; take private LAYERS"
        return [("share", never)] if parts.map.kind == "moving" else []
    if parts.cluster == "choose":
        return _of_choosing(parts)
    found = []
    if parts.signal == "losses":
        return [("signal", "is what clients choose by, and nothing else; it needs cluster = 'choose'")]
    if parts.signal not in _COMPARED[parts.measure] and parts.cluster != "nearest":
        fitting = ", ".join(name for name, signals in _COMPARED.items() if parts.signal in signals)
        found.append(("distance", f"cannot compare signal = {parts.signal!r}; take auto, {fitting}"))
    if parts.signal == "outputs" and parts.layers != "all":
        found.append(("layers", "has no meaning with signal = 'outputs', of whole models; it must be 'all'"))
    if parts.cluster == "kmeans" and parts.measure != "l2":
        found.append(("cluster", "needs points; take signal = 'update' or 'weights' with distance = 'l2'"))
    if parts.cluster == "nearest" and (parts.signal != "weights" or parts.measure != "l2"):
        needs = "it needs signal = 'weights' and distance = 'l2'"
        found.append(("cluster", f"compares clients with the groups' models; {needs}"))
    cosines = parts.cluster == "bipartition" and parts.measure == "cosine"
    if parts.layers == "auto" and (parts.map.keeps or not cosines):
        found.append(
            (
                "layers",
                "watches bipartitions of cosines over all layers; it needs cluster = 'bipartition', distance = "
                "'cosine' and a share map in which clients keep nothing: group, global, common LAYERS",
            )
        )
    if parts.accept == "separation" and not cosines:
        found.append(
            ("accept", "tests cosines across two sides; it needs cluster = 'bipartition', distance = 'cosine'")
        )
    if parts.cluster == "nearest" and parts.map.kind == "global":
        found.append(("cluster", "needs groups whose models differ; with share = 'global' they are all one"))
    if parts.accept == "trial" and parts.local == "proximal":
        found.append(("local", "is not there in a trial; with accept = 'trial' it must be 'sgd'"))
    if parts.accept == "trial" and parts.map.kind != "group":
        found.append(("accept", "trains two whole models side by side; it needs share = 'group'"))
    return found


def _of_choosing(parts: Parts) -> list[tuple[str, str]]:
    found = []
    if parts.signal != "losses":
        found.append(("signal", "does not go with cluster = 'choose', by losses; it must be 'losses'"))
    if parts.trigger != "every":
        found.append(("trigger", "has no meaning with cluster = 'choose'; it must be 'every'"))
    if parts.accept != "always":
        found.append(("accept", "has no meaning with cluster = 'choose'; it must be 'always'"))
    if parts.map.kind not in ("group", "common"):
        found.append(("share", "does not go with cluster = 'choose'; it must be group or common LAYERS"))
    if parts.aggregate != "mean":
        found.append(("aggregate", "is not there for cluster = 'choose'; it must be 'mean'"))
    return found


def idle(parts: Parts) -> list[tuple[str, str]]:
    """Which settings were given another value than their default and count for nothing."""
    grouped, server = parts.cluster != "none", parts.cluster not in ("none", "choose")
    counts = {
        "mu": (parts.local == "proximal", "local = 'proximal'"),
        "trim": (parts.aggregate == "trimmed", "aggregate = 'trimmed'"),
        "kappa": (parts.aggregate == "reptile", "aggregate = 'reptile'"),
        "clusters": (parts.takes_k, "a clusterer that takes K: upgma without cut, kmeans, nearest, choose"),
        "cut": (parts.cluster == "upgma", "cluster = 'upgma'"),
        "eps": (parts.cluster == "dbscan", "cluster = 'dbscan'"),
        "threshold": (server and parts.trigger == "hopkins", "trigger = 'hopkins'"),
        "eps1_frac": (server and parts.trigger == "stationary", "trigger = 'stationary'"),
        "ratio": (server and parts.trigger == "stationary", "trigger = 'stationary'"),
        "gamma_max": (parts.accept == "separation", "accept = 'separation'"),
        "wait": (parts.accept != "always", "accept = 'separation' or 'trial'"),
        "psi": (parts.map.kind == "moving", "share = 'moving'"),
        "alpha": (parts.map.kind == "periodic", "share = 'periodic'"),
        "signal": (grouped, "a cluster that is not 'none'"),
        "layers": (server, "groups that are found on the server"),
        "distance": (server, "groups that are found on the server"),
        "trigger": (grouped, "a cluster that is not 'none'"),
        "after": (server, "groups that are found on the server"),
        "accept": (grouped, "a cluster that is not 'none'"),
    }
    usual = {field.name: field.default for field in fields(parts)}
    return [
        (key, f"counts for nothing here; it needs {what}")
        for key, (used, what) in counts.items()
        if not used and getattr(parts, key) != usual[key]
    ]
