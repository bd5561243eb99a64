"""Entries of the public log of rounds: canonical JSON objects of one `kind` each; hashes, and nothing of people.

::

    task         the model that a task begins with, right before the first statement of it
    round        the statement of an attempt: what all its keys are bound to, before any phone trains
    roster       the bindings (R) of the rosters that its phones are about to be sent, one of each sum
    result       the model that an attempt closed with, and the hash of what it measured
    certificate  the hash of a certificate that the registrar issued; its random serial number is the salt
    release      a model that was put in force

Each side makes the entry of what it holds itself, and compares hashes; nobody parses another's but who reads the log.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from mien.errors import TransparencyError
from mien.log.chain import canonical_json

MAX_ENTRY_BYTES: Final = 8192
KINDS: Final = ("task", "round", "roster", "result", "certificate", "release")
_OF_ATTEMPTS: Final = ("round", "roster", "result")
_OF_MODELS: Final = ("task", "round", "result")
_SUBJECTS: Final = {"task": "task", "certificate": "sha256", "release": "model_id"}


@dataclass(frozen=True)
class LogEntry:
    """One entry: its kind, the subject by which it is found again, and the bytes that the tree's leaf is of."""

    kind: str
    subject: str
    data: bytes = field(repr=False)

    @property
    def told(self) -> Mapping[str, Any]:
        """The fields of the object."""
        told: dict[str, Any] = json.loads(self.data)
        return told

    def releases(self, model_id: str, population: str | None) -> bool:
        """Return whether this is a release of a model to a population, or to all."""
        told = self.told if self.kind == "release" else {}
        return told.get("model_id") == model_id and told.get("population", "") in (None, population)

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the entry in a log's bytes; raises TransparencyError for what this program would not have written."""
        try:
            told = json.loads(data)
            kind = told["kind"]
            if kind not in KINDS or canonical_json(told) != data or len(data) > MAX_ENTRY_BYTES:
                raise ValueError
            if kind in _OF_MODELS and not (isinstance(told["task"], str) and isinstance(told["model_sha256"], str)):
                raise ValueError
            if kind in _OF_ATTEMPTS:
                return cls(kind, attempt_subject(told["task"], told["round"], told["attempt"]), data)
            return cls(kind, str(told[_SUBJECTS[kind]]), data)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TransparencyError("the log holds an entry that no program writes; tell the operator") from error


def attempt_subject(task: str, round_number: int, attempt: int) -> str:
    """Return the subject of an attempt's entries; `task` is the hex of the task's 16 bytes in a `RoundConfig`."""
    return f"{task}/{round_number}/{attempt}"


def task_entry(task: str, model_sha256: str) -> LogEntry:
    """Return the entry of a task by the model that it begins with; both as `round_entry` has them."""
    return _entry("task", task, task=task, model_sha256=model_sha256)


def round_entry(
    task: str,
    round_number: int,
    attempt: int,
    *,
    task_sha256: str,
    model_sha256: str,
    layout_sha256: str,
    statement_sha256: str,
) -> LogEntry:
    """Return the entry of an attempt's statement, by the fields of `mien.secagg.RoundConfig`, in hex."""
    return _entry(
        "round",
        attempt_subject(task, round_number, attempt),
        task=task,
        round=round_number,
        attempt=attempt,
        task_sha256=task_sha256,
        model_sha256=model_sha256,
        layout_sha256=layout_sha256,
        statement_sha256=statement_sha256,
    )


def roster_entry(task: str, round_number: int, attempt: int, bindings: Iterable[bytes]) -> LogEntry:
    """Return the entry of an attempt's rosters: the hash over their bindings, which is the same in any order."""
    digest = hashlib.sha256(b"mien/rosters/1\n" + b"".join(sorted(bindings))).hexdigest()
    subject = attempt_subject(task, round_number, attempt)
    return _entry("roster", subject, task=task, round=round_number, attempt=attempt, rosters_sha256=digest)


def result_entry(
    task: str, round_number: int, attempt: int, *, model_sha256: str, measured: Iterable[bytes] = ()
) -> LogEntry:
    """Return the entry of an attempt that closed: by the model that it made or left as it was, and what it `measured`.

    `measured_sha256` is empty where it measured nothing, else the hash over the records' hashes, in their order.
    """
    hashes = b"".join(hashlib.sha256(record).digest() for record in measured)
    return _entry(
        "result",
        attempt_subject(task, round_number, attempt),
        task=task,
        round=round_number,
        attempt=attempt,
        model_sha256=model_sha256,
        measured_sha256=hashlib.sha256(b"mien/measured/1\n" + hashes).hexdigest() if hashes else "",
    )


def certificate_entry(sha256: str) -> LogEntry:
    """Return the entry of a certificate by its hash (`certificate_sha256`)."""
    return _entry("certificate", sha256, sha256=sha256)


def certificate_sha256(der: bytes) -> str:
    """Return the salted hash of a certificate, in hex.

    Its serial number has 159 random bits, which nobody who was not shown the certificate can try.
    """
    return hashlib.sha256(b"mien/certificate/1\n" + der).hexdigest()


def release_entry(model_id: str, population: str | None, share: float) -> LogEntry:
    """Return the entry of a model that was put in force, for a population (None: for all) or a share of its phones."""
    return _entry("release", model_id, model_id=model_id, population=population, share=share)


def release_sought(model_id: str, population: str) -> LogEntry:
    """Return what a phone looks for: a release to its population, of whatever share, which is no entry of a log yet."""
    return _entry("release", model_id, model_id=model_id, population=population)


def _entry(kind: str, subject: str, **told: object) -> LogEntry:
    return LogEntry(kind, subject, canonical_json({"kind": kind, **told}))
