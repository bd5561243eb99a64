"""Files that are whole or absent, whatever kills the process that writes them, and under no name but their own."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from device_sdk.storage.keystore import FileKeyStore, open_key_store
from mien.errors import AlreadyExistsError, StorageError
from mien.shell import files
from mien.shell.files import create_private, remove_unfinished, write_atomically
from mien.shell.lock import exclusive
from tests.mien.shell import files_under_kills

ROOT = Path(__file__).resolve().parents[3]


def steps(folder: Path, way: str) -> list[dict[str, Any]]:
    """Return what each kill left of a file that was written that way, and what the next start left of that."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", files_under_kills.__name__, folder, way],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def knows_nameless(folder: Path) -> bool:
    """Return whether this system and the file system of a folder know files without names."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600))
    except (AttributeError, OSError):
        return False
    return Path("/proc/self/fd").is_dir()


@pytest.mark.parametrize("way", ["nameless", "beside", "moved"])
def test_a_kill_at_any_step_leaves_a_new_key_whole_or_absent_and_no_second_name(way: str, tmp_path: Path) -> None:
    told = steps(tmp_path / way, way)
    assert [each["killed"] for each in told] == [True] * (len(told) - 1) + [False]
    assert len(told) > 10
    found = [(each["content"], each["mode"], each["names"], each["after"]) for each in told]
    absent, whole = (None, None, 0, []), ("whole", 0o600, 1, ["a.key"])
    assert set(map(repr, found)) == {repr(absent), repr(whole)}
    assert found[0] == absent
    assert found[-1] == whole
    assert {mode for each in told for mode in each["others_modes"]} <= {0o600}
    if way == "nameless" and knows_nameless(tmp_path):
        assert all(each["left"] == each["after"] for each in told), "a name other than the key's was on disk"
    if way == "beside":
        assert any(len(each["left"]) == 2 for each in told), "no kill came between link and unlink"


def test_a_kill_at_any_step_leaves_the_old_content_or_the_new(tmp_path: Path) -> None:
    told = steps(tmp_path / "replaced", "replaced")
    assert {each["content"] for each in told} == {"older", "whole"}
    assert all(each["after"] == ["a.key"] and each["mode"] == 0o600 and each["names"] == 1 for each in told)


def test_what_is_being_written_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = os.fsync

    def swept_meanwhile(handle: int) -> None:
        remove_unfinished(tmp_path)
        synced(handle)

    monkeypatch.setattr(os, "fsync", swept_meanwhile)
    write_atomically(tmp_path / "a", b"1")
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    create_private(tmp_path / "b", b"2")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


def test_a_file_that_was_swept_before_its_lock_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, first = files.fcntl.flock, list[int]()

    def late(handle: int, how: int) -> None:
        if not first:
            first.append(handle)
            remove_unfinished(tmp_path)
        lock(handle, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    write_atomically(tmp_path / "a", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_file_system_that_counts_no_links_takes_files_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, made = os.fstat, list[int]()

    def uncounted(handle: int) -> os.stat_result:
        made.append(handle)
        assert len(made) < 100, "it makes one file after another"
        found = known(handle)
        return os.stat_result([*found[:3], 0, *found[4:]])

    monkeypatch.setattr(os, "fstat", uncounted)
    write_atomically(tmp_path / "a", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC])
def test_what_cannot_be_removed_keeps_no_program_from_starting(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is to go is another matter: whoever destroys it hears that a copy stays."""
    open_key_store(tmp_path, "file", backend=lambda: None)
    store = FileKeyStore(tmp_path / "keys")
    store.create("gallery")
    for folder in (tmp_path, tmp_path / "keys"):
        (folder / ".a.key.x.unfinished").write_bytes(b"a key")

    def refusing(_path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "unlink", refusing)
    with exclusive(tmp_path / "lock", program="mien-test"):
        open_key_store(tmp_path, "file", backend=lambda: None).read("gallery")
    with pytest.raises(StorageError):
        store.destroy("gallery")


def test_only_what_mien_left_is_swept(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("kept")
    (tmp_path / ".link.unfinished").symlink_to(theirs)
    os.mkfifo(tmp_path / ".pipe.unfinished.not")
    os.mkfifo(tmp_path / ".pipe.unfinished")
    (tmp_path / ".folder.unfinished").mkdir()
    (tmp_path / ".env.template").write_text("kept")
    (tmp_path / ".a.key.x.unfinished").write_bytes(b"a key")
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".env.template",
        ".folder.unfinished",
        ".link.unfinished",
        ".pipe.unfinished",
        ".pipe.unfinished.not",
        "theirs",
    ]
    remove_unfinished(tmp_path / "absent")


def test_starts_sweep_their_folders_and_destroying_a_key_its_other_names(tmp_path: Path) -> None:
    left = tmp_path / ".ca-key.pem.x.unfinished"
    left.write_bytes(b"a key")
    with exclusive(tmp_path / "lock", program="mien-test"):
        assert not left.exists()
    store = FileKeyStore(tmp_path / "keys")
    store.create("gallery")
    os.link(tmp_path / "keys" / "gallery.key", tmp_path / "keys" / ".gallery.key.x.unfinished")
    store.destroy("gallery")
    assert list((tmp_path / "keys").iterdir()) == []


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EPERM])
def test_systems_without_nameless_files_make_one_beside(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refusing(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if hasattr(os, "O_TMPFILE") and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code))
        return opened(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    create_private(tmp_path / "a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"
    with pytest.raises(AlreadyExistsError, match="a exists already"):
        create_private(tmp_path / "a", b"2")


def test_a_key_that_came_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, path = os.fsync, tmp_path / "a"

    def made_meanwhile(handle: int) -> None:
        path.write_bytes(b"theirs")
        synced(handle)

    monkeypatch.setattr(os, "fsync", made_meanwhile)
    with pytest.raises(AlreadyExistsError, match="a exists already"):
        create_private(path, b"mine")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("a", b"theirs")]


def test_the_longest_name_that_a_file_may_have_is_one_to_write(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    create_private(tmp_path / ("b" * 255), b"key")
    assert len([*tmp_path.iterdir()]) == 2
