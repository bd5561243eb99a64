"""The store: schema, transactions, and what it says when the disk or the file is bad."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from coordinator.registrar import store as store_module
from coordinator.registrar.store import CertificateRecord, DeviceRecord, InviteRecord, Store
from coordinator.store.database import open_engine
from mien.errors import ConfigError, CorruptDataError, DiskFullError, FileAccessError, VersionError

A, B, C = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'registrar.db'}"


def device(device_id: str) -> DeviceRecord:
    return DeviceRecord(device_id, "default", "note", 100)


def test_migrations_make_the_schema_that_the_code_uses(url: str) -> None:
    Store.open(url).close()
    engine = open_engine(url)
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), store_module._META)
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one() == store_module.HEAD
    engine.dispose()
    assert differences == []


def test_what_was_committed_is_there_after_reopening(url: str) -> None:
    first = Store.open(url)
    with first.begin() as transaction:
        transaction.put_device(device(A))
        transaction.add_certificate(CertificateRecord(2**158 + 1, A, b"der", 100, 700))
    first.close()
    again = Store.open(url)
    with again.begin() as transaction:
        assert transaction.device(A) == device(A)
        assert transaction.newest_certificate(A) == CertificateRecord(2**158 + 1, A, b"der", 100, 700)
    again.close()


def test_a_transaction_that_raises_leaves_nothing(url: str) -> None:
    store = Store.open(url)

    def put_and_fail() -> None:
        with store.begin() as transaction:
            transaction.put_device(device(A))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        put_and_fail()
    with store.begin() as transaction:
        assert transaction.device(A) is None
    store.close()


def test_an_invite_is_claimed_once(url: str) -> None:
    store = Store.open(url)
    with store.begin() as transaction:
        transaction.put_device(device(A))
        transaction.put_device(device(B))
        transaction.add_invite(InviteRecord("hash", "default", "", 100, 200))
        assert transaction.claim_invite("hash", A, 150)
        assert not transaction.claim_invite("hash", B, 151)
        assert transaction.invite("hash") == InviteRecord("hash", "default", "", 100, 200, 150, A)
    store.close()


def test_devices_come_in_pages(url: str) -> None:
    store = Store.open(url)
    with store.begin() as transaction:
        for device_id in (C, A, B):
            transaction.put_device(device(device_id))
        transaction.add_certificate(CertificateRecord(1, B, b"", 100, 700))
        transaction.add_certificate(CertificateRecord(2, B, b"", 100, 900))
        assert [(d.device_id, e) for d, e in transaction.devices_after("", 2)] == [(A, 0), (B, 900)]
        assert [(d.device_id, e) for d, e in transaction.devices_after(B, 2)] == [(C, 0)]
    store.close()


def test_revoked_certificates_stay_listed_until_they_would_have_expired(url: str) -> None:
    store = Store.open(url)
    with store.begin() as transaction:
        transaction.put_device(device(A))
        transaction.add_certificate(CertificateRecord(10, A, b"", 100, 700))
        transaction.add_certificate(CertificateRecord(11, A, b"", 100, 900))
        assert transaction.revoke_certificates(A, "lost", 300) == 2
        assert transaction.revoke_certificates(A, "lost", 400) == 0
        assert transaction.newest_certificate(A) is None
        assert transaction.is_revoked(10)
        assert not transaction.is_revoked(12)
        assert {r.serial for r in transaction.revocations(700, 1000)} == {10, 11}
        found = transaction.revocations(701, 1000)
        assert [(r.serial, r.revoked_at.timestamp()) for r in found] == [(11, 300)]
        assert {r.serial for r in transaction.revocations(701, 300)} == {10, 11}
        assert not transaction.revocations(1000, 301)
    store.close()
    engine = open_engine(url)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT reason FROM revocations")).scalars().all() == ["lost", "lost"]
    engine.dispose()


def test_list_numbers_only_grow(url: str) -> None:
    store = Store.open(url)
    with store.begin() as transaction:
        assert [transaction.next_list_number(now) for now in (500, 400, 300)] == [1, 2, 3]
    store.close()
    again = Store.open(url)
    with again.begin() as transaction:
        assert transaction.next_list_number(0) == 4
    again.close()


def test_a_store_of_a_newer_program_is_refused_untouched(url: str) -> None:
    Store.open(url).close()
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = 'r9999'"))
    with pytest.raises(VersionError, match="upgrade"):
        Store.open(url)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one() == "r9999"
    engine.dispose()


def test_a_full_disk_is_named_and_nothing_is_half_written(sqlite_url: str) -> None:
    store = Store.open(sqlite_url)
    with store.begin() as transaction:
        pages = transaction._connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        transaction._connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    def put_too_much() -> None:
        with store.begin() as transaction:
            transaction.put_device(device(A))
            transaction.add_certificate(CertificateRecord(1, A, os.urandom(1 << 20), 100, 700))

    with pytest.raises(DiskFullError, match="free some"):
        put_too_much()
    with store.begin() as transaction:
        assert transaction.device(A) is None
    store.close()


def test_a_damaged_file_is_named(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / "registrar.db").write_bytes(b"not a database, but long enough to be read as one" * 40)
    with pytest.raises(CorruptDataError, match="backup"):
        Store.open(sqlite_url)


def test_a_store_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileAccessError, match="permissions"):
        Store.open(f"sqlite:///{tmp_path / 'nowhere' / 'registrar.db'}")
    with pytest.raises(ConfigError, match="store_url"):
        Store.open("nonsense")


def test_records_hide_tokens_and_certificates() -> None:
    assert "hash" not in repr(InviteRecord("hash", "default", "", 1, 2))
    assert "der" not in repr(CertificateRecord(1, A, b"der", 1, 2))
