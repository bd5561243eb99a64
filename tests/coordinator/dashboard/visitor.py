"""A running dashboard, and somebody who visits it: a real server on this machine, plain HTTP or TLS."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from urllib.parse import urlencode, urlsplit

from coordinator.dashboard.accounts import Accounts
from coordinator.dashboard.home import DashboardHome
from coordinator.dashboard.serve import Tls, running
from coordinator.home.home import CoordinatorHome
from mien.shell.clock import Clock
from tests.coordinator.dashboard.made_up import PASSWORD

LIMIT_S = 60.0


@contextlib.contextmanager
def served(
    home: CoordinatorHome,
    tls: Tls | None = None,
    *,
    poll_s: float = 0.05,
    beat_s: float = 15.0,
    clock: Clock | None = None,
) -> Iterator[str]:
    """Run the dashboard of a coordinator on a thread, and yield its address."""
    ready: Future[str] = Future()
    stops: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        stops.set_result((asyncio.get_running_loop(), stop))
        async with running(home, home.resolve(), tls, clock or Clock(), poll_s=poll_s, beat_s=beat_s) as address:
            ready.set_result(address)
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run, name="dashboard under test")
    thread.start()
    try:
        yield ready.result(LIMIT_S)
    finally:
        loop, stop = stops.result(LIMIT_S)
        with contextlib.suppress(RuntimeError):  # it ended by itself
            loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)
        assert not thread.is_alive()


@contextlib.contextmanager
def accounts_of(home: CoordinatorHome) -> Iterator[Accounts]:
    """The accounts of a coordinator's dashboard."""
    accounts = Accounts.open(DashboardHome.of(home).database_path, Clock())
    try:
        yield accounts
    finally:
        accounts.close()


def add_user(home: CoordinatorHome, name: str = "alice") -> None:
    """Make an account."""
    with accounts_of(home) as accounts:
        accounts.add(name, PASSWORD, actor="local:0")


@dataclass(frozen=True)
class Answer:
    """What the server answered."""

    status: int
    headers: http.client.HTTPMessage
    text: str


@dataclass
class Visitor:
    """Somebody with a jar of cookies and no script."""

    address: str
    tls: ssl.SSLContext | None = None
    cookies: dict[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """The address without its path."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"

    def connect(self) -> http.client.HTTPConnection:
        """Return a new connection."""
        parts = urlsplit(self.address)
        assert parts.hostname is not None
        if self.tls is not None:
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=LIMIT_S, context=self.tls)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=LIMIT_S)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Return the answer to a request; cookies are sent and kept, redirections not followed."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies and "Cookie" not in sent:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = self.connect()
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            for each in response.headers.get_all("Set-Cookie", []):
                for name, morsel in SimpleCookie(each).items():
                    self.cookies[name] = morsel.value
            return Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Return the answer to a GET."""
        return self.ask("GET", path, **headers)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Answer:
        """Return the answer to a form, sent as a browser sends it from our own page unless `headers` say otherwise."""
        sent = {"Content_Type": "application/x-www-form-urlencoded", "Origin": self.origin, **headers}
        return self.ask("POST", path, urlencode(fields).encode(), **{k: v for k, v in sent.items() if v})

    def form_token(self, path: str = "/login") -> str:
        """Return the token of a page's form."""
        found = re.search(r'name="form_token" value="([0-9a-f]+)"', self.get(path).text)
        assert found is not None
        return found[1]

    def sign_in(self, name: str = "alice", password: str = PASSWORD, **fields: str) -> Answer:
        """Return the answer to a name and a password."""
        return self.post("/login", {"form_token": self.form_token(), "name": name, "password": password, **fields})
