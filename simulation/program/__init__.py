"""The program `mien-sim` and the worker that the coordinator starts."""

from __future__ import annotations

from mien.shell.exits import start


def main() -> None:
    """Run mien-sim."""
    start("simulation.program.cli", extra="simulation")
