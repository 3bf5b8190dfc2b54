"""The metrics of tasks by name: what each is called, which direction is better, how a client computes it.

Nothing here imports PyTorch before a metric is computed, so that pages and tables can read names
and directions.

Predicted classes and targets are int64 of one shape, -1 where a target is not known; those of several labels are
columns `[s, labels]` of 0 and 1 in float32, NaN where a label is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, create_model

from coterie.catalogue import Catalog, Entry, T
from coterie.errors import BadInput
from coterie.plugins import is_path

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.tasks.task import Task


@dataclass(frozen=True)
class Measure(Entry):
    """A number that says how good a model is on one client's held-out samples.

    Its `name` is that in settings, and of its column in tables.
    """

    explanation: str
    """What it is, for somebody who meets it for the first time."""
    title: str
    """What pages call it: `accuracy`, `RMSE`."""
    takes: str
    """`class` (predicted classes), `score` (a number that grows with the probability) or `value`."""
    is_share: bool = True
    """From 0 to 1, and shown in per cent."""
    less_is_better: bool = False
    """Whether it is an error."""
    tasks: tuple[str, ...] = ()
    """Tasks that it means something for, beside those that name it themselves (`Task.measurable`)."""

    @cached_property
    def summary(self) -> str:
        """Its explanation, as catalogues list it."""
        return self.explanation

    @cached_property
    def schema(self) -> type[BaseModel]:
        """It has no settings."""
        return create_model(self.name)

    def __reduce__(self) -> Any:
        """Make another process register it, where nothing else may have imported what does."""
        how = {name: getattr(self, name) for name in ("is_share", "less_is_better", "tasks")}
        return register, (self.name, self.target, self.title, self.summary, self.takes, how)

    def suits(self, task: Task | type[Task]) -> bool:
        """Return whether it means something for a task."""
        return not task.measurable or self.name in task.measurable or task.name in self.tasks

    def compute(self, predicted: Tensor, targets: Tensor) -> float:
        """Return it from the predictions `[N, …]` that it takes, and all targets; NaN where it is not defined."""
        return float(self.target(predicted, targets))


class MeasureCatalog(Catalog):
    """Metrics by name. What a package brings is a function that `measure` has registered."""

    def __getitem__(self, name: str) -> Measure:
        found = super().__getitem__(name)
        assert isinstance(found, Measure)
        return found

    def __iter__(self) -> Iterator[Measure]:
        return (entry for entry in super().__iter__() if isinstance(entry, Measure))

    def add(self, name: str) -> Callable[[T], T]:
        """Decorator: list under `name` what is registered under another."""

        def keep(target: T) -> T:
            self.entries[name] = replace(self._registered(target), name=name)
            return target

        return keep

    def _bring(self, name: str) -> None:
        if is_path(name):  # it would be the name of a column, in which charts cannot have a colon
            module, _, function = name.partition(":")
            raise BadInput(
                f"metric {name!r} is a path, and a metric is given by name; import its module (--import {module}), "
                f"and write the name under which measure registers {function}"
            )
        super()._bring(name)

    def _registered(self, target: Any) -> Entry:
        return next(entry for entry in self.entries.values() if entry.target is target)

    def _check(self, name: str, target: Any) -> None:
        if all(entry.target is not target for entry in self.entries.values()):
            raise BadInput(f"metric {name!r} is not registered; register its function with measure")


MEASURES = MeasureCatalog("metric", group="coterie.metrics")
"""Every metric that a task can name."""


def measure(name: str, title: str, explanation: str, takes: str, **how: Any) -> Callable[[Any], Any]:
    """Decorator: add a metric to `MEASURES`, computed by the function; `how` are further fields of `Measure`."""

    def add(compute: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], float]:
        register(name, compute, title, explanation, takes, how)
        return compute

    return add


def register(
    name: str,
    compute: Callable[[Tensor, Tensor], float],
    title: str,
    explanation: str,
    takes: str,
    how: Mapping[str, Any],
) -> Measure:
    """Add a metric to `MEASURES` (see `measure`) and return it."""
    found = Measure(name, compute, explanation, title, takes, **how)
    MEASURES.entries[name] = found
    return found


COUNTED = ("accuracy", "f1")
"""What follows from the counts of each class, where a sample is of one class."""


def find_wrong_metrics(task: Task, metrics: Sequence[str]) -> list[str]:
    """Return what is wrong with metrics for a task, one sentence each."""
    found = []
    for name in metrics:
        if name not in MEASURES:
            found.append(f"task.metrics: {MEASURES.sentence(name)}")
        elif not MEASURES[name].suits(task):
            possible = [*task.measurable, *(m.name for m in MEASURES if task.name in m.tasks)]
            found.append(
                f"task.metrics = {name!r} is not possible with {task.name}; it must be one of {', '.join(possible)}"
            )
    return found


def metrics_to_compute(task: Task, classes: int) -> tuple[str, ...]:
    """Return those of the task's metrics that do not follow from the counts of each class."""
    return tuple(name for name in task.metrics if not classes or name not in COUNTED)


def compute_metrics(task: Task, names: Sequence[str], outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the metrics of one client, of the outputs and targets of all its held-out samples; NaN without any."""
    if not len(targets):
        return dict.fromkeys(names, float("nan"))
    predicted, scores = task.predict(outputs), task.scores(outputs)
    found = {}
    for name in names:
        measured = MEASURES[name]
        found[name] = measured.compute(scores if measured.takes == "score" else predicted, targets)
    return found


@measure("accuracy", "accuracy", "the share of right answers on a client's own held-out samples", "class")
def accuracy(predicted: Tensor, targets: Tensor) -> float:
    """The share of known targets that are predicted."""
    there = ~targets.isnan() if targets.is_floating_point() else targets >= 0
    return float((predicted == targets)[there].double().mean()) if there.any() else float("nan")


def _compute(name: str, predicted: Tensor, targets: Tensor) -> float:
    """By the formula of which the metric's interval is made."""
    from coterie.clients.tasks.score_intervals import compute_value

    return compute_value(name, predicted.cpu().numpy(), targets.cpu().numpy())


_OWN = "on a client's own held-out samples"
_ERROR = {"is_share": False, "less_is_better": True}
_BY_FORMULA: tuple[tuple[str, str, str, str, dict[str, bool]], ...] = (
    (
        "balanced_accuracy",
        "balanced accuracy",
        "the share of right answers in each class that a client has, averaged over these classes",
        "class",
        {},
    ),
    ("f1", "F1", f"the mean of precision and recall {_OWN}, averaged over the classes or labels", "class", {}),
    (
        "auroc",
        "AUROC",
        "the probability that a sample of a class gets a higher score for it than one of another class, averaged "
        "over the classes",
        "score",
        {},
    ),
    (
        "average_precision",
        "average precision",
        "the precision of a ranking by score, averaged over all recalls, and over the classes",
        "score",
        {},
    ),
    ("rmse", "RMSE", f"the root of the mean squared error {_OWN}", "value", _ERROR),
    ("mae", "MAE", f"the mean absolute error {_OWN}", "value", _ERROR),
    (
        "r2",
        "R²",
        f"the share of the targets' variance {_OWN} that is predicted; below 0 where their mean would be a better "
        "guess",
        "value",
        {"is_share": False},
    ),
    (
        "iou",
        "IoU",
        "the share that predicted and true places of a class have in common, averaged over the classes that occur",
        "class",
        {},
    ),
)
"""Name, title, explanation, what it takes and further fields of each metric that `score_intervals` computes."""

for _name, _title, _said, _takes, _how in _BY_FORMULA:
    register(_name, partial(_compute, _name), _title, _said, _takes, _how)


@measure(
    "perplexity",
    "perplexity",
    "among how many equally likely tokens the model would be as unsure of the next one",
    "score",
    is_share=False,
    less_is_better=True,
)
def perplexity(logits: Tensor, targets: Tensor) -> float:
    """The exponential of the mean cross-entropy over all known tokens, of logits `[s, T, vocabulary]`."""
    from torch.nn.functional import cross_entropy

    return float(cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1).exp())
