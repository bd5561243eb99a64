"""Lines of published lists: what all readers of text formats share, errors with file and line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mien.errors import CorruptDataError

_PATH: Final = re.compile(r"[^\s/\\][^\r\n\\]*")


def numbered_lines(text: str, name: str, *, skip: int = 0) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) of a text's lines that are not blank, after `skip` header lines.

    Raises CorruptDataError for a text without such lines.
    """
    any_line = False
    for number, line in enumerate(text.splitlines(), 1):
        if number > skip and line.strip():
            any_line = True
            yield number, line.strip()
    if not any_line:
        raise CorruptDataError(f"{name} has no entries; fetch the list again")


def bad_line(name: str, number: int, why: str) -> CorruptDataError:
    """Return the error of a line: file, line number and what is wrong; lines themselves are not repeated."""
    return CorruptDataError(f"{name}, line {number}: {why}; fetch the list again")


def whole(text: str, name: str, number: int, what: str) -> int:
    """Return a whole number from 0, at most ten digits long."""
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise bad_line(name, number, f"{what} is not a whole number")
    return int(text)


def relative_path(text: str, name: str, number: int) -> str:
    """Return a relative path with `/`; raises CorruptDataError for an absolute one or one that leaves its folder."""
    if not _PATH.fullmatch(text) or ".." in text.split("/") or ":" in text.split("/")[0]:
        raise bad_line(name, number, "it should name a file by a relative path")
    return text


def columns(line: str, header: Mapping[str, int], wanted: tuple[str, ...], name: str, number: int) -> tuple[str, ...]:
    """Return the wanted columns of a comma-separated line, by the names of its header."""
    fields, least = [field.strip() for field in line.split(",")], 1 + max(header.values())
    if len(fields) < least:
        raise bad_line(name, number, f"it has {len(fields)} fields where its header has {least}")
    return tuple(fields[header[column]] for column in wanted)


def header_of(text: str, required: tuple[str, ...], name: str) -> dict[str, int]:
    """Return a CSV's column names and positions; raises CorruptDataError for a missing one."""
    line = text.split("\n", 1)[0]
    names = [field.strip().strip("\ufeff") for field in line.split(",")]
    missing = [column for column in required if column not in names]
    if missing:
        raise bad_line(name, 1, f"its header lacks {', '.join(missing)}")
    return {column: position for position, column in enumerate(names)}


def json_object(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object in a text; raises CorruptDataError naming file and line for anything else."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise bad_line(name, error.lineno, "it is not JSON") from error
    except RecursionError as error:
        raise bad_line(name, 1, "its JSON is too deep") from error
    if not isinstance(value, dict):
        raise bad_line(name, 1, "it is not a JSON object")
    return value
