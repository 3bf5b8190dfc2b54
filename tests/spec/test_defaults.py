"""Every default is that of the method's page in docs/methods/."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.methods import DCPFL, FLIS, METHODS, FedTSDP, Method, PerFedAvg
from tests.federated import planted, same, train

FESEM: dict[str, Any] = {  # docs/methods/fesem.md
    "clusters": 4,
    "mu": 0.1,
    "mu_mode": "eq7",
    "warm_up": 20,
    "restarts": 20,
    "signal": "all",
    "weights": "uniform",
    "members": "all",
    "reseed": False,
    "e_step": "nearest",
}
LAYERCFL: dict[str, Any] = {  # docs/methods/layercfl.md; D2, D4 to D7, D9 to D12, D16
    "layers": "auto",
    "signal": "update",
    "distance": "cosine",
    "linkage": "average",
    "eps1_frac": None,
    "ratio": 2.0,
    "eps1": None,
    "eps2": None,
    "eps2_on": "selected",
    "t_min": 5,
    "gamma_max": "noise",
    "cooldown": 10,
    "retrain": 0,
    "recursive": False,
    "weights": "samples",
    "stale": None,
    "persist_opt": False,
    "log_gaps": "chosen",
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "fedtsdp": {  # docs/methods/fedtsdp.md
        "h": 0.65,
        "psi": 0.98,
        "eps1": 0.15,
        "root": False,
        "eps2": "auto",
        "scope": "all",
        "noise": "group",
        "stages": "both",
        "rho": 0.5,
        "sample": 1.0,
        "repeats": 1,
        "public_batch": 50,
        "damp_only_if_changed": True,
        "shared": None,
        "rounding": "floor",
    },
    "fesem": FESEM,
    "fesem-ma": FESEM
    | {"start_models": "common", "sweeps": 5, "shrink": False, "sigma": 1.0, "sigma0": 1.0, "bias_mean": 0.1},
    "fedcps": {  # docs/methods/fedcps.md
        "clusters": 3,
        "personal_layers": 2,
        "lambda_mode": "eq3_calibrated",
        "lambda_0": 0.1,
        "lambda_power": 1,
        "lambda_min": 1e-3,
        "lambda_max": 2.0,
        "lambda_grid": (0.1, 1.0, 2.0),
        "identity_samples": 256,
        "init": "silhouette",
        "min_share": None,
        "restarts": 20,
        "private_head": False,
        "last_update": "all",
        "weights": "uniform",
        "freeze": True,
        "window": 5,
        "unfreeze": False,
    },
    "layercfl": LAYERCFL,
    "cfl": LAYERCFL | {"layers": "all", "eps2_on": "all", "weights": "uniform"},  # 6.10
    "adacfl": LAYERCFL | {"layers": "last:1", "signal": "weights", "distance": "l2", "eps2_on": "all"},  # 6.12
    "dcpfl": {  # docs/methods/dcpfl.md; D1, D6, D8, D10
        "t_start": 5,
        "window": 5,
        "t_obv": 3,
        "t_sp": 6,
        "step": 0.1,
        "alpha": 3,
        "threshold": 0.1,
        "scale": "common",
        "unit": "tensor",
        "schedule": "start",
        "min_rdp_rounds": 0,
        "retry": "next",
        "trial_loss": "validation",
        "margin": 2.5,
        "sync_singletons": False,
        "dynamic": True,
        "cut": None,
    },
    "fedsgd": {"lr": 0.01, "batch": "all"},  # 6.1
    "fedavg": {"weights": "samples"},  # 6.2
    "fedprox": {"mu": 0.1},  # 6.3
    "ditto": {"lam": 1.0, "dynamic": False, "personal_epochs": None, "evaluated": "personal"},  # 6.4
    "fedper": {"private": 1},  # 6.5
    "fedrep": {  # 6.6
        "private": 1,
        "phases": "alternating",
        "head_epochs": 10,
        "body_epochs": 1,
        "last_head": True,
    },
    "lg-fedavg": {"layers": 2, "pretrain": 10},  # 6.7, which has no number of rounds for the pretraining
    "fedbabu": {"head": 1, "fine_tune": 5, "adapt": "all", "lr_drops": ()},  # 6.8
    "per-fedavg": {
        "order": "first",
        "alpha": None,
        "beta": None,
        "delta": 1e-3,
        "fine_tune_steps": 1,
        "fine_tune": None,
    },  # 6.9
    "ifca": {"clusters": 4, "weights": "uniform", "init": "redraw", "min_share": None, "restarts": 20},  # 6.11
    "flis": {"mode": "dc", "join": None, "threshold": None, "evaluated": "local"},  # 6.13
    "clusterfl": {  # 6.14
        "alpha": 1e-3,
        "beta": 5e-4,
        "rho": 2e-3,
        "local_epochs": 20,
        "every": 3,
        "temperature": 6.0,
        "stop": 1e-2,
        "labels": "columns",
        "payload": "efficient",
        "coupled": False,
    },
    "robust-tkm": {  # 6.15
        "clusters": 4,
        "local_epochs": 20,
        "kmeans_trim": 0.05,
        "iterations": 8,
        "restarts": 20,
        "trim": 0.2,
        "signal": "all",
    },
    "feddane": {"mu": 0.0, "cohorts": "same"},  # 6.16
    "feddist": {"weights": "uniform", "kappa": 0.6},  # 6.17
    "fedcr": {"beta": 1e-4, "samples": 18, "clip": 10.0, "head_epochs": 10},  # 6.18
    "fedsr": {"c_l2r": 1e-2, "c_cmi": 5e-4, "adapt": "head", "fine_tune": 10, "prior": None},  # 6.19
    "local-only": {"trains": "cohort"},  # 6.20
}
ITS_OWN = {"halves", "mixed"}
"""What no paper has, and no page gives defaults for."""


def test_every_published_method_has_its_defaults_here() -> None:
    assert DEFAULTS.keys() == set(METHODS.names()) - ITS_OWN


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_pages(name: str) -> None:
    """As they are listed, as they are bound, and as a method has them that is made without any."""
    entry = METHODS[name]
    assert {setting.name: setting.default for setting in entry.settings} == DEFAULTS[name]
    assert not any(setting.required for setting in entry.settings)
    assert entry.bind({}) == DEFAULTS[name]
    assert vars(entry.target()) == DEFAULTS[name]


UNSET: list[tuple[Method[Any], Method[Any], Method[Any]]] = [
    (FedTSDP(h=0.0), FedTSDP(h=0.0, shared=2.0), FedTSDP(h=0.0, shared=1.5)),  # all layers, of which there are 2
    (DCPFL(dynamic=False), DCPFL(dynamic=False, cut=0.8), DCPFL(dynamic=False, cut=0.7)),  # a fixed cut
    (PerFedAvg(), PerFedAvg(alpha=0.1, beta=0.1), PerFedAvg(alpha=0.1, beta=0.09)),  # 6.9: the learning rate
    (PerFedAvg(), PerFedAvg(alpha=0.1), PerFedAvg(alpha=0.09)),
    (FLIS("hc"), FLIS("hc", join="hierarchy", threshold=0.45), FLIS("hc", join="hierarchy", threshold=0.5)),
    (FLIS("hc", "threshold"), FLIS("hc", "threshold", threshold=0.96), FLIS("hc", "threshold", threshold=0.5)),
    (FLIS(), FLIS(join="threshold", threshold=0.4), FLIS(threshold=0.39)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("unset", "written", "other"), UNSET, ids=[repr(case[0]) for case in UNSET])
def test_settings_that_are_left_out_mean_what_the_pages_say(
    unset: Method[Any], written: Method[Any], other: Method[Any]
) -> None:
    """The same bits as with the value written out, and other bits with one close to it."""
    federation = planted("feature", sizes=[40 + 3 * i for i in range(20)])
    run, as_written, differently = (train(method, federation, 6) for method in (unset, written, other))
    assert same(run.state, as_written.state)
    assert not same(run.state, differently.state)


def test_public_samples_that_methods_ask_for() -> None:
    """FedTSDP's is the whole official test set, 10,000 images (docs/methods/fedtsdp.md, D21); FLIS's 2,500."""
    assert FedTSDP().needs.public == 10_000
    assert FLIS().needs.public == 2500
