"""The programs in this process, started as their users start them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from unittest import mock

from mien.shell import cli as shell
from scripts.write_cli_snapshot import entry_point


@dataclass(frozen=True)
class Answer:
    """What a command printed for machines, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> Any:
        """The JSON of its last line."""
        return json.loads(self.out.splitlines()[-1])


def run(program: str, *arguments: object) -> Answer:
    """Run a command with --json to its end; nobody can be asked."""
    return run_as_is(program, *arguments, "--json")


def run_as_is(program: str, *arguments: object, environment: Mapping[str, str] = MappingProxyType({})) -> Answer:
    """Run a command to its end, with these variables changed; nobody can be asked.

    It ends as a process of its own would, without its start: that alone takes seconds where torch is needed. Not within
    a running event loop, for commands run their own.
    """
    out, err, mask = io.StringIO(), io.StringIO(), os.umask(0o077)
    with (
        mock.patch.object(sys, "argv", [program, *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.StringIO()),
        # Both would hold for whatever this process does later.
        mock.patch.object(shell, "refuse_core_dumps"),
        mock.patch.object(os, "nice", return_value=0),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            entry_point(program)()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            os.umask(mask)
    return Answer(code, out.getvalue(), err.getvalue())


def call(program: str, *arguments: object) -> Any:
    """Return what a command that succeeds prints for machines."""
    answer = run(program, *arguments)
    assert answer.code == 0, answer.err
    return answer.told
