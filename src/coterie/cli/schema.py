"""`coterie schema`: what an experiment's file may hold, for editors."""

from __future__ import annotations

import typer

HELP = """
Print the JSON Schema of an experiment's TOML file.

An editor that reads it completes sections, keys and names, shows what each
means, and marks what is wrong:

  coterie schema > experiment.schema.json

and the first line of the experiment is then

  #:schema ./experiment.schema.json
"""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(schema)


def schema() -> None:
    """Print the schema."""
    import json

    from coterie.runs.schema.json_schema import experiment_schema

    print(json.dumps(experiment_schema(), indent=2, ensure_ascii=False))
