"""Folders that `--out` names: no command writes its records over those of another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mien.errors import AlreadyExistsError

KNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "experiment.json": "a run of mien-sim run",
        "sweep.json": "a sweep",
        "study.json": "a reproduction",
        "phones.json": "the records of mien-sim phones",
        "summary.json": "the records of mien-sim fleet",
        "leakage.md": "a study of what the server can learn",
    }
)
"""The file by which the folder of each command is known."""


def refuse_others(folder: Path, *, but: str = "") -> None:
    """Raise AlreadyExistsError for a folder that holds a command's records, except those known by the file `but`."""
    for name, what in KNOWN.items():
        if name != but and (folder / name).exists():
            raise AlreadyExistsError(f"{folder} holds {what}, which stay; name another folder with --out")
