"""The verb `log` of the coordinator's program: the log of rounds, checked, and written out for anybody to check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coordinator.commands.both import Program, options
from mien.errors import TABLE, NotFoundError, TransparencyError
from mien.format import several
from mien.shell import cli as shell
from mien.shell.cli import say
from mien.shell.files import storage_errors, write_atomically

if TYPE_CHECKING:
    import sqlalchemy as sa

    from coordinator.store.round_log import LoggedEntry
    from coordinator.store.store import Store

CHECKPOINT: Final = "checkpoint"
KEY: Final = "key"
ENTRIES: Final = "entries.jsonl"


def log_app(program: Program) -> typer.Typer:
    """Return the verbs of the log of rounds, whether the server runs or not."""
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The public log of rounds and certificates.")
    Home, Json, words = options(program)

    @app.command(
        help="Check the log against its own hashes: a changed or missing entry is named, and the exit code is 20. An "
        "entry that contradicts others (a round over a model that no round made, say) is named with exit code 47.\n\n"
        + program.example(f"log verify --home {words.folder}")
    )
    def verify(*, home: Path = Home, as_json: bool = Json) -> None:
        from coordinator.keys.note_keys import log_signer
        from coordinator.store import round_log
        from mien.log.monitor import compare

        folder = program.home(home)
        key = log_signer(folder.authority()).key
        with folder.store() as store:
            size, root = store.round_log(round_log.verify)
            head = store.round_log(round_log.read_head)
            faults, remarks = compare(each.entry.data for each in _entries(store, size))

        def human() -> None:
            say(
                f"The log holds: {several(size, 'entry', 'entries')}, root {root.hex()}. Cosigned by the "
                f"registrar: {head.cosigned_size}."
            )
            say(f"Its key, for monitors and further witnesses: {key}")
            for remark in remarks:
                say(f"Note: {remark}")
            for fault in faults:
                say(f"FAULT: {fault}")

        answer = {
            "verifies": not faults,
            "entries": size,
            "root": root.hex(),
            "cosigned_entries": head.cosigned_size,
            "key": str(key),
            "faults": list(faults),
            "remarks": list(remarks),
        }
        shell.emit(answer, as_json=as_json, human=human)
        if faults:
            raise typer.Exit(TABLE[TransparencyError].exit_code)

    @app.command(
        help="Write what the registrar cosigned into a folder: serve its files with any web server, and everybody can "
        "check them with `mien-sim log-monitor`. They hold hashes, model ids and populations, nothing of people.\n\n"
        + program.example(f"log export --out /var/www/mien-log --home {words.folder}")
    )
    def export(
        *,
        home: Path = Home,
        out: Annotated[Path, typer.Option(help="The folder; made where it is missing.")],
        as_json: bool = Json,
    ) -> None:
        from coordinator.keys.note_keys import log_signer
        from coordinator.store import round_log
        from mien.log.checkpoints import Checkpoint, Note

        folder = program.home(home)
        key = log_signer(folder.authority()).key
        with folder.store() as store:
            note = store.round_log(round_log.read_head).cosigned
            if not note:
                raise NotFoundError(
                    "the registrar has cosigned nothing of this log yet; set registrar_address, and start both servers"
                )
            size = Checkpoint.parse(Note.parse(note).text).size
            lines = b"".join(json.dumps(each.entry.data.decode()).encode() + b"\n" for each in _entries(store, size))
        with storage_errors(str(out)):
            out.mkdir(parents=True, exist_ok=True)
        # The checkpoint last: who reads meanwhile finds more entries than it names, and never fewer.
        for name, data in ((ENTRIES, lines), (KEY, f"{key}\n".encode()), (CHECKPOINT, note.encode())):
            write_atomically(out / name, data)
        answer = {"folder": str(out), "entries": size}
        shell.emit(answer, as_json=as_json, human=lambda: say(f"Wrote {several(size, 'entry', 'entries')} into {out}."))

    return app


def _entries(store: Store, size: int) -> Iterator[LoggedEntry]:
    """Yield the first `size` entries."""
    from coordinator.store import round_log

    position = 0

    def some(db: sa.Connection) -> list[LoggedEntry]:
        return round_log.read(db, position)

    while position < size:
        found = store.round_log(some)[: size - position]
        yield from found
        position += len(found)
