"""`coterie export`: a trained model as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import Allow, Imports, RunsFolder
from coterie.cli.predict import (
    ClientName,
    Group,
    ModelSource,
    check_client_and_group,
    check_written,
    load_model,
    say_whose_model,
)
from coterie.errors import BadInput, print_escaped

HELP = """
Write a trained model to a file: .safetensors, .pt, or .onnx (coterie\\[onnx]).

Examples:

  coterie export first --group 2 --to model.safetensors
  coterie export first --client 'writer 12' --to model.onnx

An ONNX model takes samples as they are stored, channels last, and gives
logits, or the predicted numbers.
"""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(export)


def export(
    what: ModelSource,
    to: Annotated[Path, typer.Option(metavar="FILE", help="The file to write: .safetensors, .pt or .onnx.")],
    client: ClientName = None,
    group: Group = None,
    imports: Imports = None,
    allow: Allow = None,
    folder: RunsFolder = "runs",
) -> None:
    """Write a trained model to a file."""
    from coterie.cli.live import exit_on_interrupt

    with exit_on_interrupt("interrupted; nothing was written"):
        from coterie.shipping.model import export as exporting

        number, problems = check_client_and_group(client, group)
        problems += [*exporting.check_export(to), *check_written("--to", to)]
        if problems:
            raise BadInput(problems)
        trained, notes = load_model(what, folder, client, number, imports)
        exporting.export(trained, to)
    say_whose_model(trained.about, notes)
    print_escaped(f"written to {to}")
