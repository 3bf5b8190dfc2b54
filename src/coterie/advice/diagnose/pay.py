"""Whether a model for each group pays, and for whom: scores on samples that had no part in it, and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clients.rules.fold import Kind
from coterie.clients.tasks import MEASURES, Task
from coterie.errors import count_of, shorten
from coterie.grouping.gains import (
    Estimate,
    choose_by_other_folds,
    choose_option,
    client_gain,
    mean_gain,
    pool_folds,
    take_roots,
)
from coterie.methods.cross_fit import CrossFit

TITLES: Mapping[str, str] = {
    "global": "one model for all",
    "tuned": "one model for all, fine-tuned by each client",
    "personal": "a personal model pulled to one for all",
    "local": "training alone",
    "constants": "one model for all, with constants of each client's own",
    "group": "a model for each group",
    "group-tuned": "a model for each group, fine-tuned by each client",
}
"""What the options are called."""

SIMPLEST_FIRST = ("global", "constants", "group", "tuned", "personal", "group-tuned", "local")
"""Of options that are as good as the best, the first is taken."""

MOST_GROUPS = 12
"""Groups that are named in a sentence."""


@dataclass(frozen=True)
class Option:
    """A model that each client can have: its mean score over the clients, and its gain over one model for all."""

    name: str
    score: float
    gain: Estimate


@dataclass(frozen=True)
class ClientGain:
    """What a client scores with each option, and what it gains.

    Attributes:
        client: its name.
        group: the number of its group.
        samples: on which it was scored.
        scores: by option.
        gain: by the option that is weighed, over one model for all; from its own samples.
    """

    client: str
    group: int
    samples: int
    scores: dict[str, float]
    gain: Estimate


@dataclass(frozen=True)
class GroupGain:
    """What the clients of a group gain on average by the option that is weighed, over one model for all."""

    group: int
    clients: int
    gain: Estimate


@dataclass(frozen=True)
class Pay:
    """What each model that a client could have is worth, scored without the samples that made it.

    Attributes:
        measure: what is scored: `accuracy`, `rmse`, `mae` or `loss`.
        rounds: that a model for several clients was trained.
        passes: over a client's samples in each.
        options: with their mean scores.
        best: the option that is chosen: the simplest within one standard error of the best mean, or two of them
            where the test of structure speaks for it.
        weighed: the option whose gains are told client by client: `best`, or the best of the others where that is
            one model for all.
        chosen: the gain over one model for all where the option is chosen on other samples than those scored.
        clients: those who were scored.
        groups: their groups.
        unscored: names of clients without a sound answer, or with too few samples for one.
    """

    measure: Kind
    rounds: int
    passes: int
    options: tuple[Option, ...]
    best: str
    weighed: str
    chosen: Estimate
    clients: tuple[ClientGain, ...]
    groups: tuple[GroupGain, ...]
    unscored: tuple[str, ...]

    @property
    def gaining(self) -> tuple[ClientGain, ...]:
        """Clients who gain for sure, as far as their own samples tell."""
        return tuple(client for client in self.clients if client.gain.is_above)

    @property
    def losing(self) -> tuple[ClientGain, ...]:
        """Clients who lose for sure."""
        return tuple(client for client in self.clients if client.gain.is_below)

    @property
    def paying(self) -> tuple[GroupGain, ...]:
        """Groups that gain for sure by a model of their own, where on average one model for all is as good."""
        if self.best != "global" or not self.weighed.startswith("group"):
            return ()
        return tuple(of for of in self.groups if of.gain.is_above)

    def say_group(self, of: GroupGain) -> str:
        """Return what a group gains, in words."""
        return f"group {of.group} ({count_of(of.clients, 'client')}) gains {self.say_gain(of.gain)}"

    def score(self, option: str) -> float:
        """Return the mean score of an option; NaN for one that there is not."""
        return next((o.score for o in self.options if o.name == option), float("nan"))

    def sentences(self) -> tuple[str, ...]:
        """Return what pays, for whom, and what everything else is worth."""
        return (self._say_best(), *self._say_groups(), self._say_whom(), self._say_others())

    def _say_best(self) -> str:
        count, whole = len(self.clients), self.say_score(self.score("global"))
        if self.best == "global":
            other = next(option for option in self.options if option.name == self.weighed)
            return (
                f"Does it pay? {'Not on average' if self.paying else 'No'}: one model for all gives {self._measure}"
                f"{whole}, and no alternative is clearly better; the best of these is {TITLES[self.weighed]}, with "
                f"{self.say_score(other.score)} ({self.say_gain(other.gain)} on average over {count} clients)"
                f"{''.join(f'; but {self.say_group(of)}' for of in self.paying)}"
            )
        option = next(option for option in self.options if option.name == self.best)
        sure = "Yes" if option.gain.is_above else "Perhaps"
        groups = any(option.name == "group" for option in self.options)
        without = "" if self.best.startswith("group") or not groups else ", and not a model for each group"
        score, chosen = f"{self._measure}{self.say_score(option.score)}", self.say_gain(self.chosen)
        return (
            f"Does it pay? {sure}: {TITLES[self.best]}{without}, with {score} against {whole} of one model for "
            f"all, {self.say_gain(option.gain)} on average over {count} clients; {chosen} if the "
            "choice and the score use different samples"
        )

    @property
    def _measure(self) -> str:
        """What a score is of, where it is no share of samples."""
        return "" if self.measure == "accuracy" else f"a mean {self._title} of "

    @property
    def _title(self) -> str:
        return MEASURES[self.measure].title if self.measure in MEASURES else self.measure

    def _say_groups(self) -> tuple[str, ...]:
        if len(self.groups) < 2:
            return ()
        said = ", ".join(f"{of.group}: {self.say_gain(of.gain)}" for of in self.groups[:MOST_GROUPS])
        return (f"By group, {TITLES[self.weighed]} over one for all: {said}",)

    def _say_whom(self) -> str:
        gain, lose = ([client.client for client in some] for some in (self.gaining, self.losing))
        sure = {*gain, *lose}
        unsure = [client.client for client in self.clients if client.client not in sure]
        by = ("the next best, " if self.weighed != self.best else "") + TITLES[self.weighed]
        said = [f"{count_of(len(gain), 'client')} gain{'s' if len(gain) == 1 else ''} by {by}{_name(gain)}"]
        said.append(f"{count_of(len(lose), 'client')} lose{'s' if len(lose) == 1 else ''}{_name(lose)}")
        if unsure:
            have = "has" if len(unsure) == 1 else "have"
            said.append(f"{count_of(len(unsure), 'client')} {have} too few samples to tell{_name(unsure)}")
        if self.unscored:
            said.append(f"not scored: {shorten(self.unscored)}")
        return f"For whom? {'; '.join(said)}"

    def _say_others(self) -> str:
        falls = "" if self.measure == "accuracy" else "; lower is better, so a gain is how much it falls"
        return (
            f"All that was tried: {'; '.join(f'{TITLES[o.name]} {self.say_score(o.score)}' for o in self.options)} "
            f"({self._title}{falls}, after {self.rounds} rounds, on samples that trained none of these models)"
        )

    def say_score(self, score: float) -> str:
        """Return a score in words."""
        return f"{score:.1%}" if self.measure == "accuracy" else f"{score:.4g}"

    def say_gain(self, gain: Estimate) -> str:
        """Return a gain in words, and its interval."""
        if not isfinite(gain.value):
            return "unknown"
        unit = " points" if self.measure == "accuracy" else ""
        interval = f" ({self._say(gain.low)} to {self._say(gain.high)})" if isfinite(gain.low) else ""
        return f"{self._say(gain.value)}{unit}{interval}"

    def _say(self, difference: float) -> str:
        if self.measure == "accuracy":
            return f"{100 * difference:+.1f}"
        return f"{difference:+,.0f}" if abs(difference) >= 1000 else f"{difference:+.3g}"

    def tables(self) -> dict[str, Any]:
        """Return all of it as plain values; None for what is not known."""
        found: dict[str, Any] = _plain(asdict(self))
        return {
            **found,
            "gaining": [client.client for client in self.gaining],
            "losing": [client.client for client in self.losing],
        }


def choose_kind(task: Task) -> Kind:
    """Return what is scored of a task's samples: what its first metric is a mean of, or the loss."""
    first = task.metrics[0] if task.metrics else ""
    if task.one_class:
        return "accuracy"
    return "rmse" if first == "rmse" else "mae" if first == "mae" else "loss"


def weigh(
    fit: CrossFit, kind: Kind, names: NDArray[np.object_], labels: NDArray[np.int64], kept: str = ""
) -> Pay | None:
    """Return what the options are worth; None where no client could be scored.

    Args:
        fit: scores of the clients `[r]`.
        kind: what they are.
        names: of these clients `[r]`.
        labels: their groups `[r]`.
        kept: the option that the test of structure speaks for, which another one must beat by two standard errors.
    """
    share, sign = kind == "accuracy", 1.0 if kind == "accuracy" else -1.0
    pooled, counts = pool_folds(fit.moments), fit.moments[:, :, 0, 0]
    pooled = take_roots(pooled) if kind == "rmse" else pooled
    scored = pooled[:, 0, 0] > 0
    if not scored.any():
        return None
    pooled, counts, who = pooled[scored], counts[:, scored], names[scored]
    scores, at = pooled[:, 0, 1:], {name: number for number, name in enumerate(fit.options)}
    order = tuple(at[name] for name in SIMPLEST_FIRST if name in at)
    best = choose_option(scores, sign, order, at.get(kept))
    gains = sign * (scores - scores[:, :1])
    others = [option for option in range(len(fit.options)) if option]
    weighed = best or max(others, key=lambda option: float(gains[:, option].mean()))
    crossed = choose_by_other_folds(fit.moments[:, scored, 0, 1:], counts, sign, order, at.get(kept))
    # The root of all folds' squared errors, as of every option; the mean of each fold's root would be smaller.
    chosen = sign * ((np.sqrt(crossed) if kind == "rmse" else crossed) - scores[:, 0])
    of_groups = labels[scored]
    return Pay(
        kind,
        fit.rounds,
        fit.passes,
        tuple(Option(name, float(scores[:, k].mean()), mean_gain(gains[:, k])) for name, k in at.items()),
        fit.options[best],
        fit.options[weighed],
        mean_gain(chosen),
        tuple(
            ClientGain(
                str(who[i]),
                int(of_groups[i]),
                int(pooled[i, 0, 0]),
                {name: float(scores[i, k]) for name, k in at.items()},
                client_gain(pooled[i], weighed, 0, sign, share),
            )
            for i in range(len(who))
        ),
        tuple(
            GroupGain(int(group), int((of_groups == group).sum()), mean_gain(gains[of_groups == group, weighed]))
            for group in np.unique(of_groups)
        ),
        tuple(str(name) for name in names[~scored]),
    )


def _name(names: list[str]) -> str:
    return f" ({shorten(names)})" if names else ""


def _plain(value: Any) -> Any:
    """Return the same with None in the place of NaN."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value
