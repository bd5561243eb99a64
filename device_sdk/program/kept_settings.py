"""Writes one setting into device.toml as its owner spells it there, and nothing else: comments and order stay.

There is no TOML writer here that keeps a text's form. So a text is changed in one of the ways that people write a
setting, read again before it is written, and taken where all other settings are what they were.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path

from device_sdk.config import MAX_CONFIG_BYTES
from mien.errors import ConfigError
from mien.records import parse_toml
from mien.shell.files import read_limited, write_atomically


def keep_setting(config: Path, name: str, value: str) -> None:
    """Write a setting by its name ("runtime", "inference.tier") into device.toml and leave all else in it as it is.

    Raises ConfigError, with the line to write by hand, for a text in which that cannot be done; it stays as it was.
    """
    text = read_limited(config, MAX_CONFIG_BYTES, what=str(config)).decode() if config.exists() else ""
    before = parse_toml(text, str(config))
    table, _, key = name.rpartition(".")
    wanted = copy.deepcopy(before)
    (wanted.setdefault(table, {}) if table else wanted)[key] = value
    if wanted == before:
        return
    for changed in _spellings(text, table, key, f'"{value}"'):
        try:
            found = parse_toml(changed, str(config))
        except ConfigError:
            continue
        if found == wanted:
            write_atomically(config, changed.encode())
            return
    raise ConfigError(
        f'{config} is written in a way that this program cannot change; write {name} = "{value}" in it by hand, '
        "in the place of what it says of that now"
    )


def _spellings(text: str, table: str, key: str, value: str) -> Iterator[str]:
    """Yield a text with a setting put in: over its present value, then where its table is, then where none is."""
    for found in re.finditer(rf"""(?<![\w-]){key}["']?[ \t]*=[ \t]*("[^"\n]*"|'[^'\n]*')""", text):
        yield text[: found.start(1)] + value + text[found.end(1) :]
    if not table:
        yield f"{key} = {value}\n{text}"
        return
    named = rf"""[ \t]*["']?{table}["']?[ \t]*"""
    for found in re.finditer(rf"^[ \t]*\[{named}\][^\n]*", text, re.MULTILINE):
        yield f"{text[: found.end()]}\n{key} = {value}{text[found.end() :]}"
    for found in re.finditer(rf"^{named}=[ \t]*\{{[ \t]*", text, re.MULTILINE):
        for after in (", ", " "):
            yield f"{text[: found.end()]}{key} = {value}{after}{text[found.end() :]}"
    gap = "" if not text or text.endswith("\n") else "\n"
    yield f"{text}{gap}\n[{table}]\n{key} = {value}\n".lstrip("\n")
    yield f"{table}.{key} = {value}\n{text}"
