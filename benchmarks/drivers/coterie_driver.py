"""The workload as an ordinary run of Coterie: metrics, ledger, checkpoint and run folder included."""

from __future__ import annotations

from collections.abc import Sequence

import coterie
from benchmarks.drivers.workload import Pace, Workload, arguments
from coterie.runs.events import Result, Round


class Paced:
    """Holds the run after each round until the next may begin."""

    def __init__(self, pace: Pace, work: Workload) -> None:
        self._pace, self._work = pace, work

    def started(self, experiment: coterie.Experiment, description_lines: Sequence[str]) -> None:
        self._pace.begin(self._work.parameters)

    def round(self, round: Round) -> None:
        samples = self._work.epochs * self._work.samples * round.metrics["participants"]
        self._pace.end(samples, round.metrics["loss"], last=round.number == round.planned)

    def note(self, text: str) -> None:
        pass

    def finished(self, result: Result) -> None:
        pass


def main() -> None:
    """Run the experiment of the folder, one round a line."""
    args, pace = arguments(), Pace()
    work = Workload.read(args.folder)
    experiment = coterie.Experiment.from_toml(args.folder / "experiment.toml")
    changes = {"run.rounds": args.rounds, "run.workers": args.processes}
    if args.precision != "fp32":
        changes["training.precision"] = args.precision
    experiment = experiment.updated(changes)
    coterie.run(experiment, observers=[Paced(pace, work)])


if __name__ == "__main__":
    main()
