"""Contributions that every replica can reach: sealed where they arrive, and copied into the bucket as they are.

An object is a spool file of `coordinator.rounds.spool`, byte for byte: sealed under the key that all replicas share,
and bound to its round and device, so that whoever writes into the bucket cannot pass one off for another.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import structlog

from coordinator.rounds.spool import Spool
from coordinator.store.buckets import bucket_errors, is_bucket, open_bucket
from coordinator.store.sealing import MasterKey
from mien.errors import ConfigError, CorruptDataError, MienError
from mien.protocol.ids import DeviceId, RoundId
from mien.protocol.rounds import BlobId
from mien.shell.files import write_atomically

_LOG = structlog.get_logger()


class Bucket:
    """The contributions in the bucket, by round and device. Methods may be called from any thread."""

    def __init__(self, url: str, *, endpoint: str) -> None:
        if not is_bucket(url):
            raise ConfigError(
                "replica_address is set, and replicas share contributions in a bucket: set blobs_url to "
                "s3://BUCKET/PREFIX, or leave replica_address empty to run alone"
            )
        self._fs, root = open_bucket(url, endpoint)
        self._root = root.rstrip("/")

    def put(self, round_id: RoundId, device_id: DeviceId, data: bytes) -> None:
        """Keep a contribution; it is whole and durable when this returns."""
        with bucket_errors():
            self._fs.pipe_file(self._path(round_id, device_id), data)

    def get(self, round_id: RoundId, device_id: DeviceId) -> bytes:
        """Return a contribution as it was put; raises CorruptDataError where there is none."""
        try:
            with bucket_errors():
                data: bytes = self._fs.cat_file(self._path(round_id, device_id))
        except FileNotFoundError as error:
            raise CorruptDataError(f"contribution {round_id}/{device_id} is not in the bucket; it is lost") from error
        return data

    def remove_round(self, round_id: RoundId) -> None:
        """Forget everything that devices sent in a round."""
        with contextlib.suppress(FileNotFoundError), bucket_errors():
            self._fs.rm(f"{self._root}/{round_id}", recursive=True)

    def rounds(self) -> set[RoundId]:
        """Return the rounds of which there are contributions."""
        try:
            with bucket_errors():
                names = [str(path).rpartition("/")[2] for path in self._fs.ls(self._root, detail=False)]
        except FileNotFoundError:
            return set()
        return {RoundId(int(name)) for name in names if name.isdecimal()}

    def _path(self, round_id: RoundId, device_id: DeviceId) -> str:
        return f"{self._root}/{round_id}/{device_id}"


class SharedSpool(Spool):
    """A spool whose complete contributions lie in the bucket too, and which reads from there what it does not have."""

    def __init__(self, folder: Path, key: MasterKey, bucket: Bucket) -> None:
        super().__init__(folder, key)
        self._bucket = bucket

    def publish(self, round_id: RoundId, device_id: DeviceId) -> None:
        """Have a complete contribution in the bucket; raises UnreachableError, KeyStoreError."""
        self._bucket.put(round_id, device_id, self._file(round_id, device_id).read_bytes())

    def read_unhashed(self, round_id: RoundId, device_id: DeviceId, size_bytes: int) -> bytes:
        """Return what a device sent, whole, from this machine or from the bucket."""
        try:
            return super().read_unhashed(round_id, device_id, size_bytes)
        except CorruptDataError:
            path = self._file(round_id, device_id)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, self._bucket.get(round_id, device_id), private=True)
            return super().read_unhashed(round_id, device_id, size_bytes)

    def read(self, round_id: RoundId, device_id: DeviceId, blob: BlobId) -> bytes:
        """Return a committed contribution, from this machine or from the bucket."""
        try:
            return super().read(round_id, device_id, blob)
        except CorruptDataError:
            self._file(round_id, device_id).unlink(missing_ok=True)  # whole, but of other bytes
            return super().read(round_id, device_id, blob)

    def remove_round(self, round_id: RoundId) -> None:
        """Forget everything that devices sent in a round: here at once, in the bucket in a moment."""
        self.remove_here(round_id)
        self._cleaner.submit(self._remove_from_bucket, round_id)

    def remove_here(self, round_id: RoundId) -> None:
        """Forget this machine's copies."""
        super().remove_round(round_id)

    def shared_rounds(self) -> set[RoundId]:
        """Return the rounds of which contributions are in the bucket."""
        return self._bucket.rounds()

    def _remove_from_bucket(self, round_id: RoundId) -> None:
        try:
            self._bucket.remove_round(round_id)
        except MienError as error:  # left to the next replica that starts
            _LOG.warning("contributions of a round stay in the bucket", round_id=round_id, reason=error.message)

    def close(self) -> None:
        """Wait for what is being cleaned up."""
        self._cleaner.shutdown(wait=True)

    def _file(self, round_id: RoundId, device_id: DeviceId) -> Path:
        return self._folder / str(round_id) / device_id
