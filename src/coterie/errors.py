"""Bad input, said in one sentence each: the key, the value, and what would be right.

Names of clients, columns and files and the reasons of other machines could move the cursor, clear the screen, or
turn lines round: what of theirs does not print is escaped here before it reaches terminals, logs and tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

MOST_NAMES = 12
"""Names that a sentence lists at most."""

MOST_SIGNS = 100
"""Characters of a value that a sentence shows at most."""


MOST_COMPARED = 5000
"""Names to which one is compared at most; a table may have 300,000 columns."""

SYNONYMS = {
    **dict.fromkeys(("learning_rate", "eta", "step_size"), "lr"),
    **dict.fromkeys(("local_epochs", "num_epochs", "n_epochs"), "epochs"),
    **dict.fromkeys(("num_rounds", "n_rounds", "communication_rounds"), "rounds"),
    **dict.fromkeys(("num_clients", "n_clients"), "clients"),
    **dict.fromkeys(("num_clusters", "n_clusters"), "clusters"),
    **dict.fromkeys(("target", "outcome"), "label"),
}
"""What other libraries call some settings, by those names: by letters, others would be nearer."""


class BadInput(ValueError):
    """What the user gave cannot be used.

    Attributes:
        problems: one sentence per thing that is wrong.
        told: the same for somebody who may not see the data, without values of theirs.
    """

    def __init__(self, problems: str | Sequence[str], told: str | Sequence[str] | None = None) -> None:
        said = [problems] if isinstance(problems, str) else list(problems)
        told = said if told is None else [told] if isinstance(told, str) else list(told)
        self.problems, self.told = [escape(text) for text in said], [escape(text) for text in told]
        super().__init__("\n".join(self.problems))

    @classmethod
    def together(cls, errors: Sequence[BadInput]) -> BadInput:
        """Return all that several say."""
        problems = [problem for error in errors for problem in error.problems]
        return cls(problems, [sentence for error in errors for sentence in error.told])


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None where nothing is close."""
    if len(name) > MOST_SIGNS:  # to compare takes as long as the square of it
        return None
    names = list(known)
    if (meant := SYNONYMS.get(name.lower().replace("-", "_"))) in names:
        return meant
    folded = {n.lower().replace("_", "-"): n for n in names}
    close = get_close_matches(name.lower().replace("_", "-"), folded, n=1, cutoff=0.62)
    return folded[close[0]] if close else None


def count_of(number: int, what: str) -> str:
    """Write a number of things: `1 client`, `2 clients`, `1,000 clients`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def shorten(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Return the first of many names as a message lists them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def nearest_first(name: str, names: Sequence[str]) -> list[str]:
    """Return the known names in their order, but those closest to `name` in front."""
    if len(name) > MOST_SIGNS or len(names) > MOST_COMPARED:
        return list(names)
    folded = {known.lower(): known for known in names}
    close = [folded[known] for known in get_close_matches(name.lower(), folded, n=3, cutoff=0.5)]
    return [*close, *(known for known in names if known not in close)]


def unknown(what: str, name: str, known: Iterable[str], where: str = "", instead: str = "") -> str:
    """One sentence for a name nobody knows: the nearest one if there is any, else the first `MOST_NAMES`.

    Args:
        what: what it should be the name of.
        name: as it was given.
        known: the names that are known.
        where: where it was looked for, such as `in 'runs'`.
        instead: what could be given in place of a name, such as `the path of a file`; unsaid where a name is near.
    """
    names = sorted(known)
    close = nearest(name, names)
    if close:
        hint = f"did you mean {close}?"
    else:
        hint = f"known: {shorten(names)}" if names else "there is none yet"
        hint += f"; or give {instead}" if instead else ""
    return f"{what} {name!r} is unknown{f' {where}' if where else ''}; {hint}"


def sentences(error: ValidationError, prefix: str = "", known: Iterable[str] = (), owner: str = "") -> list[str]:
    """One sentence for each thing pydantic found, under dotted keys that start with `prefix`.

    An unknown key is said to be no setting of `owner`, where that is named; `known` are the keys it has.
    """
    found: dict[str, str] = {}
    for item in error.errors(include_url=False):
        where = ".".join([p for p in (prefix, *_keys(item["loc"])) if p])
        of_table = item.get("ctx", {}).get("error")
        own = (f"{where}.", f"{where} ")
        if isinstance(of_table, BadInput) and all(said.startswith(own) for said in of_table.problems):
            found |= {said: said for said in of_table.problems}  # the section is built of others
            continue
        sentence = _sentence(where, item, known, owner)
        if where not in found:
            found[where] = sentence
        elif "; it must be " in sentence:
            # One value refused by each branch of a union is one problem, not several.
            found[where] += " or " + sentence.split("; it must be ", 1)[1]
    return list(found.values())


def _keys(loc: tuple[int | str, ...]) -> list[str]:
    """The location as the user wrote it: pydantic's markers for union branches are left out."""
    return [str(part) for part in loc if not (isinstance(part, str) and ("[" in part or part in _BRANCHES))]


_BRANCHES = {"int", "constrained-int", "float", "constrained-float", "str", "bool", "none"}


def _sentence(where: str, item: Any, known: Iterable[str], owner: str) -> str:
    value, kind, context = show_value(item.get("input")), item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        key = where.rsplit(".", 1)[-1]
        close = nearest(key, known)
        names = ", ".join(known)
        hint = f"did you mean {close}?" if close else (f"known: {names}" if names else "remove it")
        return f"{where} is not a setting{f' of {owner}' if owner else ''}; {hint}"
    if kind == "missing":
        return f"{where} is missing; give it a value"
    if kind in ("model_type", "model_attributes_type"):
        return f"{where} = {value} is not possible; it must be a table"
    if kind == "literal_error":
        return f"{where} = {value} is not possible; it must be {context['expected']}"
    if kind == "value_error":
        return f"{where} = {value} is not possible; {str(item['msg']).removeprefix('Value error, ')}"
    if kind == "too_short":
        least = context["min_length"]
        return (
            f"{where} = {value} is not possible; it must have at least {least} entr{'y' if least == 1 else 'ies'}"
        )
    message = str(item["msg"])
    if not message.startswith("Input should be "):
        message = re.sub(r"^(\w+) should ", lambda m: f"the {m[1].lower()} must ", message)
        return f"{where} = {value} is not possible; {message}"
    wanted = {"tuple_type": f"a list, as in [{value}]", "dict_type": "a table, as in {a = 1}"}.get(
        kind, message.removeprefix("Input should be ")
    )
    if wanted == "a valid number":
        wanted = "a number, as 0.3 for 30 %" if "%" in value else "a number"
    return f"{where} = {value} is not possible; it must be {wanted[:1].lower()}{wanted[1:]}"


def show_value(value: Any) -> str:
    """Return a value as it is written; of a very long one the beginning."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= MOST_SIGNS else f"{text[:MOST_SIGNS]}…"


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
