"""What a comparison found, in words made from its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from coterie.errors import count_of
from coterie.report.comparison.client_gains import count_by_method, pair_clients, unit_of
from coterie.report.comparison.view import View, difference, relative, value
from coterie.report.gains import write_gain
from coterie.report.numbers import decimals, join_words, volume
from coterie.studies.compare.table import interval


def headline(view: View) -> str:
    """Say which method is best, by how much, and whether the difference may be chance."""
    best = view.best
    if best is None:
        return "No round was evaluated, so nothing can be said of the methods."
    row = view.row(best)
    reached = f"{value(view.of_measure, row[f'{view.measure}_mean'])}{_sureness(view, best)}"
    if best == view.baseline:
        alone = len(view.every) == 1
        said = f"{best} was run alone: it has" if alone else f"No method is better than the baseline: {best} has"
        return f"{said} {view.of_measure.title} {reached}{_runner_up(view)}."
    share = f"{join_words(view.best_methods)} {'is' if len(view.best_methods) == 1 else 'are'} best"
    said = f"{share} in {view.of_measure.title}, with {reached}"
    if row["difference"] is None:
        return f"{said}; the baseline {view.baseline} has no finished seed to compare it with."
    other = value(view.of_measure, view.row(view.baseline)[f"{view.measure}_mean"])
    return f"{said} against {other} with {view.baseline}, the baseline: {_describe_difference(view, row)}."


def finding(view: View) -> list[str]:
    """Give the headline, then what the best method costs in bytes, who loses by it, and who is near."""
    said = [
        headline(view),
        _cost(view),
        _losers(view),
        _equals(view),
    ]
    return [sentence for sentence in said if sentence]


def conclude(parts: Sequence[View]) -> str:
    """Say what a comparison of one setting or several found; nothing where no run is finished."""
    if len(parts) > 1:
        return overall(parts)
    return " ".join(finding(parts[0])) if parts else ""


def overall(parts: Sequence[View]) -> str:
    """Say which method is best in most settings, and which has the best mean rank."""
    known = [view for view in parts if view.best is not None]
    if not known:
        return "No round was evaluated, so nothing can be said of the methods."
    ranks: dict[str, list[float]] = {}
    for view in known:
        for method in view.methods:
            rank = view.row(method)["rank"]
            if rank is not None:
                ranks.setdefault(method, []).append(rank)
    # Only who was measured everywhere has a mean rank that can be compared.
    whole = {method: sum(own) / len(own) for method, own in ranks.items() if len(own) == len(known)}
    if len(known[0].every) == 1:
        return f"{known[0].baseline} was run alone in {count_of(len(known), 'setting')}."
    first = [method for view in known for method in view.best_methods]
    wins = {method: first.count(method) for method in ranks if method in first}
    most = max(wins.values())
    winners = [method for method, count in wins.items() if count == most]
    is_are = "is" if len(winners) == 1 else "are each"
    said = f"{join_words(winners)} {is_are} best in {most} of {count_of(len(known), 'setting')}."
    if whole:
        leader = min(whole, key=lambda method: whole[method])
        said += (
            f" {leader} has the best average rank over settings and seeds, {decimals(whole[leader], 1)} of "
            f"{count_of(len(ranks), 'method')}"
        )
        said += (
            f"; {view.baseline}, the baseline, has {decimals(whole[view.baseline], 1)}."
            if (view.baseline in whole and leader != view.baseline)
            else "."
        )
    return said


def _sureness(view: View, method: str) -> str:
    """Say between what the mean of the worst tenth lies, where that is what is compared."""
    if view.measure != "worst10" or method not in view.worst_tenth:
        return ""
    low, high = (value(view.of_measure, end) for end in view.worst_tenth[method])
    return f" (95 % interval {low} to {high} by the clients' own test samples)"


def _runner_up(view: View) -> str:
    """Name the method that comes after a baseline that is best."""
    equal = [method for method in view.best_methods if method != view.baseline]
    said = f", and so {'has' if len(equal) == 1 else 'have'} {join_words(equal)}" if equal else ""
    rows = [view.row(method) for method in view.methods if method not in view.best_methods]
    known = [row for row in rows if row["difference"] is not None]
    if not known:
        return said
    row = (min if view.of_measure.less_is_better else max)(
        known, key=lambda row: float(row[f"{view.measure}_mean"])
    )
    return f"{said}; {row['method']} comes next: {_describe_difference(view, row)}"


def _describe_difference(view: View, row: dict[str, Any]) -> str:
    """Describe a method's difference to the baseline, its interval, and whether it is beyond chance."""
    unit = " points" if view.of_measure.is_share else ""
    said = f"{difference(view.of_measure, row['difference'])}{unit}"
    base = view.row(view.baseline)[f"{view.measure}_mean"]
    if base is not None and (share := relative(view.of_measure, base + row["difference"], base)):
        said = f"{share}, {said}"
    low, high = row["difference_low"], row["difference_high"]
    if low is None:
        return f"{said} in the one seed that both have, which says nothing about chance"
    said += f" (95 % interval {difference(view.of_measure, low)} to {difference(view.of_measure, high)}"
    said += f" over {count_of(row['pairs'], 'seed')})"
    return f"{said}, which is beyond chance" if low > 0 or high < 0 else f"{said}, which may be chance"


def _equals(view: View) -> str:
    """Name the methods that cannot be told from the best one, paired by seed."""
    if view.best is None:
        return ""
    known = view.cells.select("method", "seed", pl.col(view.measure).alias("value")).drop_nulls("value")
    own = known.filter(pl.col("method") == view.best).select("seed", pl.col("value").alias("best"))
    near = []
    for method in view.methods:
        both = known.filter(pl.col("method") == method).join(own, on="seed").sort("seed")
        _, low, high = interval((both["value"] - both["best"]).to_numpy())
        # The baseline's own difference is in the headline.
        if method not in (*view.best_methods, view.baseline) and low <= 0 <= high:
            near.append(method)
    if view.best == view.baseline or not near:
        return ""
    return f"{count_of(len(view.seeds), 'seed')} cannot tell {join_words(near)} from {view.best}."


def _cost(view: View) -> str:
    """Say how much the best method sends, and the baseline."""
    best, base = (_bytes_sent(view, method) for method in (view.best, view.baseline))
    if view.best in (None, view.baseline) or best is None:
        return ""
    against = "" if base is None else f", {view.baseline} {volume(base)}"
    return f"{view.best} sends {volume(best)} in all{against}."


def _bytes_sent(view: View, method: str | None) -> float | None:
    if method not in view.methods:
        return None
    row = view.row(method)
    return float(row["up_bytes_mean"] + row["down_bytes_mean"])


def _losers(view: View) -> str:
    if view.best in (None, view.baseline):
        return ""
    found = pair_clients(view).filter(pl.col("method") == view.best)
    if not found.height:
        return ""
    row = count_by_method(found).row(0, named=True)
    tested = "clients" if found["seeds"].max() != 1 or len(view.seeds) == 1 else "clients, counted in each seed,"
    better, worse = f"{row['gained']:,} score better than with {view.baseline}", f"{row['lost']:,} worse"
    said = f"Of {row['clients']:,} {tested} {better} and {worse}"
    if not row["lost"]:
        return f"{said}."
    worst = found.filter(pl.col("gain") == pl.col("gain").min()).row(0, named=True)
    lost = write_gain(view.metrics.deciding, worst["gain"]).lstrip("+-")
    said += f", the one that loses most {lost} {unit_of(view)}"
    return f"{said}."
