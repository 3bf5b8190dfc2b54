"""What does not print is escaped wherever texts of others are printed, logged or kept."""

from __future__ import annotations

import io
import logging
import sys

import pytest
from rich.table import Table
from rich.text import Text

from coterie.cli.printing import EscapingConsole, say
from coterie.errors import BadInput, escape, escape_lines, print_escaped
from coterie.runs.events import LoggedNotes
from coterie.runtime.remote.message import Message
from coterie.runtime.runtime import Failure

EVIL = "a\x1b[2J\nb\u202ec\x9b\ud800"
SEEN = r"a\x1b[2J\nb\u202ec\x9b\ud800"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (EVIL, SEEN),
        ("\x00\x07\r\t\x7f", r"\x00\x07\r\t\x7f"),
        ("\u2066a\u2069 \u2028", r"\u2066a\u2069 \u2028"),
        ("Zoë 語 😀 \u00a0", "Zoë 語 😀 \u00a0"),
        ("plain text", "plain text"),
    ],
)
def test_what_does_not_print_is_written_as_in_a_literal(text: str, escaped: str) -> None:
    assert escape(text) == escaped


def test_lines_and_tabs_may_stay() -> None:
    assert escape_lines("a\n\tb\x1b") == "a\n\tb\\x1b"


def test_sentences_reasons_and_refusals_are_escaped() -> None:
    assert BadInput(EVIL).problems == [SEEN]
    assert BadInput("a", told=EVIL).told == [SEEN]
    assert str(BadInput([EVIL, EVIL])) == f"{SEEN}\n{SEEN}"
    assert Failure(EVIL).reason == SEEN
    assert len(Failure("a" * 5000).reason) == 500
    assert Message.refuse("a\x1b[2J\u202e").refusal == r"a\x1b[2J\u202e"


def test_what_is_printed_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b[2J")
    print_escaped("b\x1b", 3, file=sys.stderr)
    assert capsys.readouterr() == ("a\\x1b[2J\n", "b\\x1b 3\n")


def test_a_console_keeps_its_own_colours_and_escapes_the_rest() -> None:
    shown = io.StringIO()
    console = EscapingConsole(file=shown, force_terminal=True, color_system="standard", width=60)
    console.print(Text("a\x1b[2J\u202e", style="red"))
    assert shown.getvalue() == "\x1b[31ma\\x1b[2J\\u202e\x1b[0m\n"
    table = Table("\x1b[2J")
    table.add_row("\u202e")
    console.print(table)
    assert "\x1b[2J" not in shown.getvalue()
    assert "\u202e" not in shown.getvalue()


def test_notes_in_the_log_are_escaped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "coterie"):
        LoggedNotes().note("client \x1b[2J is here")
    assert caplog.messages == [r"note: client \x1b[2J is here"]
