"""What memory directions take where clients are many and the model is large, sketched and whole.

    COTERIE_DATA=… python -m benchmarks.diagnose_memory sketched|whole [--smoke]

1,000 clients of MNIST in two rotations diagnose a perceptron of 318,010 parameters from one start. Prints what was
found, and the largest memory of the process; `whole` needs more than 12 GiB.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from benchmarks.smoke import Arguments, shrink
from coterie.advice.diagnose.diagnose import diagnose
from coterie.clients.rules import half_data
from coterie.runs.schema.experiment import Experiment

DATA = {
    "name": "mnist",
    "split": "rotated(2)",
    "clients": 1000,
    "samples_per_client": 14,
    "validation": 0.0,
    "test": 0.1,
}


def main(words: Sequence[str]) -> int:
    """Diagnose, and print one line."""
    import resource

    parser = Arguments("diagnose_memory", __doc__, {})
    parser.add_argument("directions", choices=("sketched", "whole"))
    given = parser.read(words)
    if given.directions == "whole":
        half_data.SKETCH_ABOVE = sys.maxsize
    torch.set_num_threads(1)
    asked = Experiment(data=DATA, method="fedavg", network={"name": "mlp", "hidden": [400]}, run={"workers": 1})
    found = diagnose(shrink(asked) if given.smoke else asked, starts=1, gains=False)
    test, memory = found.structure, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{given.directions}: {memory:.1f} GiB, {found.seconds:.0f} s; {len(found.groups)} groups, ARI "
        f"{found.true_groups_ari}; own halves {test.own:.4f}, at random {test.random:.4f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
