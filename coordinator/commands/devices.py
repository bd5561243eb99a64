"""mien-coordinator device: invite, list, revoke. The registrar decides; this asks it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from coordinator.commands.common import Home, Json, say
from coordinator.commands.tables import Column, listing
from coordinator.home import CoordinatorHome
from mien.shell import cli as shell

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coordinator.registrar.client import Device, RegistrarAdmin

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Invite devices, list them, shut them out.")

_T = TypeVar("_T")


@app.command()
def invite(
    home: Home,
    population: Annotated[str, typer.Option(help="The population that the device will belong to.")] = "default",
    valid_hours: Annotated[float, typer.Option(min=0, help="How long it can be used; 0: as the registrar says.")] = 0,
    note: Annotated[str, typer.Option(help="What the list of devices is to say about this device.")] = "",
    as_json: Json = False,
) -> None:
    """Make an invite for one device: a QR code and a URL that work once.

    Example: mien-coordinator device invite --note "Alice's phone"
    """

    async def question(registrar: RegistrarAdmin) -> tuple[str, int]:
        issued = await registrar.create_invite(population, valid_s=round(valid_hours * 3600), note=note)
        return issued.url, issued.expires_unix_s

    url, expires_unix_s = _ask(home, question)
    result = {"url": url, "expires_unix_s": expires_unix_s, "population": population}
    shell.emit(result, as_json=as_json, human=lambda: _draw_invite(url, expires_unix_s))


@app.command("list")
def list_devices(home: Home, as_json: Json = False) -> None:
    """List the devices that joined.

    Example: mien-coordinator device list
    """

    async def question(registrar: RegistrarAdmin) -> list[Device]:
        return [device async for device in registrar.list_devices()]

    devices = _ask(home, question)

    def human() -> None:
        shell.OUT.print(
            device_table(devices, shell.OUT.width)
            if devices
            else "No device has joined yet; device invite makes an invite."
        )

    shell.emit({"devices": [dataclasses.asdict(device) for device in devices]}, as_json=as_json, human=human)


@app.command()
def revoke(
    device_id: Annotated[str, typer.Argument(help="The device's id or its beginning, as device list shows it.")],
    home: Home,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "",
    as_json: Json = False,
) -> None:
    """Shut a device out; its calls are refused within seconds.

    Example: mien-coordinator device revoke 3f0c --reason "phone lost"
    """

    from coordinator.registrar.client import find_device

    async def question(registrar: RegistrarAdmin) -> str:
        found = await find_device(registrar, device_id, listed_by="mien-coordinator device list")
        await registrar.revoke_device(found, reason=reason)
        return found

    revoked = _ask(home, question)
    shell.emit({"device_id": revoked, "revoked": True}, as_json=as_json, human=lambda: say(f"Revoked {revoked}."))


def _ask(folder: Path, question: Callable[[RegistrarAdmin], Coroutine[Any, Any, _T]]) -> _T:
    """Return what the registrar answers to this coordinator."""
    from coordinator.registrar.client import connect_admin

    home = CoordinatorHome(folder)
    address, credentials = home.resolve().config.registrar_admin_address, home.registrar_credentials()

    async def connected() -> _T:
        async with connect_admin(address, credentials) as registrar:
            return await question(registrar)

    return asyncio.run(connected())


def _draw_invite(url: str, expires_unix_s: int) -> None:
    import segno

    segno.make(url, micro=False).terminal(compact=True)
    shell.OUT.out(url, highlight=False)  # unwrapped: a wrapped URL could not be copied
    say(f"Works once, until {_day(expires_unix_s)} UTC. Show it to one person.")


def device_table(devices: Sequence[Device], width: int) -> RenderableType:
    """Return devices as a table for people, within `width` characters."""
    columns = (
        Column("device"),
        Column("state"),
        Column("note", 1, folds=True),
        Column("certificate until", 2),
        Column("population", 3),
        Column("joined", 4),
        Column("attestation", 5, folds=True),
    )
    rows = [
        (
            device.device_id,
            "revoked" if device.revoked else "good",
            device.note,
            _day(device.certificate_expires_unix_s),
            device.population,
            _day(device.joined_unix_s),
            device.attestation,
        )
        for device in devices
    ]
    return listing(columns, rows, width)


def _day(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M}" if unix_s else "–"
