"""What one client does in an exchange: the order it gets, the rule it runs, the answer it gives."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator
from torch import Tensor

from coterie.catalogue import Catalog
from coterie.clients.rules.client import Client
from coterie.clients.rules.objective import OBJECTIVES, Objective
from coterie.clients.rules.requests import Request
from coterie.grouping.exact_sums import Reduce
from coterie.models.layout import Layout, Part

RULES = Catalog("rule")
"""Every rule by name, so that a remote client can build the one an order names."""

Work = Generator[Request, Any, "Answer"]
"""A rule at work: yields requests, receives their results, returns the answer."""


@dataclass(frozen=True, eq=False)
class Item:
    """One named thing that crosses: the scalars `values` (`[size]`, or `[k, size]`) of a part of a model.

    `part` is None for what is not model-shaped. `key` names the row in the sender's memory, so that a runtime
    stores one row once however many clients are sent it.
    """

    values: Tensor
    part: Part | None = None
    key: tuple[Any, ...] | None = None

    def onto(self, model: Tensor) -> Tensor:
        """`model` `[P]` with the received part written over it, as a new vector."""
        if self.part is None:
            return self.values.clone()
        return self.part.put(model.clone(), self.values)


@dataclass(frozen=True, eq=False)
class Order:
    """What one client is asked in one exchange."""

    client: int
    """Who is asked."""
    round: int
    """1, 2, …"""
    rule: Rule
    """What it is to do."""
    items: Mapping[str, Item]
    """What it is sent, by name."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Numbers that steer the rule, by name."""
    upload_part: Mapping[str, Part] = field(default_factory=dict)
    """Which part of an upload crosses, by the upload's name; without it, all."""
    earlier: tuple[Mapping[str, Item], ...] = ()
    """What the client was sent in the exchanges of the round before this one. It does not cross again."""
    reduce: Mapping[str, Reduce] = field(default_factory=dict)
    """Of which uploads the server wants means alone. It does not cross."""

    @property
    def sent(self) -> tuple[Mapping[str, Item], ...]:
        """What the client was sent in this round so far, earliest first."""
        return (*self.earlier, self.items)


@dataclass(frozen=True, eq=False)
class Answer:
    """What one client gives back.

    Attributes:
        uploads: vectors `[P]` by name, or of the rule's `shapes`; the order's `upload_part` says which part
            crosses.
        numbers: scalars that cross, 4 bytes each.
        client_state: vectors by name, of the same shapes; they stay with the client and replace those it had. None
            in the place of a vector deletes the one it had.
        report: measurements for the run's metrics; no part of the method, not counted.
        update_lengths: of each upload; the runtime measures them, whatever the rule says.
    """

    uploads: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    client_state: Mapping[str, Tensor | None] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)
    update_lengths: Mapping[str, float] = field(default_factory=dict)


class Rule:
    """What one client does. A frozen dataclass with plain settings, registered in `RULES`.

    `uploads` and `client_state` name the vectors that `run` may put into its answer, so that a runtime can allocate
    memory for them beforehand.
    """

    name: ClassVar[str]
    writes: ClassVar[bool] = True
    """Whether `run` may write into what it received; where it never does, a runtime makes no copies of that."""
    uploads: ClassVar[tuple[str, ...]] = ()
    optional_uploads: ClassVar[tuple[str, ...]] = ()
    """Which of the uploads an answer may leave out."""
    client_state: ClassVar[tuple[str, ...]] = ()
    private_steps: ClassVar[bool] = False
    """Whether it looks at training samples by the steps of one local update alone, so that noise in these hides any
    one. Scores of held-out samples are none of it."""

    def run(self, client: Client, order: Order) -> Work:
        """Answer the order. Written for one client, as a generator of requests (see `requests`).

        Raises:
            TypeError: the rule's class does not define it.
        """
        raise TypeError(f"{type(self).__name__} does not say what a client does")

    def shapes(self, layout: Layout) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the uploads and state that are not model-shaped, by name; every other vector is `[P]`."""
        return {}

    def numbers(self, order: Order) -> Mapping[str, tuple[float, float]]:
        """The numbers that every answer to an order holds, with the least and the most that each can be."""
        return {}

    def settings(self) -> dict[str, Any]:
        """The settings as plain values, from which `RULES` builds the rule again."""
        own = fields(self)  # type: ignore[arg-type]  # every rule is a dataclass
        return {f.name: _plain(getattr(self, f.name)) for f in own}


def _plain(value: Any) -> Any:
    """A rule or an objective in another one's settings by name and settings; what is plain as it is."""
    return {"name": value.name, "settings": value.settings()} if isinstance(value, Rule | Objective) else value


def _build(catalog: Catalog, given: Any) -> Any:
    """What `_plain` wrote by name and settings, built again; anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    kind = catalog[given["name"]]
    return kind.target(**kind.bind(given["settings"], "settings"))


InnerRule = Annotated[Rule, BeforeValidator(lambda given: _build(RULES, given))]
"""The type of a setting that is another rule."""

InnerObjective = Annotated[Objective, BeforeValidator(lambda given: _build(OBJECTIVES, given))]
"""The type of a setting that is an objective."""


def intercept(work: Work, handle: Callable[[Request], Generator[Request, Any, Any]]) -> Work:
    """Carry out a rule's work to its answer, with each request answered by what `handle` makes of it."""
    result = None
    while True:
        try:
            asked = work.send(result)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        result = yield from handle(asked)


def rule(name: str) -> Callable[[type[Rule]], type[Rule]]:
    """Class decorator: register a rule under `name`."""

    def keep(cls: type[Rule]) -> type[Rule]:
        cls.name = name
        return RULES.add(name)(cls)

    return keep
