"""Datasets: the samples, their labels and, where the data have them, the people they come from."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.catalogue import Catalog
from coterie.clients.data.read import given, hub, shakespeare, storage
from coterie.clients.data.read.columns import USUAL, Columns, Named, check_lengths, take_each
from coterie.clients.data.read.files import (
    ENDINGS,
    check_path,
    column_files,
    join_tests,
    names_clients,
    read_arrays,
    read_columns,
)
from coterie.clients.data.read.labelling import advise_binary, choose_task, leave_out_unlabelled, to_plain_strings
from coterie.clients.data.read.normalisation import STANDARDS, Standard
from coterie.clients.data.read.preparation import (
    AS_READ,
    SET_MISSING,
    Missing,
    Preparation,
    Standardise,
    advise_standardising,
    find_columns,
    handle_missing,
    make_inputs,
    refuse_odd_labels,
    scale_bytes,
)
from coterie.clients.tasks import CLASSIFICATION, Language, Targets, Task
from coterie.errors import BadInput, unknown

HUB = "hub:"

DATASETS = Catalog("dataset", group="coterie.datasets", not_a_path=HUB)
"""The named datasets; each entry takes `public`, whether the official test images, if any, are wanted too."""

FOLDER = "COTERIE_DATA"
"""The environment variable that names the folder with the files of the named datasets."""

T = TypeVar("T", bound=Callable[..., Any])


def dataset(
    name: str | None = None, *, users: bool = False, split: str = "iid", task: str = CLASSIFICATION.name
) -> Callable[[T], T]:
    """Decorator: list a function that loads a dataset under `name`.

    Args:
        name: what users write; without one it is not listed, and its path names it, `package.module:function`.
        users: whether each of its samples comes from a user of whom there are several.
        split: the one that a newcomer would take, where there are no users; these make it by-user.
        task: what it is for, by name.
    """

    def add(load: T) -> T:
        facts = {"has_users": users, "usual_split": "by-user" if users else split, "usual_task": task}
        vars(load).update(facts)
        return load if name is None else DATASETS.add(name)(load)

    return add


def has_users(name: str) -> bool:
    """Whether the samples of a named dataset come from users."""
    return bool(getattr(DATASETS[name].target, "has_users", False))


def usual_task(name: str) -> str | None:
    """What a named dataset is for; None where it does not say so before it is loaded."""
    return getattr(DATASETS[name].target, "usual_task", None)


@dataclass(frozen=True)
class Dataset:
    """Samples `[N, *features]` (images `[N, height, width, channels]`) and labels, the targets of `task`.

    Samples are float32, or bytes that become numbers when a minibatch is made of them: by `standard`, or 0 … 1.

    `labels` is `[N, *shape]`, int64 for classes and tokens and float32 for numbers; `classes` is 0 where a sample
    is not of one class, and otherwise they are in 0 … classes - 1. Tokens, which are looked up, are int64 samples.
    `outputs` says how many numbers a network gives; as many as there are classes unless given.

    `users` `[N]` numbers the person each sample comes from, `user_names` names them, `user_groups` is the natural
    group of each; `units` `[N]` marks runs of samples that share measurements, of which all must end up on the
    same side of a train/test split; `public` are official test samples, unlabelled. `given_split` `[N]` int8 says
    what each sample is for where the data say so: 0 training, 1 validation, 2 test. `notes` are sentences
    about what was changed while loading.
    """

    name: str
    """What the data are called."""
    inputs: NDArray[Any]
    """The samples `[N, *features]`."""
    labels: NDArray[Any]
    classes: int
    users: NDArray[np.int64] | None = None
    user_names: tuple[str, ...] | None = None
    units: NDArray[np.int64] | None = None
    user_groups: NDArray[np.int64] | None = None
    public: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()
    given_split: NDArray[np.int8] | None = None
    task: Task = CLASSIFICATION
    outputs: int = 0
    preparation: Preparation = AS_READ
    """How the inputs were made of what was read, without what training samples alone decide."""
    target_names: tuple[str, ...] | None = None
    """What classes or outputs are called; None where they are called by their number."""
    standard: Standard | None = None
    """How bytes become numbers; None for a scale of 0 … 1."""

    def __post_init__(self) -> None:
        if not self.outputs:
            object.__setattr__(self, "outputs", self.classes)

    def take(self, rows: NDArray[np.bool_]) -> Dataset:
        """Return the samples that `rows` `[N]` marks."""
        beside = take_each(self, ("labels", "users", "units", "given_split"), rows)
        return replace(self, inputs=storage.take(self.inputs, rows), **beside)


def load(
    data: str,
    *,
    public: bool = False,
    task: Task | None = None,
    missing: Missing = "refuse",
    standardise: Standardise = "none",
    test_path: str | None = None,
    named: Named = USUAL,
) -> Dataset:
    """Load a named dataset, the path of a user's own file or folder, or `hub:owner/name[/configuration]`.

    Args:
        data: what is loaded.
        public: whether the official test samples are kept too, where there are any.
        task: reads the targets; without one, what the data are for decides.
        missing: what is done about missing values. Where their mean is to stand for them, they are NaN here: what
            training samples are is known later, and so it is with standardising.
        standardise: on whose training samples the inputs are to be standardised.
        test_path: a file or folder of further samples, which are for testing alone.
        named: what label and client are called, where the usual names do not say it.

    Raises:
        BadInput: the data cannot be found or read, or they are not usable as they are.
    """
    if data in DATASETS:
        if problems := _check_named(data) + find_test_problems(data, test_path):
            raise BadInput(problems)
        loaded: Dataset = DATASETS[data].target(public)
        loaded = replace(loaded, preparation=replace(AS_READ, standardise=standardise))
        if standardise != "none":
            loaded = replace(loaded, inputs=scale_bytes(loaded.inputs, loaded.standard))
        return loaded if task is None else _read_again(loaded, task)
    columns = columns_of(data, test_path, named)
    name = data if data.startswith((HUB, given.PREFIX)) else Path(data).stem
    wanted = Preparation(missing=missing, standardise=standardise, named=named)
    read = check_and_convert(name, columns, task, wanted, STANDARDS.get(data))
    if not public or data not in STANDARDS:
        return read
    return replace(read, public=np.asarray(hub.fetch(data.removeprefix(HUB), "test").features))


def _read_again(dataset: Dataset, task: Task) -> Dataset:
    """A named dataset with its targets as another task reads them."""
    where, notes = f"data = {dataset.name!r}", list(dataset.notes)
    inputs = read_tokens(dataset.inputs, where, task) if task.tokens else dataset.inputs
    known = dataset.outputs if type(task) is type(dataset.task) else None
    targets = task.read_targets(dataset.labels, where, notes, known)
    outputs = count_outputs(task, targets, inputs)
    return replace(
        dataset,
        inputs=inputs,
        labels=targets.values,
        classes=targets.classes,
        outputs=max(dataset.outputs, outputs) if task.tokens else outputs,
        task=task,
        notes=tuple(notes),
    )


def columns_of(data: str, test_path: str | None = None, named: Named = USUAL) -> Columns:
    """Data that are no named dataset, as they are read, with the samples of `test_path` behind them.

    Raises:
        BadInput: they cannot be found or read.
    """
    if problem := _name_problem(data):
        raise BadInput(problem)
    if data.startswith(given.PREFIX):
        columns = given.fetch(data)
    elif data.startswith(HUB):
        columns = hub.fetch(data.removeprefix(HUB), named=named)
    else:
        columns = read_columns(Path(data), named=named)
    return columns if test_path is None else join_tests(columns, read_columns(Path(test_path), named=named))


def find_test_problems(data: str, test_path: str | None, named: Named = USUAL) -> list[str]:
    """Why the samples of `test_path` cannot be loaded for such data, from names and headers alone."""
    if test_path is None:
        return []
    if data in DATASETS or data.startswith(HUB):
        return [
            f"data.test_path = {test_path!r} is not possible with data.name = {data!r}; it is for data in files, "
            "leave it out"
        ]
    return [
        problem.replace("data = ", "data.test_path = ", 1) for problem in check_path(Path(test_path), named=named)
    ]


MOST_BYTES = 1 << 26
"""Larger files are not read to tell what is wrong inside beside what is wrong elsewhere."""


def find_missing_values(data: str, named: Named = USUAL) -> list[str]:
    """Return a sentence if files of moderate size lack values, to be told beside other mistakes."""
    path = Path(data)
    try:
        files = column_files(path) if data not in DATASETS and path.exists() else []
        if 0 < sum(file.stat().st_size for file in files) <= MOST_BYTES:
            load(data, named=named)
    except BadInput as error:
        return [problem for problem in error.problems if SET_MISSING in problem]
    except OSError:  # no file can have that name
        pass
    return []


def find_problems(data: str, named: Named = USUAL) -> list[str]:
    """Why the data cannot be loaded, found from names and headers alone; empty if nothing is wrong."""
    if data in DATASETS:
        return _check_named(data) + named.refuse(data, "its columns are known")
    if problem := _name_problem(data):
        return [problem]
    if data.startswith(given.PREFIX):
        return given.find_problems(data, named)
    if data.startswith(HUB):
        return [] if hub.is_installed() else [hub.explain_missing(data)]
    return check_path(Path(data), named=named)


def _name_problem(data: str) -> str | None:
    """Why `data` names neither a named dataset, nor one of the hub, nor a path, nor what was given; or None."""
    if problem := DATASETS.problem(data):
        return problem
    if data.startswith(HUB):
        parts = data.removeprefix(HUB).split("/")
        right = f"write {HUB}owner/name, or {HUB}owner/name/configuration"
        return None if len(parts) in (2, 3) and all(parts) else f"data = {data!r} is not possible; {right}"
    path = Path(data)
    if data.startswith(given.PREFIX) or path.suffix in ENDINGS or data != path.name or path.exists():
        return None
    if data == "own":
        return "data = 'own' is not possible any more; for data that clients hold themselves, write 'remote'"
    files = "the path of a .csv, .npz or .parquet file or of a folder"
    return unknown("data", data, DATASETS.names(), instead=files)


def default_split(data: str, named: Named = USUAL) -> str:
    """The split that a newcomer would take for the data; nothing is loaded.

    By-user where the data name their users, rotated(4) for named images without, and iid for everything else.
    """
    if data in DATASETS:
        return str(getattr(DATASETS[data].target, "usual_split", "iid"))
    try:
        if data.startswith(given.PREFIX):
            has_clients = data in given.KEPT and given.KEPT[data].users is not None
        else:
            has_clients = not data.startswith(HUB) and names_clients(Path(data), named)
    except BadInput:  # which whoever reads them says
        return "iid"
    return "by-user" if has_clients else "iid"


FILES: dict[str, tuple[str, ...]] = {
    "mnist": ("mnist/train-images-idx3-ubyte.gz", "mnist/train-labels-idx1-ubyte.gz"),
    "fashion-mnist": ("fashion-mnist/train-images-idx3-ubyte.gz", "fashion-mnist/train-labels-idx1-ubyte.gz"),
    "cifar10": ("cifar10/cifar10_train_20k.npz",),
    "cifar10-20k": ("cifar10/cifar10_train_20k.npz",),
    "shakespeare": ("shakespeare/shakespeare_lines.parquet",),
    "uci-har": ("uci-har/uci_har_train.npz", "uci-har/uci_har_test.npz"),
    "mnist-writers": (
        "mnist/train-images-idx3-ubyte.gz",
        "mnist/train-labels-idx1-ubyte.gz",
        "mnist/mnist_writers.npz",
    ),
}
CIFAR10_OTHERS = "cifar10/cifar10_train_other_30k.npz"
"""The training images of CIFAR-10 that are not in `FILES`; with them it is whole."""

REPOSITORIES = {
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
}


def _check_named(name: str) -> list[str]:
    """Whether the files of a named dataset are in the data folder or can be downloaded."""
    try:
        absent = _absent_files(name) if name in FILES else []
        if not absent or (name in REPOSITORIES and hub.is_installed()):
            return []
        instead = " or install coterie[hub] to download it" if name in REPOSITORIES else ""
        return [f"data = {name!r} needs files; {_tell_where(absent)}{instead}"]
    except BadInput as error:
        return error.problems


def _tell_where(files: list[str]) -> str:
    """Return what to do with files of a named dataset that are not there."""
    folder, names = _data_folder(), ", ".join(files)
    if folder is None:
        return f"set {FOLDER} to a folder with {names}"
    return f"put {names} into {FOLDER} = {str(folder)!r}"


def _data_folder() -> Path | None:
    """Return the folder with the files of the named datasets; None where nobody named one.

    Raises:
        BadInput: what `COTERIE_DATA` names is no folder.
    """
    named = os.environ.get(FOLDER)
    if not named:
        return None
    if not Path(named).is_dir():
        raise BadInput(f"{FOLDER} = {named!r} is no folder; name one that holds the data, or unset it")
    return Path(named)


def _absent_files(name: str) -> list[str]:
    """Return the files of a named dataset that are not in the data folder; all of them where there is none.

    Raises:
        BadInput: what `COTERIE_DATA` names is no folder.
    """
    folder = _data_folder()
    return [file for file in FILES[name] if folder is None or not (folder / file).is_file()]


def _file(name: str, file: str) -> Path:
    """A file in the data folder.

    Raises:
        BadInput: it is not there, or there is no such folder.
    """
    folder = _data_folder()
    if folder is None or not (folder / file).is_file():
        raise BadInput(f"data = {name!r} needs files; {_tell_where([file])}")
    return folder / file


def _npz(name: str, file: str, *columns: str) -> dict[str, NDArray[Any]]:
    """The arrays of a file in the data folder, of which `columns` must be there.

    Raises:
        BadInput: the file is missing or damaged, or lacks a column.
    """
    path = _file(name, file)
    held = read_arrays(path)
    if absent := [column for column in columns if column not in held]:
        raise BadInput(f"{path} has no {', '.join(absent)}; replace the file")
    return held


@dataset("digits", split="rotated(4)")
def digits(public: bool) -> Dataset:
    """Handwritten digits of scikit-learn: 1,797 images of 8 x 8, 10 classes; needs no files."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.asarray(bunch.images, np.float32)[..., None]
    return Dataset("digits", STANDARDS["digits"].samples(images), bunch.target.astype(np.int64), 10)


@dataset("mnist", split="rotated(4)")
def mnist(public: bool) -> Dataset:
    """MNIST: the 60,000 official training images of 28 x 28, 10 classes."""
    return _images("mnist", public, _idx_files)


@dataset("fashion-mnist", split="rotated(4)")
def fashion_mnist(public: bool) -> Dataset:
    """Fashion-MNIST: the 60,000 official training images of 28 x 28, 10 classes of clothing."""
    return _images("fashion-mnist", public, _idx_files)


@dataset("cifar10", split="rotated(4)")
def cifar10(public: bool) -> Dataset:
    """CIFAR-10: 50,000 colour images, 32 x 32, 10 classes; 20,000 where only they are."""
    found = _images("cifar10", public, _cifar_files)
    if _absent_files("cifar10") or _others_of_cifar10() is not None:
        return found
    note = f"these are 20,000 of the 50,000 training images; {FOLDER} has no {CIFAR10_OTHERS} with the others"
    return replace(found, notes=(*found.notes, note))


@dataset("cifar10-20k", split="rotated(4)")
def cifar10_20k(public: bool) -> Dataset:
    """A subset of CIFAR-10: the first 2,000 training images of each class; from the data folder alone."""
    return _images("cifar10-20k", public, _cifar_files)


@dataset("mnist-writers", users=True)
def mnist_writers(public: bool) -> Dataset:
    """MNIST with the 539 people who wrote it; natural groups: census employees and high-school students."""
    columns = ("train_writer", "train_label", "train_hsf")
    writers = _npz("mnist-writers", "mnist/mnist_writers.npz", *columns)
    whole = mnist(public)
    people, users = np.unique(writers["train_writer"], return_inverse=True)
    if len(users) != len(whole.labels) or not np.array_equal(writers["train_label"], whole.labels):
        raise BadInput(
            "data = 'mnist-writers': mnist/mnist_writers.npz does not belong to these images; replace it"
        )
    groups = np.zeros(len(people), np.int64)
    groups[users] = writers["train_hsf"]
    return replace(
        whole,
        name="mnist-writers",
        users=users.astype(np.int64),
        user_names=tuple(f"writer {number}" for number in people),
        user_groups=groups,
    )


@dataset("uci-har", users=True)
def uci_har(public: bool) -> Dataset:
    """UCI Human Activity Recognition: 30 people, 10,299 windows of 128 steps of 9 signals, 6 activities."""
    columns = ("signal", "subject", "label", "segment")
    halves = [_npz("uci-har", file, *columns) for file in FILES["uci-har"]]
    signal = np.concatenate([half["signal"] * half["scale"][:, None].astype(np.float32) for half in halves])
    people, users = np.unique(np.concatenate([half["subject"] for half in halves]), return_inverse=True)
    labels = np.concatenate([half["label"] for half in halves]).astype(np.int64)
    return Dataset(
        "uci-har",
        STANDARDS["uci-har"].samples(np.ascontiguousarray(signal.transpose(0, 2, 1))),
        labels,
        6,
        users=users.astype(np.int64),
        user_names=tuple(f"subject {number}" for number in people),
        units=np.concatenate([half["segment"] for half in halves]).astype(np.int64),
    )


@dataset("shakespeare", users=True, task=Language.name)
def shakespeare_roles(public: bool) -> Dataset:
    """All plays of Shakespeare by speaking role: 80 characters, and the next one at every place; 640 roles."""
    file = FILES["shakespeare"][0]
    inputs, targets, users, names, units = shakespeare.cut_windows(
        shakespeare.read_lines(_file("shakespeare", file))
    )
    return Dataset(
        "shakespeare",
        inputs,
        targets,
        0,
        users,
        names,
        units,
        task=Language(),
        outputs=len(shakespeare.VOCABULARY),
        target_names=tuple(shakespeare.VOCABULARY),
    )


Raw = tuple[NDArray[Any], NDArray[Any]]


def _images(name: str, public: bool, files: Callable[[str, bool], Raw]) -> Dataset:
    """Images from the data folder, else from the hub."""
    if _absent_files(name):
        files = _hub_images
    images, labels = files(name, True)
    test = files(name, False)[0] if public else None
    return Dataset(name, images, labels.astype(np.int64), 10, public=test, standard=STANDARDS[name])


def _idx_files(name: str, train: bool) -> Raw:
    half = "train" if train else "t10k"
    images = _idx(_file(name, f"{name}/{half}-images-idx3-ubyte.gz"), 3)
    labels = _idx(_file(name, f"{name}/{half}-labels-idx1-ubyte.gz"), 1)
    if len(images) != len(labels):
        raise BadInput(f"data = {name!r}: {len(images)} images and {len(labels)} labels; replace the damaged file")
    return images[..., None], labels


def _cifar_files(name: str, train: bool) -> Raw:
    if not train:
        held = _npz(name, "cifar10/cifar10_test_4k.npz", "image", "label")
        return held["image"], held["label"]
    subset = _npz(name, FILES[name][0], "image", "label", "index")
    if name != "cifar10" or _others_of_cifar10() is None:
        return subset["image"], subset["label"]
    others = _npz(name, CIFAR10_OTHERS, "image", "label", "index")
    index = np.concatenate([subset["index"], others["index"]])
    order = np.argsort(index)
    whole = {key: np.concatenate([subset[key], others[key]])[order] for key in ("image", "label")}
    return whole["image"], whole["label"]


def _others_of_cifar10() -> Path | None:
    folder = _data_folder()
    return None if folder is None or not (folder / CIFAR10_OTHERS).is_file() else folder / CIFAR10_OTHERS


def download(data: str) -> None:
    """Bring data of the hub into its cache, so that many processes can read them; other data are left alone.

    Raises:
        BadInput: they cannot be had, or what `COTERIE_DATA` names is no folder.
    """
    if data.startswith(HUB):
        hub.download(data.removeprefix(HUB))
    elif data in REPOSITORIES and _absent_files(data):
        _download_named(data)


def _download_named(name: str, split: str = "train") -> Any:
    remedy = f"check the connection, or {_tell_where(_absent_files(name))}"
    return hub.download(REPOSITORIES[name], split, name=name, remedy=remedy)


def _hub_images(name: str, train: bool) -> Raw:
    held = hub.read_hub_columns(_download_named(name, "train" if train else "test"), name)
    images = np.asarray(held.features)
    assert held.labels is not None
    return images if images.ndim == 4 else images[..., None], held.labels


def _idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """The bytes of a gzipped idx file: a magic number that ends in the number of axes, the sizes, the values."""
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} is damaged ({type(error).__name__}); replace it") from None
    shape = np.frombuffer(raw[4 : 4 + 4 * axes], ">i4")
    if raw[:4] != bytes([0, 0, 8, axes]) or len(raw) != 4 + 4 * axes + int(np.prod(shape, dtype=np.int64)):
        raise BadInput(f"{path} is damaged (its header and its length disagree); replace it")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def count_outputs(task: Task, targets: Targets, inputs: NDArray[Any]) -> int:
    """How many numbers a network gives: those of the targets; of tokens, as many as any text may hold."""
    return max(targets.outputs, int(inputs.max(initial=0)) + 1) if task.tokens else targets.outputs


def check_and_convert(
    name: str,
    columns: Columns,
    task: Task | None = None,
    wanted: Preparation = AS_READ,
    standard: Standard | None = None,
) -> Dataset:
    """A user's columns checked and converted; what was changed is said in `notes`.

    `wanted` says what is done about missing values, and how inputs are to be standardised; `standard` how bytes
    become numbers, where that is known of the data.

    Raises:
        BadInput: the arrays are empty, disagree in length, or hold anything but finite numbers and targets of the
            task; without one, the targets decide (`choose_task`).
    """
    check_lengths(columns)
    notes = list(columns.notes)
    if len(columns.features) == 0:
        raise BadInput(f"{columns.where} has no samples; it needs at least one per class")
    assert columns.labels is not None
    unasked = task is None
    if unasked:
        refuse_odd_labels(columns)
    task = choose_task(columns.labels, notes) if task is None else task
    columns = leave_out_unlabelled(columns, task, notes)
    if task.tokens:
        columns = replace(columns, feature_key="tokens")
    preparation = find_columns(columns, wanted, notes)
    inputs = make_inputs(columns, preparation, notes, keep_bytes=True, standard=standard)
    if inputs.dtype != np.uint8:
        columns, inputs = handle_missing(inputs, columns, preparation, notes, SET_MISSING)
        notes += [] if task.tokens else advise_standardising(inputs, preparation)
    if task.tokens:
        inputs = read_tokens(inputs, columns.where, task)
    assert columns.labels is not None
    targets = task.read_targets(columns.labels, columns.where, notes)
    if unasked and targets.classes == 2:
        notes += advise_binary(targets.values)
    users, names = number_users(columns)
    return Dataset(
        name,
        inputs,
        targets.values,
        targets.classes,
        users,
        names,
        units=number_segments(columns, users),
        user_groups=_number_groups(columns, users, names, notes),
        notes=tuple(notes),
        given_split=columns.given_split,
        task=task,
        outputs=count_outputs(task, targets, inputs),
        preparation=preparation,
        target_names=targets.names,
        standard=standard,
    )


def read_tokens(inputs: NDArray[Any], where: str, task: Task) -> NDArray[np.int64]:
    """Inputs as tokens, which are looked up.

    Raises:
        BadInput: some are no whole numbers from 0 on.
    """
    with np.errstate(invalid="ignore"):  # what does not fit is another number then, and so it is wrong
        tokens = inputs.astype(np.int64)
    wrong = (tokens != inputs) | (tokens < 0)
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        raise BadInput(
            f"{where}: features in row {row} hold {inputs[wrong][0]:g}; with task.name = {task.name!r} they are "
            "tokens and must be whole numbers from 0 on"
        )
    return tokens


def number_users(columns: Columns) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
    """The user of each sample by number, and what each is called.

    Raises:
        BadInput: a sample has none.
    """
    if columns.users is None:
        return None, None
    if columns.users.dtype.kind == "f" and not np.isfinite(columns.users).all():
        row = int(np.argmin(np.isfinite(columns.users)))
        raise BadInput(
            f"{columns.where}: {columns.user_key} in row {row} is {columns.users[row]}; give every sample one"
        )
    values, users = np.unique(to_plain_strings(columns.users), return_inverse=True)
    named = tuple(str(v) if values.dtype.kind == "U" else f"{columns.user_key} {v}" for v in values)
    return users.astype(np.int64), named


def number_segments(columns: Columns, users: NDArray[np.int64] | None = None) -> NDArray[np.int64] | None:
    """Number the segment of each sample `[N]`; every user has segments of its own. None without segments."""
    if columns.segments is None:
        return None
    _, segments = np.unique(to_plain_strings(columns.segments), return_inverse=True)
    if users is not None:
        _, segments = np.unique(np.stack([users, segments]), axis=1, return_inverse=True)
    return segments.reshape(-1).astype(np.int64)


def _number_groups(
    columns: Columns, users: NDArray[np.int64] | None, names: tuple[str, ...] | None, notes: list[str]
) -> NDArray[np.int64] | None:
    """Number the true group of each user.

    Raises:
        BadInput: a user's samples are of several.
    """
    if columns.groups is None:
        return None
    if users is None or names is None:
        notes.append("the column group was not used, because the data do not say which client a sample belongs to")
        return None
    _, groups = np.unique(to_plain_strings(columns.groups), return_inverse=True)
    found = np.zeros(len(names), np.int64)
    found[users] = groups
    odd = found[users] != groups
    if odd.any():
        user = names[users[int(np.argmax(odd))]]
        raise BadInput(f"{columns.where}: samples of {user!r} are of several groups; a group is that of a client")
    return found
