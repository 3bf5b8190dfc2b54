"""The typed experiment: what is trained, how, on whose data. One TOML file says all of it.

experiment = Experiment(method={"name": "fesem", "clusters": 4}, data="fashion-mnist", run={"rounds": 30})
experiment.check()                      # every problem at once, before anything starts
same = Experiment.from_toml(experiment.to_toml())
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coterie import experiment_toml as toml
from coterie.catalog import Catalog, Setting, settings_of
from coterie.clients.training import Training
from coterie.problems import BadInput, nearest, sentences
from coterie.scale import Scale


class Section(BaseModel):
    """One table of the experiment: frozen, typed, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    title: ClassVar[str]

    def __init__(self, /, **keys: Any) -> None:
        """Check and keep the keys.

        Raises:
            BadInput: one sentence for each key that is unknown or out of range.
        """
        values = {key: toml.plain(value) for key, value in keys.items()}
        found = []
        if self.model_config.get("extra") == "allow":
            own = {k: v for k, v in values.items() if k not in type(self).model_fields}
            found = [
                f"{self.title}.{key} = {value!r} is not possible; "
                "it must be a finite number, a string, true, false, or a list or table of these"
                for key, value in own.items()
                if not toml.is_value(value)
            ]
        try:
            super().__init__(**values)
        except ValidationError as error:
            found = sentences(error, self.title, list(type(self).model_fields)) + found
        if found:
            raise BadInput(found)


class Choice(Section):
    """A section that names an entry of a catalogue and carries that entry's own settings as further keys."""

    model_config = ConfigDict(extra="allow")
    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """The entry's own settings as they were given, without defaults."""
        return dict(self.model_extra or {})


class Data(Section):
    """Whose data: the dataset, and how it is split among clients."""

    title = "data"
    name: Annotated[
        str, Field(description="coterie list datasets, a path to .npz, .parquet or a folder, or hub:owner/name")
    ] = "digits"
    split: Annotated[
        str,
        Field(
            description="who holds what: coterie list splits; parts combine with +; auto is by-user where the data "
            "name their users, rotated(4) for named images, else iid"
        ),
    ] = "auto"
    clients: Annotated[int | None, Field(ge=1, description="number of clients; without it, the split's own")] = None
    validation: Annotated[float, Field(ge=0, lt=1, description="share of each client's samples for validation")] = (
        0.1
    )
    test: Annotated[float, Field(gt=0, lt=1, description="share of each client's samples for its test")] = 0.2
    min_samples: Annotated[int, Field(ge=2, description="samples below which a client is refused")] = 10
    samples_per_client: Annotated[
        int | None, Field(ge=1, description="keep at most so many samples of each client; without it, all")
    ] = None
    public: Annotated[
        int | None,
        Field(ge=0, description="unlabelled samples on the server; without it, as many as the method is used to"),
    ] = None


class Network(Choice):
    """Which network, and its own settings as further keys."""

    title = "network"
    name: Annotated[str, Field(description="coterie list networks; auto takes one that fits the data")] = "auto"


class MethodChoice(Choice):
    """Which method, and its own settings as further keys."""

    title = "method"
    name: Annotated[str, Field(description="coterie list methods")] = "fesem"


class Evaluation(Section):
    """When clients are evaluated, and on which of their held-out data."""

    title = "evaluation"
    every: Annotated[int, Field(ge=1, description="rounds between evaluations; the last round always counts")] = 1
    on: Annotated[
        Literal["test", "validation"],
        Field(
            description="the samples that count; validation for choosing settings: nothing is tested then, "
            "clients held out are left aside"
        ),
    ] = "test"


NAME = re.compile(r"[^\W_][\w.+=-]*")
"""What a run may be called: a plain name of a folder."""
LONGEST_NAME = 80
"""Characters of a run's name; a folder's name has room for them and a number on every system."""


class Run(Section):
    """How long, with whom, from which seed, and where the result goes."""

    title = "run"
    rounds: Annotated[int, Field(ge=1, description="communication rounds")] = 20
    participation: Annotated[float, Field(gt=0, le=1, description="share of the clients in each round")] = 1.0
    dropout: Annotated[
        float, Field(ge=0, lt=1, description="probability that a client vanishes in the middle of a round")
    ] = 0.0
    holdout_clients: Annotated[
        float,
        Field(ge=0, lt=1, description="share of the clients kept out of training, who join when it has ended"),
    ] = 0.0
    seed: Annotated[int, Field(ge=0, description="root of all randomness; same seed, same bits")] = 0
    workers: Annotated[int | None, Field(ge=1, description="worker processes; without it, one per core")] = None
    engine: Annotated[
        Literal["auto", "sequential", "batched", "gpu"],
        Field(description="clients one after the other, many in one kernel, or a GPU; auto is the faster of two"),
    ] = "auto"
    client_timeout: Annotated[
        float | None, Field(gt=0, description="seconds after which a client is left out of the round")
    ] = None
    link_mbit: Annotated[float, Field(gt=0, description="a client's link for simulated time, Mbit/s each way")] = (
        2.0
    )
    seconds_per_sample: Annotated[
        float, Field(ge=0, description="a client's computing for simulated time, seconds per training sample")
    ] = 0.0
    checkpoint_every: Annotated[
        int | None,
        Field(ge=1, description="rounds between checkpoints; without it, as often as takes 5 % of the time"),
    ] = None
    folder: Annotated[str, Field(min_length=1, description="where run folders are made")] = "runs"
    name: Annotated[str | None, Field(description="the run's name; without it, one is made up")] = None

    @field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, name: str | None) -> str | None:
        if name is not None and not NAME.fullmatch(name):
            raise ValueError("write letters, digits, '-', '_', '.', '+' or '=', and begin with a letter or a digit")
        if name is not None and len(name) > LONGEST_NAME:
            raise ValueError(f"it has {len(name)} characters, and may have {LONGEST_NAME}")
        return name


_plain: Catalog = Catalog("section")
"""The sections that are frozen dataclasses of parts of the package that know nothing of experiments."""
_plain.add("training")(Training)
_plain.add("scale")(Scale)

SECTIONS: dict[str, type[Section | Training | Scale]] = {
    "data": Data,
    "network": Network,
    "method": MethodChoice,
    "training": Training,
    "evaluation": Evaluation,
    "run": Run,
    "scale": Scale,
}
"""The tables of an experiment, in the order in which they are written."""


class Experiment(BaseModel):
    """Everything that decides a run's result; frozen, and equal where the experiments are the same.

    A section is given as itself, as a mapping of its keys, or, where it has a name, as that name alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    data: Data
    network: Network
    method: MethodChoice
    training: Training
    evaluation: Evaluation
    run: Run
    scale: Scale

    def __init__(
        self,
        /,
        *,
        data: Data | Mapping[str, Any] | str | None = None,
        network: Network | Mapping[str, Any] | str | None = None,
        method: MethodChoice | Mapping[str, Any] | str | None = None,
        training: Training | Mapping[str, Any] | None = None,
        evaluation: Evaluation | Mapping[str, Any] | None = None,
        run: Run | Mapping[str, Any] | str | None = None,
        scale: Scale | Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Build every section; a section that is not given has its defaults.

        Raises:
            BadInput: everything that can be known wrong, one sentence each. Names and settings of the
                catalogues are looked up by `check`, and here only where something else is wrong already.
        """
        given = {
            "data": data,
            "network": network,
            "method": method,
            "training": training,
            "evaluation": evaluation,
            "run": run,
            "scale": scale,
            **others,
        }
        built: dict[str, Any] = {}
        broken: dict[str, dict[str, Any]] = {}
        found: list[str] = []
        for name, value in given.items():
            try:
                built[name] = _section(name, value)
            except BadInput as problem:
                found += problem.problems
                broken[name] = _as_table(name, value) or {}
        if found:
            from coterie import experiment_check

            raise BadInput(found + experiment_check.problems(built) + experiment_check.unknown_names(broken))
        super().__init__(**built)

    @classmethod
    def from_toml(cls, source: Path | str) -> Experiment:
        """The experiment in a file, or in a text (a string that spans lines or does not end in .toml).

        Raises:
            BadInput: the file cannot be read, is no TOML (with the line), or holds what is no experiment.
        """
        return cls(**toml.load(source))

    def to_toml(self) -> str:
        """The experiment as TOML that loads to an equal one. A key that is not set (None) is left out."""
        return toml.dump(self.tables())

    def commented_toml(self) -> str:
        """Every key with its meaning and its default, as TOML that loads to `resolved()` with the split as it is.

        Raises:
            BadInput: the method or the network is unknown, or its settings are wrong.
        """
        from coterie import experiment_check

        # The file is there to be edited: with other data, auto still finds the split that fits.
        full = self.resolved().updated({"data.split": self.data.split})
        known = experiment_check.known_settings(full.method.name, full.network.name)
        return toml.dump_commented(full.tables(), known)

    def tables(self) -> dict[str, dict[str, Any]]:
        """The experiment as plain tables, one a section; keys that are not set (None) are left out."""
        whole = {name: _as_table(name, section) or {} for name, section in self._sections()}
        return {name: {k: v for k, v in table.items() if v is not None} for name, table in whole.items()}

    def updated(self, changes: Mapping[str, Any]) -> Experiment:
        """The experiment with other values under dotted keys: `{"run.rounds": 30, "method.mu": 0.0}`.

        A section's name as the key replaces the whole section. Another `method.name` or `network.name` drops
        the settings of the former one, which were its own. None puts a key back to its default.

        Raises:
            BadInput: as for `Experiment`.
        """
        return Experiment(**changed(self.tables(), changes))

    def resolved(self) -> Experiment:
        """The experiment with the defaults of its method and network written out, and the split that auto means.

        Raises:
            BadInput: the method or the network is unknown, or its settings are wrong.
        """
        from coterie import experiment_check

        return experiment_check.resolved(self)

    def check(self) -> None:
        """Refuse what cannot run; see the function `check`."""
        check(self)

    def _sections(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in SECTIONS]


def changed(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of an experiment, in any of their forms, changed as `Experiment.updated` says."""
    result = dict(tables)
    for key in sorted(changes, key=_wholes_then_names):
        section, _, name = key.partition(".")
        value = changes[key]
        if not name:
            result[section] = value
            continue
        table = _as_table(section, result.get(section))
        if table is None:
            continue  # what stands there is refused when the experiment is built
        if name == "name" and section in ("method", "network") and value != table.get("name"):
            table = {}
        result[section] = {**table, name: value}
        if value is None:
            del result[section][name]
    return result


def check(experiment: Experiment) -> None:
    """Find everything that can be known wrong before work starts: names, settings, data, split, folder.

    Raises:
        BadInput: one sentence for each problem, with the key, its value and what would be right.
    """
    from coterie import experiment_check

    if not isinstance(experiment, Experiment):
        right = "Experiment.from_toml(path)" if str(experiment).endswith(".toml") else "Experiment(method=...)"
        raise BadInput(f"{experiment!r} is not an experiment; write coterie.{right}")
    found = experiment_check.problems(dict(experiment._sections()))
    if found:
        raise BadInput(found)


def section_settings(title: str) -> list[Setting]:
    """The keys that a section always has, without the further settings of a method or network."""
    cls = SECTIONS[title]
    return settings_of(cls) if issubclass(cls, Section) else _plain[title].settings


def field_names(title: str) -> list[str]:
    """The names of `section_settings`; none for what is no section."""
    return [setting.name for setting in section_settings(title)] if title in SECTIONS else []


def _section(name: str, value: Any) -> Section | Training | Scale:
    if name not in SECTIONS:
        raise BadInput(_no_section(name))
    cls = SECTIONS[name]
    if isinstance(value, Section) and isinstance(value, cls):
        return value
    table = _as_table(name, value)
    if table is None:
        raise BadInput(f"{name} = {value!r} is not possible; it must be a table of {', '.join(field_names(name))}")
    if issubclass(cls, Section):
        return cls(**table)
    return cls(**_plain[name].bind({k: toml.plain(v) for k, v in table.items()}, name))


def _as_table(title: str, value: Any) -> dict[str, Any] | None:
    """A section in any of the forms in which it is given, as a table; None where it is given as something else."""
    if value is None:
        return {}
    if isinstance(value, Training | Scale):
        return asdict(value)
    if isinstance(value, Section):
        return value.model_dump()
    if isinstance(value, str) and "name" in field_names(title):
        return {"name": value}
    return dict(value) if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) else None


def _no_section(name: str) -> str:
    owners = [f"{section}.{name}" for section in SECTIONS if name in field_names(section)]
    close = " or ".join(owners) or nearest(name, SECTIONS)
    hint = f"did you mean {close}?" if close else f"known: {', '.join(SECTIONS)}"
    return f"{name} is not a section of an experiment; {hint}"


def _wholes_then_names(key: str) -> int:
    _, _, name = key.partition(".")
    return 0 if not name else 1 if name == "name" else 2
