"""mien-registrar: the program that admits devices, and takes admission back."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coordinator.commands import both, witness
from coordinator.commands.audit import audit_app
from coordinator.commands.common import Count, InviteFile, folder_option, now, read_pem
from coordinator.commands.invites import Ask, ask_registrar, make_invites, revoke_device
from coordinator.commands.invites import list_devices as list_joined
from coordinator.registrar.config import LIMITS, RegistrarConfig
from coordinator.registrar.home import RegistrarHome
from mien.shell import cli as shell
from mien.shell.cli import say

if TYPE_CHECKING:
    from coordinator.commands.registrar_doctor import RegistrarChecks
    from coordinator.registrar.backup import RegistrarBackup

# Imported by the commands that need them: the server, the client and the QR code are most of the start-up time.

FIRST_TIME: Final = """
Setting up registrar and coordinator for the first time, in folders R and C; then `serve` both:

  mien-registrar init --home R --address registrar.example:7440 --coordinator-address coordinator.example:7443

  mien-coordinator init --home C --address coordinator.example:7443 --registrar-ca R/ca.pem
  --registrar-address registrar.example:7440

  mien-registrar trust-coordinator C/ca.pem --home R

  mien-registrar operator folder O --name alice --home R

Registrar and coordinator exchange public files only: their CA certificates. O holds an operator's key: keep it on the
operator's machine, and never in C.
"""


def _backup() -> type[RegistrarBackup]:
    from coordinator.registrar.backup import RegistrarBackup

    return RegistrarBackup


def _checks() -> type[RegistrarChecks]:
    from coordinator.commands.registrar_doctor import RegistrarChecks

    return RegistrarChecks


PROGRAM: Final = both.Program(
    RegistrarHome,
    LIMITS,
    _backup,
    _checks,
    both.Words(
        folder="R",
        copy="S",
        operator_name="The operator's name, as logs will show it.",
        backup="Write the authority, settings and database to one file under a password of at least 10 characters.",
        restore="Make a registrar's folder of a backup; the folder must be new or empty. Invites that were open then "
        "end.",
        doctor="Check folder, keys, certificates, settings, store and the running registrar; the exit code is the "
        "first fault's.\n\n",
        json="Print one JSON object for machines.",
    ),
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Admit devices: invite them, sign their certificates, revoke them.\n" + FIRST_TIME,
)
app.add_typer(both.config_app(PROGRAM), name="config")
_OPERATORS: Final = both.operator_app(PROGRAM, help="Credentials for operators elsewhere.", signs_first=True)
app.add_typer(_OPERATORS, name="operator")
app.add_typer(audit_app(PROGRAM), name="audit")
app.add_typer(witness.APP, name="witness")

_ADMIN: Final = "127.0.0.1:7441"
_NO_CSR: Final = (
    "--csr and --out do nothing any more: a coordinator's folder holds nothing that admits phones; run mien-registrar "
    "operator folder O --name NAME, and invite phones with mien-registrar invite --home O"
)


Home = Annotated[Path, folder_option("registrar")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]


@app.command()
def init(
    home: Home,
    address: Annotated[str, typer.Option(help="host:port where devices reach this registrar; written into invites.")],
    coordinator_address: Annotated[str, typer.Option(help="host:port of the coordinator, told to devices that join.")],
    admin_address: Annotated[str, typer.Option(help="host:port for operators.")] = _ADMIN,
    listen: Annotated[
        str, typer.Option(help="Where to listen for devices; default: every interface, unless the address is local.")
    ] = "",
    admin_listen: Annotated[str, typer.Option(help="The same for operators.")] = "",
    name: Annotated[
        list[str] | None, typer.Option(help="Further host name or IP for the server's certificate.")
    ] = None,
    coordinator_ca: Annotated[Path | None, typer.Option(help="The coordinator's ca.pem, if it exists already.")] = None,
    as_json: Json = False,
) -> None:
    """Create a registrar: authority, settings, operator credentials.

    Example: mien-registrar init --address registrar.example:7440 --coordinator-address coordinator.example:7443
    """
    config = RegistrarConfig(
        address, coordinator_address, admin_address, listen=listen, admin_listen=admin_listen, names=tuple(name or ())
    )
    coordinator_pem = None if coordinator_ca is None else read_pem(coordinator_ca)
    made = RegistrarHome.create(home, config, now())
    trusted = None if coordinator_pem is None else made.trust(coordinator_pem, replace=False)
    if trusted is not None:
        both.enter(made, "coordinator.trust", trusted)
    from coordinator.keys import pki

    ca_sha256 = pki.fingerprint(made.ca())
    result = {"home": str(home), "ca": str(made.ca_path), "ca_sha256": ca_sha256, "coordinator_ca_sha256": trusted}

    def human() -> None:
        say(f"Registrar created in {home}. Its public certificate: {made.ca_path}")
        say(f"CA fingerprint (SHA-256): {ca_sha256}")
        if trusted is None:
            admin = "" if config.admin_address == _ADMIN else f" --registrar-admin-address {config.admin_address}"
            say("Next, with C as the coordinator's folder:")
            say(
                f"  mien-coordinator init --home C --address {config.coordinator_address} "
                f"--registrar-ca {made.ca_path} --registrar-address {config.address}{admin}"
            )
            say(f"  mien-registrar trust-coordinator C/ca.pem --home {home}")
        say("Keep ca.key secret and backed up: whoever has it can admit devices.")

    shell.emit(result, as_json=as_json, human=human)


@app.command("trust-coordinator")
def trust_coordinator_command(
    coordinator_ca: Annotated[Path, typer.Argument(help="The coordinator's public ca.pem.")],
    home: Home,
    csr: Annotated[Path | None, typer.Option(help="Does nothing any more.")] = None,
    out: Annotated[Path | None, typer.Option(help="Does nothing any more.")] = None,
    replace: Annotated[bool, typer.Option(help="Replace the coordinator that is trusted now.")] = False,
    as_json: Json = False,
) -> None:
    """Trust a coordinator, so that invites name it; a running registrar takes it up at once.

    It becomes no operator here: `operator folder` makes credentials for the person who invites phones.

    Example: mien-registrar trust-coordinator C/ca.pem --home R
    """
    registrar = RegistrarHome(home)
    fingerprint = registrar.trust(read_pem(coordinator_ca), replace=replace)
    both.enter(registrar, "coordinator.trust", fingerprint)
    result = {"coordinator_ca_sha256": fingerprint, "operator_certificate": None}

    def human() -> None:
        say(f"Coordinator trusted. CA fingerprint: {fingerprint}")
        if csr is not None or out is not None:
            say(_NO_CSR)
        say(f"Next: mien-registrar serve --home {home}, and mien-coordinator serve --home <coordinator's folder>")

    shell.emit(result, as_json=as_json, human=human)


@app.command()
def serve(
    home: Home,
    listen: Annotated[str | None, typer.Option(help="Where to listen for devices, not what the settings say.")] = None,
    admin_listen: Annotated[str | None, typer.Option(help="The same for operators.")] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Holds address, ports and process id while ready.")] = None,
    as_json: Json = False,
) -> None:
    """Serve devices and operators until SIGTERM.

    Example: mien-registrar serve --home R --ready-file R/ready.json
    """
    from coordinator.registrar import server

    def told(config: RegistrarConfig, ports: server.Ports) -> tuple[dict[str, object], str]:
        where = f"Devices join at {config.address} (port {ports.join}), operators on port {ports.admin}"
        return {"join_port": ports.join, "admin_port": ports.admin}, f"Ready. {where}. Ctrl-C stops."

    flags = {"listen": listen, "admin_listen": admin_listen}
    both.serve(RegistrarHome(home), flags, ready_file, server.serve, told, as_json=as_json)


@app.command()
def invite(
    home: Home,
    population: Annotated[str, typer.Option(help="The population that the device will belong to.")] = "default",
    valid_hours: Annotated[float, typer.Option(min=0, help="How long it can be used; 0: as configured.")] = 0,
    note: Annotated[str, typer.Option(help="What the list of devices is to say about this device.")] = "",
    count: Count = 1,
    out: InviteFile = None,
    as_json: Json = False,
) -> None:
    """Make an invite for one device: a QR code and a URL that work once. Or several of them, in a file.

    Example: mien-registrar invite --note "Alice's phone" --valid-hours 2

    Example: mien-registrar invite --count 20 --out invites.html
    """
    make_invites(_ask(home), population, valid_hours, note, count=count, out=out, as_json=as_json)


@app.command()
def revoke(
    device_id: Annotated[str, typer.Argument(help="The device's id or its beginning, as `list` shows it.")],
    home: Home,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "",
    local: Annotated[
        bool, typer.Option("--local", help="In the registrar's own folder, without its ports; needs no running server.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take back a device's admission; coordinators refuse it within seconds.

    Example: mien-registrar revoke 3f0c --reason "phone lost"
    """
    if local:
        revoked = _revoke_here(RegistrarHome(home), device_id, reason)
        shell.emit({"device_id": revoked, "revoked": True}, as_json=as_json, human=lambda: say(f"Revoked {revoked}."))
        return
    revoke_device(_ask(home), device_id, reason, listed_by="mien-registrar list", as_json=as_json)


@app.command("list")
def list_devices(home: Home, as_json: Json = False) -> None:
    """List the devices that joined.

    Example: mien-registrar list --json
    """
    devices = list_joined(_ask(home))
    result = {"devices": [dataclasses.asdict(device) for device in devices]}

    def human() -> None:
        from coordinator.commands.devices import device_table

        shell.OUT.print(
            device_table(devices, shell.OUT.width)
            if devices
            else "No device has joined yet; mien-registrar invite makes an invite."
        )

    shell.emit(result, as_json=as_json, human=human)


@_OPERATORS.command("folder")
def operator_folder(
    folder: Annotated[Path, typer.Argument(help="The folder to make; not a server's.")],
    home: Home,
    name: Annotated[str, typer.Option(help=PROGRAM.words.operator_name)],
    as_json: Json = False,
) -> None:
    """Make an operator's folder: key, certificate, and where this registrar answers; give it to that person.

    Commands then take it: `mien-registrar invite --home O`, `mien-coordinator device list --operator O`.

    Example: mien-registrar operator folder O --name alice --home R
    """
    os.umask(0o077)
    registrar = RegistrarHome(home)
    both.enter_certificate(registrar, name, registrar.make_operator_folder(folder, name, now()))
    told = f"Operator's folder: {folder}. Next: mien-registrar invite --home {folder}"
    shell.emit({"folder": str(folder), "name": name}, as_json=as_json, human=lambda: say(told))


both.add_backups(app, PROGRAM)
both.add_move(app, PROGRAM)
both.add_doctor(app, PROGRAM)


def main() -> None:
    """Run mien-registrar."""
    shell.run(app)


def _revoke_here(home: RegistrarHome, wanted: str, reason: str) -> str:
    """Revoke the device of an id or its beginning in the folder's database, also beside a server; return its id."""
    from coordinator.registrar.issuing import Registry
    from coordinator.store.audit import local_actor

    os.umask(0o077)
    with home.store() as store:
        registry = Registry(store, home.authority(), home.resolve().config, home.trusted_ca, now)
        found = registry.find(wanted)
        registry.revoke(found, reason, actor=local_actor())
    return found


def _ask(folder: Path) -> Ask:
    """Return what asks the running registrar for this folder's owner."""
    return functools.partial(ask_registrar, RegistrarHome(folder))


if __name__ == "__main__":
    main()
