"""mien-coordinator release-key: make and name the key that signs releases; neither asks the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.commands.common import Json
from mien.shell import cli as shell
from mien.shell.cli import say

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The key that signs releases. Keep it off the coordinator."
)


@app.command()
def init(
    out: Annotated[Path, typer.Argument(help="A new file for the key, on a machine or stick of its own.")],
    as_json: Json = False,
) -> None:
    """Make a release key. Whoever has it decides what phones run: keep it offline, and a copy elsewhere.

    Example: mien-coordinator release-key init release.key
    """
    from coordinator.release.signing import create_key

    create_key(out)
    _tell(out, as_json)


@app.command()
def show(
    key: Annotated[Path, typer.Argument(help="The key's file.")],
    as_json: Json = False,
) -> None:
    """Print the public half, which goes into the settings of registrar and coordinator.

    Example: mien-coordinator release-key show release.key
    """
    _tell(key, as_json)


def _tell(path: Path, as_json: bool) -> None:
    from coordinator.release.signing import read_key
    from mien.models.bundles import name_of

    name = name_of(read_key(path))

    def human() -> None:
        say(f"Release key {name}.")
        say(f'Put release_key = "{name}" into registrar.toml and coordinator.toml, and restart both.')

    shell.emit({"release_key": name, "file": str(path)}, as_json=as_json, human=human)
