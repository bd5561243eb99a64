"""The benchmark of commands measures a whole process, and takes no failed command for a cheap one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cli import commands, cost_of
from mien.errors import UnreachableError


def test_a_command_costs_what_its_process_took() -> None:
    cost = cost_of("mien-registrar --help")
    assert cost.cpu_s > 0
    assert cost.wall_s > 0


def test_a_command_that_fails_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="ended with"):
        cost_of(f"mien-registrar config show --home {tmp_path / 'none'}")


def test_every_program_is_measured(tmp_path: Path) -> None:
    lines = [line for line, _ in commands(tmp_path, tmp_path)]
    assert {line.split()[0] for line in lines} == {"mien-coordinator", "mien-registrar", "mien-device", "mien-sim"}
    assert all(any(word in line for line in lines) for word in ("--help", "verify-pair", "task list", "invite"))
