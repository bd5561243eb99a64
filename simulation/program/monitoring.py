"""A monitor of a log of rounds: reads what `mien-coordinator log export` wrote, and remembers what it saw."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mien.errors import ConfigError, CorruptDataError, TransparencyError, UnreachableError
from mien.log.checkpoints import MAX_NOTE_BYTES, Note, NoteKey
from mien.log.entries import MAX_ENTRY_BYTES
from mien.log.monitor import Findings, examine
from mien.protocol.canonical import parse_json, to_canonical_json
from mien.shell.files import read_limited, write_atomically

TIMEOUT_S: Final = 60.0
MAX_ENTRIES_BYTES: Final = 2**31
_MAX_EVIDENCE_BYTES: Final = 2**20


def look(source: str, *, witness: str = "", evidence: Sequence[Path] = (), state: Path | None = None) -> Findings:
    """Return what is found in the log at a URL or in a folder; `state` remembers the newest checkpoint.

    Raises TransparencyError for what is no log, or whose key is another than the one that was remembered;
    UnreachableError where nobody answers.
    """
    key = NoteKey.parse(_text(source, "key", MAX_NOTE_BYTES))
    note = _text(source, "checkpoint", MAX_NOTE_BYTES)
    lines = _text(source, "entries.jsonl", MAX_ENTRIES_BYTES).splitlines()
    seen = _remembered(state)
    if seen.get("key", str(key)) != str(key):
        raise TransparencyError("the log has another key than when it was looked at before: it was begun anew")
    kept = [each for path in evidence for each in _evidence(path)]
    earlier = [str(seen["note"])] if "note" in seen else []
    found = examine(
        (_entry(line) for line in lines),
        note,
        key,
        witness=NoteKey.parse(witness) if witness else None,
        earlier=earlier,
        kept=kept,
    )
    if state is not None and not found.faults:
        write_atomically(state, to_canonical_json({"key": str(key), "note": str(Note.parse(note))}))
    return found


def _text(source: str, name: str, most_bytes: int) -> str:
    """Return one file of the log."""
    try:
        if source.startswith(("https://", "http://")):
            with urllib.request.urlopen(f"{source.rstrip('/')}/{name}", timeout=TIMEOUT_S) as answer:  # noqa: S310
                data: bytes = answer.read(most_bytes + 1)
        else:
            data = read_limited(Path(source) / name, most_bytes, what=name)
    except OSError as error:
        raise UnreachableError(f"{source} gives no {name} of a log ({error}); check the address") from error
    if len(data) > most_bytes:
        raise CorruptDataError(f"{name} is longer than {most_bytes} bytes; this is no log of rounds")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise TransparencyError(f"{name} is no file of a log of rounds; check the address") from error


def _entry(line: str) -> bytes:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, str) or len(entry) > MAX_ENTRY_BYTES:
        raise TransparencyError("the log's file of entries has a line that is none; export it again")
    return entry.encode()


def _remembered(state: Path | None) -> dict[str, Any]:
    return {} if state is None or not state.exists() else _json(state, "what the monitor remembers")


def _evidence(path: Path) -> list[dict[str, Any]]:
    what = "a phone's evidence"
    found = parse_json(read_limited(path, _MAX_EVIDENCE_BYTES, what=what), what=what)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ConfigError(f"{path} is not {what}; name another file")
    return found


def _json(path: Path, what: str) -> dict[str, Any]:
    found = parse_json(read_limited(path, _MAX_EVIDENCE_BYTES, what=what), what=what)
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not {what}; name another file")
    return found
