"""Which methods suit what a diagnosis found: a short list with reasons, settings and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coterie.advice.diagnose.diagnosis import Diagnosis
from coterie.advice.explain.explain import explain
from coterie.clients.rules.fold import PULL
from coterie.errors import BadInput
from coterie.methods.cross_fit import TUNING
from coterie.runs.schema.experiment import Experiment, check

FEW_SAMPLES = 30
"""Training samples of a client below which layers of its own are too much for it."""

TUNED = {"evaluation.adapt": {"epochs": TUNING}}
"""Every client fine-tunes what it gets, for as long as the diagnosis tried."""

MOST_GROUPS = 12
"""Groups beyond which methods that hold a model for each are not named."""


@dataclass(frozen=True)
class Suggestion:
    """A method that suits what was found.

    Attributes:
        method: its name.
        settings: what is set, by dotted keys of an experiment.
        reason: why.
        seconds: predicted for a whole run on this machine; None where it was not.
        up_bytes: that clients send in the whole run, likewise.
        down_bytes: that they are sent, likewise.
    """

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    seconds: float | None = None
    up_bytes: int | None = None
    down_bytes: int | None = None

    def experiment(self, asked: Experiment) -> Experiment:
        """Return the experiment that was diagnosed, by this method and its settings.

        Raises:
            BadInput: they do not go together.
        """
        tables = asked.tables()
        tables["method"] = {"name": self.method}
        tables.get("evaluation", {}).pop("adapt", None)
        tables["run"].pop("name", None)
        return Experiment.from_tables(tables).updated(self.settings)


def suggest(diagnosis: Diagnosis, asked: Experiment, most: int = 3) -> tuple[Suggestion, ...]:
    """Return the methods that suit what was found, the best first; those that the data do not allow are left out.

    Args:
        diagnosis: what was found.
        asked: whose data, network and local solver it was found with.
        most: how many to return.
    """
    found: list[Suggestion] = []
    if diagnosis.unlearnt:  # no method helps where no model learns
        return ()
    for suggestion in _rank(diagnosis):
        settings = {**_train_longer(diagnosis, asked), **_withstand(diagnosis), **suggestion.settings}
        suggestion = replace(suggestion, settings=settings)
        try:
            check(suggestion.experiment(asked))
        except BadInput:
            continue
        found.append(suggestion)
        if len(found) == most:
            break
    return tuple(found)


def predict_costs(
    suggestions: tuple[Suggestion, ...], asked: Experiment, done: Callable[[str], None] = lambda sentence: None
) -> tuple[Suggestion, ...]:
    """Return the suggestions with what `coterie explain` predicts of them, for clients that are simulated here.

    Args:
        suggestions: as `suggest` returned them.
        asked: the experiment that was diagnosed.
        done: is told each that has been predicted.
    """
    found = []
    for suggestion in suggestions:
        told = explain(suggestion.experiment(asked))
        found.append(replace(suggestion, seconds=told.seconds, up_bytes=told.up_bytes, down_bytes=told.down_bytes))
        done(f"{suggestion.method}: timed two rounds of a few clients")
    return tuple(found)


_DEPARTURES = Suggestion("partial-pooling", {}, "departures from one model, as large as the samples bear out")
_HEADS = Suggestion("fedrep", {}, "a common body, and a head of each client's own")
_FINE_TUNED = Suggestion("fedavg", TUNED, "one model for all, which each client fine-tunes")

_UNGROUPED: Mapping[str, tuple[Suggestion, ...]] = {
    "tuned": (
        replace(_FINE_TUNED, reason=f"{_FINE_TUNED.reason}; {{gain}}"),
        _DEPARTURES,
        _HEADS,
        Suggestion("per-fedavg", {}, "one model that is made to be fine-tuned"),
        Suggestion("ditto", {}, "a personal model beside one for all"),
    ),
    "personal": (
        Suggestion("ditto", {"method.lam": PULL}, "a personal model, pulled to one for all; {gain}"),
        _DEPARTURES,
        _HEADS,
        _FINE_TUNED,
    ),
    "constants": (
        Suggestion(
            "partial-pooling",
            {"method.shrink": "tensor"},
            "one model for all, and shrunk constants of each client's own; {gain} by constants alone",
        ),
        _FINE_TUNED,
        _HEADS,
    ),
    "local": (
        Suggestion("local-only", {}, "nobody needs the others; {gain}"),
        Suggestion("ditto", {"method.lam": 0.1}, "a personal model under a weak pull to one for all"),
        _HEADS,
    ),
}
"""What suits where no groups do, by the option that pays; `gain` stands for what that gained."""


def _rank(diagnosis: Diagnosis) -> Iterator[Suggestion]:
    """Yield suggestions, the best first."""
    if diagnosis.expected in _UNGROUPED:
        for one in _UNGROUPED[diagnosis.expected]:
            if one is not _HEADS or _median_samples(diagnosis) >= FEW_SAMPLES:
                yield replace(one, reason=one.reason.format(gain=_say_gain(diagnosis)))
    elif diagnosis.expected == "global":
        yield from _rank_one(diagnosis)
    else:
        yield from _rank_groups(diagnosis)


def _rank_groups(diagnosis: Diagnosis) -> Iterator[Suggestion]:
    count, why = len(diagnosis.groups), _say_gain(diagnosis)
    tuned: dict[str, Any] = TUNED if diagnosis.pay is not None and diagnosis.pay.best == "group-tuned" else {}
    same = f"finds these groups by the same test; {why}"
    yield Suggestion("halves", {"method.alpha": diagnosis.alpha, **tuned}, same)
    if count <= MOST_GROUPS:
        known = {"method.clusters": count}
        if _median_samples(diagnosis) >= FEW_SAMPLES:
            on = "clusters models after a warm-up, and again in every round"
            yield Suggestion("fesem", {**known, **tuned}, on)
        reason = "shares the lower layers between groups, so that small groups learn from the others"
        yield Suggestion("fedcps", {**known, "method.personal_layers": 2}, reason)
        yield Suggestion("ifca", {**known, **tuned}, "clients pick among the groups' models anew in every round")
    held_against = "one model for all, fine-tuned: what groups are compared with"
    yield Suggestion("fedavg", TUNED, held_against)


def _rank_one(diagnosis: Diagnosis) -> Iterator[Suggestion]:
    yield Suggestion("fedavg", {}, f"one model for all; {_say_gain(diagnosis)}")
    if diagnosis.pay is not None and diagnosis.pay.paying:
        gains = " and ".join(map(diagnosis.pay.say_group, diagnosis.pay.paying))
        yield Suggestion("halves", {"method.alpha": diagnosis.alpha}, f"a model for each group: {gains}")
    if diagnosis.has_structure:
        yield Suggestion("fedprox", {}, "one model for all, with clients kept near to it where they differ")
        yield Suggestion("ditto", {}, "the same model, and a personal one beside it")


def _say_gain(diagnosis: Diagnosis) -> str:
    """Say what the best option gains, or that nobody has measured it."""
    pay = diagnosis.pay
    if pay is None:
        return "what it gains was not measured"
    if pay.best == "global":
        return "nothing else is clearly better"
    option = next(option for option in pay.options if option.name == pay.best)
    chosen = "" if option.gain.is_above else f", {pay.say_gain(pay.chosen)} where other samples chose it"
    return f"it gained {pay.say_gain(option.gain)} over one model for all{chosen}"


def _median_samples(diagnosis: Diagnosis) -> float:
    """Return the training samples of the client in the middle, as far as halves tell."""
    return 2.0 * diagnosis.size


def _train_longer(diagnosis: Diagnosis, asked: Experiment) -> dict[str, Any]:
    """Return the passes of a round that the diagnosis took, where the experiment's make hardly a step."""
    pay = diagnosis.pay
    return {"training.epochs": pay.passes} if pay is not None and pay.passes > asked.training.epochs else {}


def _withstand(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return an average that a few hostile clients cannot move far, where some showed themselves."""
    return {"aggregation.rule": "trimmed-mean"} if diagnosis.turned_round else {}
