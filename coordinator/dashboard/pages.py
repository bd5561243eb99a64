"""The addresses of the dashboard: who may ask, which view answers, how it is drawn."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Final, TypeVar

import jinja2
import sqlalchemy as sa
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from coordinator.dashboard.accounts import LIFE_MS, MIN_PASSWORD, Accounts, Session
from coordinator.dashboard.chain import ChainState, RoundLogState, look_on, look_on_rounds
from coordinator.dashboard.guard import FormTokens, Guard, read_form
from coordinator.dashboard.live import EventStream, Live, News
from coordinator.dashboard.reading import Reader, Revision, revision
from coordinator.dashboard.situation import Surveyor
from coordinator.dashboard.throttle import Throttle
from coordinator.dashboard.views import (
    audit,
    collapse,
    fleet,
    health,
    models,
    overview,
    privacy,
    round_log,
    rounds,
    tasks,
)
from coordinator.dashboard.views.common import task_names
from coordinator.dashboard.words import told
from coordinator.home.config import CoordinatorConfig
from coordinator.store.report import PopulationReport, report
from coordinator.store.tables import PRIVACY_EVENTS
from mien.errors import (
    AuthError,
    ConfigError,
    MienError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitedError,
)
from mien.format import moment
from mien.shell.clock import Clock
from mien.shell.keys import secret_hex
from mien.shell.pages import Page, html
from mien.shell.settings import Resolved

_LOG: Final = structlog.get_logger()
T = TypeVar("T")

NAVIGATION: Final = (
    ("overview", "Overview", "/"),
    ("tasks", "Tasks", "/tasks"),
    ("models", "Models", "/models"),
    ("privacy", "Privacy budget", "/privacy"),
    ("collapse", "Collapse monitors", "/collapse"),
    ("log", "Log of rounds", "/log"),
    ("audit", "Audit log", "/audit"),
    ("health", "Health", "/health"),
)
_SITUATION_S: Final = 10.0
_FLEET_S: Final = 30.0
_NAME_TRIES, _PAIR_TRIES, _ADDRESS_TRIES = 50, 5, 20
_MAX_HASHING: Final = 8
_LOCAL: Final = re.compile(r"/[A-Za-z0-9/_.-]{0,200}")
_HEX: Final = re.compile(r"[0-9a-f]{1,64}")
_FORM_COOKIE: Final = re.compile(r"[0-9a-f]{32}")
_KINDS: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FILES: Final = ("kit.css", "app.css", "theme.js", "live.js", "icon.svg")


@dataclass(frozen=True)
class Options:
    """The dashboard's own names, and whether it is served by TLS."""

    names: tuple[str, ...]
    is_https: bool
    poll_s: float = 1.0
    beat_s: float = 15.0


class Dashboard:
    """The web application over one store; `app` is it for a server to run."""

    def __init__(
        self,
        reader: Reader,
        accounts: Accounts,
        surveyor: Surveyor,
        resolved: Resolved[CoordinatorConfig],
        options: Options,
        clock: Clock,
    ) -> None:
        self._reader, self._accounts, self._surveyor = reader, accounts, surveyor
        self._resolved, self._options, self._clock = resolved, options, clock
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="dashboard")
        self._hashing = asyncio.Semaphore(2)
        self._num_hashing = 0
        self._throttle, self._tokens = Throttle(), FormTokens()
        self._live = Live(self._news, poll_s=options.poll_s, beat_s=options.beat_s)
        self._chain, self._seen_position = ChainState(), 0
        self._rounds_chain = RoundLogState()
        self._situation = _Kept(_SITUATION_S, lambda: surveyor.survey(self._chain))
        self._fleet = _Kept(_FLEET_S, lambda: reader.ask(lambda db: fleet.read(db, clock.now_ms())))
        self._privacy: tuple[int, list[PopulationReport]] | None = None
        self._draw = _environment()
        prefix = "__Host-" if options.is_https else ""
        self._cookie, self._form_cookie = f"{prefix}mien", f"{prefix}mien-form"

    def app(self) -> ASGIApp:
        """Return the application."""
        signed, asked = self._signed_in, self._asked
        routes = [
            Route("/healthz", self._alive),
            Route("/static/{name}", self._file),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/events", self._events),
            Route("/", signed(self._overview)),
            Route("/tasks", asked(tasks.task_list)),
            Route("/tasks/{task_id}", asked(tasks.task_page, "task_id")),
            Route("/tasks/{task_id}/rounds/{round:int}/{attempt:int}", signed(self._round)),
            Route("/models", asked(models.model_list)),
            Route("/models/{model_id}", asked(models.model_page, "model_id")),
            Route("/privacy", signed(self._privacy_budget)),
            Route("/collapse", asked(collapse.collapse_page)),
            Route("/log", signed(self._round_log)),
            Route("/audit", signed(self._audit)),
            Route("/health", signed(self._health)),
        ]
        handlers: Any = {HTTPException: self._refused, MienError: self._failed, 500: self._broken}
        app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._running)
        return Guard(app, self._options.names, is_https=self._options.is_https)

    @contextlib.asynccontextmanager
    async def _running(self, _app: Starlette) -> AsyncIterator[None]:
        verifiers = self._verify_chain(), self._verify_rounds()
        workers = [asyncio.create_task(each) for each in (self._live.run(), *verifiers)]
        try:
            yield
        finally:
            await self._live.close()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            # The database is let go next: a question that still ran would leave its connection open.
            await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def close_streams(self) -> None:
        """Send the browsers that listen away, so that a server can stop."""
        await self._live.close()

    async def _verify_chain(self) -> None:
        """Verify the audit log piece by piece, and later what is added to it."""
        while True:
            before = self._chain
            with contextlib.suppress(MienError):  # a database that is away is a finding of its own
                self._chain = await self._in_thread(look_on, before, self._reader.ask)
            await asyncio.sleep(0.01 if self._chain != before and not self._chain.is_whole else self._options.poll_s)

    async def _verify_rounds(self) -> None:
        """The same for the log of rounds."""
        while True:
            before = self._rounds_chain
            with contextlib.suppress(MienError):
                self._rounds_chain = await self._in_thread(look_on_rounds, before, self._reader.ask)
            is_at_it = self._rounds_chain != before and not self._rounds_chain.is_whole
            await asyncio.sleep(0.01 if is_at_it else self._options.poll_s)

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(call, *args))

    # What listeners hear

    def _revision(self, db: sa.Connection) -> Revision:
        return revision(db, self._clock.now_ms() // 60_000)

    async def _news(self) -> News:
        def look(db: sa.Connection) -> tuple[Revision, str]:
            found = self._revision(db)
            entries = overview.latest_entries(db, 1, after=self._seen_position)
            return found, told(entries[0], task_names(db)) if entries else ""

        found, note = await self._in_thread(self._reader.ask, look)
        self._seen_position = found.audit_position
        return News(found.id, note)

    async def _events(self, request: Request) -> Response:
        session = await self._session(request, is_use=False)
        if session is None:
            return PlainTextResponse("Sign in again.\n", 401)
        try:
            self._live.admit(session.name)
        except RateLimitedError as error:
            return PlainTextResponse(error.message + "\n", 503, headers={"Retry-After": "30"})
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")

        async def is_welcome() -> bool:
            return await self._session(request, is_use=False) is not None

        return EventStream(self._live.events(since, is_welcome), lambda: self._live.dismiss(session.name))

    # Signing in and out

    async def _session(self, request: Request, *, is_use: bool) -> Session | None:
        token = request.cookies.get(self._cookie, "")
        if not token:
            return None
        return await self._in_thread(lambda: self._accounts.session(token, is_use=is_use))

    def _signed_in(self, view: Callable[[Request], Awaitable[Page]]) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that shows a view's page to whoever is signed in, and the way in to others."""

        async def endpoint(request: Request) -> Response:
            is_live = "x-mien-live" in request.headers  # a page that keeps itself up to date is no sign of a person
            session = await self._session(request, is_use=not is_live)
            if session is None:
                if is_live:
                    return PlainTextResponse("Sign in again.\n", 401)
                wanted = request.url.path
                return RedirectResponse("/login" if wanted == "/" else f"/login?next={wanted}", 303)
            found = await self._in_thread(self._reader.ask, self._revision)
            if not self._live.num_listeners:
                self._seen_position = found.audit_position  # the page tells all of it: what comes later is news
            return self._show(await view(request), session, found.id)

        return endpoint

    async def _login(self, request: Request) -> Response:
        cookie = request.cookies.get(self._form_cookie, "")
        if request.method != "POST":
            return self._login_form(request, cookie, "", 200)
        form = await read_form(request)
        self._tokens.check(request, cookie, form.get("form_token", ""))
        name, address = form.get("name", "").strip(), _address(request)
        try:
            session = await self._checked(name, form.get("password", ""), address)
        except RateLimitedError as error:
            return self._login_form(request, cookie, error.message, 429, retry_s=error.retry_after_s)
        except PermissionDeniedError:
            return self._login_form(request, cookie, "Name or password is wrong.", 403)
        wanted = form.get("next", "")
        response = RedirectResponse(wanted if _is_local(wanted) else "/", 303)
        self._set_cookie(response, self._cookie, session.token, LIFE_MS // 1000)
        return response

    async def _checked(self, name: str, password: str, address: str) -> Session:
        """Return a new session; raises RateLimitedError where there were too many guesses."""
        limits = ((f"a/{address}", _ADDRESS_TRIES), (f"n/{name}", _NAME_TRIES), (f"p/{address}/{name}", _PAIR_TRIES))
        keys, now_s = [key for key, _ in limits], time.monotonic()
        if (pause_s := self._throttle.pause_s(keys, now_s)) > 0:
            raise RateLimitedError(f"Too many tries. Try again in {pause_s:.0f} s.", retry_after_s=pause_s)
        if self._num_hashing >= _MAX_HASHING:
            raise RateLimitedError("Too many people sign in at once. Try again in 5 s.", retry_after_s=5.0)
        self._num_hashing += 1
        try:
            async with self._hashing:
                session = await self._in_thread(self._accounts.sign_in, name, password, address)
        except PermissionDeniedError:
            if self._throttle.failed(limits, time.monotonic()):
                await self._in_thread(self._accounts.locked, address)
            raise
        finally:
            self._num_hashing -= 1
        self._throttle.succeeded(keys[2:])
        return session

    def _login_form(
        self, request: Request, cookie: str, problem: str, status: int, *, retry_s: float | None = None
    ) -> Response:
        cookie = cookie if _FORM_COOKIE.fullmatch(cookie) else secret_hex(16)
        wanted = request.query_params.get("next", "")
        content = self._draw.get_template("login.html.j2").render(
            problem=problem,
            form_token=self._tokens.of(cookie),
            next=wanted if _is_local(wanted) else "",
            is_https=self._options.is_https,
            min_password=MIN_PASSWORD,
        )
        headers = {} if retry_s is None else {"Retry-After": f"{retry_s:.0f}"}
        response = HTMLResponse(content, status, headers=headers)
        self._set_cookie(response, self._form_cookie, cookie, 3600)
        return response

    async def _logout(self, request: Request) -> Response:
        session = await self._session(request, is_use=False)
        if session is not None:
            form = await read_form(request)
            self._tokens.check(request, session.token, form.get("form_token", ""))
            await self._in_thread(self._accounts.sign_out, session, _address(request))
        response = RedirectResponse("/login", 303)
        self._set_cookie(response, self._cookie, "", 0)
        return response

    def _set_cookie(self, response: Response, name: str, value: str, max_age_s: int) -> None:
        response.set_cookie(
            name, value, max_age=max_age_s, path="/", secure=self._options.is_https, httponly=True, samesite="strict"
        )

    # Pages

    def _show(self, page: Page, session: Session, revision_id: str, status: int = 200) -> Response:
        content = self._draw.get_template("page.html.j2").render(
            page=page,
            user=session.name,
            form_token=self._tokens.of(session.token),
            revision=revision_id,
            drawn=moment(self._clock.now_ms()),
        )
        return HTMLResponse(content, status)

    async def _ask(self, view: Callable[..., Page], *args: Any) -> Page:
        return await self._in_thread(self._reader.ask, lambda db: view(db, *args))

    def _asked(self, view: Callable[..., Page], *ids: str) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that shows what a view makes of the path's ids and the time."""

        async def ask(request: Request) -> Page:
            return await self._ask(view, *(_id(request, name) for name in ids), self._clock.now_ms())

        return self._signed_in(ask)

    async def _overview(self, _request: Request) -> Page:
        situation, known = await self._in_thread(self._situation.value), await self._in_thread(self._fleet.value)
        return await self._ask(overview.overview, replace(situation, now_ms=self._clock.now_ms()), known)

    async def _round(self, request: Request) -> Page:
        number, attempt = request.path_params["round"], request.path_params["attempt"]
        if max(number, attempt) > 1_000_000:
            raise NotFoundError("there is no such attempt; the task's page shows which there are")
        return await self._ask(rounds.round_page, _id(request, "task_id"), number, attempt, self._clock.now_ms())

    async def _round_log(self, _request: Request) -> Page:
        named = [each.key for each in self._resolved.config.further_witnesses]
        return await self._ask(round_log.log_page, self._rounds_chain, named, self._clock.now_ms())

    async def _privacy_budget(self, _request: Request) -> Page:
        return privacy.privacy_page(await self._in_thread(self._reports))

    def _reports(self) -> list[PopulationReport]:
        """Return populations' spent budgets, computed anew only when a sum was opened since."""

        def look(db: sa.Connection) -> tuple[int, list[PopulationReport]]:
            newest = db.scalar(sa.select(sa.func.max(PRIVACY_EVENTS.c.id))) or 0
            if self._privacy is not None and self._privacy[0] == newest:
                return self._privacy
            return newest, report(db)

        self._privacy = self._reader.ask(look)
        return self._privacy[1]

    async def _audit(self, request: Request) -> Page:
        asked = request.query_params
        texts = {name: asked.get(name, "").replace("\0", "").strip()[:120] for name in ("actor", "action", "subject")}
        query = audit.Query(**texts, before=_number(asked, "before"), after=_number(asked, "after"))
        sign_ins = await self._in_thread(self._accounts.newest, 20)
        return await self._ask(audit.audit_page, query, self._chain, sign_ins)

    async def _health(self, _request: Request) -> Page:
        return health.health_page(await self._in_thread(self._situation.value), self._resolved)

    # The rest

    async def _alive(self, _request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def _file(self, request: Request) -> Response:
        found = _files().get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        content, kind, tag = found
        headers = {"ETag": f'"{tag}"', "Cache-Control": "public, max-age=31536000, immutable"}
        return Response(content, media_type=kind, headers=headers)

    async def _refused(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        words = {404: "There is no such page.", 405: "There is nothing here to do that with."}
        return await self._problem(request, words.get(status, "This does not work."), status)

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, MienError)
        statuses: dict[type[MienError], int] = {NotFoundError: 404, AuthError: 403, ConfigError: 400}
        status = next((code for kind, code in statuses.items() if isinstance(error, kind)), 503)
        if status == 503:
            _LOG.warning("page not shown", path=request.url.path, error=error.code, reason=error.message)
        return await self._problem(request, f"{error.message[0].upper()}{error.message[1:]}.", status)

    async def _broken(self, request: Request, error: Exception) -> Response:
        _LOG.error("internal error", path=request.url.path, error=type(error).__name__)
        return await self._problem(request, "The dashboard failed at this page; its log says how.", 500)

    async def _problem(self, _request: Request, text: str, status: int) -> Response:
        return HTMLResponse(self._draw.get_template("problem.html.j2").render(text=text, status=status), status)


class _Kept:
    """Something that takes a while to look up, kept for a few seconds."""

    def __init__(self, seconds: float, look: Callable[[], Any]) -> None:
        self._seconds, self._look = seconds, look
        self._until, self._value = 0.0, None
        self._lock = threading.Lock()

    def value(self) -> Any:
        """Return it, looked up again where it is old, by one thread for all that ask."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._value = self._look()
                self._until = time.monotonic() + self._seconds
            return self._value


def _id(request: Request, name: str) -> str:
    """Return an id out of the path; raises NotFoundError for what can be none."""
    text: str = request.path_params[name]
    if not _HEX.fullmatch(text):
        raise NotFoundError("there is no such page; go on from the overview")
    return text


def _number(asked: Mapping[str, str], name: str) -> int:
    text = asked.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


def _is_local(path: str) -> bool:
    """Return whether a way on leads to a page here, and nowhere else."""
    return bool(_LOCAL.fullmatch(path)) and not path.startswith("//")


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else "unknown"


@functools.cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Return the files that browsers may have, by name: content, kind, hash. No request has another file read."""
    folder = resources.files("coordinator.dashboard").joinpath("static")
    found = {}
    for name in _FILES:
        content = html.asset(name).encode() if name == "kit.css" else folder.joinpath(name).read_bytes()
        found[name] = (content, _KINDS[name.rpartition(".")[2]], hashlib.sha256(content).hexdigest()[:16])
    return found


def _environment() -> jinja2.Environment:
    folder = resources.files("coordinator.dashboard").joinpath("templates")

    def load(name: str) -> str | None:
        there = folder.joinpath(name)
        return there.read_text(encoding="utf-8") if there.is_file() else None

    environment = html.environment(load)
    environment.globals.update(navigation=NAVIGATION, file=lambda name: f"/static/{name}?v={_files()[name][2]}")
    return environment
