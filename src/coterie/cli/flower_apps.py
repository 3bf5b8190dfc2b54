"""The two apps of a federation: `app = server_app(__file__)` in one file, `app = client_app()` in another.

Flower starts a process for every message to a client, so every import there costs time in every round.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from coterie.errors import BadInput, print_escaped
from coterie.runtime.garbage import freeze_imports


def client_app() -> ClientApp:
    """Return the app of every client: it answers the server's messages with the client's own data."""
    with freeze_imports():
        from coterie.runtime.flower.transport import from_flower, to_flower
        from coterie.runtime.remote.message import Message as CoterieMessage
        from coterie.shipping.flower.client import answer_message

    app = ClientApp()

    def reply(message: Message, context: Context) -> Message:
        try:
            answer = answer_message(from_flower(message.content), context.node_config, context.run_config)
        except BadInput as error:
            answer = CoterieMessage.refuse("; ".join(error.problems))
        return Message(to_flower(answer), reply_to=message)

    app.query()(reply)
    app.train()(reply)
    return app


def server_app(file: str) -> ServerApp:
    """Return the app of the server: it runs an experiment with the clients that are connected.

    Args:
        file: of the app that calls this; its experiment lies in the folder above its package.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with freeze_imports():
            from coterie.cli.live import PlainLines
            from coterie.cli.printing import describe_outcome, make_console
            from coterie.runs.folder.run_folder import RunFolder
            from coterie.shipping.flower.server import serve

        try:
            place = Path(file).resolve().parent.parent
            if context.run_config.get("diagnose"):
                diagnose_federation(grid, context, place)
                return
            result = serve(grid, context.run_config, place, [PlainLines(make_console())])
            from coterie.report import run_page

            for line in describe_outcome(result, run_page.build(RunFolder(result.folder), None)):
                print_escaped(line, flush=True)
        except BadInput as error:
            for problem in error.problems:
                print_escaped(f"coterie: {problem}", file=sys.stderr, flush=True)
            raise RuntimeError("; ".join(error.problems)) from None

    return app


def diagnose_federation(grid: Grid, context: Context, place: Path) -> None:
    """Say whether the clients that are connected should be grouped, and write that to the folder of `diagnose`.

    Raises:
        BadInput: the folder is not empty, the experiment cannot be diagnosed, or the clients did not come.
    """
    from coterie.advice.diagnose.advice import suggest
    from coterie.cli.diagnose import describe, write_files
    from coterie.cli.live import describe_run
    from coterie.shipping.flower.server import diagnose_clients

    def say(sentence: str) -> None:
        print_escaped(sentence, flush=True)

    folder = Path(str(context.run_config["diagnose"]))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(
            f"diagnose = {str(folder)!r} is not possible: it is there already and not empty; name a new folder"
        )
    experiment, diagnosis = diagnose_clients(grid, context.run_config, place, say)
    suggestions, data = suggest(diagnosis, experiment), experiment.data
    said = (
        f"data of their own, seed {experiment.run.seed}"
        if data.is_remote
        else describe_run(experiment).partition(" on ")[2]
    )
    folder.mkdir(parents=True, exist_ok=True)
    files = (folder / "diagnosis.json", folder / "diagnosis.html", folder / "experiment.toml")
    for sentence in describe(diagnosis, suggestions, experiment, said):
        say(sentence)
    for sentence in write_files(diagnosis, suggestions, experiment, said, *files):
        say(sentence)
    if suggestions:
        say(f"next    replace the app's experiment with {files[2]}, and run it")
