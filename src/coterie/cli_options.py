"""Options that several commands have, and how their numbers are read."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.problems import BadInput

Data = Annotated[str | None, typer.Option(metavar="NAME|PATH", help="The dataset: coterie list datasets.")]
Split = Annotated[str | None, typer.Option(metavar="SPEC", help="Who holds what: coterie list splits.")]
Clients = Annotated[str | None, typer.Option(metavar="N", help="How many clients.")]
Rounds = Annotated[str | None, typer.Option(metavar="R", help="How many rounds.")]
Participation = Annotated[
    str | None, typer.Option(metavar="F", help="Share of the clients in each round, up to 1.")
]
Network = Annotated[str | None, typer.Option(metavar="NAME", help="The network: coterie list networks.")]
Jobs = Annotated[str | None, typer.Option(metavar="N", help="Runs at a time; else one per core.")]


def whole_number(option: str, text: str | None) -> int | None:
    """The number that an option has, at least 1; None where it is not given.

    Raises:
        BadInput: it is something else.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise BadInput(f"--{option} {text!r} is not possible; it must be a whole number, at least 1")
    return int(text)
