"""A headless Chromium that is driven over a pipe, with real time: it opens pages, clicks, and takes pictures."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

SECONDS = 60
"""How long an answer may take on a busy machine."""


class Browser:
    """One page of one browser; used as a context. Nothing but this machine's loopback is reachable.

    Args:
        profile: a fresh folder for what the browser keeps.
    """

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
        command += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={profile}"]
        command += ["about:blank"]
        first, self._out = os.pipe()
        self._in, second = os.pipe()
        # The protocol's pipes are the descriptors 3 and 4, which must not be in their own way.
        theirs_in, theirs_out = (fcntl.fcntl(number, fcntl.F_DUPFD, 20) for number in (first, second))
        os.close(first)
        os.close(second)
        shell = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command]
        self._process = subprocess.Popen(
            shell, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        """What pages wrote to the console as errors, and what was thrown in them."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._out)
        self._process.kill()
        self._process.wait()
        os.close(self._in)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == self._number:
                assert "error" not in heard, heard
                result: dict[str, Any] = heard["result"]
                return result

    def open(self, address: str) -> None:
        """Open an address."""
        self.send("Page.navigate", url=address)

    def resize(self, width: int, height: int = 900) -> None:
        """Make the page as wide as a screen; a phone's is narrower than any window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, of a promise once it is kept."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = SECONDS) -> Any:
        """Return the value of an expression as soon as it is true."""
        end = time.monotonic() + seconds
        while (found := self.evaluate(expression)) in (None, False, 0, ""):  # an element is an empty table here
            assert time.monotonic() < end, (expression, self.evaluate("document.body.innerText"))
            time.sleep(0.05)
        return found

    def picture(self, path: Path) -> Path:
        """Save a picture of what of the page is in sight."""
        found = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], SECONDS)[0], "the browser does not answer"
            read = os.read(self._in, 1 << 20)
            assert read, "the browser has ended"
            self._rest += read
        one, _, self._rest = self._rest.partition(b"\0")
        heard: dict[str, Any] = json.loads(one)
        entry = heard.get("params", {}).get("entry", {})
        if heard.get("method") == "Log.entryAdded" and entry["level"] == "error":
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
        if heard.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(heard["params"]["exceptionDetails"]))
        return heard
