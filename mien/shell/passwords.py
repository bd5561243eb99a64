"""Asking people, for a password or whether they mean it; a password comes from a file or pipe, too, for machines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import typer

from mien.errors import ConfigError, NotFoundError
from mien.shell.doing import unseen

_MAX_PASSWORD_BYTES: Final = 4096


def can_ask() -> bool:
    """Return whether somebody can answer a question. Python has no standard input at all where it was closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirmed(question: str) -> bool:
    """Return what somebody answers to a question."""
    with unseen():
        return typer.confirm(question)


def read_password(file: Path | None, *, confirm: bool) -> str:
    """Return the first line of a file, or what somebody types; raises ConfigError where nobody can."""
    if file is None:
        if not can_ask():
            raise ConfigError("nobody can type a password here; give --password-file")
        with unseen():
            return str(typer.prompt("Password", hide_input=True, confirmation_prompt=confirm))
    password = _first_line(file).rstrip(b"\r\n")
    if not password:
        raise ConfigError(f"the first line of the password file {file} is empty; write the password there")
    try:
        return password.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the password file {file} is not UTF-8 text; save it as such") from error


def _first_line(file: Path) -> bytes:
    """Return a password file's first line; it may be a pipe, which has no size and can be read but once."""
    try:
        with file.open("rb") as stream:
            line = stream.readline(_MAX_PASSWORD_BYTES + 2)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no password file {file}; check the path") from error
    except OSError as error:
        raise ConfigError(f"the password file {file} cannot be read ({error.strerror}); name another") from error
    if len(line.rstrip(b"\r\n")) > _MAX_PASSWORD_BYTES:
        raise ConfigError(f"the password file's first line is longer than {_MAX_PASSWORD_BYTES} bytes; name another")
    return line
