"""mien-coordinator: the program that runs rounds."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from coordinator.commands import (
    audit,
    backups,
    dashboard,
    devices,
    fleet,
    models,
    privacy,
    release_key,
    replicas,
    tasks,
)
from coordinator.commands.common import Home, Json, now, read_pem, say, show_reference
from coordinator.commands.tables import Column, facts, found, listing
from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome, create_home, trust_registrar
from coordinator.home.settings import shown
from mien.errors import TABLE, ConfigError
from mien.shell import cli as shell
from mien.shell import logs
from mien.shell.files import write_atomically

if TYPE_CHECKING:
    from cryptography import x509

# Imported by the commands that need them: server, store and client are most of the start-up time.

FIRST_TIME: Final = """
Setting up for the first time, with a registrar in R and this coordinator in C (mien-registrar --help has its half):

  mien-coordinator init --home C --address coordinator.example:7443 --registrar-ca R/ca.pem
  --registrar-address registrar.example:7440

  mien-registrar trust-coordinator C/ca.pem --home R --csr C/registrar-operator.csr --out C/registrar-operator.pem

  mien-coordinator serve --home C
"""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run training rounds on phones: tasks, models, devices.\n" + FIRST_TIME,
)
config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at the settings.")
operator_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Credentials for operators.")
app.add_typer(tasks.app, name="task")
app.add_typer(devices.app, name="device")
app.add_typer(models.app, name="model")
app.add_typer(fleet.app, name="fleet")
app.add_typer(release_key.app, name="release-key")
app.add_typer(privacy.app, name="privacy")
app.add_typer(audit.app, name="audit")
app.add_typer(replicas.app, name="replica")
app.add_typer(dashboard.app, name="dashboard")
app.command()(backups.backup)
app.command()(backups.restore)
app.add_typer(config_app, name="config")
app.add_typer(operator_app, name="operator")


@app.command()
def init(
    home: Home,
    address: Annotated[str, typer.Option(help="host:port where devices and operators reach this coordinator.")],
    listen: Annotated[str, typer.Option(help="Where to listen; default: every interface at that port.")] = "",
    name: Annotated[list[str] | None, typer.Option(help="Further host name or IP for the certificate.")] = None,
    registrar_ca: Annotated[Path | None, typer.Option(help="The registrar's ca.pem, if it exists already.")] = None,
    registrar_address: Annotated[str, typer.Option(help="host:port of the registrar, for revocations.")] = "",
    registrar_admin_address: Annotated[
        str, typer.Option(help="host:port of the registrar's operators' port, for invites.")
    ] = "127.0.0.1:7441",
    as_json: Json = False,
) -> None:
    """Create a coordinator: authority, keys, settings, database.

    Example: mien-coordinator init --home C --address coordinator.example:7443 --registrar-ca R/ca.pem
    --registrar-address registrar.example:7440
    """
    if registrar_ca is not None and not registrar_address:
        raise ConfigError(
            "--registrar-ca goes with --registrar-address HOST:PORT, where the registrar is asked for revocations; "
            "without it revoked devices are not noticed"
        )
    config = CoordinatorConfig(
        address,
        listen=listen,
        names=tuple(name or ()),
        registrar_address=registrar_address,
        registrar_admin_address=registrar_admin_address,
    )
    os.umask(0o077)
    registrar_pem = None if registrar_ca is None else read_pem(registrar_ca)
    made = create_home(home, config, now())
    trusted = None if registrar_pem is None else trust_registrar(made, registrar_pem, replace=False)
    from coordinator.keys import pki
    from coordinator.serve import open_stores
    from coordinator.store.audit import local_actor
    from mien.shell.clock import Clock

    stores = open_stores(made, config, Clock())
    if trusted is not None:
        stores.store.log(local_actor(), "registrar.trust", trusted)
    stores.thread.close()
    stores.store.close()
    ca_sha256 = pki.fingerprint(pki.load_authority_certificate(made.public(made.ca_path)))
    result = {
        "home": str(home),
        "ca": str(made.ca_path),
        "ca_sha256": ca_sha256,
        "registrar_ca_sha256": trusted,
        "registrar_operator_csr": str(made.registrar_operator_csr_path),
    }

    def human() -> None:
        say(f"Coordinator created in {home}. Its public certificate: {made.ca_path}")
        say(f"CA fingerprint (SHA-256): {ca_sha256}")
        if trusted is None:
            if not registrar_address:
                say(f"Next: set registrar_address in {made.config_path}, else revoked devices are not noticed, then")
            say(f"Next: mien-coordinator trust-registrar <registrar's folder>/ca.pem --home {home}, then")
        csr, pem = made.registrar_operator_csr_path, made.registrar_operator_path
        say(
            f"Next: mien-registrar trust-coordinator {made.ca_path} --csr {csr} --out {pem} --home <registrar's folder>"
        )
        say("Keep ca.key and store.key secret and backed up.")

    shell.emit(result, as_json=as_json, human=human)


@app.command("trust-registrar")
def trust_registrar_command(
    registrar_ca: Annotated[Path, typer.Argument(help="The registrar's public ca.pem.")],
    home: Home,
    replace: Annotated[bool, typer.Option(help="Replace the registrar that is trusted now.")] = False,
    as_json: Json = False,
) -> None:
    """Trust a registrar: its devices may come. A running coordinator takes it up after a restart.

    Example: mien-coordinator trust-registrar R/ca.pem --home C
    """
    coordinator = CoordinatorHome(home)
    fingerprint = trust_registrar(coordinator, read_pem(registrar_ca), replace=replace)
    _enter(coordinator, "registrar.trust", fingerprint)

    def human() -> None:
        say(f"Registrar trusted. CA fingerprint: {fingerprint}")
        if not coordinator.resolve().config.registrar_address:
            say(f"Next: set registrar_address in {coordinator.config_path}, else revoked devices are not noticed")

    shell.emit({"registrar_ca_sha256": fingerprint}, as_json=as_json, human=human)


@app.command()
def serve(
    home: Home,
    listen: Annotated[str | None, typer.Option(help="Where to listen, instead of what the settings say.")] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Holds address, port and process id while ready.")] = None,
    as_json: Json = False,
) -> None:
    """Run rounds until SIGTERM; then no new device is taken, and what was begun is finished.

    Example: mien-coordinator serve --home C --ready-file C/ready.json
    """
    from coordinator import serve
    from mien.shell import ready

    coordinator = CoordinatorHome(home)
    config = coordinator.resolve({"listen": listen}).config
    logs.configure(as_json=as_json or config.json_logs)

    def announce(port: int) -> None:
        result = {"ready": True, "address": config.address, "port": port, "pid": os.getpid()}
        write_ready(result)
        shell.emit(result, as_json=as_json, human=lambda: _say_ready(config, port))
        sys.stdout.flush()

    with ready.ready_file(ready_file) as write_ready:
        serve.serve(coordinator, config, announce)


def _say_ready(config: CoordinatorConfig, port: int) -> None:
    say(f"Ready at {config.address} (port {port}). What each task shows: `privacy report`. Ctrl-C stops.")


@config_app.command("show")
def config_show(home: Home, as_json: Json = False) -> None:
    """Print every setting with its value and where it came from.

    Example: mien-coordinator config show --home C
    """
    resolved = CoordinatorHome(home).resolve()
    values = shown(resolved.config)
    result = {name: {"value": value, "origin": resolved.origins[name]} for name, value in values.items()}

    def human() -> None:
        columns = (Column("setting"), Column("value", folds=True), Column("from", 1))
        rows = [(name, repr(value), resolved.origins[name]) for name, value in values.items()]
        shell.OUT.print(listing(columns, rows, shell.OUT.width))

    shell.emit(result, as_json=as_json, human=human)


@config_app.command("reference")
def config_reference(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for docs.")] = False,
    as_json: Json = False,
) -> None:
    """Print every setting with its default, its limits and what it means; needs no folder.

    Example: mien-coordinator config reference
    """
    from coordinator.home.config import LIMITS

    show_reference(CoordinatorConfig, LIMITS, as_markdown=as_markdown, as_json=as_json)


@operator_app.command("renew")
def operator_renew(home: Home, as_json: Json = False) -> None:
    """Give this folder's owner new operator credentials, valid for a year.

    Example: mien-coordinator operator renew --home C
    """
    from coordinator.home.home import write_operator

    coordinator = CoordinatorHome(home)
    certificate = write_operator(coordinator, coordinator.authority(), now())
    _enter_certificate(coordinator, "coordinator", certificate)
    path = str(coordinator.operator_path)
    shell.emit({"certificate": path}, as_json=as_json, human=lambda: say(f"Renewed: {path}"))


@operator_app.command("sign")
def operator_sign(
    csr: Annotated[Path, typer.Argument(help="The operator's certificate request (PEM).")],
    home: Home,
    name: Annotated[str, typer.Option(help="The operator's name, as the history will show it.")],
    out: Annotated[Path, typer.Option(help="Where to write the certificate.")],
    as_json: Json = False,
) -> None:
    """Sign credentials for an operator whose key stays elsewhere.

    Example: mien-coordinator operator sign alice.csr --name alice --out alice.pem
    """
    from coordinator.keys import pki

    coordinator = CoordinatorHome(home)
    authority = coordinator.authority()
    certificate = pki.issue_operator_leaf_for_csr(authority, read_pem(csr), name, now())
    _enter_certificate(coordinator, name, certificate)
    write_atomically(out, pki.to_pem(certificate) + authority.certificate_pem)
    shell.emit({"certificate": str(out), "name": name}, as_json=as_json, human=lambda: say(f"Certificate: {out}"))


def _enter(home: CoordinatorHome, action: str, subject: str, **detail: object) -> None:
    """Enter a deed of this command in the audit log, beside a coordinator that may be running."""
    from coordinator.store.audit import local_actor
    from coordinator.store.store import Store
    from mien.shell.clock import Clock

    store = Store.open(home.database_url(home.resolve().config), Clock())
    try:
        store.log(local_actor(), action, subject, detail)
    finally:
        store.close()


def _enter_certificate(home: CoordinatorHome, name: str, certificate: x509.Certificate) -> None:
    """Enter an operator's certificate in the audit log."""
    from coordinator.keys import pki

    ends = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
    _enter(home, "operator.certify", name, certificate_sha256=pki.fingerprint(certificate), until=ends)


@app.command()
def doctor(home: Home, as_json: Json = False) -> None:
    """Check folder, keys, certificates, settings, disk, store, registrar and the running coordinator.

    The exit code is the first fault's. Example: mien-coordinator doctor --home C
    """
    from coordinator.commands.doctor import examine

    findings = asyncio.run(examine(CoordinatorHome(home), now))
    result: dict[str, Any] = {
        "ok": all(finding.error is None for finding in findings),
        "checks": [finding.to_mapping() for finding in findings],
    }

    def human() -> None:
        rows = [found(finding.name, finding.detail, is_fault=finding.error is not None) for finding in findings]
        shell.OUT.print(facts("check", "result", rows))

    shell.emit(result, as_json=as_json, human=human)
    errors = [finding.error for finding in findings if finding.error is not None]
    if errors:
        raise typer.Exit(TABLE[type(errors[0])].exit_code)


def main() -> None:
    """Run mien-coordinator."""
    shell.run(app)


if __name__ == "__main__":
    main()
