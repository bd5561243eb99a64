"""A run's records: a file of JSON lines, one a round, under a header that says what ran on what, and on which machine.

Every line is on disk before the run goes on. A process that is killed while it writes leaves at most one line without
its end, which readers leave out and the next writer removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from mien.errors import AlreadyExistsError, CorruptDataError, NotFoundError
from mien.records import from_mapping, to_mapping
from mien.shell.files import read_limited, storage_errors, write_atomically
from simulation.faces import provenance

FORMAT: Final = 1
MAX_JOURNAL_BYTES: Final = 256 << 20
_CPU_INFO: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Header:
    """What a run's figures rest on: hashes of its settings and of its faces, the code's commit, command and machine."""

    experiment: str
    experiment_sha256: str
    data_sha256: str
    seed: int
    commit: str
    command: str
    machine: str
    started_at: str
    format: int = FORMAT

    @classmethod
    def now(cls, experiment: str, settings: Mapping[str, Any], data_sha256: str, seed: int) -> Header:
        """Return the header of a run that begins now, here."""
        return cls(
            experiment,
            settings_sha256(settings),
            data_sha256,
            seed,
            provenance.commit(),
            provenance.command("mien-sim"),
            machine(),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )


class Journal:
    """The file of a run's records: `records.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, header: Header) -> None:
        """Write the header, in the place of whatever there was."""
        write_atomically(self.path, _line({"kind": "header", **to_mapping(header)}))

    def header(self) -> Header:
        """Return the header; raises NotFoundError where there are no records, CorruptDataError for damaged ones."""
        first = self._lines()[0]
        if first.pop("kind") != "header" or first.get("format") != FORMAT:
            raise CorruptDataError(f"{self.path} does not begin with a header of format {FORMAT}; run it again")
        return from_mapping(Header, first)

    def rounds(self) -> list[dict[str, Any]]:
        """Return one record a round, in order; raises CorruptDataError where a round is there twice or missing."""
        return [_without_kind(line) for line in self._lines() if line["kind"] == "round"]

    def check(self, header: Header) -> None:
        """Raise AlreadyExistsError where `header` has other settings or other faces than the records that are there."""
        begun = self.header()
        for name, what in (("experiment_sha256", "settings"), ("data_sha256", "faces")):
            old, new = getattr(begun, name), getattr(header, name)
            if old != new:
                raise AlreadyExistsError(
                    f"{self.path} holds records of other {what} ({old[:12]}, now {new[:12]}), and they are not mixed; "
                    "name a new folder with --out"
                )

    def take_up(self, header: Header, last_round: int) -> None:
        """Go on after `last_round`: records of later rounds are removed, and who goes on is noted."""
        kept = [line for line in self._lines() if line["kind"] != "round" or line["round"] <= last_round]
        note = {"kind": "resumed", "after_round": last_round, **_whereabouts(header)}
        write_atomically(self.path, b"".join(map(_line, [*kept, note])))

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one round's record to the end, on disk when this returns; raises DiskFullError for a full one."""
        with storage_errors(str(self.path)), self.path.open("ab") as file:
            file.write(_line({"kind": "round", **record}))
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.is_file():
            raise NotFoundError(f"{self.path.parent} holds no run; start one with mien-sim run")
        whole, _, _unfinished = read_limited(self.path, MAX_JOURNAL_BYTES, what=self.path.name).rpartition(b"\n")
        try:
            lines = [json.loads(line) for line in whole.split(b"\n")]
        except (ValueError, RecursionError) as error:
            raise CorruptDataError(f"{self.path} is damaged; run the experiment again into a new folder") from error
        if not all(isinstance(line, dict) and isinstance(line.get("kind"), str) for line in lines):
            raise CorruptDataError(f"{self.path} holds no records; run the experiment again into a new folder")
        numbers = [line.get("round") for line in lines if line["kind"] == "round"]
        if numbers != list(range(1, len(numbers) + 1)):
            raise CorruptDataError(
                f"{self.path} holds rounds twice or out of order, as if two processes had written it; remove "
                f"{self.path.parent} and run it again"
            )
        return lines


def num_rounds(path: Path) -> int:
    """Return how many rounds a file of records holds; 0 where there is none."""
    try:
        return path.read_bytes().count(b'"kind": "round"')
    except OSError:
        return 0


def settings_sha256(settings: Mapping[str, Any]) -> str:
    """Return the digest of settings given as plain data."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def machine() -> str:
    """Return what this machine is, without its name: system, processor, cores that this process may use, versions."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (
        f"{platform.system()} {platform.machine()}, {_processor()}, {cores} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def _processor() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown processor")


def _whereabouts(header: Header) -> dict[str, str]:
    return {name: getattr(header, name) for name in ("commit", "command", "machine", "started_at")}


def _without_kind(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "kind"}


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, sort_keys=True, allow_nan=False) + "\n").encode()
