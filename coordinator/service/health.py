"""Metrics and health over plain HTTP, for monitoring on the same machine or a network that only monitoring reaches.

Nothing here is secret, but it tells populations, tasks' names and how many devices take part: so it listens on loopback
unless the settings say otherwise, and is off without a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import TimeoutError as AnswerTimeoutError
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeVar

from coordinator.service.metrics import CONTENT_TYPE, Metrics, Now
from mien.errors import ConfigError, MienError

_ANSWER_S: Final = 5.0
_IDLE_S: Final = 10.0
_STOP_POLL_S: Final = 0.1

_T = TypeVar("_T")


@dataclass(frozen=True)
class Probes:
    """The listener's probes of the running coordinator; all are called on its event loop.

    `now` looks up what `/metrics` shows; `checks` are what `/readyz` needs, each of which raises what is wrong.
    """

    metrics: Metrics
    now: Callable[[], Awaitable[Now]]
    checks: Mapping[str, Callable[[], Awaitable[None]]]

    async def exposition(self) -> bytes:
        """Return the answer of `/metrics`."""
        return self.metrics.exposition(await self.now())

    async def readiness(self) -> dict[str, str]:
        """Return the checks with what is wrong in each, empty for nothing."""
        return {name: await _problem(check) for name, check in self.checks.items()}


async def _problem(check: Callable[[], Awaitable[None]]) -> str:
    try:
        async with asyncio.timeout(_ANSWER_S / 2):
            await check()
    except MienError as error:
        return error.message
    except TimeoutError:
        return "no answer in time"
    return ""


@contextlib.asynccontextmanager
async def listening(probes: Probes, host: str, port: int) -> AsyncIterator[int]:
    """Answer on a thread of its own while the block runs, and yield the port; raises ConfigError if it is taken."""
    try:
        server = _Server(host, port, probes, asyncio.get_running_loop())
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} for metrics ({error.strerror}); change metrics_port or metrics_host"
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(_STOP_POLL_S,), name="metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Answers each connection on a thread; questions go to the event loop, so that a stuck loop shows."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, probes: Probes, loop: asyncio.AbstractEventLoop) -> None:
        self.probes, self._loop = probes, loop
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def ask(self, question: Coroutine[Any, Any, _T]) -> _T:
        """Return the event loop's answer; raises TimeoutError."""
        return asyncio.run_coroutine_threadsafe(question, self._loop).result(_ANSWER_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave a caller that went away to itself."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _IDLE_S
    server_version = "mien-coordinator"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one of the three paths."""
        path = self.path.partition("?")[0]
        try:
            if path == "/metrics":
                self._answer(200, self.server.ask(self.server.probes.exposition()), CONTENT_TYPE)
            elif path == "/healthz":
                self.server.ask(asyncio.sleep(0))
                self._answer(200, b"alive\n")
            elif path == "/readyz":
                checks = self.server.ask(self.server.probes.readiness())
                body = {
                    "ready": not any(checks.values()),
                    "checks": {name: text or "good" for name, text in checks.items()},
                }
                self._answer(200 if body["ready"] else 503, json.dumps(body).encode() + b"\n", "application/json")
            else:
                self._answer(404, b"there are /metrics, /healthz and /readyz\n")
        except AnswerTimeoutError:
            self._answer(503, b"the coordinator does not answer\n")

    def do_HEAD(self) -> None:
        """Answer as to GET, without a body."""
        self.do_GET()

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing: monitoring asks all the time."""
