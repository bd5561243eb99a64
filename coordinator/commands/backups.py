"""mien-coordinator backup and restore."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.common import Home, Json, say
from coordinator.home.home import CoordinatorHome
from mien.shell import cli as shell
from mien.shell.passwords import read_password

if TYPE_CHECKING:
    from coordinator.home.archive import Summary

PasswordFile = Annotated[Path | None, typer.Option(help="Read the password from this file's (or pipe's) first line.")]


def backup(
    file: Annotated[Path, typer.Argument(help="Where to write the backup.")],
    home: Home,
    password_file: PasswordFile = None,
    without_data: Annotated[bool, typer.Option("--without-data", help="Keys, certificates and settings only.")] = False,
    as_json: Json = False,
) -> None:
    """Write keys, settings, database, models and rounds under way to one file under a password.

    The coordinator may go on serving meanwhile. Example: mien-coordinator backup monday.mien --home C
    """
    from coordinator.home.backup import make_backup
    from mien.shell.clock import Clock

    os.umask(0o077)
    password = read_password(password_file, confirm=True, can_ask=sys.stdin.isatty())
    summary = make_backup(CoordinatorHome(home), file, password, Clock(), with_data=not without_data)
    tell(summary, f"Backup of {home} in {file}", as_json=as_json)


def restore(
    file: Annotated[Path, typer.Argument(help="The file that backup wrote.")],
    home: Home,
    password_file: PasswordFile = None,
    as_json: Json = False,
) -> None:
    """Make a coordinator's folder of a backup; the folder must be new or empty.

    Never run the restored coordinator beside the one that it was copied from.
    Example: mien-coordinator restore monday.mien --home D
    """
    from coordinator.home.backup import restore_backup
    from mien.shell.clock import Clock

    os.umask(0o077)
    password = read_password(password_file, confirm=False, can_ask=sys.stdin.isatty())
    summary = restore_backup(file, CoordinatorHome(home), password, Clock())
    tell(summary, f"Restored to {home}", as_json=as_json)


def tell(summary: Summary, what: str, *, as_json: bool, **more: object) -> None:
    """Say what a backup holds, and with --json what more there is to say."""
    head = None if summary.audit_head is None else str(summary.audit_head)
    result: dict[str, Any] = {
        "files": summary.files,
        "size_bytes": summary.size_bytes,
        "created_unix_s": summary.created_unix_s,
        "audit_head": head,
        **more,
    }

    def human() -> None:
        created = f"{datetime.fromtimestamp(summary.created_unix_s, UTC):%Y-%m-%d %H:%M} UTC"
        say(f"{what}: {summary.files} files, {summary.size_bytes / 1e6:.1f} MB, as of {created}.")
        say("It holds keys, certificates and settings only." if head is None else f"The audit log stood at {head}")

    shell.emit(result, as_json=as_json, human=human)
