"""Sealing: only the same key, purpose and place opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.store.sealing import MasterKey
from mien.errors import AlreadyExistsError, CorruptDataError, KeyStoreError
from mien.shell.sealing import OVERHEAD_BYTES

KEY = MasterKey(bytes(range(32)))


def test_what_is_sealed_opens_in_its_place_only() -> None:
    sealer = KEY.sealer("spool", b"salt")
    sealed = sealer.seal(b"a face", place=b"1/d1/0")
    assert len(sealed) == len(b"a face") + OVERHEAD_BYTES
    assert b"a face" not in sealed
    assert KEY.sealer("spool", b"salt").open(sealed, place=b"1/d1/0") == b"a face"
    others = (KEY.sealer("revealed", b"salt"), KEY.sealer("spool", b"pepper"), MasterKey(bytes(32)).sealer("spool"))
    for other in others:
        with pytest.raises(CorruptDataError):
            other.open(sealed, place=b"1/d1/0")
    for damaged in (sealed[:-1], sealed[:5], b"", bytes([sealed[0] ^ 1]) + sealed[1:]):
        with pytest.raises(CorruptDataError):
            sealer.open(damaged, place=b"1/d1/0")
    with pytest.raises(CorruptDataError):
        sealer.open(sealed, place=b"1/d2/0")


def test_the_same_data_never_looks_the_same() -> None:
    sealer = KEY.sealer("spool")
    assert sealer.seal(b"x", place=b"") != sealer.seal(b"x", place=b"")


def test_the_key_file_is_private_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "store.key"
    made = MasterKey.create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert MasterKey.load(path).check == made.check != KEY.check
    with pytest.raises(AlreadyExistsError):
        MasterKey.create(path)
    path.chmod(0o644)
    with pytest.raises(KeyStoreError, match="chmod 600"):
        MasterKey.load(path)
    with pytest.raises(KeyStoreError):
        MasterKey.load(tmp_path / "none")
    with pytest.raises(KeyStoreError):
        MasterKey(b"short")
    assert "***" in repr(KEY) + repr(KEY.sealer("x"))
