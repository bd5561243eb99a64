"""Passwords where nobody can type one."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mien.errors import ConfigError

PROGRAMS = {
    "mien-registrar": "coordinator.commands.registrar_cli",
    "mien-coordinator": "coordinator.commands.cli",
    "mien-device": "device_sdk.program.cli",
}
CASES = [
    ("mien-registrar", "backup out.mien --home ."),
    ("mien-registrar", "restore out.mien --home new"),
    ("mien-coordinator", "backup out.mien --home ."),
    ("mien-coordinator", "restore out.mien --home new"),
    ("mien-coordinator", "dashboard user add ann --home ."),
    ("mien-coordinator", "dashboard user password ann --home ."),
    ("mien-device", "gallery export out.mien --home ."),
    ("mien-device", "gallery import out.mien --home ."),
]


@pytest.mark.parametrize(("program", "words"), CASES, ids=lambda text: text.partition(" --")[0])
def test_a_closed_standard_input_is_an_error_in_words(program: str, words: str, tmp_path: Path) -> None:
    """Started by a service with `<&-`, a program has no standard input at all: it says so, and never a traceback."""
    (tmp_path / "out.mien").write_bytes(b"not read before there is a password")
    start = f"import sys; sys.argv[0] = '{program}'; from {PROGRAMS[program]} import main; main()"
    command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(start)} {words} <&-"
    environment = {
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode not in (0, 1)
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_nobody_is_asked_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from mien.shell.passwords import read_password

    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigError, match="--password-file"):
        read_password(None, confirm=False)
