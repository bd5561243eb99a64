"""An invite as an operator hands it on: a QR code, the same as a line, and the code that a phone shows.

Whoever can change an invite on its way can also change the fingerprints within; their code, read out, tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from coordinator.registrar.config import invite_seconds
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError
from mien.format import grouped
from mien.protocol.invite import Invite
from mien.shell import cli as shell
from mien.shell.cli import say
from mien.shell.doing import counting, doing
from mien.shell.files import create_private, write_atomically

if TYPE_CHECKING:
    from coordinator.operator.registrar_client import Device, IssuedInvite, RegistrarAdmin
    from coordinator.registrar.home import RegistrarHome

_T = TypeVar("_T")
Ask: TypeAlias = "Callable[[Callable[[RegistrarAdmin], Coroutine[Any, Any, Any]]], Any]"
"""Returns what the registrar answers to a question."""


def ask_registrar(home: RegistrarHome, question: Callable[[RegistrarAdmin], Coroutine[Any, Any, _T]]) -> _T:
    """Return what the running registrar answers to an operator: the one whose folder `home` is, or its own."""
    import asyncio

    from coordinator.operator.registrar_client import connect_admin

    address, credentials = home.resolve().config.admin_address, home.operator_credentials()

    async def connected() -> _T:
        async with connect_admin(address, credentials, setting="admin_address") as registrar:
            return await question(registrar)

    with doing(f"Asking the registrar at {address}"):
        return asyncio.run(connected())


def make_invites(
    ask: Ask, population: str, valid_hours: float, note: str, *, count: int, out: Path | None, as_json: bool
) -> None:
    """Make invites, one a device: print the only one, or write all of them into a new file (`write_invites`).

    Where the registrar refuses one of several, those before it are handed on before its error is raised.
    """
    valid_s = invite_seconds(valid_hours)
    if count > 1 and out is None and not as_json:
        raise ConfigError(
            f"--count {count} needs --out FILE: one that ends in .html shows a QR code for each, another has one "
            "invite a line"
        )
    issued: list[IssuedInvite] = []

    async def question(registrar: RegistrarAdmin) -> None:
        async for each in invites_of(registrar, population, count, valid_s=valid_s, note=note):
            issued.append(each)

    with contextlib.nullcontext() if out is None else reserved(out):
        try:
            ask(question)
        finally:
            if issued:
                _hand_on(issued, population, is_one=count == 1, out=out, as_json=as_json)


def _hand_on(issued: Sequence[IssuedInvite], population: str, *, is_one: bool, out: Path | None, as_json: bool) -> None:
    """Print invites, or write them to a file and say so; without a file people see the first."""
    if out is not None:
        write_invites(issued, out)
    code = Invite.from_url(issued[0].url).code()  # of the authorities alone: all of them have it
    made = [
        {"url": each.url, "expires_unix_s": each.expires_unix_s, "population": population}
        | {"code": code, "fingerprints": fingerprints(each.url)}
        for each in issued
    ]

    def human() -> None:
        if out is None:
            draw_invite(issued[0].url, issued[0].expires_unix_s)
        else:
            say(f"{_invites(len(issued))} in {out}. {_good(issued[0].expires_unix_s, len(issued))}")
            _say_fingerprints(issued[0].url)

    result = made[0] if out is None and is_one else {"invites": made, "file": out and str(out)}
    shell.emit(result, as_json=as_json, human=human)


async def invites_of(
    registrar: RegistrarAdmin, population: str, count: int, *, valid_s: int = 0, note: str = ""
) -> AsyncIterator[IssuedInvite]:
    """Yield new invites as the registrar makes them."""
    for _ in counting("Making invites", range(count)):
        yield await registrar.create_invite(population, valid_s=valid_s, note=note)


@contextlib.contextmanager
def reserved(path: Path) -> Iterator[None]:
    """Hold the place of a new file while the block runs; raises where it cannot be written.

    Once invites are made it would be too late, and they would count against `invites_per_day`. A block that writes
    nothing leaves nothing.
    """
    try:
        if path.exists():
            raise AlreadyExistsError(f"{path} exists already; name a new file")
        if not path.parent.is_dir():
            raise NotFoundError(f"there is no folder {path.parent}; make it, or name a file in another one")
        create_private(path, b"")
    except OSError as error:
        raise NotFoundError(f"{path} cannot be written ({error.strerror}); name another file") from error
    try:
        yield
    finally:
        if not path.stat().st_size:
            path.unlink()


def write_invites(issued: Sequence[IssuedInvite], path: Path) -> None:
    """Write invites to a file for its owner alone, new or reserved: a page of QR codes for .html, else one a line."""
    is_page = path.suffix.lower() in (".html", ".htm")
    text = _page(issued) if is_page else "".join(f"{each.url}\n" for each in issued)
    write_atomically(path, text.encode(), private=True)


def _page(issued: Sequence[IssuedInvite]) -> str:
    """Return a page to print and cut up: an invite with its QR code after the other."""
    import segno

    parts = [
        f"<section><h2>Invite {number} of {len(issued)}</h2>{segno.make(each.url, micro=False).svg_inline(scale=5)}"
        f"<p>{escape(_good(each.expires_unix_s))}</p><code>{escape(each.url)}</code></section>"
        for number, each in enumerate(issued, start=1)
    ]
    style = "section{break-after:page;font:16px sans-serif;margin:2em}code{overflow-wrap:anywhere}svg{background:#fff}"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Invites</title><style>{style}</style>'
    return "\n".join([head, *parts, "</html>\n"])


def _invites(count: int) -> str:
    return "1 invite is" if count == 1 else f"{count} invites, one a phone, are"


def _good(expires_unix_s: int, count: int = 1) -> str:
    until = f"{datetime.fromtimestamp(expires_unix_s, UTC):%Y-%m-%d %H:%M} UTC"
    if count > 1:
        return f"Each works once, until {until}. Show each to one person."
    return f"Works once, until {until}. Show it to one person."


def revoke_device(ask: Ask, device_id: str, reason: str, *, listed_by: str, as_json: bool) -> None:
    """Revoke the device of an id or its beginning, and print its id; `listed_by` is the command that shows ids."""
    from coordinator.operator.registrar_client import find_device

    async def question(registrar: RegistrarAdmin) -> str:
        found = await find_device(registrar, device_id, listed_by=listed_by)
        await registrar.revoke_device(found, reason=reason)
        return found

    revoked = ask(question)
    shell.emit({"device_id": revoked, "revoked": True}, as_json=as_json, human=lambda: say(f"Revoked {revoked}."))


def list_devices(ask: Ask) -> list[Device]:
    """Return the devices that joined."""

    async def question(registrar: RegistrarAdmin) -> list[Device]:
        return [device async for device in registrar.list_devices()]

    devices: list[Device] = ask(question)
    return devices


def fingerprints(url: str) -> dict[str, str]:
    """Return the SHA-256 of both authorities in an invite, in groups as a phone shows them before it joins."""
    invite = Invite.from_url(url)
    return {"registrar": grouped(invite.registrar_ca_sha256), "coordinator": grouped(invite.coordinator_ca_sha256)}


def draw_invite(url: str, expires_unix_s: int) -> None:
    """Print an invite for people."""
    import segno

    segno.make(url, micro=False).terminal(compact=True)
    shell.OUT.out(url, highlight=False)  # unwrapped: a wrapped URL could not be copied
    say(_good(expires_unix_s))
    _say_fingerprints(url)


def _say_fingerprints(url: str) -> None:
    say("The app shows this code before it joins. Tell the person by another way, such as a call:")
    say(f"  {Invite.from_url(url).code()}")
    say("It stands for two fingerprints, which the app shows whole to whoever wants them:")
    for name, text in fingerprints(url).items():
        say(f"  {name:<11}  {text}")
