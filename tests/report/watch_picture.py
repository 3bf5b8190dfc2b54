"""Takes the picture of the live page for the guide: `python -m tests.report.watch_picture docs/pictures/watch.png`.

Two runs on the same twelve clients in four groups: one has finished, one goes on.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

import coterie
from coterie.report.watch.server import listening, make_app, make_server, make_token
from tests.browser import Browser

DATA = {"clients": 12, "split": "rotated(4)"}


def main(picture: Path) -> None:
    """Make the runs, serve the page, and save what it looks like."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        runs = Path(place) / "runs"
        for name in ("fesem", "fedavg"):
            run = {"rounds": 12, "name": name, "folder": str(runs), "dropout": 0.1}
            coterie.run(coterie.Experiment(data=DATA, network="mlp", method=name, run=run))
        coterie.RunFolder(runs / "fedavg").write_status("running", 12, 40)  # by this process
        token = make_token()
        with listening() as listener, Browser(Path(place) / "profile") as browser:
            port = listener.getsockname()[1]
            server = make_server(make_app(runs, token, port))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            browser.resize(1280, 1250)
            browser.open(f"http://127.0.0.1:{port}/{token}/#run=fesem,fedavg")
            browser.wait("document.querySelectorAll('article[data-name]').length === 2")
            browser.picture(picture)
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
