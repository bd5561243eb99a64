"""Running the dashboard: TLS 1.3, bounded in every direction, stopped in a moment."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.dashboard.accounts import Accounts
from coordinator.dashboard.home import DashboardHome, dashboard_names, tls_context
from coordinator.dashboard.pages import Dashboard, Options
from coordinator.dashboard.reading import Reader
from coordinator.dashboard.situation import Surveyor
from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.service.http import HttpLimits, listening, serving
from mien.errors import ConfigError
from mien.shell.clock import Clock
from mien.shell.serving import serve_until_signalled
from mien.shell.settings import Resolved

MAX_CONNECTIONS: Final = 400
REQUEST_S: Final = 15.0
"""Time that a browser has to send its request, its form included."""

_STOP_S: Final = 3


@dataclass(frozen=True)
class Tls:
    """The files of a certificate chain and its key."""

    certificate: Path
    key: Path


def serve(
    home: CoordinatorHome, resolved: Resolved[CoordinatorConfig], tls: Tls | None, announce: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is told the address once browsers may come."""
    os.umask(0o077)
    asyncio.run(serve_until_signalled(running(home, resolved, tls, Clock()), announce, drain_s=_STOP_S))


@contextlib.asynccontextmanager
async def running(
    home: CoordinatorHome,
    resolved: Resolved[CoordinatorConfig],
    tls: Tls | None,
    clock: Clock,
    *,
    poll_s: float = 1.0,
    beat_s: float = 15.0,
) -> AsyncIterator[str]:
    """Serve while the block runs and yield the address. Without `tls` only on this machine; raises ConfigError."""
    config = resolved.config
    host, _, port = config.dashboard_listen.rpartition(":")
    host = host.strip("[]")
    if tls is None and not is_loopback(host):
        raise ConfigError(
            f"plain HTTP is for this machine only, and dashboard_listen is {config.dashboard_listen}; leave out "
            "--plain-http, or listen on 127.0.0.1"
        )
    context = None if tls is None else tls_context(tls.certificate, tls.key, clock.now_utc())
    options = Options(dashboard_names(config), tls is not None, poll_s=poll_s, beat_s=beat_s)
    change = "change dashboard_listen, or give --listen"
    with _opened(home, config, clock) as (reader, accounts), listening(host, int(port), change=change) as listener:
        surveyor = Surveyor(home, config, reader, None if tls is None else tls.certificate, clock)
        dashboard = Dashboard(reader, accounts, surveyor, resolved, options, clock)
        bound = listener.getsockname()[1]
        limits = HttpLimits(MAX_CONNECTIONS, config.dashboard_connections, REQUEST_S)
        settings = {
            "lifespan": "on",
            "timeout_keep_alive": 20,
            "timeout_graceful_shutdown": _STOP_S,
            "ssl_context_factory": None if context is None else (lambda _config, _default: context),
        }
        async with serving(dashboard.app(), listener, limits, **settings):
            at = f"[{host}]" if ":" in host else host
            try:
                yield f"{'http' if tls is None else 'https'}://{at}:{bound}/"
            finally:
                await dashboard.close_streams()


def is_loopback(host: str) -> bool:
    """Return whether an address is of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _opened(home: CoordinatorHome, config: CoordinatorConfig, clock: Clock) -> Iterator[tuple[Reader, Accounts]]:
    with (
        contextlib.closing(Reader.open(home.database_url(config))) as reader,
        contextlib.closing(Accounts.open(DashboardHome.of(home).database_path, clock)) as accounts,
    ):
        yield reader, accounts
