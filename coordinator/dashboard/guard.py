"""Request checks and response headers of every page: who may ask at all, and what browsers must not do.

A page of another site must not be able to use an operator's session. Cookies are `SameSite=Strict`; a request that
changes something must come from this very origin and bring a token that only a page of ours can know; the host that
the browser asked for must be one of ours, so that a name which somebody points here (DNS rebinding) gets nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mien.errors import ConfigError, PermissionDeniedError
from mien.shell.keys import secret_bytes

MAX_ADDRESS_BYTES: Final = 2048
MAX_FORM_BYTES: Final = 4096
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types mien"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), interest-cohort=()",
}
_HSTS: Final = "max-age=31536000"
_METHODS: Final = ("GET", "HEAD", "POST")


class Guard:
    """Refuses requests for other hosts, of other methods, or with overlong addresses; adds the security headers."""

    def __init__(self, app: ASGIApp, names: Collection[str], *, is_https: bool) -> None:
        self._app, self._is_https = app, is_https
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if self._is_https:
                    headers["Strict-Transport-Security"] = _HSTS
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) != 1 or host_name(hosts[0]) not in self._names:
            return PlainTextResponse(
                "This name is not one of the dashboard's: add it to dashboard_names in coordinator.toml.\n", 421
            )
        if scope["method"] not in _METHODS:
            return PlainTextResponse("There is nothing here to do that with.\n", 405)
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_ADDRESS_BYTES:
            return PlainTextResponse("This address is too long.\n", 414)
        return None


def host_name(host: str) -> str:
    """Return the name of a Host header without its port, empty for nonsense."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return ""
    is_plain = not (parts.path or parts.query or parts.fragment or parts.username)
    return (parts.hostname or "").lower() if is_plain else ""


class FormTokens:
    """Tokens by which a form proves that a page of ours made it, for the very cookie that comes with it."""

    def __init__(self) -> None:
        self._key = secret_bytes(32)

    def of(self, cookie: str) -> str:
        """Return the token for forms of whoever holds a cookie."""
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()

    def check(self, request: Request, cookie: str, token: str) -> None:
        """Raise PermissionDeniedError unless a form is ours and was sent from a page of ours."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
        is_ours = origin is None or origin == f"{request.url.scheme}://{request.headers['host']}"
        fits = hmac.compare_digest(self.of(cookie).encode(), token.encode())
        if not (is_ours and site == "same-origin" and cookie and fits):
            raise PermissionDeniedError("this form is too old or was not made by the dashboard; load the page again")


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; raises ConfigError for anything but a short form of the usual kind."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ConfigError("this is not a form; use the page's own")
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_FORM_BYTES:
                raise ConfigError(f"the form is longer than {MAX_FORM_BYTES} bytes; shorten it")
    except ClientDisconnect as error:  # nobody is there to read this
        raise ConfigError("the form broke off; send it again") from error
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=10, keep_blank_values=True))
    except ValueError as error:
        raise ConfigError("the form cannot be read; use the page's own") from error
