"""Of what kind clients differ, in words: how often classes are, inputs, what labels mean, or size alone."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.grouping.skew import Share, Skew

UNEQUAL = 2.0
"""Sizes differ where a tenth of the clients has so many times the samples of another tenth."""


@dataclass(frozen=True)
class Kinds:
    """Of what kind clients differ.

    Attributes:
        clients: how many told their profiles.
        skew: shares of variance between clients; None where none was told.
        found: `labels`, `features` and `concept`, those that differ.
        few: the samples of the client below whom a tenth of all are.
        many: of the client above whom a tenth are.
        with_classes: whether samples are of classes.
    """

    clients: int
    skew: Skew | None
    found: tuple[str, ...]
    few: int
    many: int
    with_classes: bool

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
        if self.skew is None and self.clients:
            return f"What differs? Too few clients to tell; {sizes}"
        if self.skew is None:
            return f"What differs? Clients did not tell how often classes are and what inputs are like; {sizes}"
        if not self.found and not self.with_classes:
            return (
                f"What differs? Not the inputs, as far as most profiles tell: {self._say_shares()}; what is "
                f"predicted, or how it depends on the inputs, may differ, which is not tested of numbers; {sizes}"
            )
        if not self.found:
            only = " but their sizes" if self.sizes_differ else ""
            return f"What differs? Nothing that profiles of most clients tell{only}: {self._say_shares()}; {sizes}"
        said = [_NAMES[kind] for kind in self.found]
        if "labels" in self.found and "features" in self.found:
            said[-1] += " (or what labels mean: beside such different labels the two cannot be told apart)"
        what = " and ".join(said)
        return f"What differs? {what[:1].upper()}{what[1:]}: {self._say_shares()}; {sizes}"

    def _say_shares(self) -> str:
        assert self.skew is not None
        named = [("inputs beyond their classes" if self.with_classes else "inputs", self.skew.inputs)]
        if self.skew.classes is not None:
            named = [("classes", self.skew.classes), *named, ("inputs within a class", self.skew.within)]
        return (
            f"of the variance of {', '.join(f'{name} {_say(share)}' for name, share in named)} is between clients"
        )


_NAMES = {
    "labels": "how often classes are",
    "features": "what inputs are like",
    "concept": "what labels mean, for the same inputs have other labels",
}


def _say(share: Share) -> str:
    return f"{max(0.0, share.share):.1%} (p = {share.p:.2g})"
