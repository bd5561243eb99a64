"""Texts of the dashboard: ids, times, states, steps, and entries of the audit log in words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from mien.format import duration, several
from mien.log.audit import Entry
from mien.shell.pages import Cell, Tone

TASK_TONES: Final[Mapping[str, Tone]] = {
    "running": "busy",
    "checking": "busy",
    "paused": "warn",
    "done": "good",
    "cancelled": "plain",
    "failed": "bad",
}
MODEL_TONES: Final[Mapping[str, Tone]] = {
    "released": "good",
    "candidate": "busy",
    "rejected": "bad",
    "retired": "plain",
    "round": "plain",
}
STAGE_WORDS: Final[Mapping[str, str]] = {
    "selecting": "Choosing phones",
    "training": "Training on the phones",
    "keys": "Fresh keys",
    "shares": "Shares of the keys",
    "upload": "Masked updates arrive",
    "consistency": "All sign whose sum it is",
    "unmask": "Opening the sum",
    "closing": "Making the next model",
    "closed": "Closed",
    "aborted": "Aborted",
}
STEP_WORDS: Final[Mapping[str, str]] = {
    "selected": "was chosen",
    "trained": "trained",
    "keyed": "sent keys",
    "shared": "shared keys",
    "uploaded": "sent its update",
    "agreed": "signed the sum",
    "released": "helped to open the sum",
    "gone": "sent its update, then was lost",
    "late": "was late",
    "left": "left",
}
_ACTIONS: Final[Mapping[str, str]] = {
    "server.start": "The coordinator started",
    "server.stop": "The coordinator stopped",
    "task.submit": "{task} was submitted",
    "task.paused": "{task} paused",
    "task.running": "{task} runs",
    "task.checking": "{task} waits for its gates",
    "task.cancelled": "{task} was cancelled",
    "task.done": "{task} is done",
    "task.failed": "{task} failed",
    "task.left_out": "{task} leaves out a phone that spoiled its sums",
    "round.closed": "{task}: round {round} closed",
    "round.aborted": "{task}: round {round} was aborted (attempt {attempt})",
    "model.release": "Model {model} was released",
    "model.rollback": "Rolled back to model {model}",
    "rollout.start": "The roll-out of model {model} began",
    "rollout.passed": "The roll-out of model {model} passed a stage",
    "rollout.held": "The roll-out of model {model} is held",
    "rollout.done": "The roll-out of model {model} is done",
    "rollout.rolled_back": "The roll-out of model {model} was rolled back",
    "rollout.stopped": "The roll-out of model {model} was stopped",
    "gates.passed": "Model {model} passed its gates",
    "gates.failed": "Model {model} failed its gates",
    "gates.unjudged": "The gates could not judge model {model}",
}
NOTEWORTHY: Final = frozenset(_ACTIONS)
"""Actions that are worth telling whoever looks at a page."""


_LONG_HEX: Final = re.compile(r"[0-9a-f]{32,64}")
_HOURS_S: Final = 2 * 3600.0
_DAYS_S: Final = 2 * 86_400.0


def short(identity: str, digits: int = 12) -> str:
    """Return the beginning of an id, enough for the command line to find it."""
    return identity[:digits]


def phone(device_id: str) -> Cell:
    """Return a phone as pages show it: the beginning of its id, nothing else is known of it."""
    return Cell(device_id[:8] + "…", is_code=True)


def who(actor: str) -> str:
    """Return an actor of the audit log, a phone's id shortened."""
    kind, colon, name = actor.partition(":")
    return f"device:{name[:8]}…" if colon and kind == "device" else actor


def ago(at_ms: int | None, now_ms: int) -> str:
    """Return how long ago something was, roughly."""
    if not at_ms:
        return "never"
    seconds = max((now_ms - at_ms) / 1000, 0.0)
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (129_600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f}\u00a0{unit}\u00a0ago"
    return f"{seconds / 86_400:.0f}\u00a0days\u00a0ago"


def since(start_ms: int, end_ms: int | None, now_ms: int) -> str:
    """Return how long something took, or takes so far."""
    took = lasting(max((end_ms or now_ms) - start_ms, 0) / 1000)
    return took if end_ms else f"{took} so far"


def lasting(seconds: float) -> str:
    """Return a duration as one looks at it: 8.4 s, 3 min 20 s, 5 h 12 min, 19 days."""
    if seconds < _HOURS_S:
        return duration(seconds)
    if seconds < _DAYS_S:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes:02d} min"
    return several(round(seconds / 86_400), "day")


def task_badge(state: str) -> Cell:
    """Return a task's state."""
    return Cell(state, tone=TASK_TONES.get(state, "plain"))


def stage_badge(stage: str, reason: str = "") -> Cell:
    """Return the stage of an attempt."""
    tone: Tone = {"closed": "good", "aborted": "bad"}.get(stage, "busy")  # type: ignore[assignment]
    return Cell(stage, tone=tone, note=reason)


def rate(value: float) -> str:
    """Return a small rate as people write it: 0.001, or 1e-05."""
    return f"{value:g}"


def told(entry: Entry, task_names: Mapping[str, str]) -> str:
    """Return an entry of the audit log as one sentence."""
    task_id, _, rest = entry.subject.partition("/")
    round_, _, attempt = rest.partition("/")
    values = {
        "task": f"Task {task_names.get(task_id, short(task_id))}",
        "round": round_,
        "attempt": attempt,
        "model": short(entry.subject),
    }
    sentence = _ACTIONS.get(entry.action, "{action} {subject}").format_map(
        {**values, "action": entry.action, "subject": short_subject(entry.subject)}
    )
    reason = details(entry).get("reason")
    return f"{sentence}: {reason}" if reason else sentence


def details(entry: Entry) -> dict[str, Any]:
    """Return the details of an entry of the audit log."""
    found: dict[str, Any] = json.loads(entry.detail_json)
    return found


def short_subject(subject: str) -> str:
    """Return the subject of an audit entry with its ids shortened."""
    return "/".join(part[:12] + "…" if _LONG_HEX.fullmatch(part) else part for part in subject.split("/"))


def subject_words(entry: Entry, task_names: Mapping[str, str]) -> str:
    """Return the subject of an entry: a task by its name, with round and attempt."""
    task_id, *place = entry.subject.split("/")
    if task_id not in task_names:
        return short_subject(entry.subject)
    return ", ".join(
        [task_names[task_id], *(f"{what} {n}" for what, n in zip(("round", "attempt"), place, strict=False))]
    )


def detail_words(entry: Entry) -> str:
    """Return the details of an entry, ids and hashes shortened."""
    told = {name.replace("_", " "): value for name, value in details(entry).items() if value not in ("", None)}
    return ", ".join(f"{name} {short_subject(str(value))}" for name, value in told.items())
