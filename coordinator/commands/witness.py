"""The verbs `witness` of the registrar's program: a witness of somebody else's log, on a machine of one's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from mien.shell import cli as shell
from mien.shell import logs
from mien.shell.cli import say

APP: Final = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Witness other people's logs of rounds: cosign what only ever grows. Needs no registrar.",
)

Home = Annotated[Path, typer.Option(help="The witness's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]


@APP.command("init")
def init(
    home: Home,
    log: Annotated[
        list[str], typer.Option(help="A log's key (NAME+ID+KEY), as mien-coordinator log verify prints it.")
    ],
    as_json: Json = False,
) -> None:
    """Make a witness's folder and key where there are none, and add logs to what it cosigns.

    Example: mien-registrar witness init --home W --log mien-log-4f0c...
    """
    from coordinator.registrar.public_witness import WitnessHome
    from mien.errors import ConfigError
    from mien.log.checkpoints import NoteKey

    os.umask(0o077)
    keys = [NoteKey.parse(text) for text in log]
    if wrong := [key.name for key in keys if key.is_witness]:
        raise ConfigError(f"{wrong[0]} is a witness's key; name a log's")
    made = WitnessHome(home)
    key = made.make()
    made.add(keys)

    def human() -> None:
        say(f"Witness in {home}. Its key, for the registrar's and the coordinator's operators:")
        say(str(key))
        say(f"Next: mien-registrar witness serve --home {home}")

    shell.emit({"home": str(home), "key": str(key), "logs": sorted(made.logs())}, as_json=as_json, human=human)


@APP.command("serve")
def serve(
    home: Home,
    listen: Annotated[
        str, typer.Option(help="host:port; face the internet through a web server with TLS.")
    ] = "127.0.0.1:7450",
    ready_file: Annotated[Path | None, typer.Option(help="Holds address and process id while ready.")] = None,
    as_json: Json = False,
) -> None:
    """Cosign until SIGTERM; whoever asks learns nothing but signatures.

    Example: mien-registrar witness serve --home W --listen 127.0.0.1:7450
    """
    from coordinator.home.settings import check_address
    from coordinator.registrar import public_witness
    from mien.shell import ready

    check_address("--listen", listen, example="127.0.0.1:7450", lowest_port=0)
    logs.configure(as_json=as_json)

    def announce(url: str) -> None:
        result = {"ready": True, "url": url, "pid": os.getpid()}
        write_ready(result)
        shell.emit(result, as_json=as_json, human=lambda: say(f"Ready at {url}. Ctrl-C stops."))
        sys.stdout.flush()

    with ready.ready_file(ready_file) as write_ready:
        public_witness.serve(public_witness.WitnessHome(home), listen, announce)
