"""How often FedTSDP's second stage divides planted groups, and how often it divides clients of one group.

    python -m benchmarks.second_stage [--cases 600] [--seeds 10] [--smoke]

The planted updates are flat: each of 12 to 48 clients goes 2 to 6 steps in the direction of its group, and is off
by noise of its own in 500 dimensions, the longer the more steps it takes. Clients of two groups who take equal
steps are `ratio` times as far apart as clients of one. Halves, thirds and groups in the ratio 3 : 2 : 1 are to be
found as they are; clients of one group are to stay together. Beside the test (`eps2 = "auto"`) stands DBSCAN within
1.1 times the median distance, which is a fixed share of what it is to tell apart.

The real updates are those of the first round of whole runs, 20 clients of digits by all defaults.
"""

import tempfile
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

import coterie
from benchmarks.document_sections import markdown
from benchmarks.smoke import Arguments
from coterie.grouping.affinity import pairwise_distances
from coterie.grouping.cluster import cluster_by_distance
from coterie.grouping.gaps import find_groups, without_mean_direction
from coterie.runs.schema.experiment import Experiment
from coterie.runtime.threads import one_thread

SIZES: Mapping[str, tuple[int, ...]] = {"halves": (1, 1), "thirds": (1, 1, 1), "3 : 2 : 1": (3, 2, 1), "one": (1,)}
"""How large the planted groups are beside each other."""
RATIOS = (1.2, 1.35, 1.5)
CLIENTS = (12, 24, 48)
DIMENSIONS = 500
SPLITS = ("permuted-labels(2)", "permuted-labels(4)", "rotated(2)", "rotated(4)", "iid")


def plant(
    clients: int, sizes: tuple[int, ...], ratio: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return flat updates `[clients, DIMENSIONS]` and their groups `[clients]`."""
    bounds = np.cumsum(sizes) * clients // sum(sizes)
    groups = np.searchsorted(bounds, np.arange(clients), side="right")
    steps = rng.integers(2, 7, clients) / 4
    noise = rng.standard_normal((clients, DIMENSIONS)) * np.sqrt(steps / DIMENSIONS)[:, None]
    shared, *own = np.linalg.qr(rng.standard_normal((DIMENSIONS, 1 + len(sizes))))[0].T
    # Orthogonal directions of length c are c sqrt(2) apart, and so is noise of length 1.
    directions = shared + np.sqrt(ratio**2 - 1) * np.stack(own)
    return noise + steps[:, None] * directions[groups], groups


def shares_divided(kind: str, clients: int, ratio: float, cases: int) -> tuple[float, float, float]:
    """Return in which share of cases the test divides, and as planted, and in which 1.1 times the median does."""
    counts = np.zeros(3)
    for case in range(cases):
        rng = np.random.default_rng((case, clients, round(100 * ratio)))
        updates, groups = plant(clients, SIZES[kind], ratio, rng)
        found = find_groups(without_mean_direction(updates @ updates.T), rng)
        distances = pairwise_distances(updates)
        median = float(np.median(distances[np.triu_indices(clients, 1)]))
        by_median = cluster_by_distance(distances, 1.1 * median)
        counts += np.array([found.any(), np.array_equal(found, groups), by_median.any()])
    divided, right, linked = (counts / cases).tolist()
    return divided, right, linked


def groups_of_first_round(split: str, seed: int) -> tuple[int, float]:
    """Return how many groups the first round of a run by the defaults ends with, and their ARI."""
    with tempfile.TemporaryDirectory() as folder, one_thread(blas=True):
        result = coterie.run(
            Experiment(
                data={"name": "digits", "split": split, "clients": 20},
                method={"name": "fedtsdp"},
                run={"rounds": 1, "seed": seed, "workers": 1, "folder": folder},
            )
        )
    return result.summary["groups"], result.summary["ari"] if split != "iid" else np.nan


def main() -> None:
    """Print both tables."""
    parser = Arguments("second_stage", __doc__, {"cases": 9, "seeds": 1})
    parser.add_argument("--cases", type=int, default=600, help="planted halves, and populations; of others a sixth")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each split of digits")
    given = parser.read()
    each = max(1, given.cases // (len(RATIOS) * len(CLIENTS)))
    lines = []
    for kind in SIZES:
        for ratio in RATIOS if kind != "one" else (1.0,):
            cases = {"halves": each, "one": each * len(RATIOS)}.get(kind, max(1, each // 6))
            shares = np.array([shares_divided(kind, clients, ratio, cases) for clients in CLIENTS])
            divided, right, linked = (f"{share:.1%}" for share in shares.mean(0))
            lines.append([kind, f"{ratio:g}", str(cases * len(CLIENTS)), divided, right, linked])
            print(*lines[-1], sep=", ", flush=True)
    print(markdown(("groups", "ratio", "cases", "divided", "as planted", "divided within 1.1 medians"), lines))
    lines = []
    for split in SPLITS:
        found = [groups_of_first_round(split, seed) for seed in range(given.seeds)]
        count = sum(groups > 1 for groups, _ in found)
        lines.append([split, f"{count} of {len(found)}", f"{np.mean([ari for _, ari in found]):.2f}"])
        print(*lines[-1], sep=", ", flush=True)
    print(markdown(("digits", "runs divided in round 1", "mean ARI"), lines))


if __name__ == "__main__":
    main()
