"""Of what kind clients differ, in words: how often classes are, inputs, what labels mean, or size alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.errors import shorten
from coterie.grouping.skew import Skew

MOST_CLASSES = 4
"""Classes that are named in a sentence."""

UNEQUAL = 2.0
"""Sizes differ where a tenth of the clients has so many times the samples of another tenth."""


Targets = Literal["classes", "numbers", "labels", "others"]


@dataclass(frozen=True)
class GroupKinds:
    """In what a group differs from all other clients."""

    group: int
    """Its number."""
    clients: int
    """How many of its members told their profiles."""
    skew: Skew
    found: tuple[str, ...]
    """As in `Kinds`."""


@dataclass(frozen=True)
class Recoding:
    """Clients who seem to have the classes of others under other names."""

    clients: tuple[str, ...]
    others: str
    """Where those are whom they are held against, in words."""
    meanings: tuple[tuple[str, str], ...]
    """Classes whose names differ: what these clients call it, and what the others do."""

    def sentence(self) -> str:
        """Return what is to be checked."""
        (own, other), *rest = self.meanings[:MOST_CLASSES]
        said = [f"their class {own} resembles class {other} {self.others}"]
        said += [f"their class {own} class {other}" for own, other in rest]
        if (more := len(self.meanings) - MOST_CLASSES) > 0:
            said.append(f"and so on for {more} more")
        return (
            f"Check the coding of the outcome at {shorten(self.clients)}: {', '.join(said)}; if these are the same "
            "classes under other codes, recode them, and one model may serve all"
        )


@dataclass(frozen=True)
class Kinds:
    """Of what kind clients differ.

    Attributes:
        clients: how many told their profiles.
        skew: shares of variance between clients; None where none was told.
        found: `labels`, `features` and `concept`, those that most clients show.
        few: the samples of the client below whom a tenth of all are.
        many: of the client above whom a tenth are.
        targets: whether samples are of classes, have numbers as targets, several labels, or others, which nobody
            tells.
        groups: in what those groups differ that profiles were told of.
        recoded: clients who seem to code the classes in another way.
        alpha: the error level of the tests of the shares.
    """

    clients: int
    skew: Skew | None
    found: tuple[str, ...]
    few: int
    many: int
    targets: Targets
    groups: tuple[GroupKinds, ...] = ()
    recoded: tuple[Recoding, ...] = ()
    alpha: float = 0.05

    @property
    def named(self) -> tuple[str, ...]:
        """All kinds that most clients or a group show."""
        shown = {*self.found, *(kind for group in self.groups for kind in group.found)}
        return tuple(kind for kind in ("labels", "features", "concept") if kind in shown)

    @property
    def sizes_differ(self) -> bool:
        """Whether some clients have many times the samples of others."""
        return self.many >= UNEQUAL * max(1, self.few)

    def sentence(self) -> str:
        """Return what differs."""
        sizes = (
            f"sizes are {'unequal' if self.sizes_differ else 'much alike'}, {self.few:,} to {self.many:,} training "
            "samples (the middle 80 % of clients)"
        )
        return f"What differs? {self._say_what()}; {sizes}"

    def _say_what(self) -> str:
        if self.skew is None and self.clients:
            return "Too few clients to tell"
        if self.skew is None:
            return "Clients did not send their class frequencies and profiles of their inputs"
        shares = self._say_shares()
        if self.found:
            what = self._say(self.found) + (self._words["why"] if self.found == ("concept",) else "")
            return f"{what[:1].upper()}{what[1:]}: {shares}"
        if self.named:
            return f"The profiles of most clients do not differ, but those of one group do (see below): {shares}"
        if self.targets == "others":
            untested = "no test was made of the targets, or of how they depend on the inputs; these may differ"
            return f"Not the inputs of most clients, by their profiles: {shares}; {untested}"
        return f"Nothing{' but the sizes' * self.sizes_differ}, by the profiles of most clients: {shares}"

    def say_group(self, number: int) -> str:
        """Return what a group differs from all others in; nothing where most clients do, or are the group."""
        group = next((group for group in self.groups if group.group == number), None)
        if group is None or group.found == self.found or 2 * group.clients > self.clients:
            return ""
        return self._say(group.found)

    @property
    def _words(self) -> Mapping[str, str]:
        return _OF.get(self.targets, _OF["classes"])

    def _say(self, found: tuple[str, ...]) -> str:
        said = [self._words[kind] for kind in found]
        if "labels" in found and len(found) > 1:
            said[-1] += self._words.get("either", "") if "features" in found else self._words.get("or inputs", "")
        return " and ".join(said)

    def _say_shares(self) -> str:
        assert self.skew is not None
        inputs, classes, within = self.skew.inputs, self.skew.classes, self.skew.within
        if classes is None:
            named = {"inputs": inputs}
        elif self.targets != "classes":
            named = {
                self._words["of"]: classes,
                "inputs": inputs,
                f"inputs where {self._words['of']} are alike": within,
            }
        else:
            named = {"classes": classes, "inputs given the class": inputs, "inputs of a single class": within}
        parts = [
            f"{max(0.0, share.share):.1%} of {'that' if number else 'the variance'} of {name}"
            f"{'' if share.p <= self.alpha else ' (no more than chance)'}"
            for number, (name, share) in enumerate(named.items())
        ]
        return f"differences between clients explain {', '.join(parts)}"


_OF: Mapping[Targets, Mapping[str, str]] = {
    "classes": {
        "labels": "how frequent classes are",
        "features": "what inputs are like",
        "concept": "what labels mean",
        "why": ", because the same inputs have other labels",
        "either": " (or what labels mean: with labels this different, both look the same)",
        "or inputs": " (or what inputs are like: with labels this different, both look the same)",
    },
    "numbers": {
        "of": "targets",
        "labels": "how large targets are",
        "features": "what inputs are like",
        "concept": "what targets the same inputs have",
        "why": "",
        "either": " (targets may follow from these, or depend on them in another way)",
    },
    "labels": {
        "of": "labels",
        "labels": "how frequent labels are",
        "features": "what inputs are like",
        "concept": "what labels the same inputs have",
        "why": "",
        "either": " (labels may follow from these, or depend on them in another way)",
    },
}
"""What is said of each kind, by what targets are."""


def may_mean(found: tuple[str, ...]) -> bool:
    """Say whether it may be that labels mean something else: beside different labels, so may different inputs."""
    return "concept" in found or {"labels", "features"} <= {*found}
