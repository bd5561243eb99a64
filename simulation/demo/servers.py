"""A registrar and a coordinator on this machine that trust each other, made as their operators would make them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from coordinator.commands.invites import ask_registrar
from coordinator.operator.registrar_client import RegistrarAdmin
from coordinator.registrar.home import RegistrarHome
from coordinator.release.signing import create_key
from mien.models.bundles import name_of
from simulation.demo.programs import Programs, free_ports

COORDINATOR: Final = "coordinator"
"""The name under which the coordinator's program, folder and log go."""

OPERATOR: Final = "operator"
"""The folder with the operator's credentials for the registrar."""

_INVITES_PER_DAY: Final = 1_000_000  # all phones of a demo are invited at once

RELEASE_KEY: Final = "release.key"
"""The file that signs releases, where there is one; an operator keeps it on a machine that stays offline."""


def start_servers(folder: Path, programs: Programs, *, signed: bool = False) -> None:
    """Make both servers' folders in `folder`, start them, and return when they answer.

    With `signed` phones take only releases that the new key `RELEASE_KEY` in `folder` has signed.
    """
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
    lines = {"registrar": f"invites_per_day = {_INVITES_PER_DAY}\n", COORDINATOR: ""}
    if signed:
        key = f'release_key = "{name_of(create_key(folder / RELEASE_KEY))}"\n'
        lines = {server: line + key for server, line in lines.items()}
    for server, line in lines.items():
        settings = folder / server / f"{server}.toml"
        settings.write_text(line + settings.read_text(encoding="utf-8"), encoding="utf-8")
    programs.start("registrar", "mien-registrar", "serve", "--home", registrar)
    programs.wait_for_port("registrar", join)
    programs.start(COORDINATOR, "mien-coordinator", "serve", "--home", coordinator)
    programs.wait_for_port(COORDINATOR, rounds)


def make_invites(operator: Path, count: int, *, note: str, population: str = "default") -> list[str]:
    """Return invites, a phone each, that an operator's folder has the registrar make."""

    async def story(admin: RegistrarAdmin) -> list[str]:
        return [(await admin.create_invite(population, note=note)).url for _ in range(count)]

    return ask_registrar(RegistrarHome(operator), story)
