"""mien-coordinator device: invite, list, revoke. The registrar decides; this asks it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from coordinator.commands.common import Count, Home, InviteFile, Json, OperatorHome, ask, fields
from coordinator.commands.invites import Ask, ask_registrar, make_invites, revoke_device
from coordinator.commands.invites import list_devices as list_joined
from coordinator.commands.tables import Column, listing
from coordinator.home.home import CoordinatorHome
from coordinator.registrar.home import RegistrarHome
from mien.errors import MienError, NotFoundError
from mien.protocol.names import isolated
from mien.shell import cli as shell
from mien.shell.cli import say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coordinator.operator.client import Coordinator
    from coordinator.operator.registrar_client import Device, RegistrarAdmin
    from mien.protocol.v1 import operator_pb2

    Seen = Mapping[str, operator_pb2.SeenDevice]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Invite devices, list them, shut them out.")

_TOLD: Final = (
    *("software", "first_seen_unix_ms", "last_seen_unix_ms", "stays_out_since_unix_ms"),
    *("engines", "backbones", "objectives", "labelled"),
)


@app.command()
def invite(
    home: Home,
    operator: OperatorHome,
    population: Annotated[str, typer.Option(help="The population that the device will belong to.")] = "default",
    valid_hours: Annotated[float, typer.Option(min=0, help="How long it can be used; 0: as the registrar says.")] = 0,
    note: Annotated[str, typer.Option(help="What the list of devices is to say about this device.")] = "",
    count: Count = 1,
    out: InviteFile = None,
    as_json: Json = False,
) -> None:
    """Make an invite for one device: a QR code and a URL that work once. Or several of them, in a file.

    Example: mien-coordinator device invite --note "Alice's phone"

    Example: mien-coordinator device invite --count 20 --out invites.html
    """
    make_invites(_ask(home, operator), population, valid_hours, note, count=count, out=out, as_json=as_json)


@app.command("list")
def list_devices(home: Home, operator: OperatorHome, as_json: Json = False) -> None:
    """List the devices that joined, with what they told: what runs models there, and who stays out of rounds.

    Example: mien-coordinator device list
    """
    devices = list_joined(_ask(home, operator))
    seen, missing = _seen(home)

    def human() -> None:
        if not devices:
            say("No device has joined yet; device invite makes an invite.")
            return
        shell.OUT.print(device_table(devices, shell.OUT.width, seen))
        if missing:
            say(f"What devices told is left out: {missing}.")

    rows = [dataclasses.asdict(device) | _told(seen, device.device_id) for device in devices]
    shell.emit({"devices": rows, "told_missing": missing}, as_json=as_json, human=human)


@app.command()
def revoke(
    device_id: Annotated[str, typer.Argument(help="The device's id or its beginning, as device list shows it.")],
    home: Home,
    operator: OperatorHome,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "",
    as_json: Json = False,
) -> None:
    """Shut a device out; its calls are refused within seconds.

    Example: mien-coordinator device revoke 3f0c --reason "phone lost"
    """
    revoke_device(_ask(home, operator), device_id, reason, listed_by="mien-coordinator device list", as_json=as_json)


def _ask(folder: Path, operator: Path) -> Ask:
    """Return what asks the registrar for the operator whose credentials lie in a folder of their own."""

    def ask(question: Callable[[RegistrarAdmin], Coroutine[Any, Any, Any]]) -> Any:
        home = RegistrarHome(operator)
        if not home.operator_key_path.exists():
            advice = CoordinatorHome(folder).registrar_key_advice()
            raise NotFoundError(
                f"there are no credentials for the registrar in {operator}; make them there with mien-registrar "
                "operator folder, or name another --operator" + (f" ({advice})" if advice else "")
            )
        return ask_registrar(home, question)

    return ask


def _seen(home: Path) -> tuple[Seen | None, str]:
    """Return the devices that have called, by their ids; None, and why, where the coordinator's half is not to be had.

    What the registrar lists does not depend on it.
    """

    async def question(coordinator: Coordinator) -> Seen:
        return {device.device_id: device async for device in coordinator.seen_devices()}

    try:
        return ask(home, question), ""
    except MienError as error:
        return None, error.message


def _told(seen: Seen | None, device_id: str) -> dict[str, Any]:
    """Return what a device told, as plain data; nothing but None of one that never called."""
    device = None if seen is None else seen.get(device_id)
    if device is None:
        return dict.fromkeys(_TOLD)
    return fields(device, *_TOLD)


def device_table(devices: Sequence[Device], width: int, seen: Seen | None = None) -> RenderableType:
    """Return devices as a table for people, within `width` characters; with what they told where that is known."""
    columns = (
        Column("device"),
        Column("state"),
        *(() if seen is None else (Column("engine"), Column("trains", 2, folds=True), Column("last call", 2))),
        Column("note", 1, folds=True),
        Column("certificate until", 2),
        Column("population", 3),
        Column("joined", 4),
        Column("attestation", 5, folds=True),
    )
    rows = [
        (
            device.device_id,
            _state(device, seen),
            *(() if seen is None else _in_short(seen.get(device.device_id))),
            isolated(device.note),
            _day(device.certificate_expires_unix_s),
            device.population,
            _day(device.joined_unix_s),
            device.attestation,
        )
        for device in devices
    ]
    return listing(columns, rows, width)


def _state(device: Device, seen: Seen | None) -> str:
    if device.revoked:
        return "revoked"
    told = None if seen is None else seen.get(device.device_id)
    return "stays out" if told is not None and told.stays_out_since_unix_ms else "good"


def _in_short(device: operator_pb2.SeenDevice | None) -> tuple[str, str, str]:
    """Return what runs models on a device, what it can train, and when it called last."""
    if device is None:
        return "–", "–", "never"
    trains = [*device.backbones, *(["labelled faces"] if device.labelled else [])]
    return ", ".join(device.engines) or "–", ", ".join(trains) or "–", _day(device.last_seen_unix_ms // 1000)


def _day(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M}" if unix_s else "–"
