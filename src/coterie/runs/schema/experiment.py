"""The typed experiment: what is trained, how, on whose data. One TOML file says all of it.

experiment = Experiment(method={"name": "fesem", "clusters": 4}, data="fashion-mnist", run={"rounds": 30})
experiment.check()                      # every problem at once, before anything starts
same = Experiment.from_toml(experiment.to_toml())

A person gives what is written in Python; what comes from a file imports nothing of its own (`coterie.plugins`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from coterie.clients.rules.training import Training
from coterie.errors import BadInput
from coterie.methods.aggregation import Aggregation
from coterie.methods.privacy import Privacy
from coterie.methods.scale import Scale
from coterie.plugins import allow as allow_names
from coterie.plugins import consent, find_refusal, give
from coterie.runs.schema import toml
from coterie.runs.schema.names import (
    AUTO,
    CHOICES,
    absolute_data,
    bind,
    find_failed_imports,
    find_missing_values,
    find_paths,
    known_settings,
    qualify,
    resolve_split,
    unknown_names,
)
from coterie.runs.schema.refusals import Parts
from coterie.runs.schema.registry import SECTIONS, as_table, build_section, name_given, without_silent
from coterie.runs.schema.sections import (
    Attack,
    Choice,
    Data,
    Evaluation,
    MethodChoice,
    Network,
    Run,
    TaskChoice,
)

if TYPE_CHECKING:
    from coterie.clients.tasks import Task
    from coterie.methods import Method


class Experiment(BaseModel):
    """Everything that decides a run's result; frozen, and equal where the experiments are the same.

    A section is given as itself, as a mapping of its keys, or, where it has a name, as that name alone. A network
    may also be a `torch.nn.Module`, or a class or function that gives one; a method or a task may be its class.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    data: Data
    """What is learnt from, and how it is dealt out to clients."""
    task: TaskChoice
    """How targets are read, what is minimised and what is measured."""
    network: Network
    """What is trained."""
    method: MethodChoice
    """The federated method, with its settings."""
    training: Training
    """How a client trains."""
    evaluation: Evaluation
    """When clients are scored, and with what."""
    run: Run
    """Rounds, seed, workers, runtime and folder."""
    scale: Scale
    """From how many clients on a method may approximate."""
    aggregation: Aggregation
    """Which average is taken, and which updates are left out."""
    attack: Attack
    """Clients that are hostile."""
    privacy: Privacy
    """What clients are promised."""

    def __init__(
        self,
        /,
        *,
        data: Any = None,
        task: TaskChoice | Mapping[str, Any] | str | type | None = None,
        network: Network | Mapping[str, Any] | str | Callable[..., Any] | None = None,
        method: MethodChoice | Mapping[str, Any] | str | type | None = None,
        training: Training | Mapping[str, Any] | None = None,
        evaluation: Evaluation | Mapping[str, Any] | None = None,
        run: Run | Mapping[str, Any] | str | None = None,
        scale: Scale | Mapping[str, Any] | None = None,
        aggregation: Aggregation | Mapping[str, Any] | None = None,
        attack: Attack | Mapping[str, Any] | None = None,
        privacy: Privacy | Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Build every section; a section that is not given has its defaults.

        Whatever is named here may be imported by this process from now on, and by those that it hands work to.

        Raises:
            BadInput: everything that can be known wrong, one sentence each. Names and settings of the
                catalogues are looked up by `check`, and here only where something else is wrong already. The
                modules of `run.imports` are imported.
        """
        given = {
            "data": data,
            "task": task,
            "network": name_given("network", network),
            "method": method,
            "training": training,
            "evaluation": evaluation,
            "run": run,
            "scale": scale,
            "aggregation": aggregation,
            "attack": attack,
            "privacy": privacy,
            **others,
        }
        give(find_paths(given).values())
        super().__init__(**_build_sections(given))

    @property
    def split_seed(self) -> int:
        """The seed of who holds what, and of which samples are for testing."""
        return self.run.seed if self.data.split_seed is None else self.data.split_seed

    def __getstate__(self) -> dict[Any, Any]:
        return {**super().__getstate__(), "consent": consent().intersection(find_paths(dict(self)).values())}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Take up an experiment in another process, which may import for it what the first one might."""
        give(state.pop("consent"))
        super().__setstate__(state)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Experiment:
        """The experiment in the tables of a file; what they name is imported only where a person gave it elsewhere.

        Raises:
            BadInput: as for `Experiment`. Names that nobody gave are refused by `check`.
        """
        experiment = cls.__new__(cls)
        BaseModel.__init__(experiment, **_build_sections({**dict.fromkeys(cls.model_fields), **tables}))
        return experiment

    @classmethod
    def from_toml(cls, source: Path | str, allow: Iterable[str] = ()) -> Experiment:
        """The experiment in a file, or in a text (a string that spans lines or does not end in .toml).

        Args:
            source: the file or the text.
            allow: the modules and `package.module:object` of your own that it names and that this process may
                import; `check` refuses others.

        Raises:
            BadInput: the file cannot be read, is no TOML (with the line), or holds what is no experiment.
        """
        allow_names(allow)
        return cls.from_tables(_without_empty_data(toml.load(source)))

    def to_toml(self) -> str:
        """The experiment as TOML that loads to an equal one. A key that is not set (None) is left out."""
        return toml.dump(without_silent(self.tables()))

    def commented_toml(self) -> str:
        """Every key with its meaning and its default, as TOML that loads to `resolved()` with the split as it is.

        Raises:
            BadInput: the method or the network is unknown, or its settings are wrong.
        """
        # The file is there to be edited: with other data, auto still finds the split that fits.
        full = self.resolved().updated({"data.split": self.data.split})
        known = known_settings(full.method.name, full.network.name, full.task.name)
        return toml.dump_commented(full.tables(), known)

    def tables(self) -> dict[str, dict[str, Any]]:
        """The experiment as plain tables, one a section; keys that are not set (None) are left out."""
        return {title: section.model_dump(exclude_none=True) for title, section in self}

    @property
    def expected_rounds(self) -> int:
        """The rounds that a run should take: `run.rounds`, or as many of `training.epochs` as make `run.passes`."""
        run, each = self.run, self.training.epochs * self.run.participation
        if run.passes is None or not each:
            return run.rounds
        return min(run.rounds, max(1, ceil(run.passes / each - 0.5)))

    def updated(self, changes: Mapping[str, Any]) -> Experiment:
        """The experiment with other values under dotted keys: `{"run.rounds": 30, "method.mu": 0.0}`.

        A section's name as the key replaces the whole section. Another `method.name`, `network.name` or
        `task.name` drops the settings of the former one, which were its own. None puts a key back to its default.

        Raises:
            BadInput: as for `Experiment`.
        """
        give(find_paths(changes).values())
        return Experiment.from_tables(apply_changes(dict(self), changes))

    def resolved(self) -> Experiment:
        """The experiment with the defaults of its method and network written out, and the split that auto means.

        Raises:
            BadInput: the method or the network is unknown, or its settings are wrong.
        """
        settings, problems = {}, list[str]()
        for title in CHOICES:
            try:
                settings[title] = bind(getattr(self, title))
            except BadInput as problem:
                problems += problem.problems
        if problems:
            raise BadInput(problems)
        return self._written_out(settings, split=resolve_split(self.data))

    def _written_out(self, settings: Mapping[str, Mapping[str, Any]], **data: Any) -> Experiment:
        """The experiment with all settings of its method, network and task, and with other values of its data.

        A network or task `auto` stays `auto`: what fits is known only when the data are loaded.
        """
        full: dict[str, Any] = {"data": self.data.updated(**data)}
        for title, own in settings.items():
            choice: Choice = getattr(self, title)
            full[title] = choice.with_settings({key: value for key, value in own.items() if value is not None})
        return self.model_copy(update=full)

    def check(self) -> None:
        """Refuse what cannot run; see the function `check`."""
        check(self)


def _build_sections(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of an experiment that are given in any of their forms.

    Raises:
        BadInput: as for `Experiment`.
    """
    built: dict[str, Any] = {}
    broken: dict[str, dict[str, Any]] = {}
    lost = find_failed_imports(given)
    found = list(lost)
    if isinstance(given["data"], Mapping) and not given["data"]:
        found.append(
            "data = {} holds no client; give data such as {client: (x, y)}, the name of a dataset or a path, or "
            "leave it out for the default"
        )
    for name, value in given.items():
        try:
            built[name] = build_section(name, value)
        except BadInput as problem:
            found += problem.problems
            broken[name] = as_table(name, value) or {}
    if lost:  # with it whatever it registers: nobody can tell which names are wrong
        raise BadInput(found)
    if found:
        missing = find_missing_values(as_table("data", given["data"]) or {})
        raise BadInput(found + Parts(built).problems + unknown_names(broken) + missing)
    return built


def apply_changes(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of an experiment, in any of their forms, changed as `Experiment.updated` says."""
    result = dict(tables)
    for key in sorted(changes, key=_wholes_then_names):
        section, _, name = key.partition(".")
        value = changes[key]
        if not name:
            result[section] = value
            continue
        table = as_table(section, result.get(section))
        if table is None:
            continue  # what stands there is refused when the experiment is built
        name, _, inner = name.partition(".")
        if inner:  # a key of a table in the section, as evaluation.adapt.epochs
            there = table.get(name)
            value = {**(there if isinstance(there, Mapping) else {}), inner: value}
        if name == "name" and section in CHOICES and value != table.get("name"):
            table = {}
        result[section] = {**table, name: value}
        if value is None:
            del result[section][name]
    return result


def _without_empty_data(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections without a `[data]` of a file under which nothing stands; in Python it would be a mistake."""
    data = tables.get("data")
    return {k: v for k, v in tables.items() if k != "data" or not isinstance(data, Mapping) or data}


def check(experiment: Experiment) -> None:
    """Find everything that can be known wrong before work starts: names, settings, data, split, folder.

    Raises:
        BadInput: one sentence for each problem, with the key, its value and what would be right.
    """
    prepare(experiment)


@dataclass(frozen=True, eq=False)
class Prepared:
    """An experiment that has been checked, and what it names, made. Its data are not loaded yet."""

    experiment: Experiment
    """With all settings written out, the split that `auto` means, and absolute paths."""
    method: Method[Any]
    task: Task | None
    """What is learnt; None where the data say what they are for."""
    split_given: bool = True
    """Whether somebody said how the data are divided, or whose they are."""


def prepare(experiment: Experiment | Prepared) -> Prepared:
    """Make what an experiment names, and check all of it together; one that is prepared stays as it is.

    Raises:
        BadInput: one sentence for each problem, with the key, its value and what would be right.
    """
    if isinstance(experiment, Prepared):
        return experiment
    if not isinstance(experiment, Experiment):
        right = "Experiment.from_toml(path)" if str(experiment).endswith(".toml") else "Experiment(method=...)"
        raise BadInput(f"{experiment!r} is not an experiment; write coterie.{right}")
    parts = Parts(dict(experiment))
    if parts.problems:
        raise BadInput(parts.problems + find_missing_values(as_table("data", experiment.data) or {}))
    data, network = experiment.data, experiment.network
    places: dict[str, Any] = {"name": absolute_data(data.name)}
    if data.test_path is not None:
        places["test_path"] = absolute_data(data.test_path)
    full = experiment._written_out(parts.settings, split=parts.split, **places)
    if network.start is not None:
        full = full.model_copy(update={"network": full.network.updated(start=str(Path(network.start).resolve()))})
    return Prepared(full, parts.made["method"], parts.made.get("task"), data.split != AUTO)


def _wholes_then_names(key: str) -> int:
    _, _, name = key.partition(".")
    return 0 if not name else 1 if name == "name" else 2


def assemble(tables: Mapping[str, Any], changes: Mapping[str, Any], texts: Iterable[str]) -> Experiment:
    """Return the experiment in `tables`, changed by dotted keys, then by texts like `clusters=3` or `run.rounds=9`.

    The value in a text is TOML, or else a string. Dotted keys count first, so that `network.name=cnn` decides what
    a bare key can mean.

    Raises:
        BadInput: everything that is wrong, one sentence each: a text without `=`, a key that is unknown or
            ambiguous, a value that is not possible.
    """
    found: list[str] = []
    dotted: dict[str, Any] = dict(changes)
    bare: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals:
            found.append(f"--set {text!r} is not possible; write --set KEY=VALUE")
        else:
            (dotted if "." in key else bare)[key] = toml.value_of(value)
    whole = apply_changes(tables, dotted)
    if refusal := find_refusal(find_paths(whole)):
        raise BadInput(refusal)
    if lost := find_failed_imports(whole):
        raise BadInput(lost)
    method, network, task = (_name(title, whole.get(title)) for title in CHOICES)
    for key, value in bare.items():
        try:
            dotted[qualify(key, method, network, task, value)] = value
        except BadInput as problem:
            found += problem.problems
    try:
        experiment = Experiment.from_tables(_without_empty_data(apply_changes(tables, dotted)))
    except BadInput as problem:
        raise BadInput(found + problem.problems) from None
    if found:
        raise BadInput(found + Parts(dict(experiment)).problems)
    return experiment


def _name(title: str, given: Any) -> str:
    """The name in a section that is given in any of its forms; its default where there is none."""
    name = given.get("name") if isinstance(given, Mapping) else given
    return str(SECTIONS[title].model_fields["name"].default if name is None else name)
