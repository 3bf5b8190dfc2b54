"""The server of the live page: this machine's loopback only, behind a random token in the address.

Whoever does not know the token learns nothing, also not whether there is a page. A page of another site cannot ask
in its visitor's name: it does not know the token. A name that was made to point here (`Host`) is refused, and so is
what another site's page sends (`Origin`). Everything that comes from a run is sent as JSON, and the page's
script writes it as text.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie.errors import BadInput
from coterie.report.watch.control import Resumed, stop
from coterie.report.watch.reading import Watched

LOOPBACK = "127.0.0.1"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

FILES = {"": ("watch.html", "text/html"), "watch.css": ("watch.css", "text/css")}
FILES |= {"watch.js": ("watch.js", "text/javascript")}
"""What the page is made of, by the end of its address."""


def make_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_urlsafe(24)


def make_app(folder: Path | str, token: str, port: int, allow: Sequence[str] = ()) -> LiveApp:
    """Return the application of the live page of a folder of runs.

    Args:
        folder: in which the run folders are.
        token: the first part of every address.
        port: the one that is listened on, for the name under which the page may be asked for.
        allow: what a run that is resumed may have imported, as for `coterie resume`.
    """
    watched, resumed, one_at_a_time = Watched(folder), Resumed(allow), threading.Lock()

    def index(request: Request) -> Response:
        return _answer(lambda: {"folder": str(watched.folder), "runs": watched.index()}, one_at_a_time)

    def detail(request: Request) -> Response:
        name = _name(request)
        return _answer(lambda: watched.detail(name) | _resumed(name), one_at_a_time)

    def _resumed(name: str) -> dict[str, Any]:
        return {"resumed": resumed.said(name), "starting": resumed.is_starting(watched.find(name))}

    def act(do: Callable[[Any], None]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            def done() -> dict[str, Any]:
                do(watched.find(_name(request)))
                return {}

            return _answer(done, one_at_a_time)

        return answer

    routes: list[BaseRoute] = [Route(f"/{name}", _file(*what)) for name, what in FILES.items()]
    routes += [
        Route("/api/runs", index),
        Route("/api/run", detail),
        Route("/api/stop", act(stop), methods=["POST"]),
        Route("/api/resume", act(resumed.resume), methods=["POST"]),
    ]
    return LiveApp(Starlette(routes=routes), token, port, resumed.close)


def _name(request: Request) -> str:
    return request.query_params.get("name", "")


def _answer(do: Callable[[], dict[str, Any]], lock: threading.Lock) -> Response:
    try:
        with lock:
            return JSONResponse(do())
    except BadInput as problem:
        return JSONResponse({"problem": "; ".join(problem.problems)}, 409)
    except OSError as error:
        return JSONResponse({"problem": f"the folder cannot be used ({error.strerror})"}, 409)


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    text = files("coterie.report").joinpath("templates", name).read_text(encoding="utf-8")

    def answer(request: Request) -> Response:
        return Response(text, media_type=kind)

    return answer


class LiveApp:
    """Lets a request through that knows the token and was sent to this machine's own name by nobody else's page."""

    def __init__(self, app: ASGIApp, token: str, port: int, close: Callable[[], None]) -> None:
        self._app, self._token = app, token.encode()
        self.close = close
        """Let go of the runs that were resumed; they go on."""
        self._hosts = {f"{name}:{port}".encode() for name in (LOOPBACK, "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._refuse(scope)
        if refused:
            await Response("", refused, headers=HEADERS)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        _, _, rest = scope["path"].removeprefix("/").partition("/")
        await self._app({**scope, "path": f"/{rest}", "raw_path": None}, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> int:
        """Return the status of a refusal; 0 for none. All addresses without the token look alike."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        given, slash, _ = scope["path"].removeprefix("/").partition("/")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return 403
        if any(origin.removeprefix(b"http://").lower() not in self._hosts for origin in origins):
            return 403
        if not hmac.compare_digest(given.encode(errors="replace"), self._token) or not slash:
            return 404
        return 0


@contextmanager
def listening(port: int = 0) -> Iterator[socket.socket]:
    """Give a socket of the loopback; port 0 is a free one.

    Raises:
        BadInput: the port is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen()  # who asks before the server has begun waits
        except OSError as error:
            raise BadInput(
                f"--port {port} is not possible ({error.strerror}); leave it out for a free one"
            ) from None
        yield listener


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Return the server of an application; its `run` takes the socket and returns after Ctrl-C."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
    )
