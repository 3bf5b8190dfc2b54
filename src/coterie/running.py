"""Runs an experiment: the loop of rounds, and going on after an interruption."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from coterie import metrics
from coterie.events import Observer, Result, Round, Status
from coterie.experiment import Experiment
from coterie.problems import BadInput
from coterie.runs import RunFolder
from coterie.session import Session


def run(experiment: Experiment, *, observers: Sequence[Observer] = ()) -> Result:
    """Train, and keep everything in a fresh run folder.

    Ctrl-C ends a run early with its state saved: the result's status is then `interrupted`, and `resume` goes
    on to the very result that an uninterrupted run gives.

    Raises:
        BadInput: the experiment cannot run; nothing has been written then.
    """
    experiment.check()
    session = Session(experiment)
    folder = RunFolder.create(experiment.run.folder, experiment.run.name or _name(experiment))
    folder.write_experiment(session.experiment.to_toml())
    folder.write_environment(session.environment())
    folder.write_status("running", 0, experiment.run.rounds)
    return _finish(session, folder, 0, observers)


def resume(folder: RunFolder | Path | str, *, observers: Sequence[Observer] = ()) -> Result:
    """Go on with a run that was interrupted or killed, from its last sound checkpoint.

    Raises:
        BadInput: the folder holds no run, it is still running, its data have changed, or no checkpoint is sound.
    """
    folder = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    experiment = Experiment.from_toml(folder.experiment_text() + "\n")
    experiment.check()
    if folder.status == "running":
        raise BadInput(f"run {folder.name} is still running; wait for it, or stop it first")
    session = Session(experiment)
    notes = session.differences(folder.environment())
    done, passed = session.recall(folder)
    for text in notes + passed:
        for observer in observers:
            observer.note(text)
    folder.forget_after(done)
    return _finish(session, folder, done, observers)


def rounds(
    experiment: Experiment, folder: RunFolder | None = None, observers: Sequence[Observer] = ()
) -> Iterator[Round]:
    """The loop itself: one `Round` after each round. Without a folder nothing is written.

    Raises:
        BadInput: the experiment cannot run.
    """
    experiment.check()
    yield from _rounds(Session(experiment), folder, 0, observers)


def _rounds(
    session: Session, folder: RunFolder | None, done: int, observers: Sequence[Observer]
) -> Iterator[Round]:
    run = session.experiment.run
    up, down, seconds = _totals(folder)
    checkpoints = session.checkpoints(folder) if folder is not None else None
    saved, whole = done, True
    for observer in observers:
        observer.started(session.experiment, session.describe())
    try:
        for number in range(done + 1, run.rounds + 1):
            started = time.perf_counter()
            whole = False
            session.round(number)
            due = number % session.experiment.evaluation.every == 0 or number == run.rounds
            found = session.evaluate() if due else None
            took = time.perf_counter() - started
            row = session.measured(number, found, took)
            up, down, seconds = up + row["up_bytes"], down + row["down_bytes"], seconds + took
            if folder is not None and checkpoints is not None:
                session.write(folder, number, row, found)
                done, whole = number, True
                if number % run.checkpoint_every == 0 or number == run.rounds:
                    checkpoints.save(number, session.remembered())
                    saved = number
                folder.write_status("running", number, run.rounds)
            groups = session.memory.groups
            sizes = np.bincount(groups[groups >= 0]).tolist() if groups is not None else []
            event = Round(number, run.rounds, row, sizes, up, down, seconds, list(session.runtime.failures))
            for observer in observers:
                observer.round(event)
            yield event
    finally:
        # Whatever ends the loop between two rounds, the last of them is on disk. In the middle of a round the
        # clients' own states are neither the old nor the new ones: the last checkpoint holds then.
        if checkpoints is not None and whole and saved < done:
            checkpoints.save(done, session.remembered())
        session.runtime.close()


def _finish(session: Session, folder: RunFolder, done: int, observers: Sequence[Observer]) -> Result:
    """Run the rounds that are left, and close the books."""
    planned = session.experiment.run.rounds
    status: Status = "finished"
    try:
        for event in _rounds(session, folder, done, observers):
            done = event.number
    except KeyboardInterrupt:
        status = "interrupted"
    if status == "finished":
        picture = session.picture(done)
        if picture is not None:
            folder.write_picture(picture)
        folder.compact()
    folder.write_status(status, done, planned)
    table = folder.rounds()
    summary = metrics.summary(table) if table.height else {}
    result = Result(folder.path, session.experiment, table, folder.clients(), folder.ledger(), summary, status)
    for observer in observers:
        observer.finished(result)
    return result


def _totals(folder: RunFolder | None) -> tuple[int, int, float]:
    """Bytes up, bytes down and seconds of the rounds that are done already."""
    if folder is None:
        return 0, 0, 0.0
    table = folder.rounds()
    return int(table["up_bytes"].sum()), int(table["down_bytes"].sum()), float(table["seconds"].sum())


def _name(experiment: Experiment) -> str:
    """A run's name made of what was run: fesem-digits-rotated-4-s0."""
    data = Path(experiment.data.name).stem if "/" in experiment.data.name else experiment.data.name
    words = f"{experiment.method.name}-{data}-{experiment.data.split}-s{experiment.run.seed}"
    plain = "".join(c if c.isalnum() or c == "." else "-" for c in words)
    return "-".join(word for word in plain.split("-") if word).lower()
