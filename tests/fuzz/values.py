"""Odd values and damaged texts, as people, programs and attackers write them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from coterie.runs.schema.toml import literal

CONTROLS = ("\x00", "\x07", "\x08", "\r", "\n", "\t", "\x1b[31m", "\x1b]0;title\x07", "\x7f", "\x85", "\x9b2J")
MARKS = ("\u202e", "\u2066", "\u200b", "\u2028", "\ufeff", "\ufffd", "é", "ß", "İ", "😀", "語", "\u0301" * 40)
"""Marks of direction and width, and letters outside ASCII."""

SIGNS: tuple[str, ...] = (*"=[]{}()'\",.+-#\n: ", '"""', "[[", "]]")
"""Those of TOML and of calls."""

TEXTS = (
    *("", " ", "a", "A", "-", "--", "--help", "=", ",", "+", "()", "(", "]", "{}", "'", '"', "\\", "/", "//", "."),
    *("..", "~", "*", "%s", "{0}", "[bold]x[/]", "[/]", "$HOME", "null", "none", "nan", "inf", "-inf", "true"),
    *("auto", "own", "all", "head", "0", "-1", "1e400", "0x10", "1_0", "१२", "①", "=1+1", "nowhere.at:all"),
    *("a:b", "nowhere", "flwr:", "flwr:IidPartitioner", "first:0", "last:-1", "relative:x", "first:" + "9" * 5000),
    *("fesem()", "cnn", "a" * 300, "a" * 20_000, "9" * 5000, "[" * 150, "(" * 150, "a." * 150, "\x1b[2J"),
    *("one\ntwo", "\u202egnp.txt"),
)

NUMBERS = (
    *("0", "1", "-1", "2", "-0.0", "0.5", "1.5", "1e-320", "1e-9", "1e9", "1e18", "1e300", "1e308", "1e400"),
    *("-1e400", "inf", "-inf", "nan", "255", "256", "65536", "2147483647", "2147483648", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551616", "-9223372036854775809"),
    *("1" + "0" * 30, "1" + "0" * 400, "1" + "0" * 5000, "0x7fffffffffffffffffff", "1_000", "true", "false"),
)
"""As they are written in TOML."""

MODEST = ("0", "1", "2", "3", "-1", "0.0", "0.5", "1.0", "1e-3", "1e-300", "7", "true", "'a'", "''", "[]", "[1, 2]")
"""Values that make no run long."""

STRUCTURES = (
    *("[]", "{}", "[[]]", "[1, 'a', true]", "[1, 2, 3]", "['a']", "['', '']", "{a = 1}", "{a = {b = [1]}}"),
    "[nan]",
    *("1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "[-1]", "[0]", "[1e9]", "[1000000000000]", "{'' = ''}"),
    *("[" * 40 + "]" * 40, "[" * 99 + "]" * 99, "{a = " * 60 + "1" + "}" * 60, "[" + "0, " * 3000 + "]"),
)


def draw_text(random: Random) -> str:
    """Return an odd text: one of `TEXTS`, or a plain one with something odd in it."""
    if random.random() < 0.6:
        return random.choice(TEXTS)
    plain = random.choice(("digits", "fedavg", "client 1", "conv", "runs", "a b", "x"))
    place = random.randrange(len(plain) + 1)
    return plain[:place] + random.choice((*CONTROLS, *MARKS)) + plain[place:]


def draw_literal(random: Random) -> str:
    """Return an odd value as it is written in TOML."""
    kind = random.random()
    if kind < 0.4:
        return random.choice(NUMBERS)
    return random.choice(STRUCTURES) if kind < 0.6 else literal(draw_text(random))


def draw_json(random: Random) -> Any:
    """Return an odd value that JSON can hold."""
    numbers = (0, 1, -1, 2**31, 2**53, 2**63, 2**64, 10**400, -(10**400), 0.5, -0.0, 1e308, float("nan"))
    texts = ("", "a", "0", "\x1b[2J", "one\ntwo", "\u202e", "a" * 5000)
    lists: tuple[Any, ...] = ([], [[]], [0], [-1], [10**400], ["a"], [None], [[0, 1]], [[1, 0]])
    lists += ([[-5, 10**20]], [0] * 3000)
    others: tuple[Any, ...] = (None, True, False, float("inf"), {}, {"a": 1}, {"scored": 1})
    return random.choice((*numbers, *texts, *lists, *others))


def damage(text: str, random: Random) -> str:
    """Return the text with something cut out, put in, doubled or repeated."""
    start = random.randrange(len(text) + 1)
    stop = min(len(text), start + random.choice((1, 1, 2, 5, 20, 200)))
    piece = text[start:stop]
    what = random.randrange(6)
    if what == 0:
        return text[:start] + text[stop:]
    if what == 1:
        return text[:start]
    if what == 2:
        return text[:start] + piece * random.choice((2, 3, 50)) + text[stop:]
    if what == 3:
        return text[:start] + random.choice((*CONTROLS, *MARKS)) + text[start:]
    if what == 4:
        return text[:start] + random.choice(SIGNS) + text[start:]
    return text[:start] + draw_text(random) + text[stop:]


def damage_bytes(content: bytes, random: Random, places: Sequence[int] = ()) -> bytes:
    """Return the bytes with some changed, cut off or put in, half of the time at one of the `places`."""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        if not changed:
            break
        aimed = places and random.random() < 0.5
        place = min(random.choice(places) if aimed else random.randrange(len(changed)), len(changed) - 1)
        what = random.randrange(6)
        if what == 0:
            del changed[place:]
        elif what == 1:
            del changed[place : place + random.choice((1, 4, 100))]
        elif what == 2:
            changed[place:place] = random.randbytes(random.choice((1, 4, 100)))
        elif what == 3:
            changed[place : place + 4] = random.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\0\0\0\x80"))
        else:
            changed[place] = random.randrange(256)
    return bytes(changed)
