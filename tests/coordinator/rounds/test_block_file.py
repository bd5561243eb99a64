"""Files that grow by blocks: what is in them, what a refused write leaves, and when names are brought to the disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from coordinator.rounds import block_file
from coordinator.rounds.block_file import BLOCK_BYTES, BlockFile, Buffers, Entries, whole_blocks


@pytest.mark.parametrize(("size", "blocks"), [(0, 0), (1, 1), (4096, 1), (4097, 2), (3 * 4096, 3)])
def test_lengths_are_rounded_up(size: int, blocks: int) -> None:
    assert whole_blocks(size) == blocks * BLOCK_BYTES


@pytest.mark.parametrize("is_direct", [True, False])
def test_blocks_follow_each_other(tmp_path: Path, is_direct: bool) -> None:
    path, buffers = tmp_path / "f", Buffers(3 * BLOCK_BYTES)
    file = BlockFile(path, is_direct=is_direct)
    with buffers.lent() as buffer:
        for value in (b"a", b"b"):
            buffer[: 2 * BLOCK_BYTES] = value * (2 * BLOCK_BYTES)
            file.append(buffer[: 2 * BLOCK_BYTES])
        file.append(buffer[:0])
    file.sync()
    assert path.read_bytes() == b"a" * 8192 + b"b" * 8192
    assert path.stat().st_mode & 0o777 == 0o600
    file.cut(BLOCK_BYTES)
    file.close()
    again = BlockFile(path, is_direct=is_direct)
    assert again.end == BLOCK_BYTES
    again.cut(2 * BLOCK_BYTES)
    again.close()
    assert path.read_bytes() == b"a" * 4096 + bytes(4096)


def test_a_write_that_stops_half_way_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(block_file.os, "pwrite", lambda handle, data, at: write(handle, data[:BLOCK_BYTES], at))
    file = BlockFile(tmp_path / "f", is_direct=False)
    with Buffers(3 * BLOCK_BYTES).lent() as buffer:
        buffer[:] = b"c" * len(buffer)
        file.append(buffer)
    file.close()
    assert (tmp_path / "f").read_bytes() == b"c" * (3 * BLOCK_BYTES)


def test_a_refused_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes the first of three blocks and a bit: nothing of them stays."""
    file = BlockFile(tmp_path / "f", is_direct=False)
    write, left = os.pwrite, [BLOCK_BYTES + 10]

    def full(handle: int, data: memoryview, at: int) -> int:
        taken = write(handle, data[: left[0]], at)
        left[0] -= taken
        return taken

    with Buffers(3 * BLOCK_BYTES).lent() as buffer:
        file.append(buffer[:BLOCK_BYTES])
        monkeypatch.setattr(block_file.os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            file.append(buffer)
    assert file.end == (tmp_path / "f").stat().st_size == BLOCK_BYTES
    file.close()


def test_a_file_system_that_knows_no_direct_writes_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_file, "_DIRECT", 0o20000000)  # a flag that makes open fail in tests
    opened = os.open

    def refusing(path: Path, flags: int, mode: int) -> int:
        if flags & 0o20000000:
            raise OSError(22, "Invalid argument")
        return opened(path, flags, mode)

    monkeypatch.setattr(block_file.os, "open", refusing)
    BlockFile(tmp_path / "f", is_direct=True).close()
    assert (tmp_path / "f").exists()


def test_buffers_are_lent_to_one_at_a_time_and_used_again() -> None:
    buffers = Buffers(100)
    with buffers.lent() as first, buffers.lent() as second:
        first[:1], second[:1] = b"1", b"2"
        assert len(first) == BLOCK_BYTES
        assert (first[:1], second[:1]) == (b"1", b"2")
    with buffers.lent() as again:
        assert bytes(again[:1]) in (b"1", b"2")


def test_one_sync_of_a_folder_serves_all_files_made_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(block_file, "sync_folder", synced.append)
    entries = Entries()
    first, second = entries.made(), entries.made()
    entries.sync(tmp_path, first)
    entries.sync(tmp_path, second)
    assert synced == [tmp_path]
    entries.sync(tmp_path, entries.made())
    assert synced == [tmp_path] * 2
    entries.sync(tmp_path / "other", first)
    assert synced == [tmp_path] * 2 + [tmp_path / "other"]
    entries.forget(tmp_path)
    entries.sync(tmp_path, first)
    assert len(synced) == 4


def test_a_file_made_while_its_folder_is_being_synced_is_not_taken_for_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, begun, go_on, synced = Entries(), threading.Event(), threading.Event(), []

    def slow(folder: Path) -> None:
        synced.append(folder)
        begun.set()
        assert go_on.wait(30)

    monkeypatch.setattr(block_file, "sync_folder", slow)
    other = threading.Thread(target=entries.sync, args=(tmp_path, entries.made()))
    other.start()
    assert begun.wait(30)
    late = entries.made()
    go_on.set()
    entries.sync(tmp_path, late)
    other.join()
    assert len(synced) == 2
