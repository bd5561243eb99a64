"""Hostile and unlucky input to whole programs: one sentence and an exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mien.errors import TABLE, ConfigError, CorruptDataError, NotFoundError
from mien.protocol.tensors import PublicShard
from mien.specs import FaceInputSpec

DEEP = "options = " + "[" * 20_000


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of Mien's programs."""
    command = [str(Path(sys.executable).parent / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)


def one_sentence(done: subprocess.CompletedProcess[str], exit_code: int) -> None:
    assert "Traceback" not in done.stderr
    assert done.returncode == exit_code, done.stderr
    assert "error" in done.stderr


def test_a_task_nested_without_end_is_refused(tmp_path: Path) -> None:
    task = tmp_path / "deep.toml"
    task.write_text(DEEP, encoding="utf-8")
    one_sentence(
        run("mien-coordinator", "task", "submit", str(task), "--home", str(tmp_path)), TABLE[ConfigError].exit_code
    )


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("mien-registrar", ("init", "--address", "a.example:1", "--coordinator-address", "b.example:2")),
        ("mien-coordinator", ("init", "--address", "a.example:1")),
    ],
)
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path, program: str, arguments: tuple[str, ...]) -> None:
    (tmp_path / "file").touch()
    one_sentence(run(program, *arguments, "--home", str(tmp_path / "file" / "home")), TABLE[NotFoundError].exit_code)


def test_a_public_shard_of_nobody_is_refused() -> None:
    nobody = PublicShard(np.zeros((0, 112, 112, 3), np.uint8), np.zeros(0, np.int64), "CC0", "nowhere")
    with pytest.raises(CorruptDataError, match="public shard"):
        PublicShard.from_bytes(nobody.to_bytes(), FaceInputSpec())
