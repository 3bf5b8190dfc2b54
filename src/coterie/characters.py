"""Characters that do not print, in texts of others: they could move the cursor, clear the screen, turn lines round.

Names of clients, columns and files and the reasons of other machines reach terminals, logs and tables through here.
"""

from __future__ import annotations

import re
from typing import Any

_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, marks that turn the direction of a text, separators of lines, and halves of characters."""

_HIDDEN_IN_LINES = re.compile(_HIDDEN.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def escape(text: str) -> str:
    """Return a text on one line with all that does not print written as in a literal, as `\\x1b` for ESC."""
    return _HIDDEN.sub(_write_escape, text)


def escape_lines(text: str) -> str:
    """Return a text whose lines and tabs stay, with all else that does not print written as in a literal."""
    return _HIDDEN_IN_LINES.sub(_write_escape, text)


def print_escaped(*values: object, **options: Any) -> None:
    """Print as `print` does, with all that does not print written as in a literal."""
    print(*(escape_lines(str(value)) for value in values), **options)


def _write_escape(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]
