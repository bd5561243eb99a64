"""Ready files: there while the program is, gone afterwards, and what a killed one left is nobody's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mien.errors import AlreadyExistsError, NotFoundError
from mien.shell.ready import is_live, ready_file, started


def test_it_is_there_while_the_program_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    with ready_file(path) as announce:
        assert not path.exists()
        announce({"ready": True, "port": 7443})
        told = json.loads(path.read_text())
        assert (told["ready"], told["port"], told["pid"]) == (True, 7443, os.getpid())
        assert is_live(path)
    assert not path.exists()


def test_a_folder_that_is_missing_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no folder .*none; make it"), ready_file(tmp_path / "none" / "a.json"):
        pytest.fail("began")


def test_it_goes_when_the_program_fails(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"

    def fail() -> None:
        with ready_file(path) as announce:
            announce({})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not path.exists()


@pytest.mark.parametrize(
    "left",
    [
        b'{"pid": 1}',
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'["pid"]',
        b'{"pid": "1", "started": "x"}',
        b'{"pid": null, "started": null}',
        b'{"pid": 4194304000, "started": "x"}',
    ],
)
def test_what_another_program_left_is_removed_at_the_start(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "ready.json"
    path.write_bytes(left)
    with ready_file(path):
        assert not path.exists()


def test_the_id_of_a_dead_process_that_another_has_now_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text(json.dumps({"pid": os.getpid(), "started": "an earlier boot/1"}))
    assert not is_live(path)
    with ready_file(path):
        assert not path.exists()


def test_a_running_programs_file_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        path.write_text(json.dumps({"pid": child.pid, "started": started(child.pid)}))
        with pytest.raises(AlreadyExistsError, match="ready-file"), ready_file(path):
            pass
        assert path.exists()
    finally:
        child.kill()
        child.communicate()
    with ready_file(path):
        assert not path.exists()


def test_another_programs_file_is_not_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    with ready_file(path) as announce:
        announce({})
        path.write_text("{}")
    assert path.exists()


def test_without_a_path_nothing_is_written() -> None:
    with ready_file(None) as announce:
        announce({"ready": True})
