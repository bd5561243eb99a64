"""What one replica adds up of what it holds, and where it finds what it does not hold."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from coordinator.replicas.contributions import Bucket, SharedSpool
from coordinator.replicas.sums import Addends, add_up
from coordinator.store.sealing import MasterKey
from mien.errors import ConfigError, CorruptDataError, NotFoundError
from mien.protocol.rounds import BlobId
from mien.rounds.records import UploadRecord
from tests.servers.s3 import S3Server

KEY = MasterKey(secrets.token_bytes(32))
ROUND = 7


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    return Bucket(f"s3://{s3_server.new_bucket()}/mien/contributions", endpoint=s3_server.endpoint)


@pytest.fixture
def spools(bucket: Bucket, tmp_path: Path) -> Iterator[list[SharedSpool]]:
    """Two replicas' spools over one bucket."""
    spools = [SharedSpool(tmp_path / name, KEY, bucket) for name in ("first", "second")]
    yield spools
    for spool in spools:
        spool.close()


def sent(spool: SharedSpool, device_id: str, data: bytes) -> UploadRecord:
    """Have a contribution arrive at a replica, and be shared."""
    with spool.open(ROUND, device_id) as file:
        file.append(data, offset=0)
        file.sync()
    spool.publish(ROUND, device_id)
    return UploadRecord(ROUND, device_id, BlobId(hashlib.sha256(data).hexdigest(), len(data)), is_committed=True)


def plain(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def test_numbers_are_added_in_double_precision_and_no_further_than_asked(spools: list[SharedSpool]) -> None:
    uploads = {
        "a": sent(spools[0], "a", plain(1.0, 2.0**-30, 99.0)),
        "b": sent(spools[0], "b", plain(1.0, 1.0, 99.0)),
    }
    total = add_up(spools[0], ROUND, ["a", "b"], uploads, Addends(2, 0))
    assert total.dtype == np.float64
    assert total.tolist() == [2.0, 1.0 + 2.0**-30]


@pytest.mark.parametrize(("ring_bits", "expected"), [(32, [2**32 - 2 + 5 - 2**32, 4]), (24, [2**24 + 3, 4])])
def test_words_are_added_modulo_two_to_the_32(spools: list[SharedSpool], ring_bits: int, expected: list[int]) -> None:
    """The words of a ring of 24 bits keep their carry: whoever opens the sum takes it modulo 2^24."""
    width = ring_bits // 8
    first = b"".join(word.to_bytes(width, "little") for word in (2**ring_bits - 2, 3))
    second = b"".join(word.to_bytes(width, "little") for word in (5, 1))
    uploads = {"a": sent(spools[0], "a", first), "b": sent(spools[0], "b", second)}
    assert add_up(spools[0], ROUND, ["b", "a"], uploads, Addends(2, ring_bits)).tolist() == expected


def test_a_replica_reads_from_the_bucket_what_another_took_in(spools: list[SharedSpool], tmp_path: Path) -> None:
    uploads = {"a": sent(spools[0], "a", plain(1.0, 2.0)), "b": sent(spools[1], "b", plain(3.0, 4.0))}
    assert add_up(spools[1], ROUND, ["a", "b"], uploads, Addends(2, 0)).tolist() == [4.0, 6.0]
    stored = [path.read_bytes() for path in (tmp_path / "second").rglob("a")]
    assert stored
    assert all(plain(1.0, 2.0) not in data for data in stored), "sealed on its way and where it ends"


def test_a_damaged_copy_is_replaced_from_the_bucket(spools: list[SharedSpool], tmp_path: Path) -> None:
    uploads = {"a": sent(spools[0], "a", plain(1.0, 2.0))}
    (path,) = (tmp_path / "first").rglob("a")
    path.write_bytes(path.read_bytes()[:-1])
    assert add_up(spools[0], ROUND, ["a"], uploads, Addends(2, 0)).tolist() == [1.0, 2.0]


def test_what_is_nowhere_or_another_contribution_is_not_added(spools: list[SharedSpool], bucket: Bucket) -> None:
    uploads = {device: sent(spools[0], device, plain(float(number), 2.0)) for number, device in enumerate("abc")}
    spools[0].remove_here(ROUND)
    bucket.put(ROUND, "a", bucket.get(ROUND, "b"))
    with pytest.raises(CorruptDataError):  # sealed for another device
        add_up(spools[0], ROUND, ["a"], uploads, Addends(2, 0))
    assert add_up(spools[0], ROUND, ["c"], uploads, Addends(2, 0)).tolist() == [2.0, 2.0]
    with pytest.raises(CorruptDataError, match="shorter"):
        add_up(spools[0], ROUND, ["c"], uploads, Addends(3, 0))
    with pytest.raises(NotFoundError):
        add_up(spools[0], ROUND, ["nobody"], uploads, Addends(2, 0))
    bucket.remove_round(ROUND)
    spools[0].remove_here(ROUND)
    with pytest.raises(CorruptDataError, match="not in the bucket"):
        add_up(spools[0], ROUND, ["b"], uploads, Addends(2, 0))


def test_rounds_that_are_over_leave_the_bucket(spools: list[SharedSpool], bucket: Bucket) -> None:
    sent(spools[0], "a", plain(1.0))
    assert spools[1].shared_rounds() == {ROUND}
    spools[0].remove_round(ROUND)
    spools[0].close()
    assert bucket.rounds() == set()
    bucket.remove_round(ROUND)  # again


def test_a_folder_is_no_bucket(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="blobs_url"):
        Bucket(str(tmp_path), endpoint="")
