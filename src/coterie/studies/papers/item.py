"""One published table or figure: how it is run at each scale, what was printed, and what the paper concludes.

An item is a TOML file of `items/`. What stands at its top is the paper's own setting, the scale `full`;
`[scales.large]`, `[scales.medium]` and `[scales.small]` change parts of it, key by key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from coterie.errors import BadInput, sentences, unknown
from coterie.plugins import give
from coterie.runs.folder.metrics import CLASSIFICATION, RunMetrics
from coterie.runs.schema import toml
from coterie.runs.schema.experiment import apply_changes
from coterie.studies.papers.claims import Link, Reference, Verdict, parse_claim, references
from coterie.studies.papers.quantities import Quantity, built_in, known_measures

if TYPE_CHECKING:
    from coterie.studies.compare.spec import Comparison

DEFAULT_MEASURE = CLASSIFICATION.headline

FULL = "full"
SCALES = ("small", "medium", "large", FULL)
"""How much of a paper's setting is run, the least first."""

OWN_NETWORKS = ("coterie.studies.papers.networks:CharacterLSTM",)
"""Networks that are in no catalogue, and that an item may name all the same."""

Parts = dict[str, dict[str, Any]]

Drawing = Literal["log", "pairs", "matrix", "map"]


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _check_claim(text: str) -> str:
    parse_claim(text)
    return text


class Claim(_Closed):
    """A statement of the paper, as text and as a comparison; see `coterie.studies.papers.claims`."""

    text: str = Field(min_length=1)
    where: str = Field(min_length=1)
    """The place in the paper that says so."""
    holds: Annotated[str, AfterValidator(_check_claim)]
    finding: dict[str, str] = {}
    """By scale: why it came out as it did, and which experiment would decide it."""
    published_exception: str | None = None
    """Why the printed numbers themselves do not bear the claim out, where they do not."""
    pool: list[str] = []
    """Settings over which the comparison is averaged, seed by seed; `holds` then names none of its own."""
    exact: bool = False
    """What is compared is a count, and may well be the same in every seed; otherwise that says nothing of two."""
    headline: bool = False
    """Whether it is one of the paper's main claims, for the table at the front of the page."""
    brief: str = ""
    """A headline claim in a few words, as they follow "the paper claims that"."""
    why: str = ""
    """One sentence on a headline claim: why it came out as it did; see `coterie.report.reproduction.front`."""
    identity: str = ""
    """What the numbers follow from by arithmetic, if they do, whatever is trained."""
    circular: str = ""
    """What the numbers are computed from, if that is the paper's own result."""
    unstated: str = ""
    """What the verdict depends on, if the paper does not say it."""

    @property
    def verdict(self) -> tuple[Verdict, str] | None:
        """What the claim is whatever its numbers are, and why; None where they decide it."""
        given: dict[Verdict, str] = {
            "identity": self.identity,
            "circular": self.circular,
            "unstated": self.unstated,
        }
        return next(((verdict, reason) for verdict, reason in given.items() if reason), None)

    @model_validator(mode="after")
    def _has_one_verdict(self) -> Self:
        if bool(self.identity) + bool(self.circular) + bool(self.unstated) > 1:
            raise ValueError("it must have one of identity, circular and unstated at most")
        return self

    @property
    def links(self) -> tuple[Link, ...]:
        return parse_claim(self.holds)


class Scale(_Closed):
    """What a scale changes: `experiment`, `methods` and `settings` are merged over those at the top."""

    stand_in: str = ""
    reduces: str = ""
    seeds: int | None = None
    keep_methods: list[str] | None = None
    keep_settings: list[str] | None = None
    experiment: dict[str, Any] = {}
    methods: Parts = {}
    settings: Parts = {}
    quantities: Parts = {}


class Item(_Closed):
    """A checked item: the keys of its file, and what follows from them."""

    id: str
    paper: str = Field(min_length=1)
    place: str = Field(min_length=1)
    title: str = Field(min_length=1)
    says: str = Field(min_length=1)
    findings: dict[str, str] = {}
    """By scale: why claims came out as they did, and what would decide them. A claim may have its own."""
    seeds: int = 5
    measure: str = DEFAULT_MEASURE
    """The column of the table of rounds that is compared."""
    baseline: str | None = None
    shows: list[str] = Field(min_length=1)
    draws: list[Drawing] = []
    """What the paper draws beyond a measure over the rounds, see `coterie.report.reproduction.figures`."""
    experiment: dict[str, Any] = {}
    own_methods: Parts = Field(alias="methods", min_length=1)
    adapted: dict[str, str] | None = None
    """Rows after adaptation by label, as in a comparison; without it, FedAvg's."""
    own_settings: Parts = Field({}, alias="settings")
    printed: dict[str, dict[str, float | dict[str, float]]] = Field({}, alias="published")
    """Printed numbers by quantity, setting and method; without the setting where the item has none."""
    own_quantities: dict[str, Quantity] = Field({}, alias="quantities")
    claims: list[Claim] = Field(min_length=1)
    reduced: dict[str, Scale] = Field({}, alias="scales")

    @cached_property
    def scales(self) -> dict[str, Scale]:
        """The scales by name, the least first."""
        there = {**self.reduced, FULL: Scale()}
        return {name: there[name] for name in SCALES if name in there}

    @cached_property
    def tables(self) -> dict[str, dict[str, Any]]:
        """For each scale what `Comparison.from_tables` takes."""
        return {name: self._merge(scale) for name, scale in self.scales.items()}

    @cached_property
    def quantities(self) -> dict[str, dict[str, Quantity]]:
        """By scale, the quantities that the item defines itself."""
        return {
            name: {
                own: Quantity.model_validate({**quantity.model_dump(), **scale.quantities.get(own, {})})
                for own, quantity in self.own_quantities.items()
            }
            for name, scale in self.scales.items()
        }

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The methods' labels, and behind each the rows that are the same method after adaptation."""
        from coterie.studies.compare.spec import default_adapted

        adapted = default_adapted(self.own_methods, self.experiment) if self.adapted is None else self.adapted
        return tuple(
            row
            for name in self.own_methods
            for row in (name, *(row for row, base in adapted.items() if base == name))
        )

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings' labels; one that is "" where the item has none of its own."""
        return tuple(self.own_settings) or ("",)

    @cached_property
    def published(self) -> dict[Reference, float]:
        """What was printed."""
        return {
            Reference(quantity, *((name, "") if method is None else (method, name))): number
            for quantity, table in self.printed.items()
            for name, given in table.items()
            for method, number in (given.items() if isinstance(given, dict) else [(None, given)])
        }

    @cached_property
    def metrics(self) -> RunMetrics:
        """Of its runs: those that the experiment names (`task.metrics`), else a classification's."""
        named = self.experiment.get("task.metrics", self.experiment.get("task", {}).get("metrics"))
        if not named:
            return CLASSIFICATION
        return RunMetrics.named([named] if isinstance(named, str) else named)

    _resolved: dict[str, dict[str, dict[str, Any]]] = PrivateAttr(default_factory=dict)
    """What `method_settings` has found, by scale."""

    def comparison(self, scale: str) -> Comparison:
        """Return what is run at a scale.

        Raises:
            BadInput: the item has no such scale, or its tables are no comparison.
        """
        from coterie.studies.compare.spec import Comparison

        self.require_scale(scale)
        give(OWN_NETWORKS)  # whoever asks for an item asks for its network
        return Comparison.from_tables(self.tables[scale], name=f"{self.id}-{scale}", given=False)

    def require_scale(self, scale: str) -> None:
        """Refuse a scale that the item does not have.

        Raises:
            BadInput: the item has no such scale.
        """
        if scale not in self.scales:
            raise BadInput(f"{self.id} has no scale {scale}; it has {', '.join(self.scales)}")

    def digest(self, scale: str, those: Iterable[Reference] | None = None) -> str:
        """Return 16 hexadecimal digits of what the numbers at a scale depend on: runs, and how they are read.

        Args:
            scale: which one.
            those: numbers that are there; rows, settings and quantities without any are left out. None for all.
        """
        tables = dict(self.tables[scale])
        defined = {name: q.model_dump(exclude_none=True) for name, q in self.quantities[scale].items()}
        if those is not None:
            found = list(those)
            for kind, names in (("methods", {r.method for r in found}), ("settings", {r.setting for r in found})):
                if kind in tables:
                    tables[kind] = {name: part for name, part in tables[kind].items() if name in names}
            defined = {name: table for name, table in defined.items() if name in {r.quantity for r in found}}
        text = repr(_sorted({"tables": tables, "quantities": defined}))
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def method_settings(self, scale: str) -> dict[str, dict[str, Any]]:
        """Return for each row its method's name and settings, the defaults written out, in the first setting."""
        if scale not in self._resolved:
            comparison = self.comparison(scale)
            first, seed = comparison.settings[0], comparison.seeds[0]
            found = {m.name: comparison.experiment_of(first, m, seed).resolved() for m in comparison.methods}
            tables = {name: dict(experiment.tables()["method"]) for name, experiment in found.items()}
            self._resolved[scale] = json.loads(json.dumps(tables))  # as a result's file has them
        return self._resolved[scale]

    def wanted_numbers(self, scale: str) -> Iterator[Reference]:
        """Yield every number that a result of the scale has."""
        tables = self.tables[scale]
        for quantity in self.wanted_quantities():
            for setting in tables.get("settings", {"": None}):
                yield from (Reference(quantity, method, setting) for method in tables["methods"])

    def wanted_quantities(self) -> tuple[str, ...]:
        """Return the quantities that the item shows, defines, or claims something about, each once."""
        named = [reference.quantity for claim in self.claims for reference in references(claim.links)]
        return tuple(dict.fromkeys([*self.shows, *self.quantities[FULL], *named]))

    def _merge(self, scale: Scale) -> dict[str, Any]:
        """Return the tables of the comparison at a scale."""

        def select(there: Parts, names: list[str] | None, changes: Parts) -> Parts:
            kept = there if names is None else {name: part for name, part in there.items() if name in names}
            return {name: _apply(part, changes.get(name, {})) for name, part in kept.items()}

        methods = select(self.own_methods, scale.keep_methods, scale.methods)
        settings = select(self.own_settings, scale.keep_settings, scale.settings)
        adapted = self.adapted and {row: base for row, base in self.adapted.items() if base in methods}
        tables = {
            "seeds": self.seeds if scale.seeds is None else scale.seeds,
            "measure": self.measure,
            "baseline": self.baseline,
            "experiment": _apply(self.experiment, scale.experiment),
            "methods": methods,
            "adapted": adapted,
            "settings": settings if self.own_settings else None,
        }
        return {key: value for key, value in tables.items() if value is not None}

    def with_setting(self, reference: Reference, pooled: str = "") -> Reference:
        """Return the reference with its setting: its own, else the pooled one, else the only one of the item."""
        if reference.setting or (not pooled and len(self.settings) != 1):
            return reference
        return Reference(reference.quantity, reference.method, pooled or self.settings[0])

    def unit(self, quantity: str) -> str:
        """Return the unit of a quantity: `%`, `MB`, `s`, `rounds`, or nothing."""
        if quantity in (given := built_in(self.metrics)):
            return given[quantity].unit
        return self.quantities[FULL][quantity].unit or ""

    def meaning(self, quantity: str, scale: str = FULL) -> str:
        """Return what a quantity is, in a few words."""
        if quantity in (given := built_in(self.metrics)):
            return given[quantity].meaning
        return self.quantities[scale][quantity].describe(self.metrics.falling, self.measure)


def list_items() -> list[str]:
    """Return the names of all items, in alphabetical order, numbers by size."""
    names = [path.name for path in files("coterie.studies.papers.items").iterdir()]
    return sorted((name.removesuffix(".toml") for name in names if name.endswith(".toml")), key=_sort_key)


def _sort_key(name: str) -> list[str]:
    return [part.zfill(6) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def paper_prefix(paper: str) -> str:
    """Return what the names of a paper's items begin with, however the paper's name is spelled."""
    return re.sub(r"[\W_]", "", paper).lower()


def load_item(id: str) -> Item:
    """Load the item of that name.

    Raises:
        BadInput: there is no such item, or its file has mistakes; one sentence each.
    """
    names = list_items()
    if id not in names:
        if of_paper := [name for name in names if name.split("-")[0] == paper_prefix(id)]:
            raise BadInput(f"item {id!r} is a whole paper; name some of its items: {', '.join(of_paper)}")
        raise BadInput(unknown("item", id, names, instead="all"))
    with as_file(files("coterie.studies.papers.items").joinpath(f"{id}.toml")) as path:
        return read_item(id, path)


def read_item(id: str, source: Path | str) -> Item:
    """Read an item from a TOML file, or from a text of several lines.

    Raises:
        BadInput: one sentence for each mistake in it, each beginning with `id`.
    """
    try:
        item = Item.model_validate({**toml.load(source), "id": id})
        problems = list(dict.fromkeys(_find_unknown(item)))
    except ValidationError as error:
        keys = [field.alias or name for name, field in Item.model_fields.items()]
        problems = sentences(error, known=keys, owner="an item")
    except BadInput as error:
        problems = error.problems
    if not problems:
        return item
    raise BadInput([f"{id}: {problem}" for problem in problems])


def _find_unknown(item: Item) -> Iterator[str]:
    """Yield a sentence for each name of a method, a setting or a quantity that is nowhere defined."""
    known = {
        "quantity": [*built_in(item.metrics), *item.own_quantities],
        "method": item.methods,
        "setting": item.settings,
        "measure": known_measures(item.metrics),
        "scale": SCALES,
    }
    own = [quantity for by_name in item.quantities.values() for quantity in by_name.values()]
    named = {
        "measure": [quantity.measure for quantity in own if quantity.measure is not None],
        "scale": [*item.reduced, *item.findings, *(scale for claim in item.claims for scale in claim.finding)],
        "quantity": [*item.shows, *(name for scale in item.scales.values() for name in scale.quantities)],
        "method": [m for scale in item.scales.values() for m in (*(scale.keep_methods or ()), *scale.methods)],
        "setting": [s for scale in item.scales.values() for s in (*(scale.keep_settings or ()), *scale.settings)],
    }
    named["setting"] += [name for claim in item.claims for name in claim.pool]
    claimed = [item.with_setting(r, *claim.pool[:1]) for claim in item.claims for r in references(claim.links)]
    for reference in (*item.published, *claimed):
        for kind in ("quantity", "method", "setting"):
            named[kind].append(getattr(reference, kind))
    for kind, names in named.items():
        yield from (unknown(kind, name, known[kind]) for name in names if name not in known[kind])


def _apply(part: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of an experiment, changed; another method or network drops the settings of the one before."""
    dotted: dict[str, Any] = {}
    for section, table in changes.items():
        dotted |= (
            {f"{section}.{k}": v for k, v in table.items()} if isinstance(table, Mapping) else {section: table}
        )
    return apply_changes(part, dotted)


def _sorted(value: Any) -> Any:
    """Return tables as pairs and tuples as lists, so that equal settings have equal texts."""
    if isinstance(value, Mapping):
        return [(key, _sorted(inner)) for key, inner in value.items()]
    return [_sorted(inner) for inner in value] if isinstance(value, list | tuple) else value
