"""The audit log: whether its chain holds, and who did what, to filter and to page through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import sqlalchemy as sa

from coordinator.dashboard.chain import ChainState
from coordinator.dashboard.views.common import entry_page, listed, task_names
from coordinator.dashboard.words import detail_words, subject_words, who
from coordinator.store.tables import AUDIT
from mien.format import count, moment
from mien.log.audit import Entry
from mien.shell.pages import Cell, Choice, Empty, Facts, Filter, Page, Pager, Section, Table, columns

PAGE_ROWS: Final = 50
_FAMILIES: Final = (
    ("", "everything"),
    ("task.", "tasks"),
    ("round.", "rounds"),
    ("model.", "models and releases"),
    ("gates.", "gates"),
    ("rollout.", "staged roll-outs"),
    ("ledger.", "privacy ledger"),
    ("server.", "starts and stops"),
    ("operator.", "operators' credentials"),
    ("backup.", "backups"),
    ("revocations.", "revocation lists"),
)


@dataclass(frozen=True)
class Query:
    """A query of the log: by actor, kind of action, subject; behind (`before`) or ahead of (`after`) a place."""

    actor: str = ""
    action: str = ""
    subject: str = ""
    before: int = 0
    after: int = 0

    def address(self, **changes: int) -> str:
        """Return the page's address with another place in the log."""
        values = {"actor": self.actor, "action": self.action, "subject": self.subject, **changes}
        told = urlencode({name: value for name, value in values.items() if value})
        return f"/audit?{told}" if told else "/audit"


def audit_page(db: sa.Connection, query: Query, chain: ChainState, sign_ins: Sequence[Entry]) -> Page:
    """Return one page of the log, and the newest sign-ins here, which stand in a log of the dashboard's own."""
    entries, has_newer, has_older = _entries(db, query)
    sections: list[Section] = [_chain(chain), _filter(query)]
    if entries:
        sections.append(_table(entries, task_names(db)))
        newer = query.address(after=entries[0].position) if has_newer else ""
        older = query.address(before=entries[-1].position) if has_older else ""
        label = f"Entries {count(entries[-1].position)} to {count(entries[0].position)}"
        sections.append(Pager("pages", "Pages of the log", label, newer, older))
    else:
        sections.append(Empty("entries", "Entries", "No entry fits. Show everything again, or widen the filter."))
    sections.append(_sign_ins(sign_ins))
    lede = "Who did what, to what, when. Each entry holds the hash of the one before."
    commands = ("mien-coordinator audit head", "mien-coordinator audit verify --anchor NUMBER:HASH")
    return Page("audit", "Audit log", lede, tuple(sections), commands=commands)


def _chain(chain: ChainState) -> Facts:
    tone = "bad" if chain.problem else "good" if chain.is_whole else "busy"
    words = "does not hold" if chain.problem else "holds" if chain.is_whole else "being verified"
    items = (
        ("Chain", Cell(words, tone=tone, note=chain.words)),  # type: ignore[arg-type]
        ("Anchor", Cell(str(chain.head), is_code=True)),
    )
    note = "Write the anchor down elsewhere: only that shows a log which was cut off or written anew as a whole."
    return Facts("chain", "The chain", items, note)


def _filter(query: Query) -> Filter:
    choices = (
        Choice("action", "What", query.action, _FAMILIES),
        Choice("actor", "Who", query.actor),
        Choice("subject", "Of (an id's beginning)", query.subject),
    )
    return Filter("filter", "Filter", "/audit", choices)


def _entries(db: sa.Connection, query: Query) -> tuple[list[Entry], bool, bool]:
    """Return one page, newest first, and whether there is more on either side."""
    log = AUDIT.entries.c
    texts = ((log.actor, query.actor), (log.action, query.action), (log.subject, query.subject))
    wanted = [column.startswith(text, autoescape=True) for column, text in texts if text]
    if query.after:
        found = AUDIT.find(db, *wanted, log.position > query.after, oldest=PAGE_ROWS + 1)
        return found[:PAGE_ROWS][::-1], len(found) > PAGE_ROWS, True
    if query.before:
        wanted.append(log.position < query.before)
    found = AUDIT.find(db, *wanted, newest=PAGE_ROWS + 1)
    return found[:PAGE_ROWS], bool(query.before), len(found) > PAGE_ROWS


def _table(entries: Sequence[Entry], names: Mapping[str, str]) -> Table:
    rows = tuple(
        (
            count(entry.position),
            moment(entry.at_ms),
            who(entry.actor),
            Cell(entry.action, is_code=True),
            _subject(entry, names),
            detail_words(entry) or "–",
        )
        for entry in entries
    )
    heads = columns("Entry", "When (UTC)", "Who", "What", "Of", "Besides")
    return Table("entries", "Entries", "Entries of the audit log, the newest first", heads, rows)


def _subject(entry: Entry, names: Mapping[str, str]) -> Cell:
    """Return an entry's subject, which leads to its page where it has one."""
    return Cell(subject_words(entry, names), href=entry_page(entry))


def _sign_ins(entries: Sequence[Entry]) -> Section:
    words = {"sign_in": "signed in", "sign_out": "signed out", "refused": "was refused", "locked": "was locked out"}
    deeds = [entry.action.removeprefix("dashboard.") for entry in entries]
    rows = [
        (moment(entry.at_ms), entry.actor, words.get(deed, deed), entry.subject)
        for entry, deed in zip(entries, deeds, strict=True)
    ]
    heads = columns("When (UTC)", "Who", "What", "From")
    note = "They stand in a chain of the dashboard's own, for it may not write to the coordinator's."
    caption, nothing = "The newest sign-ins, the newest first", "Nobody has signed in yet."
    return listed("sign-ins", "Sign-ins to this dashboard", caption, heads, rows, nothing, note=note)
