"""The disk that fails on purpose: refusals as a program sees them, and death at the very write that was named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import shim
from tests.chaos.shim import Disk

WRITER = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for number in range(4):
    os.write(file, b"%d" % number)
os.writev(file, [b"4"])
os.pwritev(file, [b"0"], 0)
print("done")
"""


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    if reason := shim.missing():
        pytest.skip(reason)
    return Disk(tmp_path)


def write(disk: Disk, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that writes six times, of which the last changes nothing."""
    return subprocess.run(
        [sys.executable, "-B", "-c", WRITER, str(path)],
        env={**os.environ, **disk.environment}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_good_disk_is_as_without(disk: Disk, tmp_path: Path) -> None:
    done = write(disk, tmp_path / "file")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert (tmp_path / "file").read_text() == "01234"


@pytest.mark.parametrize(
    ("how", "words"), [("full", "No space left"), ("read-only", "Read-only file system"), ("failing", "Input/output")]
)
def test_a_refusal_is_the_operating_systems(disk: Disk, tmp_path: Path, how: str, words: str) -> None:
    disk.refuse(how)
    assert words in write(disk, tmp_path / "file").stderr
    assert (tmp_path / "file").read_text() == ""
    disk.mend()
    assert write(disk, tmp_path / "file").returncode == 0


@pytest.mark.parametrize(("after", "written"), [(False, "01"), (True, "012")])
def test_the_fuse_ends_the_program_at_the_third_write(disk: Disk, tmp_path: Path, after: bool, written: str) -> None:
    disk.light_fuse(3, after=after)
    assert write(disk, tmp_path / "file").returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_text() == written
    assert disk.deaths == 1
