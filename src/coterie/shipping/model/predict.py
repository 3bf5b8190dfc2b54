"""Predictions of a trained model, and the samples that it is given, prepared as in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.clients.data.read import storage
from coterie.clients.data.read.columns import USUAL, Columns, Named, check_lengths
from coterie.clients.data.read.datasets import DATASETS, load, number_users, read_tokens
from coterie.clients.data.read.files import check_path, find_unkept, names_clients, read_columns, read_kept
from coterie.clients.data.read.labelling import is_unlabelled
from coterie.clients.data.read.normalisation import STANDARDS
from coterie.clients.data.read.preparation import (
    AS_READ,
    Preparation,
    Sums,
    fill_and_scale,
    handle_missing,
    make_inputs,
    scale_bytes,
)
from coterie.clients.data.read.tables import read_header, read_table, without_counters
from coterie.clients.engine.engine import EVALUATION_BATCH
from coterie.clients.tasks import Task
from coterie.errors import BadInput, count_of, shorten
from coterie.models.calling import takes_whole_numbers
from coterie.models.features import format_shape
from coterie.models.networks import channels_first
from coterie.runtime.threads import one_thread
from coterie.shipping.model.predicted import Predictions, conclude, has_columns, is_taken
from coterie.shipping.model.trained import About, Trained

if TYPE_CHECKING:
    from coterie.runs.folder.run_folder import RunFolder

AXES = {
    2: " (time x channels)",
    3: " (height x width x channels)",
    4: " (depth x height x width x channels)",
}
"""What the lengths of a sample's shape mean, by how many there are."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples `[N, *features]` as the model takes them, their targets `[N, *shape]` where they are labelled."""

    inputs: Tensor
    """`[N, *features]`, as the model takes them."""
    labels: NDArray[Any] | None
    """`[N, *shape]`; None where they are not labelled."""
    notes: tuple[str, ...] = ()
    """Sentences about what was changed on reading."""
    kept: pl.DataFrame = field(default_factory=pl.DataFrame)
    """What says which is which: `N` rows, or no columns."""


def check_data(data: str, named: Named = USUAL) -> list[str]:
    """Return what is wrong with the data to predict, from names and headers alone."""
    return [] if data in DATASETS else check_path(Path(data), labelled=False, named=named)


def check_kept(data: str, names: Sequence[str]) -> list[str]:
    """Return why columns of the data cannot be kept beside predictions, from names and headers alone."""
    own = [
        f"--keep {name!r} is not possible: predictions have a column of that name already; leave it out"
        for name in names
        if is_taken(name)
    ]
    if own or data in DATASETS:
        there = f"--keep is not possible with data = {data!r}, which has no columns; leave it out"
        return own or [there] * bool(names)
    return find_unkept(Path(data), names)


def named_in(run: RunFolder) -> Named:
    """Return what label and client are called in the data that a run was trained on."""
    data = run.experiment().get("data", {})
    return Named(data.get("label"), data.get("client"))


def named_for(about: About) -> Named:
    """Return what label and client are called in data for a model: as in those that it was trained on."""
    return (about.preparation or AS_READ).named


def warn_of_training_data(run: RunFolder, data: str) -> list[str]:
    """Return a note where the data to predict are those that a run was trained on."""
    trained, federation = run.experiment().get("data", {}).get("name"), run.federation()
    is_same = data == trained or (
        data not in DATASETS and trained is not None and str(Path(data).resolve()) == trained
    )
    if not is_same or federation is None:
        return []
    count = federation["train"].sum()
    return [
        f"run {run.name} was trained on {count:,} of these samples; coterie show {run.name} shows its scores on "
        "held-out samples"
    ]


def check_table(trained: Trained, out: Path) -> None:
    """Refuse to write predictions as a table that are none.

    Raises:
        BadInput: each is an array, as the class of every pixel.
    """
    if out.suffix == ".npz":
        return
    about, task = trained.about, trained.about.build_task()
    network = trained.network()
    kind = torch.int64 if task.tokens or takes_whole_numbers(network) else torch.float32
    outputs = _run(network, torch.zeros(1, *about.features, dtype=kind))
    if task.one_class:
        return
    shape = tuple(task.predict(outputs).shape)
    if not has_columns(about, shape):
        raise BadInput(
            f"--out {str(out)!r} is not possible: a prediction of {task.name} is an array of the shape "
            f"{format_shape(shape[1:])}; write an .npz file"
        )


def predict(trained: Trained, samples: Samples) -> Predictions:
    """Predict the targets of samples, dropout off; stochastic features are at their means.

    Raises:
        BadInput: a sample gets no finite output.
    """
    outputs = _run(trained.network(), samples.inputs)
    about = trained.about
    beside = _beside(samples.kept, np.full(len(outputs), about.whose))
    return conclude(about, about.build_task(), outputs, samples.labels, beside)


def _beside(kept: pl.DataFrame, whose: NDArray[np.str_]) -> pl.DataFrame:
    """Return what stands beside predictions: what is kept of each sample, and whose model `[N]` answered."""
    columns = {("client" if is_taken(name) else name): values for name, values in kept.to_dict().items()}
    return pl.DataFrame({**columns, "model": whose})


def _run(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs `[N, ...]` for samples."""
    with one_thread(), torch.inference_mode():
        return torch.cat([network(channels_first(batch)) for batch in torch.split(inputs, EVALUATION_BATCH)])


def load_samples(data: str | pl.DataFrame, about: About, keep: Sequence[str] = ()) -> Samples:
    """Load a file, a folder, a named dataset or a frame, prepared as the training data were; columns go by names.

    The column of clients, where there is one, and those to `keep` stay beside the samples as they are.

    Labels are optional. Whole numbers as the pixels of images are standardised as those of the named dataset that
    the model was trained on; other numbers are taken as prepared.

    Raises:
        BadInput: the data cannot be read, have samples of another shape, or a label that the model's task has not.
    """
    if isinstance(data, str) and data in DATASETS:
        dataset = load(data)
        inputs = np.array(scale_bytes(dataset.inputs, dataset.standard))
        _refuse_another_shape(inputs, data, about)
        columns, notes = Columns(data, inputs, dataset.labels, notes=dataset.notes), list(dataset.notes)
        _fill_and_scale(inputs, columns, about.preparation or Preparation(), notes)
        return _as_samples(columns, inputs, about, notes)
    named = named_for(about)
    columns = read_samples(data, named)
    return replace(prepare_samples(columns, about, keep), kept=_read_kept(data, columns, keep, named))


def _read_kept(data: str | pl.DataFrame, columns: Columns, keep: Sequence[str], named: Named) -> pl.DataFrame:
    if isinstance(data, str):
        return read_kept(Path(data), columns, keep, named)
    client = read_header(data.schema, columns.where, labelled=False, named=named).roles["client"]
    return data.select(list(dict.fromkeys(name for name in (client, *keep) if name is not None)))


def read_samples(data: str | pl.DataFrame, named: Named = USUAL) -> Columns:
    """Read a file, a folder or a frame whose samples need no labels.

    Raises:
        BadInput: it cannot be read.
    """
    if isinstance(data, str):
        columns = read_columns(Path(data), labelled=False, named=named)
    else:
        columns = without_counters([read_table(data, "the data given", labelled=False, named=named)])[0]
    check_lengths(columns)
    return columns


def prepare_samples(columns: Columns, about: About, keep: Sequence[str] = ()) -> Samples:
    """Return what was read as samples for a model; columns to `keep` that training had not are no features.

    Raises:
        BadInput: they have another shape or other columns, or a label that the model's task has not.
    """
    notes = list(columns.notes)
    if about.build_task().tokens:
        columns = replace(columns, feature_key="tokens")
    known = about.preparation or Preparation()
    known = replace(known, ignored=(*known.ignored, *keep))
    if isinstance(columns.features, pl.DataFrame) and not known.columns and len(about.features) > 1:
        raise BadInput(
            f"{columns.where} is a table; the model takes samples of the shape {format_shape(about.features)}"
            f"{AXES.get(len(about.features), '')}, not rows of columns"
        )
    inputs = _prepare(_standardise(columns, about, notes), about, known, notes)
    return _as_samples(columns, inputs, about, notes)


def _refuse_another_shape(inputs: NDArray[Any], where: str, about: About) -> None:
    if not _fits(inputs.shape[1:], about):
        raise BadInput(
            f"{where}: samples have the shape {format_shape(inputs.shape[1:])}; the model takes "
            f"{format_shape(about.features)}{AXES.get(len(about.features), '')}"
        )


def _as_samples(columns: Columns, inputs: NDArray[Any], about: About, notes: list[str]) -> Samples:
    task = about.build_task()
    if task.tokens:
        inputs = _read_known_tokens(inputs, columns.where, about, task)
    labels = columns.labels
    if labels is not None and labels.ndim == 1:
        absent = int(is_unlabelled(labels, task.one_class).sum())
        if absent:
            said = "how many are right" if task.one_class else "how good the predictions are"
            have = "has" if absent == 1 else "have"
            notes.append(f"{absent:,} of {len(labels):,} samples {have} no label, so it is unknown {said}")
            labels = None
    known = about.classes if about.labels is None else about.labels
    targets = None if labels is None else task.read_targets(labels, columns.where, notes, known).values
    stored = np.ascontiguousarray(inputs.reshape(len(inputs), *about.features))
    return Samples(torch.from_numpy(stored), targets, tuple(notes))


def _read_known_tokens(inputs: NDArray[Any], where: str, about: About, task: Task) -> NDArray[np.int64]:
    """Return inputs as tokens that the model knows.

    Raises:
        BadInput: some are none.
    """
    tokens = read_tokens(inputs, where, task)
    if (highest := int(tokens.max(initial=0))) >= about.classes:
        raise BadInput(f"{where}: features hold the token {highest}; the model knows those below {about.classes}")
    return tokens


def clients_of(data: str | pl.DataFrame, named: Named = USUAL) -> list[str]:
    """Return the clients that samples name, in the order of their numbers; none where they name none.

    Raises:
        BadInput: the file, the folder or the frame cannot be read.
    """
    if isinstance(data, str) and (data in DATASETS or not names_clients(Path(data), named)):
        return []
    return list(number_users(read_samples(data, named))[1] or ())


def predict_each(
    models: Sequence[Trained | None], data: str | pl.DataFrame, keep: Sequence[str] = ()
) -> tuple[Predictions, tuple[str, ...]]:
    """Predict samples, each with the model of its client; return the predictions with notes for the user.

    Args:
        models: of the clients, in the order of `clients_of`; samples of a client without one are left out.
        data: a file, a folder or a frame.
        keep: columns that stay beside the predictions.

    Raises:
        BadInput: as for `prepare_samples` and `predict`.
    """
    found = {client: model for client, model in enumerate(models) if model is not None}
    first = next(iter(found.values())).about
    named = named_for(first)
    columns = read_samples(data, named)
    users, names = number_users(columns)
    assert users is not None
    assert names is not None
    outputs: list[Tensor] = []
    targets: list[NDArray[Any]] = []
    rows: list[NDArray[np.int64]] = []
    notes: list[str] = []
    for client, model in found.items():
        own = users == client
        samples = prepare_samples(columns.take(own), model.about, keep)
        outputs.append(_run(model.network(), samples.inputs))
        targets += [] if samples.labels is None else [samples.labels]
        rows.append(np.flatnonzero(own))
        notes += samples.notes
    answered = np.concatenate(rows)
    order = np.argsort(answered)
    answered = answered[order]
    if strangers := [names[client] for client in range(len(models)) if client not in found]:
        left_out = count_of(len(users) - len(answered), "sample")
        notes.append(
            f"left out: {left_out} of {count_of(len(strangers), 'client')} that the run does not know "
            f"({shorten(strangers)}); --group N predicts with a group's model, where groups have one"
        )
    labels = np.concatenate(targets)[order] if len(targets) == len(found) else None
    each = f"the models of {count_of(len(found), 'client')}, each for its own samples"
    about = replace(first, whose=each if len(found) > 1 else first.whose)
    whole = torch.cat(outputs)[torch.from_numpy(order)]
    whose = np.array([found[client].about.whose for client in users[answered]])
    beside = _beside(_read_kept(data, columns, keep, named)[answered], whose).with_columns(row=answered)
    return conclude(about, about.build_task(), whole, labels, beside), _add_up(notes)


def _add_up(notes: Sequence[str]) -> tuple[str, ...]:
    """Return each note once; those that differ only in the number that they begin with are one, with its sum."""
    found: dict[str, tuple[int, str]] = {}
    for note in notes:
        number, _, rest = note.partition(" ")
        digits = number.replace(",", "")
        count = int(digits) if digits.isdecimal() else 0
        key = rest.replace("value was", "values were") if count else note
        before = found[key][0] if key in found else 0
        found[key] = (before + count, f"{before + count:,} {key}" if before and count else note)
    return tuple(note for _, note in found.values())


def _prepare(columns: Columns, about: About, known: Preparation, notes: list[str]) -> NDArray[np.float32]:
    """Samples as the model takes them."""
    inputs = make_inputs(columns, known, notes)
    _refuse_another_shape(inputs, columns.where, about)
    if not inputs.flags.writeable:
        inputs = storage.take(inputs, np.arange(len(inputs)))
    # Every sample is predicted: where training left some out, they are refused here.
    handle_missing(inputs, columns, replace(known, missing="refuse") if known.missing == "drop" else known, notes)
    _fill_and_scale(inputs, columns, known, notes)
    return inputs


def _fill_and_scale(inputs: NDArray[Any], columns: Columns, known: Preparation, notes: list[str]) -> None:
    """Standardise in place; the samples of each client by themselves where the model is not one client's."""
    fill_and_scale(inputs, known)
    if known.standardise != "client" or known.mean:
        return
    notes.append(
        "in training each client standardised its samples by their own mean and deviation; the same was done here, "
        "client by client"
    )
    users = np.zeros(len(inputs)) if columns.users is None else columns.users
    for user in np.unique(users):
        own = inputs[users == user]
        sums = Sums.of(own)
        inputs[users == user] = (own - sums.mean) / sums.deviation


def _fits(shape: tuple[int, ...], about: About) -> bool:
    """Whether samples have the model's shape, up to a single channel that is left out."""
    return about.features in (shape, (*shape, 1))


def _standardise(columns: Columns, about: About, notes: list[str]) -> Columns:
    """Standardise whole-number pixels like the model's training data; leave anything else as it is."""
    values, shape = columns.features, about.features
    if isinstance(values, pl.DataFrame):
        return columns
    if about.data not in STANDARDS or not _fits(values.shape[1:], about):
        return columns
    if values.dtype.kind not in "iu" or len(shape) != 3:
        notes.append(f"the features are assumed to be standardised, as those of {about.data} were in training")
        return columns
    notes.append(f"the pixels were standardised, as those of {about.data} were in training")
    return replace(columns, features=STANDARDS[about.data].samples(values.reshape(len(values), *shape)))
