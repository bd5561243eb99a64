"""A registrar and a coordinator on this machine that trust each other, made as their operators would make them."""

from __future__ import annotations

from pathlib import Path

from simulation.demo.programs import Programs, free_ports

COORDINATOR = "coordinator"
"""The name under which the coordinator's program, folder and log go."""


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
    call("mien-registrar", "trust-coordinator", f"{coordinator}/ca.pem", "--home", registrar,
         "--csr", f"{coordinator}/registrar-operator.csr",
         "--out", f"{coordinator}/registrar-operator.pem")  # fmt: skip
    programs.start("registrar", "mien-registrar", "serve", "--home", registrar)
    programs.wait_for_port("registrar", join)
    programs.start(COORDINATOR, "mien-coordinator", "serve", "--home", coordinator)
    programs.wait_for_port(COORDINATOR, rounds)
