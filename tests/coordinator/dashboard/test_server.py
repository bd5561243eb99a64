"""The running program: signing in, every page, events, TLS, the command line, what it loads."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coordinator.commands.doctor import CoordinatorChecks
from coordinator.dashboard.chain import ChainState
from coordinator.dashboard.home import LIFETIME, DashboardHome, certify
from coordinator.dashboard.pages import NAVIGATION
from coordinator.dashboard.reading import Reader
from coordinator.dashboard.serve import Tls
from mien.errors import CertificateError, ConfigError, KeyStoreError, MienError
from mien.shell.doctor import Finding
from tests.coordinator.dashboard.made_up import Fleet, SetClock, lived_in
from tests.coordinator.dashboard.visitor import LIMIT_S, Visitor, add_user, served
from tests.helpers import ROOT
from tests.programs import Answer, run_as_is

pytestmark = pytest.mark.usefixtures("cheap_passwords")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, cheap_passwords: None) -> Iterator[Fleet]:
    """A fleet of this module's own, with an account: things happen in it."""
    fleet = lived_in(tmp_path_factory.mktemp("served"))
    add_user(fleet.home)
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def address(fleet: Fleet) -> Iterator[str]:
    """Where the fleet's dashboard is; its clock stands, so that no minute begins in the middle of a test."""
    with served(fleet.home, clock=SetClock(fleet.end.timestamp())) as address:
        yield address


@pytest.fixture(scope="module")
def visitor(address: str) -> Visitor:
    visitor = Visitor(address)
    assert visitor.sign_in().status == 303
    return visitor


@contextlib.contextmanager
def events(visitor: Visitor, since: str = "", **headers: str) -> Iterator[http.client.HTTPResponse]:
    """An open stream of events."""
    connection = visitor.connect()
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    connection.request("GET", f"/events?since={since}", headers={"Cookie": cookie, **headers})
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def next_event(response: http.client.HTTPResponse) -> dict[str, str]:
    """Return the next event's fields, beats and the pause to reconnect after left out."""
    while True:
        fields: dict[str, str] = {}
        while line := response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        if "event" in fields:
            return fields


def test_signing_in_leads_to_where_one_wanted_and_out_again(address: str) -> None:
    visitor = Visitor(address)
    wanted = visitor.get("/models")
    assert (wanted.status, wanted.headers["Location"]) == (303, "/login?next=/models")
    done = visitor.sign_in(next="/models")
    assert (done.status, done.headers["Location"]) == (303, "/models")
    page = visitor.get("/models")
    assert (page.status, page.headers["Cache-Control"]) == (200, "no-store")
    assert "<summary>alice</summary>" in page.text
    cookie = visitor.cookies["mien"]
    out = visitor.post("/logout", {"form_token": visitor.form_token("/")})
    assert (out.status, out.headers["Location"]) == (303, "/login")
    visitor.cookies["mien"] = cookie  # a copy of the cookie is worth nothing any more
    assert visitor.get("/models").status == 303


def test_every_page_and_every_link_on_it_answers(visitor: Visitor) -> None:
    seen, waiting = set[str](), [href for _, _, href in NAVIGATION]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        answer = visitor.get(path)
        assert answer.status == 200, path
        found = re.findall(r'(?:href|src)="(/[^"#]*)"', answer.text)
        waiting += [link.replace("&amp;", "&") for link in found if link.replace("&amp;", "&") not in {*seen, *waiting}]
    kinds = {re.sub(r"[0-9a-f]{16,}|\d+", "*", path.partition("?")[0]) for path in seen}
    assert {"/tasks/*", "/tasks/*/rounds/*/*", "/models/*", "/audit", "/static/app.css"} <= kinds
    assert len(seen) > 40


def test_pages_are_whole_documents_with_landmarks(visitor: Visitor) -> None:
    for _, words, href in NAVIGATION:
        text = visitor.get(href).text
        assert text.startswith('<!doctype html>\n<html lang="en">')
        assert text.count("<h1") == 1
        for mark in ('<main id="main"', '<nav class="side" aria-label="Pages"', 'class="skip"', 'aria-current="page"'):
            assert mark in text, (words, mark)
        ids = re.findall(r'\bid="([^"]+)"', text)
        assert len(ids) == len(set(ids)), href
        assert all(reference in ids for reference in re.findall(r'aria-(?:labelledby|describedby)="([^"]+)"', text))
        assert text.count("<table") == text.count("<caption")
        assert " style=" not in text
        assert not re.search(r"<script(?! src=)", text)
        assert not re.search(r"\bon\w+=", text)


def test_what_is_not_there_is_said_to_be_not_there(visitor: Visitor) -> None:
    for path in ("/nothing", "/tasks/ffff", "/models/zz", "/tasks/ffff/rounds/1/1", "/tasks/x/rounds/9999999999999/1",
                 "/static/other.css"):  # fmt: skip
        answer = visitor.get(path)
        assert answer.status == 404, path
        assert "To the overview" in answer.text
    assert visitor.get("/healthz").text == "alive\n"


def test_a_change_in_the_store_reaches_every_browser(fleet: Fleet, visitor: Visitor) -> None:
    shown = re.search(r'data-revision="([0-9a-f]{16})"', visitor.get("/").text)
    assert shown is not None
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(events(visitor, shown[1])) for _ in range(3)]
        assert all(response.status == 200 for response in lines)
        fleet.store.log("carol", "model.release", "c" * 64)
        changed = [next_event(response) for response in lines]
        assert all("Model cccccccccccc was released" in event["data"] for event in changed)
        assert len({event["id"] for event in changed}) == 1
        again = stack.enter_context(events(visitor, "other", **{"Last-Event-ID": shown[1]}))
        assert next_event(again)["id"] != shown[1]  # what was missed is told at once


def test_a_page_that_keeps_itself_up_to_date_is_no_sign_of_a_person(address: str) -> None:
    visitor = Visitor(address)
    assert visitor.get("/", X_Mien_Live="1").status == 401
    with events(visitor) as response:
        assert response.status == 401


def test_tls_is_1_3_with_a_leaf_of_the_authority(fleet: Fleet) -> None:
    home, config = fleet.home, fleet.home.resolve().config
    certify(home, config, fleet.end)
    there = DashboardHome.of(home)
    with served(home, Tls(there.certificate_path, there.key_path)) as address:
        assert address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cadata=home.public(home.ca_path).decode())
        visitor = Visitor(address, context)
        done = visitor.sign_in()
        assert done.status == 303
        cookie = done.headers["Set-Cookie"]
        assert cookie.startswith("__Host-mien=")
        for flag in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
            assert flag in cookie
        assert "max-age" in visitor.get("/").headers["Strict-Transport-Security"]
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            visitor.get("/")


def test_tls_files_that_do_not_do_are_refused(fleet: Fleet, tmp_path: Path) -> None:
    there = DashboardHome.of(fleet.home)
    certify(fleet.home, fleet.home.resolve().config, fleet.end)
    (tmp_path / "not.pem").write_text("hello")
    other = tmp_path / "other.key"
    other.write_bytes(fleet.home.operator_key_path.read_bytes())
    other.chmod(0o600)
    cases: tuple[tuple[Tls, type[MienError], str], ...] = (
        (Tls(tmp_path / "none.pem", there.key_path), CertificateError, "certify"),
        (Tls(tmp_path / "not.pem", there.key_path), CertificateError, "PEM"),
        (Tls(there.certificate_path, tmp_path / "none.key"), KeyStoreError, "missing"),
        (Tls(there.certificate_path, other), KeyStoreError, "belong together"),
    )
    for tls, error, words in cases:
        with pytest.raises(error, match=words), served(fleet.home, tls):
            pass
    certify(fleet.home, fleet.home.resolve().config, fleet.end - timedelta(days=3 * 366))
    with (
        pytest.raises(CertificateError, match="not valid now"),
        served(fleet.home, Tls(there.certificate_path, there.key_path)),
    ):
        pass


def test_doctor_says_when_the_certificate_ends(tmp_path: Path) -> None:
    new = Fleet(tmp_path)
    new.close()

    def told() -> Finding:
        findings = asyncio.run(CoordinatorChecks(new.home, lambda: new.end).examine())
        return next(finding for finding in findings if finding.name == "dashboard")

    assert told().detail == "no certificate of its own"
    config = new.home.resolve().config
    certify(new.home, config, new.end)
    assert told().error is None
    certify(new.home, config, new.end - LIFETIME + timedelta(days=20))
    assert "dashboard certify" in told().detail
    assert isinstance(told().error, CertificateError)


def test_plain_http_stays_on_this_machine(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIEN_COORDINATOR_DASHBOARD_LISTEN", "0.0.0.0:0")
    with pytest.raises(ConfigError, match="plain HTTP is for this machine only"), served(fleet.home):
        pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MIEN_COORDINATOR_DASHBOARD_LISTEN", f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ConfigError, match="cannot listen"), served(fleet.home):
            pass


def program(*arguments: str) -> Answer:
    """Run one of the dashboard's commands to its good end."""
    done = run_as_is("mien-coordinator", "dashboard", *arguments)
    assert done.code == 0, done.err
    return done


def test_the_command_line_from_a_certificate_to_a_page(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.close()
    home = str(fleet.home.folder)
    add_user(fleet.home)
    made = json.loads(program("certify", "--home", home, "--json").out)
    assert {"localhost", "127.0.0.1"} <= set(made["names"])
    serving = subprocess.Popen(
        [sys.executable, "-m", "coordinator.commands.cli", "dashboard", "serve", "--json", "--home", home],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert serving.stdout is not None
        ready = json.loads(serving.stdout.readline())
        context = ssl.create_default_context(cadata=fleet.home.public(fleet.home.ca_path).decode())
        visitor = Visitor(ready["address"], context)
        assert visitor.sign_in().status == 303
        assert "No phone has called yet" in visitor.get("/").text
        with events(visitor) as response:
            assert response.status == 200
            program("user", "remove", "alice", "--home", home)  # at once, in the running program too
            assert visitor.get("/").status == 303
            serving.send_signal(signal.SIGTERM)
            assert serving.wait(LIMIT_S) == 0  # an open stream does not hold it up
    finally:
        serving.kill()
        serving.wait()
        serving.stdout.close()
    told = [entry["action"] for entry in json.loads(program("log", "--home", home, "--json").out)["entries"]]
    assert told == ["dashboard.add", "dashboard.sign_in", "dashboard.remove"]


def test_what_is_being_asked_at_the_end_is_answered_before_the_database_is_let_go(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the dashboard that ends: that of the whole module goes on asking meanwhile."""
    said, begun, opened = list[str](), threading.Event(), list[Reader]()
    open_url, close = Reader.open, Reader.close

    def opening(_: type[Reader], url: str) -> Reader:
        opened.append(open_url(url))
        return opened[-1]

    def slowly(state: ChainState, ask: Any) -> ChainState:
        if ask.__self__ in opened:
            begun.set()
            time.sleep(0.3)
            said.append("answered")
        return state

    def closing(reader: Reader) -> None:
        if reader in opened:
            said.append("closed")
        close(reader)

    monkeypatch.setattr("coordinator.dashboard.pages.look_on", slowly)
    monkeypatch.setattr(Reader, "open", classmethod(opening))
    monkeypatch.setattr(Reader, "close", closing)
    with served(fleet.home):
        assert begun.wait(LIMIT_S)
    assert said[-2:] == ["answered", "closed"]


def test_each_program_loads_what_it_needs() -> None:
    names = ("starlette", "uvicorn", "jinja2", "grpc", "torch", "numpy", "sqlalchemy", "mien.methods", "mien.secagg")
    code = f"import sys, {{module}}; print(*[name for name in {names} if name in sys.modules])"
    for module, wanted in (
        ("coordinator.commands.cli", set()),
        ("coordinator.serve", {"grpc", *names[5:]}),
        ("coordinator.dashboard.serve", {"starlette", "uvicorn", "jinja2", *names[5:]}),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(module=module)], capture_output=True, text=True, check=True, cwd=ROOT
        )
        assert set(done.stdout.split()) == wanted, module
