"""Spool files: sealed, resumable at any byte, and whole after a crash at any byte."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from coordinator.rounds.spool import ArrivalCheck, Spool
from coordinator.store.sealing import MasterKey
from mien.contribution import ContributionLayout, Lane
from mien.errors import CorruptDataError, LateError, NonFiniteError, OffsetError
from mien.protocol.rounds import BlobId

LAYOUT = ContributionLayout((Lane("count", 1), Lane("weight", 1), Lane("delta", 300_000)))
RNG = np.random.default_rng(0)


def contribution(weight: float = 8.0, count: float = 1.0, last: float = 0.5) -> bytes:
    vector = RNG.standard_normal(LAYOUT.size).astype("<f4")
    vector[:2], vector[-1] = (count, weight), last
    return vector.tobytes()


def address(data: bytes) -> BlobId:
    return BlobId(hashlib.sha256(data).hexdigest(), len(data))


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool", MasterKey(bytes(32)))


def test_a_contribution_comes_back_whole_and_is_never_in_clear(spool: Spool, tmp_path: Path) -> None:
    data = contribution()
    with spool.open(7, "d1") as file:
        for start in range(0, len(data), 100_000):
            file.append(data[start : start + 100_000], offset=start)
        assert file.sync() == len(data)
    assert spool.read(7, "d1", address(data)) == data
    stored = (tmp_path / "spool" / "7" / "d1").read_bytes()
    assert len(data) < len(stored) < len(data) * 1.03
    assert data[1000:1032] not in stored
    assert (tmp_path / "spool" / "7" / "d1").stat().st_mode & 0o777 == 0o600


def test_asking_how_much_is_there_makes_nothing(spool: Spool, tmp_path: Path) -> None:
    assert spool.stored_bytes(7, "d1") == 0
    assert not (tmp_path / "spool" / "7").exists()
    data = contribution()
    with spool.open(7, "d1") as file:
        file.append(data[:9], offset=0)
        file.sync()
    assert spool.stored_bytes(7, "d1") == 9
    spool.remove_round(7)
    assert spool.stored_bytes(7, "d1") == 0


def test_an_upload_resumes_where_it_stopped(spool: Spool) -> None:
    data = contribution()
    with spool.open(7, "d1") as file:
        file.append(data[:333_333], offset=0)
        assert file.sync() == 333_333
        file.append(data[333_333:333_400], offset=333_333)  # never synced: lost with the process
    with spool.open(7, "d1") as file:
        assert file.received_bytes == 333_333
        for wrong in (0, 333_332, 333_400):
            with pytest.raises(OffsetError):
                file.append(b"x", offset=wrong)
        file.append(data[333_333:], offset=333_333)
        file.sync()
    assert spool.read(7, "d1", address(data)) == data


FRAME = 262_144 + 4096  # a piece, and a block more for length, nonce and tag


@pytest.mark.parametrize(
    "cut", [0, 3, 20, 4095, 4096, 4098, 4100, 5000, 4096 + 262_175, 4096 + 262_176, 4096 + FRAME, 600_000]
)
def test_a_torn_tail_is_cut_off(spool: Spool, tmp_path: Path, cut: int) -> None:
    """Whatever prefix of the file a crash leaves, the upload goes on from the last whole piece."""
    data = contribution()
    with spool.open(7, "d1") as file:
        for start in range(0, len(data), 262_144):
            file.append(data[start : start + 262_144], offset=start)
        file.sync()
    path = tmp_path / "spool" / "7" / "d1"
    os.truncate(path, cut)
    with spool.open(7, "d1") as file:
        received = file.received_bytes
        whole = max(0, cut - 4096 + FRAME - (4 + 28 + 262_144)) // FRAME  # zeros may be missing at the end
        assert received == whole * 262_144
        file.append(data[received:], offset=received)
        file.sync()
    assert spool.read(7, "d1", address(data)) == data


def test_frames_cannot_be_moved_between_devices_or_places(spool: Spool, tmp_path: Path) -> None:
    data = contribution()
    with spool.open(7, "d1") as file:
        file.append(data, offset=0)
        file.sync()
    (tmp_path / "spool" / "7" / "d2").write_bytes((tmp_path / "spool" / "7" / "d1").read_bytes())
    with spool.open(7, "d2") as file:
        assert file.received_bytes == 0
    with pytest.raises(CorruptDataError):
        spool.read(7, "d2", address(data))
    with pytest.raises(CorruptDataError):
        spool.read(7, "d3", address(data))


def test_rounds_are_forgotten(spool: Spool) -> None:
    for round_id in (7, 8):
        with spool.open(round_id, "d1") as file:
            file.sync()
    assert spool.rounds() == {7, 8}
    spool.remove_round(7)
    spool.remove_round(7)
    assert spool.rounds() == {8}


def judged(data: bytes, announced: BlobId | None = None, *, step: int = 65_537) -> None:
    check = ArrivalCheck(LAYOUT, max_weight=64)
    for start in range(0, len(data), step):
        check.update(memoryview(data)[start : start + step])
    check.finish(announced or address(data))


def test_what_comes_after_its_round_is_late_and_leaves_nothing_behind(spool: Spool) -> None:
    """A thread about to open the file when the round ended would make the folder anew, until the next start."""
    with spool.open(7, "a" * 32) as file:
        file.append(b"data", offset=0)
    spool.remove_round(7)
    for _ in range(2):
        with pytest.raises(LateError):
            spool.open(7, "b" * 32)
        assert spool.rounds() == set()
    with spool.open(8, "b" * 32) as file:
        assert file.sync() == 0
    assert spool.rounds() == {8}


def test_good_contributions_pass_however_they_are_cut() -> None:
    data = contribution(weight=64.0)
    for step in (1_000_003, 65_537, 262_144):
        judged(data, step=step)
    judged(data[:40], step=3)


def test_what_cannot_be_added_is_refused() -> None:
    for bad in (
        contribution(last=float("nan")),
        contribution(last=float("-inf")),
        contribution(count=2.0),
        contribution(weight=65.0),
        contribution(weight=0.0),
        contribution(weight=-1.0),
        contribution(weight=float("nan")),
    ):
        with pytest.raises(NonFiniteError, match="not counted"):
            judged(bad)
    with pytest.raises(CorruptDataError, match="damaged"):
        judged(contribution(), BlobId("0" * 64, 4 * LAYOUT.size))


def test_sums_that_overflow_are_finite_all_the_same() -> None:
    vector = np.full(LAYOUT.size, 3e38, "<f4")
    vector[:2] = 1.0
    judged(vector.tobytes())


def test_a_value_split_between_pieces_is_seen() -> None:
    data = bytearray(contribution())
    data[8:12] = struct.pack("<f", float("inf"))
    check = ArrivalCheck(LAYOUT, max_weight=64)
    check.update(bytes(data[:10]))
    check.update(bytes(data[10:]))
    with pytest.raises(NonFiniteError):
        check.finish(address(bytes(data)))
