"""The dashboard against strangers, other sites, and hostile content of its own database."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from coordinator.dashboard.guard import HEADERS, MAX_FORM_BYTES
from coordinator.dashboard.live import MAX_OF_ONE
from coordinator.dashboard.pages import NAVIGATION
from coordinator.store.tables import DEVICES, ROUNDS, TASKS
from tests.coordinator.dashboard.made_up import PASSWORD, Fleet, lived_in
from tests.coordinator.dashboard.visitor import LIMIT_S, Visitor, accounts_of, add_user, served

pytestmark = pytest.mark.usefixtures("cheap_passwords")

MARKUP = "<img src=x onerror=alert(1)><script>alert(1)</script>\"'&{{7*7}}"
PAGES = [href for _, _, href in NAVIGATION]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = lived_in(tmp_path_factory.mktemp("hostile"))
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def address(fleet: Fleet, cheap_passwords: None) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coordinator.dashboard.serve.REQUEST_S", LIMIT_S)
        add_user(fleet.home)
        with served(fleet.home) as address:
            yield address


@pytest.fixture
def stranger(address: str) -> Visitor:
    return Visitor(address)


@pytest.fixture(scope="module")
def alice(address: str) -> Visitor:
    visitor = Visitor(address)
    assert visitor.sign_in().status == 303
    return visitor


def raw(address: str, request: bytes) -> bytes:
    """Return what comes back for these very bytes, until the server closes or has nothing more to say."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=LIMIT_S) as line:
        got = b""
        with contextlib.suppress(OSError):  # a server that has had enough of it hangs up
            line.sendall(request)
            line.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while piece := line.recv(65536):
                got += piece
        return got


# Who may look


@pytest.mark.parametrize("path", [*PAGES, "/tasks/ab", "/models/ab", "/tasks/ab/rounds/1/1", "/events"])
def test_without_a_session_nothing_is_shown(stranger: Visitor, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status == (401 if path == "/events" else 303)
    assert "spring" not in answer.text


@pytest.mark.parametrize("cookie", ["", "x", "0" * 43, "' OR 1=1 --", "é" * 20, "a" * 4000, "../../etc/passwd", "%00"])
def test_a_forged_cookie_is_none(stranger: Visitor, cookie: str) -> None:
    sent = cookie.encode().decode("latin-1")
    assert stranger.get("/", Cookie=f"mien={sent}").status == 303
    assert stranger.get("/events", Cookie=f"mien={sent}").status == 401


def test_a_cookie_from_before_signing_in_is_worth_nothing_afterwards(stranger: Visitor) -> None:
    stranger.cookies["mien"] = "chosen-by-somebody-else"
    stranger.sign_in()
    assert stranger.cookies["mien"] != "chosen-by-somebody-else"
    assert stranger.get("/", Cookie="mien=chosen-by-somebody-else").status == 303


def test_an_ended_session_ends_its_events_too(address: str, fleet: Fleet) -> None:
    visitor = Visitor(address)
    visitor.sign_in()
    connection = visitor.connect()
    connection.request("GET", "/events", headers={"Cookie": f"mien={visitor.cookies['mien']}"})
    response = connection.getresponse()
    try:
        visitor.post("/logout", {"form_token": visitor.form_token("/")})
        fleet.store.log("carol", "model.release", "d" * 64)
        told = b""
        while b"event: end" not in told:
            line = response.readline()
            assert line
            told += line
    finally:
        response.close()
        connection.close()


def test_guessing_is_slowed_down_and_tells_nothing(address: str, fleet: Fleet) -> None:
    add_user(fleet.home, "gina")
    visitor = Visitor(address)
    secret = "typed into the wrong field"
    known = [visitor.sign_in("gina", f"wrong {n}") for n in range(5)]
    unknown = [visitor.sign_in(secret, f"wrong {n}") for n in range(5)]
    texts = {a.text.replace(visitor.cookies["mien-form"], "") for a in (*known, *unknown)}
    assert {a.status for a in (*known, *unknown)} == {403}
    assert len({len(text) for text in texts}) == 1
    locked = visitor.sign_in("gina", PASSWORD)  # right, and too late
    assert locked.status == 429
    assert 0 < int(locked.headers["Retry-After"]) <= 30
    assert visitor.sign_in(secret, "again").status == 429
    with accounts_of(fleet.home) as accounts:
        entries = accounts.newest(50)
    assert secret not in repr(entries)
    assert {"dashboard.locked", "dashboard.refused"} <= {entry.action for entry in entries}


# Other sites


def test_another_site_can_neither_sign_in_nor_out(address: str) -> None:
    visitor = Visitor(address)
    token = visitor.form_token()
    fields = {"name": "alice", "password": PASSWORD}
    assert visitor.post("/login", fields).status == 403
    assert visitor.post("/login", {**fields, "form_token": "0" * 64}).status == 403
    for headers in (
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"}, {"Origin": visitor.origin.replace("http:", "https:")},
    ):  # fmt: skip
        assert visitor.post("/login", {**fields, "form_token": token}, **headers).status == 403, headers
    other = Visitor(address)
    assert visitor.post("/login", {**fields, "form_token": other.form_token()}).status == 403  # somebody else's token
    assert visitor.post("/login", fields | {"form_token": token}, Content_Type="text/plain").status == 400
    assert visitor.sign_in().status == 303
    assert visitor.post("/logout", {}).status == 403
    signed = visitor.form_token("/")
    assert visitor.post("/logout", {"form_token": signed}, Origin="https://evil.example").status == 403
    assert visitor.get("/").status == 200


@pytest.mark.parametrize("wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)",
                                    "/tasks\r\nSet-Cookie: a=b", "/?next=//evil", "//"])  # fmt: skip
def test_signing_in_leads_nowhere_else(stranger: Visitor, wanted: str) -> None:
    done = stranger.sign_in(next=wanted)
    assert (done.status, done.headers["Location"]) == (303, "/")
    assert "a" not in stranger.cookies


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8443", "localhost.evil.example", "127.0.0.1@evil.example", "127.0.0.1.evil.example",
     "", "[::1", "127.0.0.1:x"],
)  # fmt: skip
def test_other_names_get_nothing(address: str, host: str) -> None:
    got = raw(address, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert got.startswith((b"HTTP/1.1 421", b"HTTP/1.1 400"))
    assert b"alive" not in got


def test_two_hosts_or_none_get_nothing(address: str) -> None:
    for hosts in ("Host: localhost\r\nHost: evil.example\r\n", ""):
        got = raw(address, f"GET /healthz HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
        assert b" 400 " in got or b" 421 " in got
        assert b"alive" not in got


def test_every_answer_carries_the_headers(alice: Visitor, stranger: Visitor) -> None:
    asked = ((alice, "/"), (alice, "/nothing"), (alice, "/tasks/zz"), (stranger, "/"), (stranger, "/login"),
             (stranger, "/static/app.css"), (stranger, "/events"))  # fmt: skip
    for visitor, path in asked:
        answer = visitor.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value, (path, name)
        assert "Server" not in answer.headers
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "CONNECT", "NONSENSE"])
def test_other_methods_are_refused(alice: Visitor, method: str) -> None:
    assert alice.ask(method, "/").status in (400, 405)


# Hostile content


def test_markup_in_the_database_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = lived_in(tmp_path)
    add_user(fleet.home)
    store = fleet.store
    newest = sa.select(ROUNDS.c.id).order_by(ROUNDS.c.id.desc()).limit(1)
    store.privacy(
        lambda db: db.execute(sa.update(TASKS).values(reason=MARKUP, name=MARKUP[:80], submitted_by=MARKUP[:64]))
    )
    store.privacy(lambda db: db.execute(sa.update(DEVICES).values(software=MARKUP[:80], population=MARKUP[:64])))
    store.privacy(
        lambda db: db.execute(sa.update(ROUNDS).where(ROUNDS.c.id == newest.scalar_subquery()).values(reason=MARKUP))
    )
    store.log(MARKUP, "task.paused", MARKUP, {"reason": MARKUP, MARKUP: MARKUP})
    fleet.close()
    with served(fleet.home) as address:
        visitor = Visitor(address)
        visitor.sign_in()
        links = [href for href in _links(visitor.get("/tasks").text) if href.startswith("/tasks/")]
        rounds = [href for href in _links(visitor.get(links[0]).text) if "/rounds/" in href]
        seen = ""
        for path in (*PAGES, *links, *rounds[:3], f"/audit?actor={'%3Cscript%3E'}&subject=%22%3E%3Cimg+src%3Dx%3E"):
            answer = visitor.get(path)
            assert answer.status == 200, path
            assert "<img" not in answer.text, path
            assert "<script>" not in answer.text, path
            assert "{{7" not in answer.text.replace("{{7*7}}", ""), path
            seen += answer.text
        assert "&lt;img src=x onerror=alert(1)&gt;" in seen


def _links(text: str) -> list[str]:
    import re

    return list(dict.fromkeys(re.findall(r'href="(/[^"#]+)"', text)))


@pytest.mark.parametrize(
    "path",
    ["/static/../../../coordinator.toml", "/static/..%2f..%2fhome.py", "/static/%2e%2e/pages.py", "/static//etc/passwd",
     "/static/app.css%00.py", "/static/....//accounts.py", "/tasks/../static/../../x", "/static/app.css/.."],
)  # fmt: skip
def test_no_other_file_is_given_out(alice: Visitor, path: str) -> None:
    answer = alice.get(path)
    assert answer.status == 404
    assert "import" not in answer.text


@pytest.mark.parametrize(
    "path",
    ["/tasks/' OR 1=1", "/models/%27%3B--", "/audit?before=abc&after=-1", "/audit?before=99999999999999999999",
     "/audit?actor=%25&subject=%5F&action=%27", "/audit?actor=%00", "/tasks/aa/rounds/0/0", "/audit?before=%D9%A1",
     "/audit?" + "a=b&" * 400],
)  # fmt: skip
def test_nonsense_in_an_address_breaks_nothing(alice: Visitor, path: str) -> None:
    answer = alice.get(path.replace(" ", "%20"))
    assert answer.status in (200, 404)


# Too much, too slow, too many


def test_what_is_too_large_is_refused_and_the_server_lives_on(address: str, alice: Visitor) -> None:
    host = urlsplit(address).netloc
    huge = raw(address, f"GET / HTTP/1.1\r\nHost: {host}\r\nX: {'a' * 200_000}\r\n\r\n".encode())
    assert huge == b"" or b" 400 " in huge or b" 431 " in huge
    many = "".join(f"X-{n}: {'b' * 100}\r\n" for n in range(5000))
    assert b" 200 " not in raw(address, f"GET / HTTP/1.1\r\nHost: {host}\r\n{many}\r\n".encode())
    assert alice.get("/audit?actor=" + "a" * 3000).status == 414
    visitor = Visitor(address)
    token = visitor.form_token()
    assert (
        visitor.post("/login", {"form_token": token, "name": "alice", "password": "p" * (MAX_FORM_BYTES + 1)}).status
        == 400
    )
    assert visitor.post("/login", {"form_token": token, **{f"f{n}": "x" for n in range(50)}}).status == 400
    assert raw(address, b"\x16\x03\x01 this is no HTTP\r\n\r\n").startswith((b"HTTP/1.1 400", b""))
    assert alice.get("/healthz").status == 200


@pytest.mark.parametrize(
    "begin",
    [b"G", b"GET / HTTP/1.1\r\nHost: local", b"POST /login HTTP/1.1\r\nHost: {host}\r\n"
     b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nname="],
)  # fmt: skip
def test_who_never_finishes_a_request_is_cut_off(fleet: Fleet, begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.dashboard.serve.REQUEST_S", 1.0)
    with served(fleet.home) as address:
        parts = urlsplit(address)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=LIMIT_S) as line:
            line.sendall(begin.replace(b"{host}", parts.netloc.encode()))
            with contextlib.suppress(ConnectionResetError):
                while line.recv(4096):
                    pass  # until the server has had enough


def test_listeners_are_counted_and_places_come_back(address: str) -> None:
    visitor = Visitor(address)
    visitor.sign_in()
    cookie = {"Cookie": f"mien={visitor.cookies['mien']}"}

    def listen() -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = visitor.connect()
        connection.request("GET", "/events", headers=cookie)
        return connection, connection.getresponse()

    def hang_up(lines: list[tuple[http.client.HTTPConnection, http.client.HTTPResponse]]) -> None:
        for connection, response in lines:
            response.close()
            connection.close()

    lines = [listen() for _ in range(MAX_OF_ONE)]
    try:
        assert {response.status for _, response in lines} == {200}
        more = listen()
        assert (more[1].status, more[1].headers["Retry-After"]) == (503, "30")
        hang_up([more])
        assert visitor.get("/").status == 200
    finally:
        hang_up(lines)
    deadline = time.monotonic() + LIMIT_S
    while True:
        again = listen()
        status = again[1].status
        hang_up([again])
        if status == 200:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)
