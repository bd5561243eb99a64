"""A registrar and a coordinator on this machine that trust each other, made as their operators would make them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulation.demo.programs import Programs, free_ports

COORDINATOR: Final = "coordinator"
"""The name under which the coordinator's program, folder and log go."""

OPERATOR: Final = "operator"
"""The folder with the operator's credentials for the registrar."""

_INVITES_PER_DAY: Final = 1_000_000  # all phones of a demo are invited at once


def start_servers(folder: Path, programs: Programs) -> None:
    """Make both servers' folders in `folder`, start them, and return when they answer."""
    join, admin, rounds = (f"127.0.0.1:{port}" for port in free_ports(3))
    registrar, coordinator = str(folder / "registrar"), str(folder / COORDINATOR)
    call = programs.call
    call("mien-registrar", "init", "--home", registrar, "--address", join, "--listen", join,
         "--admin-address", admin, "--admin-listen", admin, "--coordinator-address", rounds)  # fmt: skip
    call("mien-coordinator", "init", "--home", coordinator, "--address", rounds, "--listen", rounds,
         "--registrar-ca", f"{registrar}/ca.pem", "--registrar-address", join,
         "--registrar-admin-address", admin)  # fmt: skip
    call("mien-registrar", "trust-coordinator", f"{coordinator}/ca.pem", "--home", registrar)
    call("mien-registrar", "operator", "folder", str(folder / OPERATOR), "--name", "demo", "--home", registrar)
    with (folder / "registrar" / "registrar.toml").open("a", encoding="utf-8") as settings:
        settings.write(f"invites_per_day = {_INVITES_PER_DAY}\n")
    programs.start("registrar", "mien-registrar", "serve", "--home", registrar)
    programs.wait_for_port("registrar", join)
    programs.start(COORDINATOR, "mien-coordinator", "serve", "--home", coordinator)
    programs.wait_for_port(COORDINATOR, rounds)
