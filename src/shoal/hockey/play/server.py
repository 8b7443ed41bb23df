"""Server: the page, and a game for each page that is open, on this machine only.

Guarantees:

- The server listens on 127.0.0.1. It answers only requests whose Host is 127.0.0.1 or localhost with its
  port, so that a foreign name that resolves to 127.0.0.1 gets nothing. It accepts a websocket only from its
  own page (Origin), and refuses other requests that name a foreign Origin.
- Each websocket has a match of its own, which ends with it. All matches run on one thread.
- A page that is slow, or a server that is late, skips frames: frames are never queued.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

from shoal.errors import ArgumentError, MissingExtra, ShoalError
from shoal.hockey.drawing import shapes
from shoal.hockey.play.match import PERSON, BadMessage, Match, Opponents
from shoal.hockey.table import TIME_STEP

try:
    import uvicorn
    import websockets  # noqa: F401 - uvicorn uses it
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse
    from starlette.routing import Route, WebSocketRoute
    from starlette.types import ASGIApp, Receive, Scope, Send
    from starlette.websockets import WebSocket, WebSocketDisconnect
except ImportError as error:
    raise MissingExtra(f'{error.name} is not installed: pip install "shoal[hockey]"') from error

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
PAGE = Path(__file__).with_name("page.html")
MOST_MATCHES = 16
LARGEST_MESSAGE = 4096  # bytes
POLICY_VIOLATION, INTERNAL_ERROR, TRY_LATER = 1008, 1011, 1013  # codes with which a websocket is closed
LONGEST_REASON = 120  # bytes; a frame that closes a websocket has at most 123


class Server:
    """Serves the page. Make it, then call `run`; `stop` ends it from another thread.

    Args:
        opponents: The opponents that the page offers, see `opponents_with`.
        opponent: Name of the first opponent.
        port: Port to listen on; 0 for any free one.

    Attributes:
        url: The address of the page.
        port: The port of the page.
        matches: The number of matches that are played now.

    Raises:
        ArgumentError: If the port cannot be used.
    """

    def __init__(self, opponents: Opponents, opponent: str, port: int = 0) -> None:
        if not 0 <= port <= 65535:
            raise ArgumentError(f"port: expected 0 to 65535, got {port}")
        self._opponents, self._opponent, self.matches = opponents, opponent, 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((ADDRESS, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise ArgumentError(
                f"port: {port} cannot be used: {error.strerror}. Choose another, or 0 for any free one"
            ) from error
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://{ADDRESS}:{self.port}/"
        routes = [Route("/", self._show, methods=["GET"]), WebSocketRoute("/game", self._play)]
        app = _OwnPageOnly(Starlette(routes=routes), self.port)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="websockets-sansio",  # its other one uses an interface of websockets that will go
                log_level="warning",
                ws_max_size=LARGEST_MESSAGE,
                ws_per_message_deflate=False,
                server_header=False,
                timeout_graceful_shutdown=3,
            )
        )

    def run(self) -> None:
        """Serve until `stop` is called or Ctrl-C is pressed. In the main thread, Ctrl-C is handled here."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Make `run` return, and end all matches."""
        self._server.should_exit = True

    async def _show(self, request: Request) -> HTMLResponse:
        host = request.headers["host"]
        policy = (
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
            f"connect-src ws://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers=headers)

    async def _play(self, page: WebSocket) -> None:
        await page.accept()
        if self.matches == MOST_MATCHES:
            await page.close(TRY_LATER, f"{MOST_MATCHES} games are open already: close some")
            return
        self.matches += 1
        try:
            with Match(self._opponents, self._opponent) as match:
                offered = [*self._opponents, PERSON]
                await page.send_text(json.dumps({"opponents": offered, "shapes": shapes()}))
                tasks = [asyncio.create_task(task(match, page)) for task in (_listen, _step)]
                try:
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                for task in done:
                    await task  # raises what it has raised
        except ShoalError as error:  # of a policy, for example; the page shows it
            await page.close(INTERNAL_ERROR, _reason(str(error)))
        except WebSocketDisconnect:
            pass
        finally:
            self.matches -= 1


def _read(text: str | None) -> Any:
    if text is None:
        raise BadMessage("expected text")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(str(error)) from error


def _reason(text: str) -> str:
    """Cut a text so that it fits into the frame that closes a websocket."""
    return text.encode()[:LONGEST_REASON].decode(errors="ignore")


async def _listen(match: Match, page: WebSocket) -> None:
    """Do what the page asks for until it is closed. A message without a meaning closes it."""
    while True:
        event = await page.receive()
        if event["type"] == "websocket.disconnect":
            return
        try:
            match.obey(_read(event.get("text")))
        except BadMessage as error:
            await page.close(POLICY_VIOLATION, _reason(f"message: {error}"))
            return


async def _step(match: Match, page: WebSocket) -> None:
    """Step the match 50 times a second, and send what the page shows, if it has taken the last frame."""
    clock = asyncio.get_running_loop().time
    due, sending = clock(), None
    try:
        while True:
            match.step()
            if sending is None or sending.done():
                if sending is not None:
                    sending.result()  # raises if the page is gone
                sending = asyncio.create_task(page.send_text(json.dumps(match.tell())))
            due = max(due + TIME_STEP / match.speed, clock())  # late steps are not made up for
            await asyncio.sleep(due - clock())
    finally:
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


class _OwnPageOnly:
    """Refuses requests for other hosts, and from pages of other origins.

    Args:
        app: The application behind it.
        port: The port of the server.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        is_socket = scope["type"] == "websocket"
        allowed = len(hosts) == 1 and hosts[0] in self._hosts
        if allowed and (origins or is_socket):
            allowed = origins == [f"http://{hosts[0]}"]
        if allowed:
            await self._app(scope, receive, send)
        elif is_socket:
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # before accept: status 403
        else:
            answer: Any = PlainTextResponse("This page is for this machine only.\n", 403)
            await answer(scope, receive, send)
