"""`coterie new`: an experiment file with every setting, to edit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import Imports, allow_flags
from coterie.errors import BadInput, print_escaped


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(new)


def new(
    path: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write; it must not exist.")],
    method: Annotated[str, typer.Option(metavar="METHOD", help="The method it begins with.")] = "fesem",
    imports: Imports = None,
) -> None:
    """Write an experiment file with every setting, its meaning and its default."""
    if path.suffix != ".toml":
        raise BadInput(f"file {str(path)!r} is not possible; its name must end in .toml")
    from coterie.runs.schema.experiment import Experiment
    from coterie.runs.schema.names import find_paths

    experiment = Experiment(method=method, run={"imports": imports} if imports else None)
    text = experiment.commented_toml()
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(f"file {str(path)!r} exists already; name another, or remove it first") from None
    except OSError as error:
        raise BadInput(f"file {str(path)!r} cannot be written: {error.strerror}; name another") from None
    flags = allow_flags(find_paths(experiment.tables()).values())
    print_escaped(f"{path} is written; run it with: coterie run {path}{flags}")
