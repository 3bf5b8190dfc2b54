"""Every method on every engine gives the bits it gave: its state, its tables and a client's model after a tiny run.

A run's folder is all that is looked at. Of a checkpoint the tensors count, not their names and not their order, so
that fields and classes can be renamed. Sketches are left out: they serve a picture, not the result.

Bits depend on the processor and on the libraries. Where these are those of `digests.json`, digests must be equal;
elsewhere sums over all tensors and tables must agree to 1e-4.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from threadpoolctl import threadpool_info

import coterie
from tests.freeze.expected import empty_folder, frozen_methods, read_json, write_json
from tests.freeze.terminal import call, plain_terminal

EXPECTED = "digests.json"
ENGINES = ("sequential", "batched")
TOLERANCE = 1e-4

SPLITTING = {"t_min": 1, "eps1_frac": 2.0, "ratio": 0.1}
"""Groups are split in every round in which they can be."""

SMALL: dict[str, Any] = {
    "data.name": "digits",
    "data.split": "rotated(4)",
    "data.clients": 8,
    "data.samples_per_client": 40,
    "network": {"name": "mlp", "hidden": [8]},
    "training.lr": 0.1,
    "training.batch_size": 10,
    "run.rounds": 4,
    "run.participation": 0.75,
    "run.workers": 1,
}

GAUSSIAN = {"network": {"name": "gaussian-mlp", "hidden": [8], "dim": 4}}

RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "adacfl": ("adacfl", SPLITTING, {"run.participation": 1.0}),
    "cfl": ("cfl", SPLITTING, {"run.participation": 1.0}),
    "cfl of parts of the clients": ("cfl", SPLITTING, {}),
    "cfl with kept momentum": (
        "cfl",
        {**SPLITTING, "persist_opt": True},
        {"run.participation": 1.0, "training.momentum": 0.9},
    ),
    "clusterfl": ("clusterfl", {"local_epochs": 1, "every": 2}, {}),
    "dcpfl": ("dcpfl", {"t_start": 2, "window": 1, "t_obv": 1, "threshold": 1.0, "alpha": 2}, {}),
    "dcpfl, long": (
        "dcpfl",
        {"margin": 0.0, "t_start": 2, "window": 1, "t_obv": 1, "t_sp": 1, "threshold": 0.5, "alpha": 2},
        {"training.lr": 0.5, "run.participation": 1.0, "run.rounds": 10},
    ),
    "dcpfl with one cut": ("dcpfl", {"t_start": 1, "dynamic": False, "cut": 0.7}, {}),
    "ditto": ("ditto", {}, {}),
    "fedavg": ("fedavg", {}, {}),
    "fedavg with momentum": (
        "fedavg",
        {},
        {"training.momentum": 0.9, "training.weight_decay": 0.01, "training.lr_decay": 0.9, "training.epochs": 2},
    ),
    "fedavg with Adam": ("fedavg", {}, {"training.optimizer": "adam", "training.lr": 0.01}),
    "fedavg in bf16": ("fedavg", {}, {"training.precision": "bf16"}),
    "fedavg with clients that vanish": ("fedavg", {}, {"run.client_dropout": 0.3}),
    "fedavg with newcomers": ("fedavg", {}, {"run.holdout_clients": 0.25}),
    "fedavg of convolutions": ("fedavg", {}, {"network": {"name": "cnn"}, "run.rounds": 1}),
    "fedavg, Dirichlet": ("fedavg", {}, {"data.split": "dirichlet(0.5) + rotated(2)"}),
    "fedbabu": ("fedbabu", {}, {}),
    "fedcps": ("fedcps", {}, {}),
    "fedcps with options": (
        "fedcps",
        {"init": "kmeans", "window": 1, "weights": "samples"},
        {},
    ),
    "fedcr": ("fedcr", {"samples": 3, "head_epochs": 1}, GAUSSIAN),
    "feddane": ("feddane", {"mu": 0.1}, {}),
    "feddist": ("feddist", {}, {}),
    "fedper": ("fedper", {}, {}),
    "fedprox": ("fedprox", {}, {}),
    "fedrep": ("fedrep", {"head_epochs": 1}, {}),
    "fedsgd": ("fedsgd", {}, {}),
    "fedsr": ("fedsr", {"fine_tune": 1}, GAUSSIAN),
    "fedtsdp": ("fedtsdp", {"h": 0.5}, {}),
    "fedtsdp in groups": ("fedtsdp", {"h": 0.0, "eps1": 0.005}, {}),
    "fedtsdp with options": (
        "fedtsdp",
        {"h": 0.0, "psi": 0.5, "eps1": 0.005, "eps2": 1.0, "rho": "literal"},
        {},
    ),
    "fesem": ("fesem", {"clusters": 3}, {}),
    "fesem with options": (
        "fesem",
        {"clusters": 3, "weights": "samples", "members": "participants", "signal": "last_kernel"},
        {},
    ),
    "fesem of updates": ("fesem", {"clusters": 3, "e_step": "update_aware"}, {"training.lr": 0.3}),
    "fesem-ma": ("fesem-ma", {"clusters": 3}, {"training.lr": 0.3}),
    "flis": ("flis", {}, {}),
    "flis once": ("flis", {"mode": "hc"}, {}),
    "flis once, in neighbourhoods": ("flis", {"mode": "hc", "join": "threshold", "threshold": 0.7}, {}),
    "flis of the mixtures": ("flis", {"threshold": 0.7, "evaluated": "mixture"}, {}),
    "ifca": ("ifca", {"clusters": 3}, {}),
    "ifca with newcomers": ("ifca", {"clusters": 3}, {"run.holdout_clients": 0.25}),
    "ifca from K-means": ("ifca", {"clusters": 3, "init": "kmeans", "weights": "samples"}, {}),
    "layercfl": ("layercfl", {**SPLITTING, "t_min": 2}, {"run.participation": 1.0}),
    "lg-fedavg": ("lg-fedavg", {"layers": 1, "pretrain": 1}, {}),
    "lbfgs": ("lbfgs", {}, {}),
    "local-only": ("local-only", {}, {}),
    "grouped-layers": ("grouped-layers", {"clusters": 3, "after": 2, "private": "last:1"}, {}),
    "grouped-layers, common ones": ("grouped-layers", {"clusters": 3, "after": 1, "common": "first:1"}, {}),
    "partial-pooling": ("partial-pooling", {}, {}),
    "per-fedavg": ("per-fedavg", {}, {}),
    "per-fedavg with curvature": ("per-fedavg", {"order": "hf"}, {}),
    "halves": ("halves", {"starts": 2}, {}),
    "apfl": ("apfl", {}, {}),
    "fedala": ("fedala", {}, {}),
    "fedamp": ("fedamp", {}, {}),
    "fedbn": ("fedbn", {}, {}),
    "fedpac": ("fedpac", {}, {}),
    "fedrod": ("fedrod", {}, {}),
    "knn-per": ("knn-per", {}, {"run.holdout_clients": 0.25}),
    "pfedme": ("pfedme", {}, {}),
    "scaffold": ("scaffold", {}, {}),
    "fedavg with a server optimizer": ("fedavg", {}, {"aggregation.optimizer": "yogi"}),
    "pacfl": ("pacfl", {}, {}),
    "pacfl with newcomers": ("pacfl", {"angles": "smallest", "threshold": 10.0}, {"run.holdout_clients": 0.25}),
    "fedem": ("fedem", {"clusters": 2}, {}),
    "fedem with newcomers, adapted": (
        "fedem",
        {"clusters": 2, "init": "plain"},
        {"run.holdout_clients": 0.25, "evaluation.adapt": {"epochs": 1}},
    ),
    "pooled-groups": ("pooled-groups", {"starts": 2}, {}),
    "em-groups": ("em-groups", {"clusters": 2}, {}),
    "em-groups with newcomers": ("em-groups", {"clusters": 2}, {"run.holdout_clients": 0.25}),
    "fedrc": ("fedrc", {"clusters": 2}, {}),
    "fedsoft": ("fedsoft", {"clusters": 2}, {}),
    "flhc": ("flhc", {"after": 1}, {}),
    "flux": ("flux", {"after": 1}, {}),
    "flux with newcomers": (
        "flux",
        {"after": 1, "directions": 4, "deviations": True, "eps": 8.0},
        {"run.holdout_clients": 0.25},
    ),
    "cfl-gp": ("cfl-gp", {"clusters": 2}, {}),
    "cfl-gp with newcomers": ("cfl-gp", {"clusters": 2, "every": 1}, {"run.holdout_clients": 0.25}),
    "fedgroup": ("fedgroup", {"clusters": 2, "pool": 2, "mu": 0.1, "group_lr": 0.1}, {}),
    "stocfl": ("stocfl", {"first_epochs": 2, "threshold": 0.3}, {}),
    "robust-tkm": ("robust-tkm", {"clusters": 3, "local_epochs": 2}, {}),
}
"""Methods with settings under which much happens in few rounds: a name, the method, its settings, other changes."""

CASES = [f"{name} | {engine}" for name in RUNS for engine in ENGINES]


def machine() -> dict[str, str]:
    """What bits depend on besides the code."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "blas": ", ".join(sorted({str(library.get("architecture", "")) for library in threadpool_info()} - {""})),
        **{name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")},
    }


def see(case: str) -> dict[str, Any]:
    """Train one case, and return what is frozen of it."""
    name, engine = case.split(" | ")
    method, settings, changes = RUNS[name]
    with empty_folder() as folder:
        try:
            experiment = coterie.Experiment(method={"name": method, **settings}).updated(
                {**SMALL, **changes, "run.engine": engine, "run.name": "one"}
            )
            coterie.run(experiment)
        except coterie.BadInput as problem:
            return {"refused": list(problem.problems)}
        run = folder / "runs" / "one"
        with plain_terminal():
            code, _, said = call("export", "one", "--client", "1", "--to", "model.safetensors")
        model = _tensors(folder / "model.safetensors") if code == 0 else {}
        state = _tensors(max((run / "checkpoints").glob("*.safetensors")))
        tables = {path.stem: _table(path) for path in sorted(run.glob("*.parquet"))}
        return {
            "clients": json.loads((run / "environment.json").read_text(encoding="utf-8"))["federation"],
            "state": {"digest": _digest_of_tensors(state.values()), "sums": _sums(state.values())},
            "model": {"digest": _digest_of_tensors(model.values()), "sums": _sums(model.values())}
            if model
            else said,
            "tables": {
                name: {"digest": _digest_of_table(table), "sums": _sums(_numbers(table))}
                for name, table in tables.items()
            },
        }


def write() -> None:
    """Freeze what every case gives now."""
    write_json(EXPECTED, {"machine": machine(), "runs": {case: see(case) for case in CASES}})


def write_method(method: str) -> None:
    """Freeze what the cases of one method give now, on the machine that the others were frozen on."""
    known = read_json(EXPECTED)
    if machine() != known["machine"]:
        sys.exit("this is not the machine that the digests are of; make them all anew with --write")
    cases = [case for case in CASES if RUNS[case.partition(" | ")[0]][0] == method]
    kept = {case: known["runs"][case] for case in CASES if case in known["runs"]}
    write_json(EXPECTED, {**known, "runs": kept | {case: see(case) for case in cases}})


@pytest.fixture(scope="module")
def frozen() -> dict[str, Any]:
    found: dict[str, Any] = read_json(EXPECTED)
    return found


def test_every_method_is_frozen(frozen: dict[str, Any]) -> None:
    assert {method for method, _, _ in RUNS.values()} == set(frozen_methods())
    assert set(frozen["runs"]) == set(CASES)


@pytest.mark.medium
@pytest.mark.thinned(12)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", RUNS)
def test_results_stay(name: str, engine: str, frozen: dict[str, Any]) -> None:
    case = f"{name} | {engine}"
    found, expected = json.loads(json.dumps(see(case))), frozen["runs"][case]
    if machine() == frozen["machine"]:
        assert _digests(found) == _digests(expected)
    _assert_close(found, expected, case)


def _processor() -> str:
    """Who made the processor: libraries choose their kernels by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def _tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file, without sketches."""
    with safe_open(path, framework="np") as file:
        names = [name for name in file.keys() if not name.startswith("sketch")]  # noqa: SIM118  # no mapping
        return {name: file.get_tensor(name) for name in names}


def _table(path: Path) -> pl.DataFrame:
    """A table without measured time."""
    return pl.read_parquet(path).drop("seconds", strict=False)


def _digest_of_tensors(tensors: Iterable[NDArray[Any]]) -> str:
    """One digest of all tensors, whatever their order. Empty ones say nothing."""
    each = sorted(
        sha256(f"{t.dtype} {t.shape} ".encode() + np.ascontiguousarray(t).tobytes()).hexdigest()
        for t in tensors
        if t.size
    )
    return sha256(" ".join(each).encode()).hexdigest()[:24]


def _digest_of_table(table: pl.DataFrame) -> str:
    """One digest of all columns, whatever their order: their names and exact values."""
    each = sorted(f"{name}: {table[name].to_list()!r}" for name in table.columns)
    return sha256("\n".join(each).encode()).hexdigest()[:24]


def _numbers(table: pl.DataFrame) -> list[NDArray[Any]]:
    numeric = [name for name in table.columns if table[name].dtype.is_numeric()]
    return [table[name].cast(pl.Float64).fill_null(0.0).to_numpy() for name in numeric]


def _sums(arrays: Iterable[NDArray[Any]]) -> list[float]:
    """Over all arrays: the sum, the sum of absolute values, and the product with fixed random numbers."""
    total = np.zeros(3)
    for array in arrays:
        values = np.nan_to_num(array.astype(np.float64).ravel(), posinf=0.0, neginf=0.0)
        weights = np.random.default_rng(0).normal(size=values.size)
        total += values.sum(), np.abs(values).sum(), values @ weights
    return [float(f"{value:.9g}") for value in total]


def _digests(found: Any) -> Any:
    """The same without sums."""
    if isinstance(found, Mapping):
        return {key: _digests(value) for key, value in found.items() if key != "sums"}
    return found


def _assert_close(found: Any, expected: Any, where: str) -> None:
    """Compare everything but digests; sums may differ by a small part of the sum of absolute values."""
    if isinstance(expected, Mapping):
        assert isinstance(found, Mapping), where
        assert found.keys() == expected.keys(), where
        for key in expected:
            if key == "sums":
                scale = max(expected[key][1], 1e-12)
                assert np.allclose(found[key], expected[key], rtol=0, atol=TOLERANCE * scale), f"{where}, {key}"
            elif key not in ("digest", "clients"):
                _assert_close(found[key], expected[key], f"{where}, {key}")
    else:
        assert found == expected, where
