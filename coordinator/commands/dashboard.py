"""mien-coordinator dashboard: pages to look at in a browser, in a process of their own, and who may see them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.commands.both import PasswordFile
from coordinator.commands.common import Home, Json, fields, now
from coordinator.home.home import CoordinatorHome
from mien.errors import ConfigError
from mien.format import moment
from mien.shell import cli as shell
from mien.shell import logs
from mien.shell.cli import say
from mien.shell.clock import Clock
from mien.shell.doing import doing
from mien.shell.passwords import read_password

if TYPE_CHECKING:
    from coordinator.dashboard.accounts import Accounts

# The web framework is imported by `serve` alone: no other command pays for it.

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at it all in a browser.")
user_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Who may sign in to the dashboard.")
app.add_typer(user_app, name="user")

Name = Annotated[str, typer.Argument(help="The account's name.")]


@app.command()
def serve(
    home: Home,
    listen: Annotated[str | None, typer.Option(help="host:port to listen at, instead of dashboard_listen.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="A certificate chain (PEM) of your own.")] = None,
    key: Annotated[Path | None, typer.Option(help="The key of --certificate (PEM).")] = None,
    plain_http: Annotated[bool, typer.Option("--plain-http", help="Without TLS, on this machine only.")] = False,
    as_json: Json = False,
) -> None:
    """Show the coordinator in a browser until SIGTERM; it only reads, and runs beside mien-coordinator serve.

    Example: mien-coordinator dashboard serve --home C
    """
    from coordinator.dashboard import serve as server
    from coordinator.dashboard.home import DashboardHome

    if (certificate is None) != (key is None):
        raise ConfigError("--certificate and --key belong together; give both or neither")
    coordinator = CoordinatorHome(home)
    resolved = coordinator.resolve({"dashboard_listen": listen})
    logs.configure(as_json=as_json or resolved.config.json_logs)
    there = DashboardHome.of(coordinator)
    tls = None if plain_http else server.Tls(certificate or there.certificate_path, key or there.key_path)

    def announce(address: str) -> None:
        result = {"ready": True, "address": address, "pid": os.getpid()}
        shell.emit(result, as_json=as_json, human=lambda: say(f"The dashboard is at {address} (Ctrl-C stops it)."))
        sys.stdout.flush()

    with doing("Starting the dashboard"):
        server.serve(coordinator, resolved, tls, announce)


@app.command()
def certify(home: Home, as_json: Json = False) -> None:
    """Make the dashboard's certificate, signed by this coordinator's authority, valid for 397 days.

    A running dashboard takes it up after a restart. Example: mien-coordinator dashboard certify --home C
    """
    from coordinator.dashboard.home import DashboardHome, dashboard_names
    from coordinator.dashboard.home import certify as make
    from coordinator.keys import pki

    os.umask(0o077)
    coordinator = CoordinatorHome(home)
    config = coordinator.resolve().config
    made = make(coordinator, config, now())
    until, names = f"{made.not_valid_after_utc:%Y-%m-%d}", dashboard_names(config)
    path = str(DashboardHome.of(coordinator).certificate_path)
    result = {"certificate": path, "sha256": pki.fingerprint(made), "until": until, "names": list(names)}

    def human() -> None:
        say(f"Certificate for {', '.join(names)}, until {until}: {path}")
        say(f"SHA-256 fingerprint, as browsers show it: {pki.fingerprint(made)}")

    shell.emit(result, as_json=as_json, human=human)


@app.command()
def log(
    home: Home,
    last: Annotated[int, typer.Option(min=1, help="How many of the newest entries.")] = 50,
    as_json: Json = False,
) -> None:
    """List who signed in, was refused, or changed accounts, oldest first; raises when that log does not hold.

    Example: mien-coordinator dashboard log --home C
    """
    with _accounts(home) as accounts:
        accounts.verify()
        entries = accounts.newest(last)[::-1]
    plain = [fields(entry, "position", "at_ms", "actor", "action", "subject") for entry in entries]

    def human() -> None:
        for entry in entries:
            say(f"{entry.position:>6}  {moment(entry.at_ms)}  {entry.actor}  {entry.action}  {entry.subject}")
        if not entries:
            say("No entries.")

    shell.emit({"entries": plain}, as_json=as_json, human=human)


@user_app.command("add")
def add_user(name: Name, home: Home, password_file: PasswordFile = None, as_json: Json = False) -> None:
    """Make an account; asks for its password, of at least 12 characters.

    Example: mien-coordinator dashboard user add alice --home C
    """
    password = read_password(password_file, confirm=True)
    _change(name, home, lambda accounts, actor: accounts.add(name, password, actor=actor), "may sign in", as_json)


@user_app.command("password")
def set_password(name: Name, home: Home, password_file: PasswordFile = None, as_json: Json = False) -> None:
    """Set another password, and end the account's sessions.

    Example: mien-coordinator dashboard user password alice --home C
    """
    password = read_password(password_file, confirm=True)
    told = "has another password, and is signed out"
    _change(name, home, lambda accounts, actor: accounts.set_password(name, password, actor=actor), told, as_json)


@user_app.command("remove")
def remove_user(name: Name, home: Home, as_json: Json = False) -> None:
    """Remove an account; whoever is signed in with it is out at once.

    Example: mien-coordinator dashboard user remove alice --home C
    """
    _change(name, home, lambda accounts, actor: accounts.remove(name, actor=actor), "may no longer sign in", as_json)


@user_app.command("list")
def list_users(home: Home, as_json: Json = False) -> None:
    """List the accounts.

    Example: mien-coordinator dashboard user list --home C
    """
    with _accounts(home) as accounts:
        users = accounts.users()
    plain = [{"name": user.name, "password_set_ms": user.changed_ms} for user in users]

    def human() -> None:
        for user in users:
            say(f"{user.name}  password of {moment(user.changed_ms)}")
        if not users:
            say("No accounts. Make one: mien-coordinator dashboard user add NAME")

    shell.emit({"users": plain}, as_json=as_json, human=human)


def _change(name: str, home: Path, change: Callable[[Accounts, str], None], told: str, as_json: bool) -> None:
    """Change an account in the name of whoever runs the command, and print what is `told` of it."""
    from coordinator.store.audit import local_actor

    with _accounts(home) as accounts:
        change(accounts, local_actor())
    shell.emit({"name": name}, as_json=as_json, human=lambda: say(f"{name} {told}."))


def _accounts(home: Path) -> closing[Accounts]:
    """Return the accounts of an existing coordinator's dashboard, open while a block runs."""
    from coordinator.dashboard.accounts import Accounts
    from coordinator.dashboard.home import DashboardHome

    os.umask(0o077)
    coordinator = CoordinatorHome(home)
    coordinator.resolve()  # there is a coordinator
    return closing(Accounts.open(DashboardHome.of(coordinator).database_path, Clock()))
