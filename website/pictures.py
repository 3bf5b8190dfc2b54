"""Takes the screenshots of the documentation again: `python -m website.pictures [NAME ...] [--to FOLDER]`.

Without names it takes all of them, into `docs/pictures`. Each shows what a page's own commands do: these are read
from the page, so that a picture and the words beside it are of one run. Charts of kept results (`*.svg`) are drawn
by the benchmarks that keep them; `packages.svg` is drawn by hand.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.browser import Browser
from tests.guide import Block, blocks

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"

DEMO = ["coterie demo", "coterie report demo-fesem --against demo-fedavg --against demo-ifca --charts charts"]


def take_accuracy(picture: Path, folder: Path) -> None:
    """The chart of accuracy that the report of the demonstration has."""
    run("\n".join(DEMO), folder)
    shutil.copyfile(folder / "charts/accuracy.png", picture)


def take_gains(picture: Path, folder: Path) -> None:
    """The chart of every client's gain in the comparison of eight methods; it needs Fashion-MNIST, and minutes."""
    (block,) = find_blocks("docs/comparing.md", "--charts pictures")
    run("\n".join(block.commands), folder)
    shutil.copyfile(folder / "pictures/clients.png", picture)


def take_diagnosis(picture: Path, folder: Path) -> None:
    """The page of the diagnosis of 18 clinics, down to the chart of who gains."""
    data, commands = find_blocks("docs/diagnose.md", "clinics.csv")
    (folder / "clinics.py").write_text(data.source, "utf-8")
    run(f"{sys.executable} clinics.py\n{commands.commands[0]}", folder)
    with Browser(folder / "profile") as browser:
        browser.resize(768)
        browser.send("Emulation.setScrollbarsHidden", hidden=True)
        browser.open((folder / "clinics.html").as_uri())
        browser.wait("document.querySelectorAll('canvas, svg').length && document.readyState === 'complete'")
        heading = "[...document.querySelectorAll('h2')].find(h => h.innerText.startsWith('Who gains'))"
        chart = f"[...{heading}.parentElement.querySelectorAll('canvas, svg')].find(one => 4 & "
        chart += f"{heading}.compareDocumentPosition(one))"
        end = browser.wait(f"Math.ceil(scrollY + {chart}?.getBoundingClientRect().bottom)")
        browser.resize(768, int(end) + 8)
        browser.picture(picture)


def take_run(picture: Path, folder: Path) -> None:
    """The page of the run that this diagnosis advises, down to its table of clients."""
    data, commands = find_blocks("docs/diagnose.md", "clinics.csv")
    (folder / "clinics.py").write_text(data.source, "utf-8")
    run("\n".join([f"{sys.executable} clinics.py", *commands.commands]), folder)
    save_report(picture, folder, last="#each-client ~ .scroll")


def take_hospitals(picture: Path, folder: Path) -> None:
    """The page of the run of the example `hospitals`."""
    take_example("hospitals", picture, folder)


def take_machines(picture: Path, folder: Path) -> None:
    """The page of the run of the example `machines`."""
    take_example("machines", picture, folder)


def take_phones(picture: Path, folder: Path) -> None:
    """The page of the run of the example `phones`."""
    take_example("phones", picture, folder)


def take_example(name: str, picture: Path, folder: Path) -> None:
    """The page that the commands of an example's README end with, with the clients who gain most first."""
    here = shutil.copytree(ROOT / "examples" / name, folder / name)
    (commands,) = find_blocks(f"examples/{name}/README.md", "coterie run")
    run("\n".join(commands.commands), here)
    clients = "#each-client ~ .scroll"
    save_report(picture, here, click=f"{clients} th[aria-sort] button", last=f"{clients} tbody tr:nth-child(8)")


def take_watch(picture: Path, folder: Path) -> None:
    """The live page of two runs on the same twelve clients in four groups: one has finished, one goes on."""
    import coterie
    from coterie.report.watch.server import listening, make_app, make_server, make_token

    runs = folder / "runs"
    for name in ("fesem", "fedavg"):
        settings = {"rounds": 12, "name": name, "folder": str(runs), "client_dropout": 0.1}
        data = {"clients": 12, "split": "rotated(4)"}
        coterie.run(coterie.Experiment(data=data, network="mlp", method=name, run=settings))
    coterie.RunFolder(runs / "fedavg").write_status("running", 12, 40)  # by this process
    token = make_token()
    with listening() as listener, Browser(folder / "profile") as browser:
        port = listener.getsockname()[1]
        server = make_server(make_app(runs, token, port))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        browser.resize(1280, 1250)
        browser.send("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(f"http://127.0.0.1:{port}/{token}/#run=fesem,fedavg")
        browser.wait("document.querySelectorAll('article[data-name]').length === 2")
        browser.picture(picture)
        server.should_exit = True
        thread.join()


TAKEN: Mapping[str, Callable[[Path, Path], None]] = {
    "accuracy": take_accuracy,
    "diagnosis": take_diagnosis,
    "gains": take_gains,
    "hospitals": take_hospitals,
    "machines": take_machines,
    "phones": take_phones,
    "run": take_run,
    "watch": take_watch,
}
"""What takes each screenshot, by its name in `docs/pictures`; it gets the file, and an empty folder to work in."""


def save_report(picture: Path, folder: Path, last: str, click: str = "") -> None:
    """Save the top of the page of the one run in a folder, down to the end of an element, after a click on another.

    Args:
        last, click: CSS selectors.
    """
    (page,) = folder.glob("runs/*/report.html")
    with Browser(folder / "profile") as browser:
        browser.resize(1024)
        browser.send("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(page.as_uri())
        browser.wait("document.body && document.body.dataset.drawn")
        if click:
            browser.evaluate(f"document.querySelector({click!r}).click()")
        end = browser.evaluate(f"document.querySelector({last!r}).getBoundingClientRect().bottom")
        browser.resize(1024, int(end) + 8)
        browser.picture(picture)


def find_blocks(page: str, text: str) -> list[Block]:
    """Return the code blocks of a page that hold a text."""
    return [block for block in blocks(ROOT / page) if text in block.source]


def run(commands: str, folder: Path) -> None:
    """Run the lines of a page in a folder, with the `coterie` of this interpreter."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    subprocess.run(["sh", "-ec", commands], cwd=folder, env={**os.environ, "PATH": path}, check=True)


def main(words: list[str] | None = None) -> int:
    """Take the pictures that are named, or all; say each."""
    parser = argparse.ArgumentParser(prog="python -m website.pictures", description="Take the docs' screenshots.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(TAKEN)}; all if none is named")
    parser.add_argument("--to", type=Path, default=PICTURES, metavar="FOLDER", help="where they are written")
    given = parser.parse_args(words)
    if wrong := [name for name in given.names if name not in TAKEN]:
        parser.error(f"picture {wrong[0]!r} is not known; it must be one of {', '.join(TAKEN)}")
    for name in given.names or TAKEN:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            picture = given.to.resolve() / f"{name}.png"
            TAKEN[name](picture, Path(place))
        print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
