"""mien-coordinator replica: which processes run this coordinator together. Reads the database itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import RenderableType

from coordinator.commands.common import Home, Json
from coordinator.commands.tables import Column, listing
from coordinator.home.home import CoordinatorHome
from mien.format import moment
from mien.shell import cli as shell
from mien.shell.cli import say

if TYPE_CHECKING:
    from coordinator.replicas.registry import Replica

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Coordinators that run as one.")


@app.command("list")
def list_replicas(home: Home, as_json: Json = False) -> None:
    """List the replicas that were heard of lately, and the populations whose tasks each of them runs.

    Example: mien-coordinator replica list --home C
    """
    from coordinator.replicas.registry import listed

    folder = CoordinatorHome(home)
    lease_s = folder.resolve().config.replica_lease_s
    with folder.store() as store:
        found = store.privacy(lambda db: listed(db, lease_s))

    def human() -> None:
        if found:
            shell.OUT.print(replica_table(found, shell.OUT.width))
        else:
            say("No replicas: this coordinator runs alone (replica_address is empty), or does not run.")

    result = {"replicas": [asdict(replica) for replica in found]}
    shell.emit(result, as_json=as_json, human=human)


def replica_table(replicas: Sequence[Replica], width: int) -> RenderableType:
    """Return replicas as a table for people, within `width` characters."""
    columns = (
        Column("id"),
        Column("address"),
        Column("state"),
        Column("runs", folds=True),
        Column("heard of", rank=1),
        Column("host", rank=2),
        Column("since", rank=3),
        Column("software", rank=4),
    )
    rows = [
        (
            replica.replica_id,
            replica.address,
            "alive" if replica.is_alive else "gone",
            ", ".join(replica.populations) or "–",
            f"{replica.silent_s:.0f} s ago",
            replica.name,
            moment(replica.started_ms),
            replica.software,
        )
        for replica in replicas
    ]
    return listing(columns, rows, width)
