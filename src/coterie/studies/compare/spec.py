"""What is compared: a comparison's tables, checked and in one form, and the runs (cells) that follow from them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from coterie.catalogue import is_value, plain
from coterie.errors import BadInput, unknown
from coterie.plugins import allow as allow_names
from coterie.plugins import find_refusal, give
from coterie.runs.folder.metrics import ADAPTED, CLASSIFICATION, MACRO, RunMetrics, known_metrics
from coterie.runs.schema import toml
from coterie.runs.schema.check import CHOICES, absolute_data, find_failed_imports
from coterie.runs.schema.check import find_paths as find_experiment_paths
from coterie.runs.schema.experiment import Experiment
from coterie.runs.schema.registry import SECTIONS, field_names, keys_deciding, name_given
from coterie.runs.schema.sections import LONGEST_NAME, NAME, NAME_RULES, Data, TaskChoice, make_name

Part = Mapping[str, Mapping[str, Any]]
"""A part of an experiment: keys by section."""

KEYS = (
    *("name", "seeds", "baseline", "measure", "target", "methods", "adapted", "experiment", "settings", "grid"),
    "tuned",
)
DEFAULT_SEEDS = 3

SET_BY_THE_COMPARISON = {
    "seed": "write seeds = [0, 1, 2] at the top of the comparison",
    "name": "a cell's run is named by its key",
    "folder": "name the folder with --folder",
}
"""Keys of `run` that no part may have, and what there is instead."""

EVEN = {"data": "have the same data", "evaluation": "are evaluated alike"}
"""Sections that no method may have for itself, and why."""

_METHOD = re.compile(r"(?P<name>[A-Za-z_][\w.:-]*)\s*(?P<arguments>\(.*\))?", re.DOTALL)


@dataclass(frozen=True)
class Variant:
    """A part of an experiment with a label: a method, or a setting."""

    name: str
    tables: Part


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

    @property
    def label(self) -> str:
        """The cell in words, for messages."""
        return ", ".join([*filter(None, [self.setting]), self.method, f"seed {self.seed}"])


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
    experiment: Part
    """What all cells have in common."""
    methods: tuple[Variant, ...]
    settings: tuple[Variant, ...]
    """One with an empty label and no keys where the comparison names none."""
    tuned: Mapping[str, Mapping[str, Part]] = field(default_factory=dict)
    """Settings that were picked for a method in a setting, by the labels of the setting and the method."""
    adapted: Mapping[str, str] = field(default_factory=dict)
    """Rows that are another method after its clients' adaptation, by label: the label of that method. They are read
    from that method's runs. By default there is one of FedAvg (`default_adapted`)."""
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
        problems: list[str] = []
        for key in tables:
            if key in SECTIONS:
                problems.append(
                    f"{key} is not a key of a comparison; write it as experiment.{key}, for all its cells"
                )
            elif key not in KEYS:
                problems.append(unknown("key", str(key), KEYS, where="in a comparison"))
        experiment = _read_part("experiment", tables.get("experiment", {}), problems)
        if lost := find_failed_imports(experiment):  # and with it the names that it registers
            raise BadInput([*problems, *(f"experiment.{sentence}" for sentence in lost)])
        methods = _read_methods(tables.get("methods"), experiment, problems)
        settings = _read_settings(tables, problems)
        tuned = _read_tuned(tables.get("tuned", {}), list(settings) or [""], list(methods), problems)
        labels = list(methods)
        adapted = _read_adapted(tables.get("adapted", default_adapted(methods, experiment)), labels, problems)
        baseline = tables.get("baseline", labels[0] if labels else "")
        if labels and baseline not in (*labels, *adapted):
            problems.append(
                f"baseline = {baseline!r} is not possible; it must be the label of a method: "
                f"{_join_or([*labels, *adapted])}"
            )
        metrics = _expected_metrics(experiment, settings, problems)
        measure = CLASSIFICATION.headline if metrics is None else metrics.headline
        if is_measure_named := "measure" in tables:
            measure = _check_measure(tables["measure"], metrics, problems)
        target = _check_target(
            tables.get("target"), measure if is_measure_named or metrics else None, metrics, problems
        )
        seeds = _read_seeds(tables.get("seeds", DEFAULT_SEEDS), problems)
        is_named = "name" in tables or name is not None
        data = experiment.get("data", {})
        words = [Path(str(data.get("name", ""))).stem, str(data.get("split", "")), *labels]
        name = _check_name(tables.get("name", name or make_name("-".join(words), otherwise="comparison")), problems)
        if problems:
            raise BadInput(list(dict.fromkeys(problems)))
        return cls(
            name,
            seeds,
            baseline,
            measure,
            target,
            experiment,
            tuple(Variant(label, part) for label, part in methods.items()),
            tuple(Variant(label, part) for label, part in settings.items()) or (Variant("", {}),),
            tuned,
            adapted,
            is_measure_named,
            is_named,
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
        problems: list[str] = []
        _check_measure(found.measure, metrics, problems)
        _check_target(found.target, found.measure, metrics, problems)
        if problems:
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
        for setting, method, problems in self._problems(folder):
            for sentence in problems:
                places.setdefault(sentence, []).append((setting, method))
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
        if method.name in self.adapted.values():
            whole["evaluation"] = {"adapt": {}, **whole.get("evaluation", {})}  # as many epochs as in a round
        return Experiment.from_tables(whole)

    def _cells_of(self, setting: Variant) -> Iterator[Cell]:
        planned = [
            (m.name, seed, self.experiment_of(setting, m, seed)) for m in self.methods for seed in self.seeds
        ]
        public = _public([experiment for _, _, experiment in planned])
        own: dict[str, list[Cell]] = {method.name: [] for method in self.methods}
        for method, seed, experiment in planned:
            if public:
                experiment = experiment.updated({"data.public": public})
            own[method].append(Cell(setting.name, method, seed, experiment, key_of(experiment)))
        for row in self.rows:
            if row in own:
                yield from own[row]
            else:
                yield from (replace(cell, method=row, is_adapted=True) for cell in own[self.adapted[row]])

    def _problems(self, folder: Path | str) -> Iterator[tuple[str, str, list[str]]]:
        """Yield what is wrong with each method in each setting; no problem depends on the seed."""
        for setting in self.settings:
            for method in self.methods:
                try:
                    self.experiment_of(setting, method, self.seeds[0]).updated({"run.folder": str(folder)}).check()
                except BadInput as problem:
                    yield setting.name, method.name, list(dict.fromkeys(problem.problems))

    def _where(self, places: Sequence[tuple[str, str]]) -> str:
        """Return which methods in which settings, as the beginning of a sentence; empty if all are meant."""
        settings, methods = _unique(s for s, _ in places), _unique(m for _, m in places)
        named = []
        if len(methods) < len(self.methods):
            named.append(f"method{'s' * (len(methods) > 1)} {', '.join(methods)}")
        if len(settings) < len(self.settings):
            named.append(f"setting{'s' * (len(settings) > 1)} {', '.join(settings)}")
        return f"{' in '.join(named)}: " if named else ""


def find_paths(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return what the tables of a comparison name that has to be imported, by where it stands in an experiment."""
    methods, grid = tables.get("methods"), tables.get("grid")
    parts = [tables.get("experiment"), grid, *_values(methods), *_values(tables.get("settings"))]
    parts += [part for some in _values(tables.get("tuned")) for part in _values(some)]
    parts += methods if isinstance(methods, list | tuple) else ()
    found: dict[str, str] = {}
    for part in parts:
        part = {"method": part} if isinstance(part, str) else part
        found |= find_experiment_paths(part) if isinstance(part, Mapping) else {}
    return found


def _values(table: Any) -> list[Any]:
    return list(table.values()) if isinstance(table, Mapping) else []


def key_of(experiment: Experiment) -> str:
    """Return the name of an experiment's run: 16 hexadecimal digits of everything that its tables depend on.

    Coterie's version is part of it, so that runs of different versions are not mixed.

    Raises:
        BadInput: the method or the network is unknown, or its settings are wrong.
    """
    told = json.dumps({"coterie": version("coterie"), **deciding_tables(experiment)}, sort_keys=True)
    return blake2b(told.encode(), digest_size=8).hexdigest()


def deciding_tables(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return everything of an experiment that its tables depend on, defaults and what `auto` means written out.

    Raises:
        BadInput: the method or the network is unknown, or its settings are wrong.
    """
    return keys_deciding("tables", experiment.resolved().tables())


def _public(experiments: Iterable[Experiment]) -> int | None:
    """Return the number of public samples for a setting's experiments; None if it is set or none are needed."""
    from coterie.runs.schema.check import build_method

    open_ = [e for e in experiments if e.data.public is None]
    most = max((build_method(e.method).needs.public for e in open_), default=0)
    return _public_of(open_[0].data.name, most) if most else None


@cache
def _public_of(data: str, wanted: int) -> int:
    """Return how many of the wanted public samples the data have."""
    from coterie.clients.data.federation import build

    public = build(data, "iid", 1, 0, public=None, usual_public=wanted).public
    return 0 if public is None else len(public)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def parse_method(text: str) -> Part:
    """Return the part of an experiment that a short form like `fesem(clusters=2)` means.

    A setting that the method has is the method's, whatever other section has one of that name.

    Raises:
        BadInput: it cannot be read, there is no such method, or a setting is unknown or given twice.
    """
    from coterie.clients.data.divide.split import arguments_of
    from coterie.runs.schema.check import catalog, qualify

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


def _read_seeds(given: Any, problems: list[str]) -> tuple[int, ...]:
    """Return the seeds that a number or a list means; this and all below add what is wrong to `problems`."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return tuple(range(given))
    seeds = tuple(given) if isinstance(given, list | tuple) else ()
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds)
    if seeds and whole and len(set(seeds)) == len(seeds):
        return seeds
    problems.append(
        f"seeds = {given!r} is not possible; it must be how many, at least 1, or a list of different numbers from "
        "0 on, as in [0, 3, 7]"
    )
    return ()


def _read_methods(given: Any, experiment: Part, problems: list[str]) -> dict[str, Part]:
    """Return the methods by label."""
    if isinstance(given, str) or not isinstance(given, list | tuple | Mapping) or not given:
        problems.append(
            'methods is missing; give a list of methods, as in methods = ["fedavg", "fesem"], or a table for each'
        )
        return {}
    if not isinstance(given, Mapping):
        texts = [str(text) for text in given]
        problems += [
            f"methods has {text!r} {texts.count(text)} times; name each once"
            for text in texts
            if texts.count(text) > 1
        ]
        given = dict(zip(texts, given, strict=True))
    methods: dict[str, Part] = {}
    for label, part in given.items():
        where = f"methods.{label}"
        _check_label(where, label, problems)
        if isinstance(part, str):
            try:
                part = parse_method(part)
            except BadInput as error:
                problems += error.problems
                methods[label] = {}
                continue
        methods[label] = part = _read_part(where, part, problems)
        _refuse_uneven(where, part, problems)
        if not any("name" in p.get("method", {}) for p in (part, experiment)):
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


def _read_adapted(given: Any, methods: Sequence[str], problems: list[str]) -> dict[str, str]:
    """Return the rows after adaptation by label."""
    if not isinstance(given, Mapping):
        problems.append(
            f"adapted = {given!r} is not possible; it must be a table of rows, as in "
            '{"FedAvg+FT" = "FedAvg"}, or {} for none'
        )
        return {}
    for label, method in given.items():
        _check_label(f"adapted.{label}", label, problems)
        if label in methods:
            problems.append(f"adapted.{label} is not possible; a method has that label already")
        if method not in methods:
            problems.append(f"adapted.{label}: {unknown('method', str(method), methods)}")
    return {str(label): str(method) for label, method in given.items()}


def _read_settings(tables: Mapping[str, Any], problems: list[str]) -> dict[str, Part]:
    """Return the settings by label; a grid multiplies them."""
    given = tables.get("settings", {})
    if not isinstance(given, Mapping):
        problems.append(
            f"settings = {given!r} is not possible; it must be a table of parts of an experiment by label"
        )
        given = {}
    settings: dict[str, Part] = {}
    for label, part in given.items():
        _check_label(f"settings.{label}", label, problems)
        settings[label] = _read_part(f"settings.{label}", part, problems)
    grid = tables.get("grid", {})
    if not isinstance(grid, Mapping):
        problems.append(f"grid = {grid!r} is not possible; it must be a table of lists by key of an experiment")
        return settings
    axes = dict(_read_axes(grid, problems))
    if not axes:
        return settings
    short = [key.rpartition(".")[2] for key in axes]
    names = [s if short.count(s) == 1 else key for key, s in zip(axes, short, strict=True)]
    multiplied: dict[str, Part] = {}
    for (label, part), values in product((settings or {"": {}}).items(), product(*axes.values())):
        written = [
            f"{n} = {v if isinstance(v, str) else toml.literal(v)}" for n, v in zip(names, values, strict=True)
        ]
        whole = {section: dict(table) for section, table in part.items()}
        for key, value in zip(axes, values, strict=True):
            section, _, name = key.partition(".")
            if name in whole.get(section, {}):
                problems.append(f"grid has {key}, and so has settings.{label}; keep one of them")
            whole.setdefault(section, {})[name] = value
        multiplied[", ".join([*filter(None, [label]), *written])] = whole
    return multiplied


def _read_tuned(
    given: Any, settings: list[str], methods: list[str], problems: list[str]
) -> dict[str, dict[str, Part]]:
    """Return the picked settings by the labels of setting and method."""
    tuned: dict[str, dict[str, Part]] = {}
    for setting, parts in given.items() if isinstance(given, Mapping) else [("", given)]:
        if (
            setting not in settings
            or not isinstance(parts, Mapping)
            or any(label not in methods for label in parts)
        ):
            problems.append(
                f"tuned.{setting} is not possible; write parts of an experiment by the labels of a setting and of "
                f"a method: {_join_or(methods)}"
            )
            continue
        tuned[setting] = {
            label: _read_part(f"tuned.{setting}.{label}", part, problems) for label, part in parts.items()
        }
        for label, part in tuned[setting].items():
            _refuse_uneven(f"tuned.{setting}.{label}", part, problems)
    return tuned


def _read_axes(
    grid: Mapping[str, Any], problems: list[str], before: str = ""
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the lists of a grid by dotted key; a table in it is a section."""
    for key, values in grid.items():
        whole = f"{before}{key}"
        section, _, name = whole.partition(".")
        if isinstance(values, Mapping) and not before and not name:
            yield from _read_axes(values, problems, f"{whole}.")
        elif not name or section not in SECTIONS or not isinstance(values, list | tuple) or not values:
            problems.append(
                f"grid.{whole} = {values!r} is not possible; write a key of an experiment and a list of values, as "
                'in "data.split" = ["iid", "dirichlet(0.5)"]'
            )
        else:
            tried = plain(values)
            if any(value in tried[:i] for i, value in enumerate(tried)):
                problems.append(f"grid.{whole} has a value twice; give each once")
            _refuse_set_here(f"grid.{whole}", section, [name], problems)
            if whole == "data.name":
                tried = tuple(_make_absolute(v) if isinstance(v, str) else v for v in tried)
            yield whole, tried


def _read_part(where: str, given: Any, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Return a part of an experiment, given by sections or by dotted keys; a name alone stands for a section."""
    if not isinstance(given, Mapping):
        problems.append(f"{where} = {given!r} is not possible; it must be a table of sections of an experiment")
        return {}
    part: dict[str, dict[str, Any]] = {}
    for dotted, value in given.items():
        section, _, key = str(dotted).partition(".")
        if section == "network":
            if (local := _find_local(value)) is not None:
                problems.append(
                    f"{where}.network = {local} is not possible, for the runs of a comparison are processes "
                    "of their own, which cannot find it; define it at the top of a module or script"
                )
                continue
            try:
                value = name_given(value)
            except BadInput as problem:
                problems += [f"{where}.{sentence}" for sentence in problem.problems]
                continue
        if _holds_data(section, key, value):
            problems.append(
                f"{where}.data was given in Python, and the runs of a comparison are processes of their own; write "
                "it to a file, .npz, .parquet or .csv, and give its path"
            )
        elif section not in SECTIONS:
            problems.append(unknown("section", section, SECTIONS, where=f"in {where}"))
        elif key:
            part.setdefault(section, {})[key] = plain(value)
        elif isinstance(value, str) and "name" in field_names(section):
            part.setdefault(section, {})["name"] = value
        elif isinstance(value, Mapping):
            part.setdefault(section, {}).update({str(k): plain(v) for k, v in value.items()})
        else:
            problems.append(
                f"{where}.{section} = {value!r} is not possible; it must be a table of "
                f"{', '.join(field_names(section))}"
            )
    for key in ("name", "test_path"):
        if isinstance(place := part.get("data", {}).get(key), str):
            part["data"][key] = _make_absolute(place)
    for section, table in part.items():
        _refuse_set_here(f"{where}.{section}", section, list(table), problems)
        problems += [
            f"{where}.{section}.{key} = {value!r} is not possible; it must be a finite number, a string, true, "
            "false, or a list or table of these"
            for key, value in table.items()
            if not is_value(value)
        ]
    return part


def _find_local(network: Any) -> str | None:
    """Return what a network given in Python is called, if it is defined inside a function; else None."""
    given = network.get("name") if isinstance(network, Mapping) else network
    if not callable(given):
        return None
    name: str = getattr(given, "__qualname__", type(given).__qualname__)
    return name if "<" in name else None


def _holds_data(section: str, key: str, value: Any) -> bool:
    """Return whether a part of an experiment holds data themselves, in the place of their name."""
    if section != "data" or key not in ("", "name") or isinstance(value, str | Path):
        return False
    if not key and isinstance(value, Mapping) and set(value) <= set(field_names("data")):
        return _holds_data(section, "name", value.get("name", ""))
    from coterie.clients.data.read import given  # brings torch, as whoever has such data does

    return given.is_given(value)


def _make_absolute(data: str) -> str:
    """Return an absolute path to data, so that the comparison can be continued from any folder."""
    try:
        return absolute_data(data) if data else data
    except OSError:  # a name that no file can have; it is refused as a dataset
        return data


def _refuse_uneven(where: str, part: Part, problems: list[str]) -> None:
    """Refuse keys that must be the same for all methods, so that their numbers can be compared."""
    for section, shared in EVEN.items():
        if section in part:
            keys = ", ".join(f"{section}.{key}" for key in part[section])
            problems.append(
                f"{where} has {keys}, and all methods of a comparison {shared}; write it under experiment or "
                "settings"
            )


def _refuse_set_here(where: str, section: str, keys: list[str], problems: list[str]) -> None:
    """Refuse keys that the comparison sets itself."""
    for key in keys if section == "run" else []:
        if key in SET_BY_THE_COMPARISON:
            place = where if where.endswith(f".{key}") else f"{where}.{key}"
            problems.append(f"{place} is set by the comparison itself; {SET_BY_THE_COMPARISON[key]}")


def _expected_metrics(experiment: Part, settings: Mapping[str, Part], problems: list[str]) -> RunMetrics | None:
    """Return the metrics that all cells will have; None where only their data say what they are."""
    from coterie.runs.schema.check import AUTO, build_task

    tasks = [{**experiment.get("task", {}), **part.get("task", {})} for part in settings.values() or [{}]]
    data = [
        {**experiment.get("data", {}), **part.get("data", {})}.get("name", "") for part in settings.values() or [{}]
    ]
    named = tasks[0].get("metrics") or ()
    name = tasks[0].get("name", AUTO)
    if any(task != tasks[0] for task in tasks):
        return None
    if not named and name == AUTO:
        name = _task_of_all([text or Data().name for text in data])
    try:
        names = (named,) if isinstance(named, str) else tuple(named)
        if names:
            return RunMetrics.named(names)
        task = None if name is None else build_task(TaskChoice(**{**tasks[0], "name": name}))
        return None if task is None else RunMetrics.named(task.metrics)
    except BadInput as error:
        problems += error.problems
        return None


def _task_of_all(data: Sequence[str]) -> str | None:
    """Return what datasets are for; None where they differ, or only the data themselves say it."""
    from coterie.clients.data.read.datasets import usual_task
    from coterie.runs.schema.check import catalog

    found = {usual_task(text) if text in catalog("dataset") else None for text in data}
    return found.pop() if len(found) == 1 else None


def _check_measure(given: Any, metrics: RunMetrics | None, problems: list[str]) -> str:
    if metrics is not None and given not in list(metrics.measures):
        problems.append(f"measure = {given!r} is not possible; it must be {_join_or(metrics.measures)}")
    elif metrics is None and given not in _every_measure():
        problems.append(
            f"measure = {given!r} is not possible; it must be {_join_or(CLASSIFICATION.measures)}, or so "
            "of another metric of the task, as macro_rmse"
        )
    return str(given)


def _every_measure() -> list[str]:
    """Return the names of the measures of all metrics."""
    columns = [
        *CLASSIFICATION.columns,
        *(name for metric in known_metrics() for name in (metric, f"{MACRO}{metric}")),
    ]
    return [f"{before}{name}" for name in columns for before in ("", ADAPTED)]


def _check_target(given: Any, measure: str | None, metrics: RunMetrics | None, problems: list[str]) -> float | None:
    """Return the target; where the measure or its unit is not known yet, any finite number is one."""
    if given is None:
        return None
    unit = None if measure is None or metrics is None else metrics.measures.get(measure)
    number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    least, most, wanted = -math.inf, math.inf, "a number"
    if metrics is not None and (unit is None or unit.is_share):
        least, most, wanted = 0, 1, "a number from 0 to 1"
    elif unit is not None and (unit.is_size or unit.less_is_better):
        least, wanted = 0, "a number, at least 0"
    if not number or not least <= given <= most:
        problems.append(f"target = {given!r} is not possible; it must be {wanted}")
        return None
    return float(given)


def _check_name(given: Any, problems: list[str]) -> str:
    if not isinstance(given, str) or not NAME.fullmatch(given) or len(given) > LONGEST_NAME:
        problems.append(f"name = {given!r} is not possible; write up to {LONGEST_NAME} {NAME_RULES}")
    return str(given)


def _check_label(where: str, label: Any, problems: list[str]) -> None:
    if not isinstance(label, str) or not label.strip() or not label.isprintable():
        problems.append(f"{where} is not possible; a label must be a text in one line")


def _join_or(names: Any) -> str:
    *some, last = names
    return f"{', '.join(some)} or {last}" if some else str(last)
