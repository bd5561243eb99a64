"""mien-registrar: the program that admits devices, and takes admission back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from coordinator.commands.audit import After, Anchors, Last, Subject, show_head, show_list, show_verified
from coordinator.commands.backups import PasswordFile, tell
from coordinator.commands.common import say, show_reference
from coordinator.commands.invites import draw_invite, fingerprints
from coordinator.commands.tables import Column, facts, found, listing
from coordinator.home.settings import shown
from coordinator.registrar.config import RegistrarConfig, invite_seconds
from coordinator.registrar.home import RegistrarHome, create_home, trust_coordinator
from mien.errors import TABLE, ConfigError
from mien.shell import cli as shell
from mien.shell import logs
from mien.shell.files import read_limited, write_atomically
from mien.shell.passwords import read_password

if TYPE_CHECKING:
    from cryptography import x509

    from coordinator.registrar.store import Store

# Imported by the commands that need them: the server, the client and the QR code are most of the start-up time.

FIRST_TIME: Final = """
Setting up registrar and coordinator for the first time, in folders R and C; then `serve` both:

  mien-registrar init --home R --address registrar.example:7440 --coordinator-address coordinator.example:7443

  mien-coordinator init --home C --address coordinator.example:7443 --registrar-ca R/ca.pem
  --registrar-address registrar.example:7440

  mien-registrar trust-coordinator C/ca.pem --home R --csr C/registrar-operator.csr --out C/registrar-operator.pem

Only public files are exchanged: two CA certificates, one certificate request and the certificate made from it.
"""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Admit devices: invite them, sign their certificates, revoke them.\n" + FIRST_TIME,
)
config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the settings.")
operator_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Credentials for operators elsewhere.")
app.add_typer(config_app, name="config")
audit_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Who did what, and whether that was changed.")
app.add_typer(operator_app, name="operator")
app.add_typer(audit_app, name="audit")

_T = TypeVar("_T")
_ADMIN: Final = "127.0.0.1:7441"
_OPERATOR_FILES: Final = "--csr C/registrar-operator.csr --out C/registrar-operator.pem"


def _default_home() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "mien" / "registrar"


Home = Annotated[
    Path,
    typer.Option("--home", envvar="MIEN_REGISTRAR_HOME", help="The registrar's folder.", default_factory=_default_home),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]


@app.command()
def init(
    home: Home,
    address: Annotated[str, typer.Option(help="host:port where devices reach this registrar; written into invites.")],
    coordinator_address: Annotated[str, typer.Option(help="host:port of the coordinator, told to devices that join.")],
    admin_address: Annotated[str, typer.Option(help="host:port for operators.")] = _ADMIN,
    listen: Annotated[str, typer.Option(help="Where to listen for devices; default: every interface.")] = "",
    admin_listen: Annotated[str, typer.Option(help="Where to listen for operators; default: --admin-address.")] = "",
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
    coordinator_pem = None if coordinator_ca is None else _read_pem(coordinator_ca)
    made = create_home(home, config, _now())
    trusted = None if coordinator_pem is None else trust_coordinator(made, coordinator_pem, replace=False)
    if trusted is not None:
        _enter(made, "coordinator.trust", trusted)
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
            say(f"  mien-registrar trust-coordinator C/ca.pem --home {home} {_OPERATOR_FILES}")
        say("Keep ca.key secret and backed up: whoever has it can admit devices.")

    shell.emit(result, as_json=as_json, human=human)


@app.command("trust-coordinator")
def trust_coordinator_command(
    coordinator_ca: Annotated[Path, typer.Argument(help="The coordinator's public ca.pem.")],
    home: Home,
    csr: Annotated[Path | None, typer.Option(help="The coordinator's request for operator credentials here.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the certificate made from --csr.")] = None,
    replace: Annotated[bool, typer.Option(help="Replace the coordinator that is trusted now.")] = False,
    as_json: Json = False,
) -> None:
    """Trust a coordinator, so that invites name it; a running registrar takes it up at once.

    With --csr and --out the coordinator also becomes an operator here, for `mien-coordinator device invite`.

    Example: mien-registrar trust-coordinator C/ca.pem --csr C/registrar-operator.csr --out C/registrar-operator.pem
    """
    if (csr is None) != (out is None):
        raise ConfigError("--csr and --out belong together: the request, and where to write its certificate")
    registrar = RegistrarHome(home)
    fingerprint = trust_coordinator(registrar, _read_pem(coordinator_ca), replace=replace)
    _enter(registrar, "coordinator.trust", fingerprint)
    if csr is not None and out is not None:
        _sign_operator(registrar, csr, "coordinator", out)
    result = {"coordinator_ca_sha256": fingerprint, "operator_certificate": None if out is None else str(out)}

    def human() -> None:
        say(f"Coordinator trusted. CA fingerprint: {fingerprint}")
        if out is None:
            say(f"For mien-coordinator device invite: the same again with {_OPERATOR_FILES}.")
        say(f"Next: mien-registrar serve --home {home}, and mien-coordinator serve --home <coordinator's folder>")

    shell.emit(result, as_json=as_json, human=human)


@operator_app.command("sign")
def operator_sign(
    csr: Annotated[Path, typer.Argument(help="The operator's certificate request (PEM).")],
    home: Home,
    name: Annotated[str, typer.Option(help="The operator's name, as logs will show it.")],
    out: Annotated[Path, typer.Option(help="Where to write the certificate.")],
    as_json: Json = False,
) -> None:
    """Sign credentials for an operator whose key stays elsewhere.

    Example: mien-registrar operator sign alice.csr --name alice --out alice.pem
    """
    _sign_operator(RegistrarHome(home), csr, name, out)
    shell.emit({"certificate": str(out), "name": name}, as_json=as_json, human=lambda: say(f"Certificate: {out}"))


@operator_app.command("renew")
def operator_renew(home: Home, as_json: Json = False) -> None:
    """Give this folder's owner new operator credentials, valid for a year.

    Example: mien-registrar operator renew --home R
    """
    from coordinator.registrar.home import write_operator

    registrar = RegistrarHome(home)
    certificate = write_operator(registrar, registrar.authority(), _now())
    _enter_certificate(registrar, "registrar", certificate)
    path = str(registrar.operator_path)
    shell.emit({"certificate": path}, as_json=as_json, human=lambda: say(f"Renewed: {path}"))


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
    from mien.shell import ready

    registrar = RegistrarHome(home)
    config = registrar.config({"listen": listen, "admin_listen": admin_listen}).config
    logs.configure(as_json=as_json or config.json_logs)

    def announce(ports: server.Ports) -> None:
        where = {"address": config.address, "join_port": ports.join, "admin_port": ports.admin}
        result = {"ready": True, **where, "pid": os.getpid()}
        write_ready(result)
        shell.emit(result, as_json=as_json, human=lambda: _say_ready(config, ports.join, ports.admin))
        sys.stdout.flush()

    with ready.ready_file(ready_file) as write_ready:
        server.serve(registrar, config, announce)


@app.command()
def invite(
    home: Home,
    population: Annotated[str, typer.Option(help="The population that the device will belong to.")] = "default",
    valid_hours: Annotated[float, typer.Option(min=0, help="How long it can be used; 0: as configured.")] = 0,
    note: Annotated[str, typer.Option(help="What the list of devices is to say about this device.")] = "",
    as_json: Json = False,
) -> None:
    """Make an invite for one device: a QR code and a URL that work once.

    Example: mien-registrar invite --note "Alice's phone" --valid-hours 2
    """
    from coordinator.operator.registrar_client import RegistrarAdmin

    valid_s = invite_seconds(valid_hours)

    async def ask(admin: RegistrarAdmin) -> tuple[str, int]:
        issued = await admin.create_invite(population, valid_s=valid_s, note=note)
        return issued.url, issued.expires_unix_s

    url, expires_unix_s = _ask(home, ask)
    result = {"url": url, "expires_unix_s": expires_unix_s, "population": population, "fingerprints": fingerprints(url)}
    shell.emit(result, as_json=as_json, human=lambda: draw_invite(url, expires_unix_s))


@app.command()
def revoke(
    device_id: Annotated[str, typer.Argument(help="The device's id or its beginning, as `list` shows it.")],
    home: Home,
    reason: Annotated[str, typer.Option(help="Why, for the log.")] = "",
    as_json: Json = False,
) -> None:
    """Take back a device's admission; coordinators refuse it within seconds.

    Example: mien-registrar revoke 3f0c --reason "phone lost"
    """
    from coordinator.operator.registrar_client import RegistrarAdmin, find_device

    async def ask(admin: RegistrarAdmin) -> str:
        found = await find_device(admin, device_id, listed_by="mien-registrar list")
        await admin.revoke_device(found, reason=reason)
        return found

    revoked = _ask(home, ask)
    shell.emit({"device_id": revoked, "revoked": True}, as_json=as_json, human=lambda: say(f"Revoked {revoked}."))


@app.command("list")
def list_devices(home: Home, as_json: Json = False) -> None:
    """List the devices that joined.

    Example: mien-registrar list --json
    """
    from coordinator.operator.registrar_client import Device, RegistrarAdmin

    async def ask(admin: RegistrarAdmin) -> list[Device]:
        devices: AsyncIterator[Device] = admin.list_devices()
        return [device async for device in devices]

    devices = _ask(home, ask)
    result = {"devices": [dataclasses.asdict(device) for device in devices]}

    def human() -> None:
        from coordinator.commands.devices import device_table

        shell.OUT.print(
            device_table(devices, shell.OUT.width)
            if devices
            else "No device has joined yet; mien-registrar invite makes an invite."
        )

    shell.emit(result, as_json=as_json, human=human)


@config_app.command("show")
def config_show(home: Home, as_json: Json = False) -> None:
    """Print every setting with its value and where it came from.

    Example: mien-registrar config show --home R
    """
    resolved = RegistrarHome(home).config()
    values = shown(resolved.config)
    result = {name: {"value": value, "origin": resolved.origins[name]} for name, value in values.items()}

    def human() -> None:
        columns = (Column("setting"), Column("value", folds=True), Column("from", 1))
        rows = [(name, repr(value), resolved.origins[name]) for name, value in values.items()]
        shell.OUT.print(listing(columns, rows, shell.OUT.width))

    shell.emit(result, as_json=as_json, human=human)


@audit_app.command("list")
def audit_list(home: Home, last: Last = 50, after: After = 0, subject: Subject = "", as_json: Json = False) -> None:
    """List the newest entries, oldest first.

    Example: mien-registrar audit list --last 20 --home R
    """
    with _store(RegistrarHome(home)) as store, store.begin() as transaction:
        show_list(transaction.audit, last, after, subject, as_json=as_json)


@audit_app.command("head")
def audit_head(home: Home, as_json: Json = False) -> None:
    """Print the newest entry's number and hash: an anchor to write down elsewhere, for `audit verify --anchor`.

    Example: mien-registrar audit head --home R
    """
    with _store(RegistrarHome(home)) as store, store.begin() as transaction:
        show_head(transaction.audit, as_json=as_json)


@audit_app.command("verify")
def audit_verify(home: Home, anchor: Anchors = None, as_json: Json = False) -> None:
    """Check the whole log: edited, removed and reordered entries are named, and the exit code is 20.

    That the newest entries were cut off, or all was written anew, only an anchor kept elsewhere can show.
    Example: mien-registrar audit verify --home R --anchor 17:5e88…
    """
    with _store(RegistrarHome(home)) as store, store.begin() as transaction:
        show_verified(transaction.audit, anchor or [], as_json=as_json)


@config_app.command("reference")
def config_reference(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for docs.")] = False,
    as_json: Json = False,
) -> None:
    """Print every setting with its default, its limits and what it means; needs no folder.

    Example: mien-registrar config reference
    """
    from coordinator.registrar.config import LIMITS

    show_reference(RegistrarConfig, LIMITS, as_markdown=as_markdown, as_json=as_json)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="Where to write the backup.")],
    home: Home,
    password_file: PasswordFile = None,
    without_data: Annotated[bool, typer.Option("--without-data", help="Keys, certificates and settings only.")] = False,
    as_json: Json = False,
) -> None:
    """Write the authority, settings and database to one file under a password of at least 10 characters.

    The registrar may go on serving meanwhile. Example: mien-registrar backup monday.mien --home R
    """
    from coordinator.registrar.backup import make_backup
    from coordinator.registrar.home import make_new_files_private

    make_new_files_private()
    password = read_password(password_file, confirm=True, can_ask=sys.stdin.isatty())
    summary = make_backup(RegistrarHome(home), file, password, _now, with_data=not without_data)
    tell(summary, f"Backup of {home} in {file}", as_json=as_json)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="The file that backup wrote.")],
    home: Home,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Make a registrar's folder of a backup; the folder must be new or empty. Invites that were open then end.

    Never run the restored registrar beside the one that it was copied from.
    Example: mien-registrar restore monday.mien --home S
    """
    from coordinator.registrar.backup import restore_backup
    from coordinator.registrar.home import make_new_files_private

    make_new_files_private()
    password = read_password(password_file, confirm=False, can_ask=sys.stdin.isatty())
    summary, ended = restore_backup(file, RegistrarHome(home), password, _now)
    tell(summary, f"Restored to {home}", as_json=as_json, invites_ended=ended)
    if not as_json:
        say(f"{ended} open invites were ended: they may have been used since. Revoke again whom you revoked since.")


@app.command()
def doctor(home: Home, as_json: Json = False) -> None:
    """Check folder, keys, certificates, settings, store and the running registrar; the exit code is the first fault's.

    Example: mien-registrar doctor --home R
    """
    from coordinator.commands.registrar_doctor import examine

    findings = asyncio.run(examine(RegistrarHome(home), _now))
    result = {"ok": all(f.error is None for f in findings), "checks": [f.to_mapping() for f in findings]}

    def human() -> None:
        rows = [found(finding.name, finding.detail, is_fault=finding.error is not None) for finding in findings]
        shell.OUT.print(facts("check", "result", rows))

    shell.emit(result, as_json=as_json, human=human)
    errors = [finding.error for finding in findings if finding.error is not None]
    if errors:
        raise typer.Exit(TABLE[type(errors[0])].exit_code)


def main() -> None:
    """Run mien-registrar."""
    shell.run(app)


def _ask(home: Path, ask: Callable[[Any], Coroutine[Any, Any, _T]]) -> _T:
    """Return what a running registrar answers to this folder's operator."""
    from coordinator.operator.registrar_client import connect_admin

    registrar = RegistrarHome(home)
    address, credentials = registrar.config().config.admin_address, registrar.operator_credentials()

    async def connected() -> _T:
        async with connect_admin(address, credentials, setting="admin_address") as admin:
            return await ask(admin)

    return asyncio.run(connected())


def _sign_operator(registrar: RegistrarHome, csr: Path, name: str, out: Path) -> None:
    from coordinator.keys import pki

    authority = registrar.authority()
    certificate = pki.issue_operator_leaf_for_csr(authority, _read_pem(csr), name, _now())
    _enter_certificate(registrar, name, certificate)
    write_atomically(out, pki.to_pem(certificate) + authority.certificate_pem)


def _enter(registrar: RegistrarHome, action: str, subject: str, **detail: object) -> None:
    """Enter a deed of this command in the audit log, beside a registrar that may be running."""
    from coordinator.registrar.home import make_new_files_private
    from coordinator.store.audit import local_actor

    make_new_files_private()
    with _store(registrar) as store, store.begin() as transaction:
        transaction.log(int(_now().timestamp()), local_actor(), action, subject, detail)


def _enter_certificate(registrar: RegistrarHome, name: str, certificate: x509.Certificate) -> None:
    """Enter an operator's certificate in the audit log."""
    from coordinator.keys import pki

    ends = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    _enter(registrar, "operator.certify", name, certificate_sha256=pki.fingerprint(certificate), until=ends)


@contextlib.contextmanager
def _store(registrar: RegistrarHome) -> Iterator[Store]:
    from coordinator.registrar.store import Store

    store = Store.open(registrar.store_url(registrar.config().config))
    try:
        yield store
    finally:
        store.close()


def _read_pem(path: Path) -> bytes:
    return read_limited(path, 64 * 1024, what=str(path))


def _now() -> datetime:
    return datetime.now(UTC)


def _say_ready(config: RegistrarConfig, join_port: int, admin_port: int) -> None:
    say(f"Ready. Devices join at {config.address} (port {join_port}), operators on port {admin_port}. Ctrl-C stops.")


if __name__ == "__main__":
    main()
