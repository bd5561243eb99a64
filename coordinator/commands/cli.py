"""mien-coordinator: the program that runs rounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coordinator.commands import (
    both,
    dashboard,
    devices,
    fleet,
    models,
    privacy,
    quickstart,
    release_key,
    replicas,
    tasks,
)
from coordinator.commands.audit import audit_app
from coordinator.commands.common import Home, Json, now, read_pem
from coordinator.commands.log import log_app
from coordinator.home.config import LIMITS, CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from mien.errors import ConfigError
from mien.shell import cli as shell
from mien.shell.cli import say

if TYPE_CHECKING:
    from coordinator.commands.doctor import CoordinatorChecks
    from coordinator.home.coordinator_backup import CoordinatorBackup

# Imported by the commands that need them: server, store and client are most of the start-up time.

FIRST_TIME: Final = """
To try everything out on one machine, with a model, invites and a task at hand:

  mien-coordinator quickstart ./fleet

Setting up for the first time, with a registrar in R and this coordinator in C (mien-registrar --help has its half):

  mien-coordinator init --home C --address coordinator.example:7443 --registrar-ca R/ca.pem
  --registrar-address registrar.example:7440

  mien-registrar trust-coordinator C/ca.pem --home R

  mien-coordinator serve --home C
"""


def _backup() -> type[CoordinatorBackup]:
    from coordinator.home.coordinator_backup import CoordinatorBackup

    return CoordinatorBackup


def _checks() -> type[CoordinatorChecks]:
    from coordinator.commands.doctor import CoordinatorChecks

    return CoordinatorChecks


PROGRAM: Final = both.Program(
    CoordinatorHome,
    LIMITS,
    _backup,
    _checks,
    both.Words(
        folder="C",
        copy="D",
        operator_name="The operator's name, as the history will show it.",
        backup="Write keys, settings, database, models and rounds under way to one file under a password.",
        restore="Make a coordinator's folder of a backup; the folder must be new or empty.",
        doctor="Check folder, keys, certificates, settings, disk, store, registrar and the running coordinator.\n\n"
        "The exit code is the first fault's. ",
        json="Print JSON for machines.",
    ),
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run training rounds on phones: tasks, models, devices.\n" + FIRST_TIME,
)
app.add_typer(tasks.app, name="task")
app.add_typer(devices.app, name="device")
app.add_typer(models.app, name="model")
app.add_typer(fleet.app, name="fleet")
app.add_typer(release_key.app, name="release-key")
app.add_typer(privacy.app, name="privacy")
app.add_typer(audit_app(PROGRAM), name="audit")
app.add_typer(log_app(PROGRAM), name="log")
app.add_typer(replicas.app, name="replica")
app.add_typer(dashboard.app, name="dashboard")
app.command()(quickstart.quickstart)
both.add_backups(app, PROGRAM)
both.add_move(app, PROGRAM)
app.add_typer(both.config_app(PROGRAM), name="config")
app.add_typer(both.operator_app(PROGRAM, help="Credentials for operators."), name="operator")


@app.command()
def init(
    home: Home,
    address: Annotated[str, typer.Option(help="host:port where devices and operators reach this coordinator.")],
    listen: Annotated[
        str, typer.Option(help="Where to listen; default: every interface, unless the address is local.")
    ] = "",
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
    made = CoordinatorHome.create(home, config, now())
    trusted = None if registrar_pem is None else made.trust(registrar_pem, replace=False)
    from coordinator.keys import pki
    from coordinator.serve import open_stores
    from mien.shell.clock import Clock

    stores = open_stores(made, config, Clock())
    stores.thread.close()
    stores.store.close()
    if trusted is not None:
        both.enter(made, "registrar.trust", trusted)
    ca_sha256 = pki.fingerprint(made.ca())
    result = {
        "home": str(home),
        "ca": str(made.ca_path),
        "ca_sha256": ca_sha256,
        "registrar_ca_sha256": trusted,
    }

    def human() -> None:
        say(f"Coordinator created in {home}. Its public certificate: {made.ca_path}")
        say(f"CA fingerprint (SHA-256): {ca_sha256}")
        if trusted is None:
            if not registrar_address:
                say(f"Next: set registrar_address in {made.config_path}, else revoked devices are not noticed, then")
            say(f"Next: mien-coordinator trust-registrar <registrar's folder>/ca.pem --home {home}, then")
        say(f"Next: mien-registrar trust-coordinator {made.ca_path} --home <registrar's folder>")
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
    fingerprint = coordinator.trust(read_pem(registrar_ca), replace=replace)
    both.enter(coordinator, "registrar.trust", fingerprint)

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

    coordinator = CoordinatorHome(home)
    if advice := coordinator.registrar_key_advice():
        typer.echo(advice, err=True)

    def told(config: CoordinatorConfig, port: int) -> tuple[dict[str, object], str]:
        what = f"Ready at {config.address} (port {port}). What each task shows: `privacy report`. Ctrl-C stops."
        return {"port": port}, what

    both.serve(coordinator, {"listen": listen}, ready_file, serve.serve, told, as_json=as_json)


both.add_doctor(app, PROGRAM)


def main() -> None:
    """Run mien-coordinator."""
    shell.run(app)


if __name__ == "__main__":
    main()
