"""The subcommands of mien-coordinator, by what they are about."""

from __future__ import annotations

from mien.shell.exits import start


def coordinator() -> None:
    """Run mien-coordinator."""
    start("coordinator.commands.cli", extra="coordinator")


def registrar() -> None:
    """Run mien-registrar."""
    start("coordinator.commands.registrar_cli", extra="coordinator")
