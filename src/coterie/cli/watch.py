"""`coterie watch`: a live page of the runs in a folder."""

from __future__ import annotations

import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import Allow, parse_whole_number
from coterie.errors import BadInput, print_escaped

HIGHEST_PORT = 65535

HELP = """
Watch the runs in a folder on a live page: curves, groups, failures, time
left; stop a run, and resume it.

Examples:

  coterie watch                         the runs in ./runs
  coterie watch comparisons/NAME/cells  those of a comparison

The page is for this machine alone: it listens on the loopback, and its
address has a random token. Ctrl-C ends it; runs go on. A run that is resumed
from the page may import what [bold]--allow[/] names, and nothing else.
"""


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(help=HELP)(watch)


def watch(
    folder: Annotated[str, typer.Argument(metavar="[FOLDER]", help="Where run folders are.")] = "runs",
    port: Annotated[str | None, typer.Option(metavar="N", help="The port; default: a free one.")] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page, if this is a terminal.")
    ] = True,
    allow: Allow = None,
) -> None:
    """Serve the live page until Ctrl-C."""
    number = parse_whole_number("port", port) or 0
    if number > HIGHEST_PORT:
        raise BadInput(f"--port {number} is not possible; it must be at most {HIGHEST_PORT}")
    _refuse_folder(Path(folder))
    try:
        from coterie.report.watch.server import LOOPBACK, listening, make_app, make_server, make_token
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise BadInput("coterie watch needs starlette and uvicorn; pip install 'coterie[watch]'") from None
    token = make_token()
    with listening(number) as listener:
        number = listener.getsockname()[1]
        address = f"http://{LOOPBACK}:{number}/{token}/"
        print_escaped(f"page  {address}")
        print_escaped("Ctrl-C ends it; runs go on")
        sys.stdout.flush()
        app = make_app(folder, token, number, allow or ())
        with _opened(address) if browser and sys.stdout.isatty() else nullcontext(), suppress(KeyboardInterrupt):
            make_server(app).run(sockets=[listener])
        app.close()


def _refuse_folder(folder: Path) -> None:
    """Refuse what is no folder of runs; one that does not exist yet may be made by the first run."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{str(folder)!r} is a file; name the folder in which the runs are")
    if (folder / "experiment.toml").is_file():
        raise BadInput(f"{str(folder)!r} is a run itself; name the folder in which it is: {str(folder.parent)!r}")
    if (folder / "comparison.toml").is_file():
        raise BadInput(f"{str(folder)!r} is a comparison; its runs are in {str(folder / 'cells')!r}")


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open an address in the browser by way of a private file: others see the words a process starts with."""
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">', "utf-8")
        webbrowser.open(page.as_uri())
        yield
