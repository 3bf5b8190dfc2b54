"""Numbers as people read them, the same on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, isfinite, isnan, log10
from typing import Protocol


class Unit(Protocol):
    """What is known of a metric, or of a column that sums one up, when its values are written."""

    @property
    def is_share(self) -> bool:
        """From 0 to 1, and shown in per cent."""

    @property
    def less_is_better(self) -> bool:
        """Whether it falls as models get better."""


FINEST = 6
"""Decimals at most; what is smaller is written with an exponent."""

MISSING = "–"
"""Stands for a value that there is not."""


def measured(unit: Unit, value: float | None) -> str:
    """Write a value of a metric: a share as a percentage with one decimal, any other number with three digits."""
    if value is None or isnan(value):
        return MISSING
    return percent(value) if unit.is_share else alike(value)[0]


def versus(unit: Unit, value: float, other: float) -> str:
    """Write a value's difference to another one: `+1.5 points` of a share, else `12% lower` or `+0.034`."""
    if unit.is_share:
        return f"{100 * (value - other):+.1f} points"
    if unit.less_is_better and other > 0 and value >= 0:
        return change(value / other)
    return signed(value - other)


def change(ratio: float) -> str:
    """Write a ratio as a change: `12% lower`, `3.1 times as high`."""
    if not isfinite(ratio):
        return "beyond measure higher"
    if ratio >= 2:
        return f"{ratio:.3g} times as high"
    size = abs(ratio - 1)
    if size < 0.0005:
        return "as high"
    return f"{size:.{0 if size >= 0.0995 else 1}%} {'lower' if ratio < 1 else 'higher'}"


def signed(value: float, count: int = 3) -> str:
    """Write a value with its sign and `count` significant digits; zero has none."""
    text = significant(value, count)
    return text if text.startswith("-") or value == 0 else f"+{text}"


def alike(*values: float) -> list[str]:
    """Write values with equally many decimals: as many as give the first one three digits, zeros included."""
    if not all(map(isfinite, values)):
        return [alike(value)[0] if isfinite(value) else significant(value) for value in values]
    size = abs(values[0]) or max(map(abs, values))
    count = max(0, 2 - floor(log10(size))) if size else 2
    if count > FINEST or size >= 1e6:
        return [significant(value) for value in values]
    return [f"{round(value, count) + 0.0:,.{count}f}" for value in values]


def value_format(unit: Unit) -> str:
    """Return the format of a metric's values in a chart's tooltips."""
    return ".1%" if unit.is_share else ".4~g"


def axis_format(unit: Unit) -> str:
    """Return the format of a metric's axis."""
    return "~%" if unit.is_share else ".6~g"


def capital(text: str) -> str:
    """Begin a text with a capital letter, and leave the rest as it is."""
    return text[:1].upper() + text[1:]


def percent(share: float) -> str:
    """Write a share as a percentage with one decimal."""
    return f"{share:.1%}"


def decimals(value: float, count: int = 2) -> str:
    """Write a value with `count` decimals. Zero has no sign; a value from 100,000 on has an exponent."""
    if abs(value) >= 1e5:
        return f"{value:.1e}"
    return f"{round(value, count) + 0.0:.{count}f}"


def significant(value: float, count: int = 3) -> str:
    """Write a value with `count` significant digits; below a million, with all digits of the whole number."""
    if 10**count - 0.5 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.{count}g}".replace("inf", "∞")


def duration(seconds: float) -> str:
    """Write seconds as seconds, minutes or hours, with two digits at least."""
    if seconds < 120:
        return f"{significant(seconds, 2)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def volume(count: float) -> str:
    """Write bytes in B, kB, MB or GB (powers of 1000) with three digits."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        # From 999.5 on, the smaller unit would show a thousand.
        if count >= 0.9995 * scale:
            value = count / scale
            return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"
    return f"{count:.0f} B"


def join_words(things: Iterable[object], most: int = 6) -> str:
    """List things in words: `1`, `1 and 2`, `1, 2 and 3`. Beyond `most`, say how many more there are."""
    words = [str(thing) for thing in things]
    if len(words) > most:
        words[most:] = [f"{len(words) - most:,} more"]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
