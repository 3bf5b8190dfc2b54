"""What is compared: a comparison's tables, checked and in one form, and the runs (cells) that follow from them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from itertools import product
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from coterie.catalogue import is_value, plain
from coterie.clients.data.divide.split import parse_split
from coterie.errors import BadInput, sentences, unknown
from coterie.plugins import allow as allow_names
from coterie.plugins import digest_sources, find_refusal, give
from coterie.runs.folder.metrics import ADAPTED, CLASSIFICATION, MACRO, RunMetrics, known_metrics
from coterie.runs.schema import toml
from coterie.runs.schema.experiment import Experiment
from coterie.runs.schema.names import CHOICES, absolute_data, build_method, find_failed_imports
from coterie.runs.schema.names import find_paths as find_experiment_paths
from coterie.runs.schema.registry import SECTIONS, as_table, field_names, keys_deciding
from coterie.runs.schema.sections import LONGEST_NAME, NAME, NAME_RULES, Data, TaskChoice, make_name

PartialTables = Mapping[str, Mapping[str, Any]]
"""A part of an experiment: keys by section."""

DEFAULT_SEEDS = 3
MOST_SEEDS = 10_000

MOST_TIMES_THE_ROUNDS = 20
"""How many times the rounds a method may take that trains less in each, where methods are equal in local passes."""
MOST_ROUNDS = 10**6 - 1

SET_BY_THE_COMPARISON = {
    "seed": "write seeds = [0, 1, 2] at the top of the comparison",
    "name": "a cell's run is named by its key",
    "folder": "name the folder with --folder",
}
"""Keys of `run` that no part may have, and what there is instead."""

EVEN = {"data": "have the same data", "evaluation": "are evaluated alike"}
"""Sections that no method may have for itself, and why."""

_METHOD = re.compile(r"(?P<name>[A-Za-z_][\w.:-]*)\s*(?P<arguments>\(.*\))?", re.DOTALL)
_LABELLED = re.compile(r"(?P<name>[^@(]+)@(?P<label>[^(]*)(?P<arguments>\(.*)?", re.DOTALL)


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise ValueError(f"write up to {LONGEST_NAME} {NAME_RULES}")
    return name


def _check_label(label: str) -> str:
    if not label.strip() or not label.isprintable():
        raise ValueError("a label must be a text in one line")
    return label


def _read_seeds(given: Any) -> tuple[int, ...]:
    """Return the seeds that a number or a list means."""
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= MOST_SEEDS:
        return tuple(range(given))
    seeds = tuple(given) if isinstance(given, list | tuple) else ()
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds)
    if not seeds or not whole or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"it must be how many, 1 to {MOST_SEEDS}, or a list of different numbers from 0 on, as in [0, 3, 7]; "
            "1 is seed 0 alone"
        )
    return seeds


def _label_methods(given: Any) -> Any:
    """Return methods that are listed in short form by their labels; what has labels stays as it is."""
    if isinstance(given, dict):
        return given
    if not isinstance(given, list | tuple):
        raise ValueError("it must be a list, as in ['fedavg', 'fesem(clusters=4)'], or a table of labels")
    labelled = [split_label(str(text)) for text in given]
    if len(dict(labelled)) < len(labelled):
        raise ValueError("name each method once, or give each a label behind its name, as in fesem@K4(clusters=4)")
    return dict(labelled)


_Label = Annotated[str, AfterValidator(_check_label)]
_Table = dict[str, Any]


class _Given(BaseModel):
    """The keys of a comparison as they are given; `_read_part` reads the parts of experiments among them."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    name: Annotated[str, AfterValidator(_check_name)] | None = None
    seeds: Annotated[Any, AfterValidator(_read_seeds)] = tuple(range(DEFAULT_SEEDS))
    baseline: str | None = None
    measure: str | None = None
    target: Annotated[float, Field(strict=True)] | None = None
    equal: Literal["rounds", "passes"] = "rounds"
    refit: bool = False
    methods: Annotated[dict[_Label, str | _Table], BeforeValidator(_label_methods), Field(min_length=1)]
    adapted: dict[_Label, str] | None = None
    experiment: _Table = {}
    settings: dict[_Label, _Table] = {}
    grid: _Table = {}
    tuned: dict[str, dict[str, _Table]] = {}


@dataclass(frozen=True)
class Variant:
    """A part of an experiment with a label: a method, or a setting."""

    name: str
    tables: PartialTables


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    setting: str
    """The setting's label; empty where the comparison names none."""
    method: str
    """The row's label: a method's, or one of `Comparison.adapted`."""
    seed: int
    experiment: Experiment
    key: str
    """16 hexadecimal digits; cells with the same key are the same run."""
    is_adapted: bool = False
    """Whether its scores are those after the clients' adaptation."""
    until: int | None = None
    """The round after which it is stopped, so that it can be gone on with; None for the last."""
    trial: int = 0
    """Which trial of the method's tuning it is, from 1 on; 0 where it is none."""
    changes: str = ""
    """The settings that a trial changes, in words; empty for those as they are."""

    @property
    def label(self) -> str:
        """The cell in words, for messages."""
        number = f"trial {self.trial} ({self.changes or 'as it is'})" if self.trial else f"seed {self.seed}"
        return ", ".join([*filter(None, [self.setting]), self.method, number])


@dataclass(frozen=True)
class Comparison:
    """Methods side by side, in every setting and from every seed.

    If several parts set a key, the last of these wins: what all have in common, the setting, the method, what
    tuning has picked, the seed.
    """

    name: str
    seeds: tuple[int, ...]
    baseline: str
    """The label of the method that the others are held against."""
    measure: str
    """What is compared: one of the measures of its runs' metrics."""
    target: float | None
    """The measure that is to be reached; None for what the baseline has in the end, seed by seed."""
    experiment: PartialTables
    """What all cells have in common."""
    methods: tuple[Variant, ...]
    settings: tuple[Variant, ...]
    """One with an empty label and no keys where the comparison names none."""
    tuned: Mapping[str, Mapping[str, PartialTables]] = field(default_factory=dict)
    """Settings that were picked for a method in a setting, by the labels of the setting and the method."""
    adapted: Mapping[str, str] = field(default_factory=dict)
    """Rows that are another method after its clients' adaptation, by label: the label of that method. They are read
    from that method's runs. By default there is one of FedAvg (`default_adapted`)."""
    equal: Literal["rounds", "passes"] = "rounds"
    """What all methods have as much of. For passes, each ends once its clients have trained on as many samples as
    `training.epochs` of everybody who takes part make in the rounds of the comparison (`run.passes`)."""
    refit: bool = False
    """Whether the runs that count, those of no trial, train on validation samples, too, but where a method needs
    these, or they are of classes that a client does not train on (`few-shot` with `held_out = "regular"`)."""
    is_measure_named: bool = field(default=True, compare=False)
    """Whether `measure` was asked for; else it is the first metric's mean over clients (`measured_by`)."""
    is_named: bool = field(default=True, compare=False)
    """Whether somebody chose `name`; else another comparison in its folder gives this one a number."""

    @property
    def rows(self) -> tuple[str, ...]:
        """The labels of all rows: every method, and behind it what it is after adaptation."""
        return tuple(
            label
            for method in self.methods
            for label in (method.name, *(row for row, base in self.adapted.items() if base == method.name))
        )

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], name: str | None = None, *, given: bool = True) -> Comparison:
        """Return the comparison that tables describe; a grid becomes settings.

        Args:
            tables: as in a comparison's TOML file.
            name: used if the tables have no `name`; None makes one of the data, the split and the labels.
            given: a person wrote the tables in Python; what those of a file name must be allowed.

        Raises:
            BadInput: everything that is wrong with the tables themselves, one sentence each. Whether the
                experiments in them are possible is looked up by `check`.
        """
        named = find_paths(tables)
        give(named.values() if given else ())
        if refusal := find_refusal(named):
            raise BadInput(refusal)
        if sections := [key for key in tables if key in SECTIONS]:
            raise BadInput(
                [f"{key} is not a key of a comparison; write it as experiment.{key}" for key in sections]
            )
        try:
            known = _Given.model_validate(dict(tables))
        except ValidationError as error:
            raise BadInput(sentences(error, known=[*_Given.model_fields], owner="a comparison")) from None
        problems: list[str] = []
        experiment = _read_part("experiment", known.experiment, problems)
        if lost := find_failed_imports(experiment):  # and with it the names that it registers
            raise BadInput([*problems, *(f"experiment.{sentence}" for sentence in lost)])
        methods = _read_methods(known.methods, experiment, problems)
        settings = _read_settings(known.settings, known.grid, problems)
        tuned = {
            setting: {
                label: _read_part(f"tuned.{setting}.{label}", part, problems, of_method=True)
                for label, part in parts.items()
            }
            for setting, parts in known.tuned.items()
        }
        labels = list(methods)
        adapted = default_adapted(methods, experiment) if known.adapted is None else known.adapted
        problems += [
            f"adapted.{label} is not possible; a method has that label already"
            for label in adapted
            if label in methods
        ]
        baseline = labels[0] if known.baseline is None else known.baseline
        named_methods = [*adapted.values(), *(label for parts in tuned.values() for label in parts)]
        for what, names, there in (
            ("method", named_methods, labels),
            ("setting", [*tuned], [*settings] or [""]),
            ("baseline", [baseline], [*labels, *adapted]),
        ):
            problems += [unknown(what, name, there) for name in names if name not in there]
        metrics = None
        try:
            metrics = _expected_metrics(experiment, settings)
        except BadInput as error:
            problems += error.problems
        measure = known.measure or (metrics or CLASSIFICATION).headline
        problems += _find_misfits(measure, known.target, metrics)
        if problems:
            raise BadInput(list(dict.fromkeys(problems)))
        data = experiment.get("data", {})
        words = [Path(str(data.get("name", ""))).stem, str(data.get("split", "")), *labels]
        return cls(
            known.name or name or make_name("-".join(words), otherwise="comparison"),
            known.seeds,
            baseline,
            measure,
            known.target,
            experiment,
            tuple(Variant(label, part) for label, part in methods.items()),
            tuple(Variant(label, part) for label, part in settings.items()) or (Variant("", {}),),
            tuned,
            adapted,
            known.equal,
            known.refit,
            known.measure is not None,
            (known.name or name) is not None,
        )

    @classmethod
    def from_toml(cls, source: Path | str, allow: Iterable[str] = ()) -> Comparison:
        """Return the comparison in a file or in a text; without a name in it, the file's name is taken.

        `allow` are the modules and `package.module:object` that it may have imported.

        Raises:
            BadInput: the file cannot be read, is no TOML (with the line), or holds what is no comparison, or names
                what is not allowed.
        """
        allow_names(allow)
        if isinstance(source, str) and ("\n" in source or not source.endswith(".toml")):
            return cls.from_tables(toml.load(source), given=False)
        path = Path(source)
        if not path.exists():
            raise BadInput(
                f"comparison file {str(path)!r} does not exist; name a file, or the methods to compare themselves"
            )
        return cls.from_tables(toml.load(path), make_name(path.stem, otherwise="comparison"), given=False)

    def tables(self) -> dict[str, Any]:
        """Return the comparison as tables; `from_tables` gives an equal one."""
        whole: dict[str, Any] = {"name": self.name, "seeds": self.seeds, "baseline": self.baseline}
        whole |= {"measure": self.measure} if self.is_measure_named else {}
        whole |= {"target": self.target} if self.target is not None else {}
        whole |= {"equal": self.equal} if self.equal != "rounds" else {}
        whole |= {"refit": True} if self.refit else {}
        whole["adapted"] = self.adapted
        whole["experiment"] = self.experiment
        whole["methods"] = {variant.name: variant.tables for variant in self.methods}
        whole["settings"] = {variant.name: variant.tables for variant in self.settings if variant.name}
        return {**whole, "tuned": self.tuned}

    def to_toml(self) -> str:
        """Return the comparison as TOML; `from_toml` gives an equal one."""
        tables = self.tables()
        parts = {f"experiment.{section}": table for section, table in tables.pop("experiment").items()}
        for title in ("methods", "settings"):
            parts |= {f"{title}.{toml.literal(label)}": part for label, part in tables.pop(title).items()}
        for setting, methods in tables.pop("tuned").items():
            parts |= {f"tuned.{toml.literal(setting)}.{toml.literal(m)}": part for m, part in methods.items()}
        head = "\n".join(f"{key} = {toml.literal(value)}" for key, value in tables.items())
        return f"{head}\n\n{toml.dump(parts)}"

    def measured_by(self, metrics: RunMetrics) -> Comparison:
        """Return the comparison of runs that turned out to have these metrics.

        Where it names no measure, the first metric's mean over clients is compared.

        Raises:
            BadInput: the runs do not have its measure, or the target is none of it.
        """
        found = self if self.is_measure_named else replace(self, measure=metrics.headline)
        if problems := _find_misfits(found.measure, found.target, metrics):
            raise BadInput(problems)
        return found

    def cells(self) -> list[Cell]:
        """Return every run, in the order setting, method, seed.

        If the number of public samples is left open and a method needs some, all methods of the setting get the
        same number: it may change what is left for the clients.

        Raises:
            BadInput: an experiment is not possible; `check` says all that is wrong.
        """
        return [cell for setting in self.settings for cell in self._cells_of(setting)]

    def check(self, folder: Path | str = "comparisons") -> None:
        """Refuse what cannot run.

        Args:
            folder: where the comparison's folder is to be made.

        Raises:
            BadInput: one sentence for each problem of any cell, with the methods and settings that have it, unless
                all have it.
        """
        places: dict[str, list[tuple[str, str]]] = {}
        for setting, method in product(self.settings, self.methods):
            try:  # no problem depends on the seed
                self.experiment_of(setting, method, self.seeds[0]).updated({"run.folder": str(folder)}).check()
            except BadInput as problem:
                for sentence in dict.fromkeys(problem.problems):
                    places.setdefault(sentence, []).append((setting.name, method.name))
        if places:
            raise BadInput([f"{self._where(where)}{sentence}" for sentence, where in places.items()])

    def experiment_of(self, setting: Variant, method: Variant, seed: int) -> Experiment:
        """Return the experiment of one cell, with the keys that its parts set.

        Raises:
            BadInput: there is no such experiment.
        """
        flat: dict[tuple[str, str], Any] = {}
        picked = self.tuned.get(setting.name, {}).get(method.name, {})
        for part in (self.experiment, setting.tables, method.tables, picked, {"run": {"seed": seed}}):
            for section, table in part.items():
                former = flat.get((section, "name"))
                if former is not None and table.get("name", former) != former and section in CHOICES:
                    # Another method, network or task: settings of the one before do not apply to it.
                    flat = {key: value for key, value in flat.items() if key[0] != section}
                flat |= {(section, key): value for key, value in table.items()}
        whole: dict[str, Any] = {}
        for (section, key), value in flat.items():
            whole.setdefault(section, {})[key] = value
        if self.equal == "passes":
            whole["run"] = {**self._budget(setting), **method.tables.get("run", {}), "seed": seed}
        if method.name in self.adapted.values():
            whole["evaluation"] = {"adapt": {}, **whole.get("evaluation", {})}  # as many epochs as in a round
        found = Experiment.from_tables(whole)
        if not self.refit or found.evaluation.on == "validation" or build_method(found.method).needs.validation:
            return found
        if _tests_beside_training(found.data) or found.training.stop is not None:
            return found
        return found.updated({"data.validation": 0.0})  # the test samples stay the same

    def _budget(self, setting: Variant) -> dict[str, Any]:
        """Return the keys of `run` by which the methods in a setting end after equally many local passes.

        Raises:
            BadInput: what the setting says of `run` or `training` is not possible.
        """
        parts = (self.experiment, setting.tables)
        shared = {t: {k: v for part in parts for k, v in part.get(t, {}).items()} for t in ("run", "training")}
        given = Experiment.from_tables(shared)
        run = given.run
        passes = run.passes or given.training.epochs * run.rounds * run.participation
        return {**shared["run"], "passes": passes, "rounds": min(MOST_TIMES_THE_ROUNDS * run.rounds, MOST_ROUNDS)}

    def _cells_of(self, setting: Variant) -> Iterator[Cell]:
        planned = {(m.name, s): self.experiment_of(setting, m, s) for m in self.methods for s in self.seeds}
        public = _public(planned.values())
        own: dict[str, list[Cell]] = {}
        for (method, seed), experiment in planned.items():
            if public:
                experiment = experiment.updated({"data.public": public})
            own.setdefault(method, []).append(Cell(setting.name, method, seed, experiment, key_of(experiment)))
        for row in self.rows:
            if row in own:
                yield from own[row]
            else:
                yield from (replace(cell, method=row, is_adapted=True) for cell in own[self.adapted[row]])

    def _where(self, places: Sequence[tuple[str, str]]) -> str:
        """Return which methods in which settings, as the beginning of a sentence; empty if all are meant."""
        settings, methods = (list(dict.fromkeys(names)) for names in zip(*places, strict=True))
        named = [
            f"{what}{'s' * (len(names) > 1)} {', '.join(names)}"
            for what, names, every in (("method", methods, self.methods), ("setting", settings, self.settings))
            if len(names) < len(every)
        ]
        return f"{' in '.join(named)}: " if named else ""


def find_paths(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return what the tables of a comparison name that has to be imported, by where it stands in an experiment."""
    methods, grid = tables.get("methods"), tables.get("grid")
    parts = [tables.get("experiment"), grid, *_values(methods), *_values(tables.get("settings"))]
    parts += [part for some in _values(tables.get("tuned")) for part in _values(some)]
    parts += [split_label(str(text))[1] for text in methods] if isinstance(methods, list | tuple) else ()
    found: dict[str, str] = {}
    for part in parts:
        part = {"method": part} if isinstance(part, str) else part
        found |= find_experiment_paths(part) if isinstance(part, Mapping) else {}
    return found


def _values(table: Any) -> list[Any]:
    return list(table.values()) if isinstance(table, Mapping) else []


def key_of(experiment: Experiment) -> str:
    """Return the name of an experiment's run: 16 hexadecimal digits of everything that its tables depend on.

    Coterie's version is part of it, and what stands in files of one's own that the experiment names: runs of
    different code are not mixed.

    Raises:
        BadInput: the method or the network is unknown, or its settings are wrong.
    """
    deciding = deciding_tables(experiment)
    told = {"coterie": version("coterie"), **deciding}
    if sources := digest_sources(find_experiment_paths(deciding).values()):
        told["sources"] = sources
    return blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=8).hexdigest()


def shared_tables(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return what the methods of a comparison can share of an experiment: neither its method nor its run's name."""
    tables = {title: dict(table) for title, table in experiment.tables().items() if title != "method"}
    tables["run"] = {key: value for key, value in tables.get("run", {}).items() if key not in SET_BY_THE_COMPARISON}
    return tables


def _tests_beside_training(data: Data) -> bool:
    """Return whether clients are validated and tested on samples of classes that they do not train on.

    Those for validation can then not be trained on, and without them others would be tested on.
    """
    if data.split is None or "regular" not in data.split:
        return False
    (name, settings), *_ = parse_split(data.split)
    return name == "few-shot" and settings["held_out"] == "regular"


def deciding_tables(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return everything of an experiment that its tables depend on, defaults and what `auto` means written out.

    Raises:
        BadInput: the method or the network is unknown, or its settings are wrong.
    """
    return keys_deciding("tables", experiment.resolved().tables())


def _public(experiments: Iterable[Experiment]) -> int:
    """Return the number of public samples for a setting's experiments; 0 if it is set or none are needed."""
    needed = [(build_method(e.method).needs.public, e.data.name) for e in experiments if e.data.public is None]
    most, data = max(needed, default=(0, ""))
    return _public_of(data, most) if most else 0


@cache
def _public_of(data: str, wanted: int) -> int:
    """Return how many of the wanted public samples the data have."""
    from coterie.clients.data.federation import build

    public = build(data, "iid", 1, 0, public=None, usual_public=wanted).public
    return 0 if public is None else len(public)


def split_label(text: str) -> tuple[str, str]:
    """Return the label of a method in short form and the form without it; without a label, the text is both.

    `fesem@K4(clusters=4)` has the label `K4` and is the method `fesem(clusters=4)`.
    """
    if (match := _LABELLED.fullmatch(text.strip())) is None:
        return text, text
    return match["label"].strip(), f"{match['name'].strip()}{match['arguments'] or ''}"


def parse_method(text: str) -> PartialTables:
    """Return the part of an experiment that a short form like `fesem(clusters=2)` means.

    A setting that the method has is the method's, whatever other section has one of that name.

    Raises:
        BadInput: it cannot be read, there is no such method, or a setting is unknown or given twice.
    """
    from coterie.clients.data.divide.split import arguments_of
    from coterie.runs.schema.names import catalog, qualify

    match = _METHOD.fullmatch(text.strip())
    if match is None:
        raise BadInput(f"method {text!r} cannot be read; write a method as in fedavg or fesem(clusters=2)")
    name = match["name"]
    entry = catalog("method")[name]
    own = [setting.name for setting in entry.settings]
    given = arguments_of(name, match["arguments"] or "()", own)
    part: dict[str, dict[str, Any]] = {"method": {"name": name}}
    problems: list[str] = []
    for key, value in given.items():
        try:
            section, _, key = (f"method.{key}" if key in own else qualify(key, name, "auto")).partition(".")
        except BadInput as error:
            problems += error.problems
            continue
        # True and true are both a truth value.
        part.setdefault(section, {})[key] = {"true": True, "false": False}.get(str(value), plain(value))
    if problems:
        raise BadInput(problems)
    return part


def _read_methods(
    given: dict[str, str | _Table], experiment: PartialTables, problems: list[str]
) -> dict[str, PartialTables]:
    """Return the methods by label; this and all below add what is wrong to `problems`."""
    methods: dict[str, PartialTables] = {}
    for label, part in given.items():
        where = f"methods.{label}"
        try:
            methods[label] = _read_part(
                where, parse_method(part) if isinstance(part, str) else part, problems, of_method=True
            )
        except BadInput as error:
            problems += error.problems
            methods[label] = {}
        else:
            if not any("name" in p.get("method", {}) for p in (methods[label], experiment)):
                problems.append(
                    f"{where} names no method; write {where}.method.name = a method of: coterie list methods"
                )
    return methods


def default_adapted(methods: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, str]:
    """Return the rows after adaptation that a comparison has by default: that of FedAvg, where it is a method.

    FedAvg whose model each client trains a little before its test is what a method for personal models has to beat.
    """
    common = experiment.get("method", {})
    for label, part in methods.items():
        own = part.get("method", {}) if isinstance(part, Mapping) else {}
        own = {"name": own} if isinstance(own, str) else own
        if {**({"name": common} if isinstance(common, str) else common), **own}.get("name") == "fedavg":
            return {f"{label}+FT": label} if f"{label}+FT" not in methods else {}
    return {}


def _read_settings(given: dict[str, _Table], grid: _Table, problems: list[str]) -> dict[str, PartialTables]:
    """Return the settings by label; a grid multiplies them."""
    settings: dict[str, PartialTables] = {
        label: _read_part(f"settings.{label}", part, problems) for label, part in given.items()
    }
    axes: dict[str, Any] = {}
    for key, values in grid.items():
        axes |= {f"{key}.{k}": v for k, v in values.items()} if isinstance(values, dict) else {key: values}
    for key, values in axes.items():
        if not isinstance(values, list | tuple) or not values:
            problems.append(
                f"grid.{key} = {values!r} is not possible; write a key of an experiment and a list of values, as "
                'in "data.split" = ["iid", "dirichlet(0.5)"]'
            )
            return settings
    short = [key.rpartition(".")[2] for key in axes]
    names = [s if short.count(s) == 1 else key for key, s in zip(axes, short, strict=True)]
    multiplied: dict[str, PartialTables] = {}
    for (label, part), values in product((settings or {"": {}}).items(), product(*axes.values())):
        point = _read_part("grid", dict(zip(axes, values, strict=True)), problems)
        if twice := [f"{s}.{key}" for s, table in point.items() for key in table if key in part.get(s, {})]:
            problems.append(f"grid has {twice[0]}, and so has settings.{label}; keep one of them")
        written = [
            f"{n} = {v if isinstance(v, str) else toml.literal(plain(v))}"
            for n, v in zip(names, values, strict=True)
        ]
        whole = {section: {**part.get(section, {}), **point.get(section, {})} for section in {**part, **point}}
        multiplied[", ".join([*filter(None, [label]), *written])] = whole
    return multiplied if axes else settings


def _read_part(
    where: str, given: Mapping[str, Any], problems: list[str], *, of_method: bool = False
) -> dict[str, dict[str, Any]]:
    """Return a part of an experiment, given by sections or by dotted keys; a name alone stands for a section."""
    part: dict[str, dict[str, Any]] = {}
    for dotted, value in given.items():
        section, _, key = str(dotted).partition(".")
        if section not in SECTIONS:
            problems.append(unknown("section", section, SECTIONS, where=f"in {where}"))
            continue
        if remedy := _find_remedy(section, key, value):
            problems.append(
                f"{where}.{section} was given in Python, and the runs of a comparison are separate processes that "
                f"cannot see it; {remedy}"
            )
            continue
        try:
            table = as_table(section, {key: value} if key else value)
        except BadInput as problem:
            problems += [f"{where}.{sentence}" for sentence in problem.problems]
            continue
        if table is None:
            keys = ", ".join(field_names(section))
            problems.append(f"{where}.{section} = {value!r} is not possible; it must be a table of {keys}")
            continue
        part.setdefault(section, {}).update({k: plain(v) for k, v in table.items()})
    for key in ("name", "test_path"):  # so that the comparison can be continued from any folder
        if isinstance(data := part.get("data", {}).get(key), str) and data:
            with suppress(OSError):  # a name that no file can have is refused as a dataset
                part["data"][key] = absolute_data(data)
    for section, table in part.items():
        for key, value in table.items():
            place = f"{where}.{section}.{key}"
            if section == "run" and key in SET_BY_THE_COMPARISON:
                problems.append(f"{place} is set by the comparison itself; {SET_BY_THE_COMPARISON[key]}")
            elif of_method and section in EVEN:
                problems.append(
                    f"{place} is not possible, because all methods of a comparison {EVEN[section]}; write it under "
                    "experiment or settings"
                )
            elif not is_value(value):
                problems.append(
                    f"{place} = {value!r} is not possible; it must be a finite number, a string, true, false, or a "
                    "list or table of these"
                )
    return part


def _find_remedy(section: str, key: str, value: Any) -> str:
    """Return what to do about data themselves, or a network defined inside a function; empty for all else."""
    if not key and isinstance(value, Mapping) and (section == "network" or set(value) <= set(field_names(section))):
        value = value.get("name", "")
    if key not in ("", "name") or isinstance(value, str | Path):
        return ""
    if section == "network" and callable(value):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        return f"define {name} at the top of a module or script" if "<" in name else ""
    if section == "data":
        from coterie.clients.data.read import given  # brings torch, as whoever has such data does

        return "write it to a file, .npz, .parquet or .csv, and give its path" if given.is_given(value) else ""
    return ""


def _expected_metrics(experiment: PartialTables, settings: Mapping[str, PartialTables]) -> RunMetrics | None:
    """Return the metrics that all cells will have; None where they differ, or only the data say what they are.

    Raises:
        BadInput: there is no such metric, or no such task.
    """
    from coterie.clients.data.read.datasets import usual_task
    from coterie.runs.schema.names import AUTO, build_task, catalog

    found = set()
    for part in settings.values() or [{}]:
        task, data = ({**experiment.get(title, {}), **part.get(title, {})} for title in ("task", "data"))
        names = task.get("metrics")
        if not names:
            dataset = data.get("name") or Data().name
            if task.get("name", AUTO) == AUTO and dataset in catalog("dataset"):
                task["name"] = usual_task(dataset)
            built = build_task(TaskChoice(**task))
            if built is None:
                return None
            names = built.metrics
        found.add(RunMetrics.named((names,) if isinstance(names, str) else tuple(names)))
    return found.pop() if len(found) == 1 else None


def _find_misfits(measure: str, target: float | None, metrics: RunMetrics | None) -> list[str]:
    """Say whether runs with these metrics have the measure, and whether the target is one of it.

    Where the metrics are not known yet, a measure of any metric will do, and any target.
    """
    if metrics is None:
        columns = [*CLASSIFICATION.columns, *(f"{of}{name}" for name in known_metrics() for of in ("", MACRO))]
        every = [*columns, *(f"{ADAPTED}{name}" for name in columns)]
        return [] if measure in every else [unknown("measure", measure, every)]
    if measure not in metrics.measures:
        return [f"measure = {measure!r} is not possible; it must be {_join_or(metrics.measures)}"]
    unit = metrics.measures[measure]
    least, most, wanted = -inf, inf, "a number"
    if unit.is_share:
        least, most, wanted = 0, 1, "a number from 0 to 1"
    elif unit.is_size or unit.less_is_better:
        least, wanted = 0, "a number, at least 0"
    if target is None or least <= target <= most:
        return []
    return [f"target = {target:g} is not possible; it must be {wanted}"]


def _join_or(names: Iterable[str]) -> str:
    *some, last = names
    return f"{', '.join(some)} or {last}" if some else str(last)
