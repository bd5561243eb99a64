"""Serving HTTP with uvicorn: on a socket of ours, without its hand on signals, its faults in this program's log.

Callers have a time for their request, and their share of connections; see `coordinator.service.connections`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.service.connections import ConnectionShares
from mien.errors import ConfigError

_LOG: Final = structlog.get_logger()
_MAX_HEAD_BYTES: Final = 16 * 1024


class PatientProtocol(H11Protocol):
    """HTTP whose connections end when no whole request has come within `silent_s`: one must not just sit there."""

    _limit: asyncio.TimerHandle | None = None
    shares: ConnectionShares

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what came; once the request is there the wait is over, and begins again with the next one's bytes."""
        if self._limit is None and self._is_whole():
            self._wait()
        super().data_received(data)
        if self._limit is not None and self.cycle is not None and not self.cycle.more_body:
            self._limit.cancel()
            self._limit = None
            if self.client is not None:
                host, port = self.client
                self.shares.heard(f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._limit = self.loop.call_later(self.shares.silent_s, self._late)

    def _is_whole(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _late(self) -> None:
        self.transport.abort()


@contextlib.contextmanager
def listening(host: str, port: int, *, change: str) -> Iterator[socket.socket]:
    """A socket that listens; ConfigError, which ends in `change`, where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once only over sockets that are said to be TCP; else they wait for 40 ms
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}); {change}") from error
        listener.setblocking(False)
        yield listener


@dataclass(frozen=True)
class HttpLimits:
    """What a port's callers may take: `connections` of all and `per_address`, and `request_s` for a whole request."""

    connections: int
    per_address: int
    request_s: float

    def shares(self) -> ConnectionShares:
        """Return the shares of a port, of whose connections nobody keeps the last quarter: newcomers find a place."""
        return ConnectionShares(self.per_address, silent_s=self.request_s, in_all=self.connections * 3 // 4)


@contextlib.asynccontextmanager
async def serving(app: Any, listener: socket.socket, limits: HttpLimits, **settings: Any) -> AsyncIterator[None]:
    """Serve while the block runs, from the moment on that it begins; `settings` are uvicorn's.

    The server trusts no proxy, names no program and logs by this one.
    """
    shares = limits.shares()
    config = uvicorn.Config(
        app,
        http=type("SharedProtocol", (PatientProtocol,), {"shares": shares}),
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=limits.connections,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        **settings,
    )
    server = _Server(config)
    with _quiet_logs():
        task = asyncio.create_task(server.serve([listener]))
        try:
            while not server.started and not task.done():
                await asyncio.sleep(0.01)
            async with shares.kept(listener.getsockname()[1]):
                yield
        finally:
            server.should_exit = True
            await task


class _Server(uvicorn.Server):
    """The HTTP server, which leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class _Log(logging.Handler):
    """Hands what the HTTP server says to this program's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a fault on; that strangers speak no HTTP is none."""
        if record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            _LOG.error("http server", told=record.getMessage()[:200], exc_info=error)


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """Let the HTTP server say what is wrong in this program's log, and nothing else."""
    logger, handler = logging.getLogger("uvicorn"), _Log()
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
