"""Numbers and sentences, as the documents on published results have them."""

from __future__ import annotations

import math
import re

from coterie.report.numbers import MISSING, signed

FINEST = 6
"""Decimals of a margin at most; what is smaller is written with an exponent."""


def sentence(text: str) -> str:
    """End the text with a full stop."""
    text = " ".join(text.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."


def mean_and_sd(found: tuple[float, float] | None, unit: str) -> str:
    """Write mean and deviation with equally many decimals: two in per cent, else three digits of the mean."""
    if found is None:
        return MISSING
    mean, sd = found
    size = abs(mean) or (0.0 if math.isnan(sd) else sd)
    count = 2 if unit == "%" or not size else max(0, 2 - math.floor(math.log10(size)))
    return f"{mean:,.{count}f}" if math.isnan(sd) else f"{mean:,.{count}f} ± {sd:,.{count}f}"


def mean_and_interval(mean: float, low: float, high: float) -> str:
    """Write a mean and its interval with equally many decimals: as many as give half its width two digits."""
    if math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12):
        return f"{signed(mean)} in every seed"
    count = max(0, 1 - math.floor(math.log10((high - low) / 2)))
    if count > FINEST:
        return f"{signed(mean)} [{signed(low)}, {signed(high)}]"
    texts = [f"{round(value, count) + 0.0:+,.{count}f}" for value in (mean, low, high)]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def anchor(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
