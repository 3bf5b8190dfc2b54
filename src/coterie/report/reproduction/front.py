"""What the pages say first of the papers' claims: a sentence a paper and one over all, with numbers of kept
results.

A number in these sentences, and in the reasons of main claims (`why` in an item's file), is a place such as
`{large|accuracy['FeSEM(4)'] - accuracy['FedAvg']|.1f}`: the scale, a side of a claim over what a seed measured,
and how the mean over the seeds is written. `published` as the scale takes the printed numbers,
`fesem-fig3:medium` another item's. So no page says what the results do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from coterie.report.numbers import MISSING, join_words
from coterie.studies.papers import result
from coterie.studies.papers.claims import JudgedClaim, PublishedSize, evaluate, find_published_size, named_in
from coterie.studies.papers.item import Claim, Item
from coterie.studies.papers.result import Result

PLACE = re.compile(r"\{([^|{}]+)\|([^|{}]+)\|([^|{}]+)\}")

BECAUSE = {
    "DC-PFL": (
        "models are scaled to their range before they are compared. Their distances follow those of labels if "
        "the range is that of all models (a correlation of {dcpfl-fig5:large|correlation['DC-PFL']|.2f}), and "
        "not if each model has its own, as in print ({dcpfl-fig5:large|correlation['DC-PFL (a range each "
        "model)']|.2f}). In Table I it accepts {dcpfl-table1:large|accepted['DC-PFL', 'Mid']|.2g} splits in a "
        "run, so it is FedAvg that sends some layers less often"
    ),
    "FedCPS": (
        "a few-shot client is validated on classes that it cannot train on, which favours a strong pull "
        "({fedcps-fig3:medium|few_mean['FedCPS']|.2f}; {fedcps-fig3:medium|others_mean['FedCPS']|.2f} for "
        "others). Heads tuned to a client's own classes forget the other classes"
    ),
    "FedTSDP": (
        "on IID data its trigger fires in {fedtsdp-table3:medium|fired['FedTSDP', 'CNN, CIFAR10']|.2g} rounds "
        "of a run, so it is FedAvg there. The number of groups (Figure 9) is "
        "{fedtsdp-fig9:medium|groups['First stage']|.2g} with the first stage alone, and "
        "{fedtsdp-fig9:medium|groups['Second stage']|.2g} with the second alone"
    ),
    "FeSEM": (
        "after the warm-up its E-step moves at most {fesem-fig3:medium|moved_most['FeSEM(4)', 'FEMNIST']|.0f} "
        "clients in a round, so the gain comes from K-means of the warm-up's models. Training alone has "
        "{fesem-table2:large|accuracy['NoFed']|.1f} %, and FeSEM(4) "
        "{fesem-table2:large|accuracy['FeSEM(4)']|.1f} %"
    ),
    "LayerCFL": (
        "its comparison saves the size of the network divided by that of the layers compared "
        "({layercfl-computing:large|multiplications['CFL'] / multiplications['LayerCFL']|.0f} times in VGG16, "
        "{layercfl-computing:medium|multiplications['CFL'] / multiplications['LayerCFL']|.1f} in a small "
        "CNN). In the end gaps are below zero in every kind of layer "
        "({layercfl-fig8:medium|max(gap_fc['updates'], gap_conv['updates'])|.2f} at best)"
    ),
}
"""Why the claims of each paper came out as they did."""

Results = Mapping[str, Mapping[str, Result]]


def fill(text: str, item: Item | None, items: Mapping[str, Item], kept: Results) -> str:
    """Return a text with each place filled from the results; with a dash where there is no such number."""

    def number(place: re.Match[str]) -> str:
        where, side, form = place.groups()
        name, _, scale = where.rpartition(":")
        own = items[name] if name else item
        assert own is not None  # a sentence on a paper names the item of each of its places
        value = _mean(side, own, scale, kept[own.id].get(scale))
        return MISSING if value is None else f"{value:{form}}"

    return PLACE.sub(number, " ".join(text.split()))


def _mean(side: str, item: Item, scale: str, found: Result | None) -> float | None:
    """The mean over the seeds of one side of a comparison; None where no seed has all its numbers."""
    named = {r: item.with_setting(r) for r in named_in(side)}
    if scale == "published":
        columns = {r: np.array([item.published[full]]) for r, full in named.items() if full in item.published}
    else:
        spans = {r: found.lookup(full) for r, full in named.items()} if found else {}
        columns = {r: span.low for r, span in spans.items() if span is not None and (span.low == span.high).all()}
    if columns.keys() != named.keys():
        return None
    seeds = zip(*columns.values(), strict=True)
    return float(np.mean([evaluate(side, dict(zip(columns, seed, strict=True)).__getitem__) for seed in seeds]))


def main_results(
    item: Item, kept: Mapping[str, Result]
) -> list[tuple[Claim, list[tuple[float, bool]] | None, Result | None, JudgedClaim | None]]:
    """Return an item's main claims, each with its printed numbers and with the largest result that judges it.

    A result that is outdated, or in which a claim cannot be tested, gives way to a smaller one without such faults.
    """
    judged = [(found, result.judge_claims(item, found)) for found in kept.values()]
    chosen = []
    for i, (claim, printed) in enumerate(zip(item.claims, result.judge_published(item), strict=True)):
        if claim.headline:
            run = [(found, claims[i]) for found, claims in judged if claims[i].verdict != "not run"]
            run.sort(key=lambda one: (one[0].is_stale(item), one[1].verdict in ("identity", "cannot be tested")))
            found, verdict = run[0] if run else (None, None)
            chosen.append((claim, printed, found, verdict))
    return chosen


def summarise(items: Sequence[Item], kept: Results) -> list[str]:
    """Return a paragraph a paper (what it claims, what came out, why) and one over all of them."""
    by_name = {item.id: item for item in items}
    sentences, verdicts, sizes, scales = [], Counter[str](), Counter[PublishedSize](), Counter[str]()
    for paper in dict.fromkeys(item.paper for item in items):
        claims, outcomes = [], []
        for item in (item for item in items if item.paper == paper):
            for claim, printed, found, judged in main_results(item, kept[item.id]):
                size = find_published_size(judged, printed) if judged else ""
                verdicts[judged.verdict if judged else "not run"] += 1
                sizes[size] += bool(size)
                scales[found.scale if found else ""] += 1
                claims.append(claim.brief)
                outcomes.append(_outcome(judged, size, stale=found is not None and found.is_stale(item)))
        if not claims:
            continue
        numbered = [f"({n}) {text}" for n, text in enumerate(claims, 1)] if len(claims) > 1 else claims
        told = [f"({n}) {text}" for n, text in enumerate(outcomes, 1)] if len(claims) > 1 else [f"it {outcomes[0]}"]
        why = f" Why: {fill(BECAUSE[paper], None, by_name, kept)}." if paper in BECAUSE else ""
        sentences.append(f"**{paper}** claims that {_join(numbered)}. Here {'; '.join(told)}.{why}")
    counted = ", ".join(f"{_IN_PAGE.get(verdict, verdict)} {count}" for verdict, count in verdicts.most_common())
    excluded = sum(count for size, count in sizes.items() if size.startswith("excluded"))
    missed = ""
    if sizes:
        missed = f" For {sizes.total()} of them the paper prints a size that ours can be held against"
        missed += f"; our interval excludes it in {excluded}."
    largest = join_words(f"{count} at {scale}" for scale, count in scales.most_common() if scale) or "none was run"
    reduced = f"They are judged on reduced runs ({largest}), none at its paper's own size."
    sentences.append(f"**All {verdicts.total()} main claims**: {counted}.{missed} {reduced}")
    return sentences


_IN_PAGE = {"unstated": "depends on what the paper does not say", "not run": "to be run"}


def _outcome(judged: JudgedClaim | None, size: PublishedSize, *, stale: bool) -> str:
    """What came of a claim, as the end of a sentence."""
    if judged is None:
        return "is to be run"
    said = {
        "equal within a point": "compares what is equal within a point",
        "undecided": "is undecided",
        "identity": f"is not tested ({judged.reason or 'both sides are the same in every seed'})",
        "circular": "is circular",
        "unstated": f"depends on what the paper does not say ({judged.reason})",
    }.get(judged.verdict, judged.verdict)
    if size.startswith("excluded"):
        said += f", with {'more' if 'more' in size else 'less'} than the printed difference"
    return said + " (outdated result)" * stale


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
