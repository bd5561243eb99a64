"""Serving HTTP with uvicorn: on a socket of ours, without its hand on signals, its faults in this program's log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import structlog
import uvicorn

from mien.errors import ConfigError

_LOG: Final = structlog.get_logger()


@contextlib.contextmanager
def listening(host: str, port: int, *, change: str) -> Iterator[socket.socket]:
    """A socket that listens; ConfigError, which ends in `change`, where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}); {change}") from error
        listener.setblocking(False)
        yield listener


def http_config(app: Any, **limits: Any) -> uvicorn.Config:
    """Return the settings of a server that trusts no proxy, names no program and logs by this one, with `limits`."""
    return uvicorn.Config(
        app,
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        **limits,
    )


@contextlib.asynccontextmanager
async def serving(config: uvicorn.Config, listener: socket.socket) -> AsyncIterator[None]:
    """Serve while the block runs, from the moment on that it begins."""
    server = _Server(config)
    with _quiet_logs():
        task = asyncio.create_task(server.serve([listener]))
        try:
            while not server.started and not task.done():
                await asyncio.sleep(0.01)
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
