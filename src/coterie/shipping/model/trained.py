"""A trained model as a file: safetensors that say how to build the network again, and whose model it is.

Every parameter and buffer is a tensor under its name in the network's `state_dict`, so that PyTorch alone can read
the file. The metadata hold what Coterie needs beside that (`About`), and a digest of everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from coterie.clients.data.read.columns import USUAL
from coterie.clients.data.read.preparation import Preparation
from coterie.clients.tasks import CLASSIFICATION, TASKS, Binary, Task
from coterie.errors import BadInput
from coterie.models.features import format_shape
from coterie.models.layout import Layout
from coterie.models.networks import NETWORKS, build_network, is_own
from coterie.models.origin import Origin
from coterie.plugins import allow as allow_names
from coterie.plugins import find_refusal
from coterie.runs.schema.names import AUTO, build_task, find_paths
from coterie.runs.schema.sections import TaskChoice
from coterie.runtime.tensor_file import Stacked, digest, read_file, replace_file

FORMAT = "coterie-model/1"

MODEL = "model.safetensors"
"""How a client of a real federation calls its model, in its own folder."""


@dataclass(frozen=True)
class About:
    """What must be known of a model beside its numbers.

    Attributes:
        network: a name in `NETWORKS`.
        settings: of the network; those left out take their defaults.
        features: shape of one sample: `(height, width, channels)`, `(depth, height, width, channels)`,
            `(time, channels)` or `(features,)`.
        classes: number of outputs.
        labels: what the classes or outputs are called, in order; None where they have numbers only.
        data: the named dataset that it was trained on, whose preparation its samples need; empty for other data.
        whose: whose model it is, in a few words, as in `group 2 of run first after round 30`.
        coterie: version of the package that wrote it.
        preparation: how samples were made of columns, whose names are kept there; None for a named dataset.
        task: what it learnt, as the section `[task]` of an experiment says it: its name in `TASKS`, with `metrics`
            and settings that are not its defaults. Nothing for classification.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)
    network: str
    settings: Mapping[str, Any]
    features: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=4)]
    classes: Annotated[int, Field(ge=1)]
    labels: tuple[str, ...] | None = None
    data: str = ""
    whose: str = ""
    coterie: str = field(default_factory=lambda: version("coterie"))
    preparation: Preparation | None = None
    output: str | None = None
    """Which of the network's outputs counts, where it was named."""
    head: tuple[str, ...] = ()
    """The modules that are the last layer together, where they were named."""
    task: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        task = self.task.get("name", "classification")
        learnt = {"classification": f"{self.classes} classes", "binary": "binary"}.get(
            task, f"{task} of {self.classes} output{'s' * (self.classes > 1)}"
        )
        return f"network {self.network}, samples of {format_shape(self.features)}, {learnt}"

    def name_of(self, number: int) -> str:
        """What a class is called."""
        return str(number) if self.labels is None else self.labels[number]

    def build_task(self) -> Task:
        """Return the task.

        Raises:
            BadInput: there is none of that name, or with these settings.
        """
        return build_task(TaskChoice(**self.task)) or CLASSIFICATION

    def to_json(self) -> str:
        """Return the description as JSON; without what goes without saying: classification, and usual names."""
        known = {key: value for key, value in asdict(self).items() if key != "task" or value}
        if self.preparation is not None and self.preparation.named == USUAL:
            del known["preparation"]["named"]
        return json.dumps(known, sort_keys=True, ensure_ascii=False)


def describe_task(choice: TaskChoice, task: Task) -> dict[str, Any]:
    """Return a task as `About` keeps it.

    Args:
        choice: how the experiment names it.
        task: what that became once the data were known, as with weights of their classes.

    Raises:
        BadInput: it was given in Python, and has no name by which it could be found.
    """
    name = task.name if choice.name == AUTO else choice.name
    found: dict[str, Any] = {}
    for setting in TASKS[name].settings:
        value = getattr(task, setting.name, choice.settings.get(setting.name, setting.default))
        if value != setting.default:
            found[setting.name] = value
    if task.metrics != type(task).metrics:
        found["metrics"] = task.metrics
    return found if name == CLASSIFICATION.name and not found else {"name": name, **found}


@dataclass(frozen=True, eq=False)
class Trained:
    """A model `[P]`, where its tensors lie in it, and what else is known of it."""

    vector: Tensor = field(repr=False)
    """The model `[P]`."""
    layout: Layout = field(repr=False)
    """Where each tensor lies in it."""
    about: About
    """What it was trained on and for."""
    rest: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """What else the network's `state_dict` holds (`rest_of`)."""

    def network(self) -> nn.Module:
        """A network of its own with these numbers, in evaluation mode; it takes `channels_first` batches."""
        about = self.about
        origin = Origin(output=about.output, head=about.head)
        built = build_network(
            about.network, about.settings, about.features, about.classes, 0, origin=origin, is_trained=True
        )
        built.layout.bind(built.network, self.vector.clone())
        built.network.load_state_dict(self.rest, strict=False)
        return built.network.eval()


def rest_of(name: str, network: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """What the `state_dict` of one's own network holds beside its model: what is frozen, and constants."""
    if not is_own(name):
        return {}
    known = {entry.name for entry in layout.entries}
    return {key: values.detach().clone() for key, values in network.state_dict().items() if key not in known}


def write_model(
    path: Path, vector: Tensor, layout: Layout, about: About, rest: Mapping[str, Tensor] | None = None
) -> None:
    """Write a model so that the file appears whole or not at all; the same model gives the same bytes.

    Args:
        path: of the file; its folder is there.
        vector: `[P]`, float32.
        layout: of the network that `about` names.
        about: what is kept beside the numbers.
        rest: what else is in the network's `state_dict`.

    Raises:
        ValueError: `vector` is not a float32 `[P]` of this layout.
    """
    if vector.dtype != torch.float32 or vector.shape != (layout.size,):
        raise ValueError(f"the model is {vector.dtype} {tuple(vector.shape)}; it must be float32 ({layout.size},)")
    text = about.to_json()
    vector = vector.detach().cpu().contiguous()
    tensors = {entry.name: Stacked.of(entry.view(vector)) for entry in layout.entries}
    tensors |= {name: Stacked.of(values.cpu().contiguous()) for name, values in (rest or {}).items()}
    replace_file(path, tensors, {"format": FORMAT, "about": text, "digest": digest(text, tensors)})


def read_model(path: Path, allow: Iterable[str] = ()) -> Trained:
    """Read what `write_model` wrote.

    Args:
        path: of the file. Nothing is imported because a file says so, but what installed packages offer.
        allow: the `package.module:object` that it may name as its network or task.

    Raises:
        BadInput: the file is missing, damaged, not of this format, or of a network or a task that is unknown here.
    """
    allow_names(allow)
    if not path.is_file():
        raise BadInput(f"model {str(path)!r} does not exist; name a file that coterie export wrote")
    if path.suffix == ".onnx":
        raise BadInput(f"model {str(path)!r} is for other programs; export it as .safetensors to use it here")
    meta, tensors = read_file(path, "model", FORMAT, ("about",))
    about = _about(meta.get("about", ""))
    if about is None:
        raise BadInput(f"model {str(path)!r} is damaged (it does not say of which network it is); restore it")
    try:
        if refusal := find_refusal(find_paths({"network": about.network, "task": about.task})):
            raise BadInput(refusal)
        layout, more = _layout(about)
        about.build_task()
    except BadInput as error:
        raise BadInput([f"model {str(path)!r} cannot be built: {problem}" for problem in error.problems]) from None
    expected = more | {entry.name: (entry.shape, torch.float32) for entry in layout.entries}
    if expected != {name: (tuple(values.shape), values.dtype) for name, values in tensors.items()}:
        raise BadInput(
            f"model {str(path)!r} has other tensors than its network {about.network}, as version "
            f"{version('coterie')} builds it; read it with version {about.coterie}"
        )
    vector = torch.empty(layout.size)
    for entry in layout.entries:
        entry.view(vector).copy_(tensors[entry.name])
    return Trained(vector, layout, about, {name: tensors[name] for name in more})


def _layout(about: About) -> tuple[Layout, dict[str, tuple[tuple[int, ...], torch.dtype]]]:
    """Of the network that a file asks for, with what else is in its `state_dict`.

    However large a registered one is, no memory is taken for its numbers.

    Raises:
        BadInput: there is no such network.
    """
    entry = NETWORKS[about.network]
    settings = entry.bind(about.settings, prefix="network")
    reason = ""
    if is_own(about.network):
        origin = Origin(output=about.output, head=about.head)
        built = build_network(about.network, about.settings, about.features, about.classes, 0, origin=origin)
        rest = rest_of(about.network, built.network, built.layout)
        return built.layout, {name: (tuple(values.shape), values.dtype) for name, values in rest.items()}
    for device in ("meta", "cpu"):  # a network of somebody's own may want to see numbers as it is built
        try:
            with torch.device(device), torch.random.fork_rng(devices=[]):
                return Layout.of(entry.target(about.features, about.classes, **settings), about.head), {}
        except BadInput:
            raise
        except Exception as error:  # noqa: BLE001  # whatever such a network raises
            reason = str(error).split("\n", 1)[0]
    raise BadInput(f"{about} are not possible ({reason})")


def _about(text: str) -> About | None:
    """What the metadata say; None where they are not what `write_model` writes."""
    try:
        about = _ABOUT.validate_json(text)
    except ValidationError:
        return None
    named = 2 if about.task.get("name") == Binary.name else about.classes
    return about if about.labels is None or len(about.labels) == named else None


_ABOUT = TypeAdapter(About)
