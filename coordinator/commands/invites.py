"""An invite as an operator hands it on: a QR code, the same as a line, and the fingerprints that a phone shows.

Whoever can change an invite on its way can also change the fingerprints within; read out to the person, they tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from coordinator.registrar.config import invite_seconds
from mien.format import grouped
from mien.protocol.invite import Invite
from mien.shell import cli as shell
from mien.shell.cli import say

if TYPE_CHECKING:
    from coordinator.operator.registrar_client import Device, RegistrarAdmin
    from coordinator.registrar.home import RegistrarHome

_T = TypeVar("_T")
Ask: TypeAlias = "Callable[[Callable[[RegistrarAdmin], Coroutine[Any, Any, Any]]], Any]"
"""Returns what the registrar answers to a question."""


def ask_registrar(home: RegistrarHome, question: Callable[[RegistrarAdmin], Coroutine[Any, Any, _T]]) -> _T:
    """Return what the running registrar answers to an operator: the one whose folder `home` is, or its own."""
    from coordinator.operator.registrar_client import connect_admin

    address, credentials = home.resolve().config.admin_address, home.operator_credentials()

    async def connected() -> _T:
        async with connect_admin(address, credentials, setting="admin_address") as registrar:
            return await question(registrar)

    return asyncio.run(connected())


def make_invite(ask: Ask, population: str, valid_hours: float, note: str, *, as_json: bool) -> None:
    """Make an invite for one device and print it."""
    valid_s = invite_seconds(valid_hours)
    issued = ask(lambda registrar: registrar.create_invite(population, valid_s=valid_s, note=note))
    url, expires_unix_s = issued.url, issued.expires_unix_s
    result = {"url": url, "expires_unix_s": expires_unix_s, "population": population, "fingerprints": fingerprints(url)}
    shell.emit(result, as_json=as_json, human=lambda: draw_invite(url, expires_unix_s))


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
    say(f"Works once, until {datetime.fromtimestamp(expires_unix_s, UTC):%Y-%m-%d %H:%M} UTC. Show it to one person.")
    say("The app shows two fingerprints before it joins. Tell the person by another way, such as a call:")
    for name, text in fingerprints(url).items():
        say(f"  {name:<11}  {text}")
