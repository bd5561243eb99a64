"""The log of rounds: whether it holds, who cosigned its newest checkpoint, and what was entered last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from coordinator.dashboard.chain import RoundLogState
from coordinator.dashboard.views.common import listed, task_names
from coordinator.dashboard.words import ago, short
from coordinator.store import round_log
from coordinator.store.round_log import LoggedEntry, LogHead
from mien.format import count, moment
from mien.log.checkpoints import WITNESS, Note, NoteKey
from mien.protocol.ids import TaskId
from mien.secagg.planner import raw_task_id
from mien.shell.pages import Cell, Facts, Page, Section, columns

NEWEST: Final = 100
OLD_S: Final = 3600
"""A cosignature of the newest checkpoint that is older is a fault: phones go on without the registrar for as long."""

_LEDE: Final = (
    "What phones compare: statements of rounds, their rosters and results, releases, and hashes of certificates, in a "
    "tree that is only ever added to. A phone trains on nothing that is not in it."
)
_KINDS: Final = {
    "task": "model that a task begins with",
    "round": "statement of a round",
    "roster": "rosters of a round",
    "result": "result of a round",
    "certificate": "certificate that was issued",
    "release": "release",
}


def log_page(db: sa.Connection, state: RoundLogState, named: Sequence[NoteKey], now_ms: int) -> Page:
    """Return the page; `named` are the further witnesses that the settings name."""
    head = round_log.read_head(db)
    sections = (_tree(db, head, state), _cosignatures(head, named, now_ms), _entries(db, now_ms))
    commands = ("mien-coordinator log verify", "mien-coordinator log export --out FOLDER")
    return Page("log", "Log of rounds", _LEDE, sections, commands=commands)


def _tree(db: sa.Connection, head: LogHead, state: RoundLogState) -> Facts:
    tone = "bad" if state.problem else "good" if state.is_whole else "busy"
    words = "does not hold" if state.problem else "holds" if state.is_whole else "being verified"
    behind = head.size - head.cosigned_size
    cosigned = Cell(count(head.cosigned_size), note=f"{count(behind)} more are not yet" if behind else "all of them")
    items = (
        ("Log", Cell(words, tone=tone, note=state.words)),  # type: ignore[arg-type]
        ("Entries", Cell(count(head.size))),
        ("Root", Cell(round_log.root(db, head.size).hex(), is_code=True)),
        ("Cosigned", cosigned),
    )
    return Facts("tree", "The tree", items)


def _cosignatures(head: LogHead, named: Sequence[NoteKey], now_ms: int) -> Section:
    """Return who signed the newest checkpoint that was kept, and which of the named witnesses did not."""
    signed = Note.parse(head.cosigned).unverified_signatures if head.cosigned else ()
    times = {each.name: each.unverified_unix_s for each in signed if each.name.startswith(f"{WITNESS}-")}
    further = {key.name for key in named}
    rows = [
        (Cell(name, is_code=True), "further witness" if name in further else "registrar", _age(unix_s, now_ms))
        for name, unix_s in times.items()
    ]
    missing = Cell("not there", tone="bad")
    rows += [(Cell(name, is_code=True), "further witness", missing) for name in sorted(further - times.keys())]
    note = "Names and times as the checkpoint has them; whoever exports the log checks the signatures with log-monitor."
    nothing = "Nobody has cosigned the log yet, and phones wait. Set registrar_address, and start both servers."
    caption = "Who cosigned the newest checkpoint that is kept"
    return listed(
        "cosignatures", "Cosignatures", caption, columns("Witness", "Who", "Signed"), rows, nothing, note=note
    )


def _age(unix_s: int | None, now_ms: int) -> Cell:
    if unix_s is None:
        return Cell("without a time", tone="bad")
    is_old = now_ms - unix_s * 1000 > OLD_S * 1000
    return Cell(ago(unix_s * 1000, now_ms), tone="bad" if is_old else "good", note=moment(unix_s * 1000))


def _entries(db: sa.Connection, now_ms: int) -> Section:
    names = {raw_task_id(TaskId(task_id)).hex(): (task_id, name) for task_id, name in task_names(db).items()}
    rows = [
        (
            count(each.position),
            ago(each.at_ms, now_ms),
            _KINDS.get(each.entry.kind, each.entry.kind),
            _subject(each, names),
        )
        for each in round_log.newest(db, NEWEST)
    ]
    heads = columns("#Entry", "When", "What", "Of")
    caption, nothing = f"The newest {NEWEST} entries, the newest first", "Nothing was entered yet."
    return listed("entries", "Entries", caption, heads, rows, nothing)


def _subject(logged: LoggedEntry, tasks: Mapping[str, tuple[str, str]]) -> Cell:
    """Return what an entry is about: a task or its attempt by name, all else by the beginning of its hash.

    `tasks` are ids and names by what the log calls a task.
    """
    subject = logged.entry.subject
    if logged.entry.kind in ("task", "round", "roster", "result"):
        called, *which = subject.split("/")
        task_id, name = tasks.get(called, ("", short(called)))
        if not which:
            return Cell(name, href=f"/tasks/{task_id}" if task_id else "")
        number, attempt = which
        href = f"/tasks/{task_id}/rounds/{number}/{attempt}" if task_id else ""
        return Cell(name, href=href, note=f"round {number}, attempt {attempt}")
    href = f"/models/{subject}" if logged.entry.kind == "release" else ""
    return Cell(short(subject), href=href, is_code=True)
