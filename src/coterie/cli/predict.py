"""`coterie predict`: what a trained model predicts for data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.completion import complete_runs
from coterie.cli.options import Allow, Imports, RunsFolder
from coterie.errors import BadInput, count_of
from coterie.plugins import import_modules
from coterie.report.tables import Table, to_rich

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.runs.folder.run_folder import RunFolder
    from coterie.shipping.model.predicted import Predicted, PredictedValues, Predictions
    from coterie.shipping.model.trained import About, Trained

HELP = """
Predict classes, numbers or whatever was learnt, with the trained model of a
client or of a group.

Examples:

  coterie predict first --data new.npz --group 2
  coterie predict first --data new.parquet --client 'writer 12' --out predicted.csv
  coterie predict model.safetensors --data new.npz
  coterie predict first --data new.csv --keep patient --out predicted.csv

The model comes from a run's last checkpoint, from a client's state folder on
a real federation, or from a file that [bold]coterie export[/] wrote. A client's model
is the one that it was evaluated with. Data need no labels; if they have
labels, the accuracy or the task's metrics are printed too. If the data name
each sample's client, that client's model predicts the sample. A client whom
the run does not know gets the model of the only group; if there are several
groups, its samples are left out. [bold]--out[/] writes beside each prediction the
sample's row, its client, the columns that [bold]--keep[/] names, and whose model
predicted it.
"""

ModelSource = Annotated[
    str,
    typer.Argument(
        metavar="RUN|STATE-DIR|MODEL.safetensors",
        help="A run, a client's state folder, or a file.",
        autocompletion=complete_runs,
    ),
]
ClientName = Annotated[str | None, typer.Option(metavar="NAME|N", help="The model of this client of a run.")]
Group = Annotated[str | None, typer.Option(metavar="N", help="The model of this group of a run.")]


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(predict)


def predict(
    what: ModelSource,
    data: Annotated[
        str, typer.Option(metavar="FILE|DIR|NAME", help="A file, a folder of files or images, or a dataset.")
    ],
    client: ClientName = None,
    group: Group = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write each row's prediction: .parquet, .csv or .npz."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column of the data to write beside the predictions; repeatable."),
    ] = None,
    imports: Imports = None,
    allow: Allow = None,
    folder: RunsFolder = "runs",
) -> None:
    """Predict with a trained model."""
    from coterie.cli.live import exit_on_interrupt

    with exit_on_interrupt("interrupted; nothing was written"):
        from coterie.shipping.model import predict as predicting
        from coterie.shipping.model.predicted import check_out
        from coterie.shipping.model.served import client_models, knows_one_of

        number, problems = check_client_and_group(client, group)
        run = find_run(what, folder)
        wrong_out = [] if out is None else [*check_out(out), *check_written("--out", out)]
        kept = keep or []
        if kept and out is None:
            wrong_out.append("--keep is not possible without --out; name the file that the predictions go to")
        if run is not None:
            loaded, named = None, predicting.named_in(run)
        elif problems or wrong_out:
            raise BadInput([*problems, *wrong_out])
        else:
            loaded = load_model(what, folder, client, number, imports)
            named = predicting.named_for(loaded[0].about)
        problems += predicting.check_data(data, named) + wrong_out
        if problems or (problems := predicting.check_kept(data, kept)):
            raise BadInput(problems)
        seen = [] if run is None else predicting.warn_of_training_data(run, data)
        run = run if client is None and number is None else None
        clients = [] if run is None else predicting.clients_of(data, named)
        if run is not None and knows_one_of(run, clients):
            import_modules(imports or ())
            models, notes = client_models(run, clients)
            if out is not None:
                predicting.check_table(next(filter(None, models)), out)
            predicted, further = predicting.predict_each(models, data, kept)
        else:
            trained, notes = loaded or load_model(what, folder, client, number, imports)
            if out is not None:
                predicting.check_table(trained, out)
            samples = predicting.load_samples(data, trained.about, kept)
            predicted, further = predicting.predict(trained, samples), samples.notes
        if out is not None:
            predicted.write(out)
    say_whose_model(predicted.about, [*notes, *further, *seen])
    _print(predicted)
    if out is not None:
        from coterie.cli.printing import say

        say(f"written {out}, {count_of(predicted.beside.height, 'row')}")


def check_client_and_group(client: str | None, group: str | None) -> tuple[int | None, list[str]]:
    """Return the group's number, and a sentence for each problem with the choice of a client or a group."""
    problems = ["--client and --group are both given; give one of them"] if client and group else []
    if group is None or (group.isascii() and group.isdigit()):
        return None if group is None else int(group), problems
    return None, [
        *problems,
        f"--group {group!r} is not possible; it must be a whole number, as in the run's tables",
    ]


def check_written(option: str, path: Path | None, ending: str = "", new: bool = False) -> list[str]:
    """Return what is wrong with a file that an option has written, one sentence each; nothing without a file.

    Args:
        option: as `--out`.
        path: of the file.
        ending: that its name must have.
        new: whether there may be no such file yet.
    """
    if path is None:
        return []
    if path.suffix != ending and ending:
        return [f"{option} {str(path)!r} is not possible; its name must end in {ending}"]
    if new and path.exists():
        return [
            f"{option} {str(path)!r} is not possible: the file exists already; name another, or remove it first"
        ]
    if not path.parent.is_dir():
        return [f"{option} {str(path)!r} is not possible: there is no folder {str(path.parent)!r}; make it first"]
    return []


def find_run(what: str, folder: str) -> RunFolder | None:
    """Return the run of that name or path; None where it is a model file, a client's state folder, or nothing."""
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.shipping.model.trained import MODEL

    path = Path(what)
    if path.is_file() or (path / MODEL).is_file() or path.suffix == Path(MODEL).suffix:
        return None
    try:
        return RunFolder.find(what, folder)
    except BadInput:
        return None


def load_model(
    what: str, folder: str, client: str | None, group: int | None, imports: list[str] | None
) -> tuple[Trained, list[str]]:
    """Load the model that a run, a client's state folder or a file holds; return it with notes for the user.

    The modules of `imports` are imported first.

    Raises:
        BadInput: there is no such model, or a file is damaged.
    """
    from coterie.runs.folder.run_folder import RunFolder
    from coterie.shipping.model.served import trained_model
    from coterie.shipping.model.trained import MODEL, read_model

    import_modules(imports or [])
    path = Path(what)
    file = path / MODEL if (path / MODEL).is_file() else path
    if file.is_file() or file.suffix == Path(MODEL).suffix:
        if client is not None or group is not None:
            raise BadInput(f"{str(file)!r} is one model; leave out --client and --group")
        return read_model(file), []
    try:
        run = RunFolder.find(what, folder)
    except BadInput:
        if not path.is_dir():
            raise
        raise BadInput(
            f"{what!r} is neither a run nor a client's state folder: it holds no experiment.toml and no {MODEL}"
        ) from None
    return trained_model(run, client, group)


def say_whose_model(about: About, notes: list[str]) -> None:
    """Print whose model it is, what it was trained on, and the notes."""
    from coterie.cli.printing import say

    say(f"{about.whose or 'a model'}: {about}")
    for note in notes:
        say(f"note: {note}")


def _print(predicted: Predictions) -> None:
    """Print what was predicted in short and, with labels, how good it is."""
    from coterie.cli.printing import make_console, say
    from coterie.report.numbers import percent
    from coterie.shipping.model.predicted import Predicted, PredictedValues

    console = make_console()
    if isinstance(predicted, Predicted):
        console.print(to_rich(_tabulate_classes(predicted)))
    elif isinstance(predicted, PredictedValues) and predicted.is_table:
        console.print(to_rich(_tabulate_outputs(predicted)))
    elif isinstance(predicted, PredictedValues):
        shape = " x ".join(map(str, predicted.predicted.shape[1:]))
        say(f"{len(predicted.predicted):,} predictions, each an array {shape}; --out FILE.npz writes them")
    if predicted.metrics:
        console.print(to_rich(_tabulate_metrics(predicted.metrics)))
    elif isinstance(predicted, Predicted) and predicted.correct is not None:
        count = len(predicted.classes)
        say(f"accuracy {percent(predicted.correct / count)}: {predicted.correct:,} of {count:,} are right")


def _tabulate_metrics(metrics: Mapping[str, float]) -> Table:
    """Tabulate the task's metrics over all samples, and which direction is better."""
    from coterie.clients.tasks.measures import MEASURES

    rows = [
        [
            f"{MEASURES[name].title} ({'lower' if MEASURES[name].less_is_better else 'higher'} is better)",
            f"{value:.4f}" if value == value else "not defined",
        ]
        for name, value in metrics.items()
    ]
    return Table(["metric", "value"], rows)


def _tabulate_outputs(predicted: PredictedValues) -> Table:
    """Tabulate what is predicted for each output: mean, least and greatest; with labels, their mean."""
    titles = {"mean": "mean", "least": "least", "greatest": "greatest"}
    titles |= {} if predicted.labels is None else {"label": "mean label"}
    rows = [
        [row["output"], *("" if row[key] is None else f"{row[key]:.4g}" for key in titles)]
        for row in predicted.by_output().iter_rows(named=True)
    ]
    return Table(["output" if predicted.probabilities is None else "probability of", *titles.values()], rows)


def _tabulate_classes(predicted: Predicted) -> Table:
    """Tabulate how often each class is predicted, and how surely; with labels, how many are right."""
    count, labelled = len(predicted.classes), predicted.labels is not None
    rows = []
    for row in predicted.by_class().iter_rows(named=True):
        sure = "" if row["confidence"] is None else f"{row['confidence']:.3f}"
        cells = [row["class"], f"{row['predicted']:,}", f"{row['predicted'] / count:.1%}", sure]
        if labelled:
            cells += [f"{row['samples']:,}", f"{row['correct'] / row['samples']:.1%}" if row["samples"] else ""]
        rows.append(cells)
    rows.append(["all", f"{count:,}", "100.0%", f"{predicted.confidence.mean():.3f}"])
    if predicted.correct is not None:
        rows[-1] += [f"{count:,}", f"{predicted.correct / count:.1%}"]
    return Table(["class", "predicted", "share", "confidence", *(("samples", "found") if labelled else ())], rows)
