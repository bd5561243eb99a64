"""The program `mien-device`: its commands, its doctor, what it tells the owner, and the live view."""

from __future__ import annotations

from mien.shell.exits import start


def main() -> None:
    """Run mien-device."""
    start("device_sdk.program.cli", extra="device")
