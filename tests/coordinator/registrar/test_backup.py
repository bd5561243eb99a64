"""A registrar's backup: taken while it serves, opened by its password only, and what it brings back can serve on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.home import sealed_file
from coordinator.home.coordinator_backup import CoordinatorBackup
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.registrar.backup import RegistrarBackup
from coordinator.registrar.config import SETTINGS
from coordinator.registrar.home import RegistrarHome
from coordinator.registrar.issuing import Registry
from coordinator.registrar.store import Store
from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError, InviteError, NotFoundError, RevokedError
from mien.shell.clock import Clock
from mien.shell.ready import ready_file
from tests.coordinator.registrar.running import CONFIG, LocalRegistrar, csr_der

PASSWORD = "correct horse"


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_file, "_SCRYPT", {"n": 16, "r": 8, "p": 1})


def now() -> datetime:
    return datetime.now(UTC)


def back(registrar: LocalRegistrar, out: Path, *, with_data: bool = True) -> Path:
    RegistrarBackup(registrar.home, Clock()).make(out, PASSWORD, with_data=with_data)
    return out


@contextlib.contextmanager
def serving(home: RegistrarHome) -> Iterator[tuple[Registry, Store]]:
    """The decisions of a restored registrar."""
    store = Store.open(home.database_url(CONFIG))
    try:
        yield Registry(store, home.authority(), CONFIG, home.trusted_ca, now), store
    finally:
        store.close()


def test_what_says_that_a_program_is_ready_is_not_of_the_copy(registrar: LocalRegistrar, tmp_path: Path) -> None:
    with ready_file(registrar.home.folder / "up.json") as write:
        write({"ready": True})
        (registrar.home.folder / "status.json").write_text("{}")
        file = back(registrar, tmp_path / "r.mien")
    (registrar.home.folder / "status.json").rename(tmp_path / "status.json")
    RegistrarBackup(RegistrarHome(tmp_path / "S"), Clock()).restore(file, PASSWORD)
    assert [path.name for path in (tmp_path / "S").glob("*.json")] == ["status.json"]


def test_who_was_admitted_and_who_was_revoked_comes_back(registrar: LocalRegistrar, tmp_path: Path) -> None:
    started = now()
    good, revoked, invite = registrar.admitted(), registrar.admitted(), registrar.invite(note="not used yet")
    with serving(registrar.home) as (registry, _):
        registry.revoke(revoked.device_id, "lost", actor="alice")
        before = x509.load_der_x509_crl(registry.crl())
    file = back(registrar, tmp_path / "r.mien")
    assert file.stat().st_mode & 0o077 == 0
    assert b"PRIVATE KEY" not in file.read_bytes()
    home = RegistrarHome(tmp_path / "S")
    summary, settled = RegistrarBackup(home, Clock()).restore(file, PASSWORD)
    head = summary.audit_head
    assert settled["invites_ended"] >= 1
    assert head is not None
    for path in (home.ca_key_path, home.ca_path, home.operator_key_path, home.trusted_ca_path, home.config_path):
        assert path.read_bytes() == (registrar.home.folder / path.name).read_bytes()
        assert path.stat().st_mode & 0o077 == 0

    unix_ms = int(now().timestamp() * 1000)
    with serving(home) as (registry, store):
        # Above what the lost registrar may have come to since: its lists are made at most once a second on average.
        assert pki.crl_number(x509.load_der_x509_crl(registry.crl())) > int(started.timestamp())
        request = good.renewal(unix_ms)
        renewed = registry.renew(request.certificate_der, request.csr_der, request.signature, request.unix_ms)
        assert renewed.device_id == good.device_id
        stopped = revoked.renewal(unix_ms)
        with pytest.raises(RevokedError):
            registry.renew(stopped.certificate_der, stopped.csr_der, stopped.signature, stopped.unix_ms)
        with pytest.raises(InviteError, match="expired"):
            registry.join(invite.token, csr_der(ec.generate_private_key(ec.SECP256R1())))
        after = x509.load_der_x509_crl(registry.crl())
        assert {entry.serial_number for entry in before} <= {entry.serial_number for entry in after}
        with store.begin() as transaction:
            actions = [entry.action for entry in transaction.audit(lambda log, db: log.read(db))]
            transaction.audit(lambda log, db: log.verify(db, [head]))
        assert "backup.make" in actions
        assert "backup.restore" in actions
    assert not list(registrar.home.folder.glob(".backup-*"))


def test_without_data_only_keys_and_settings(registrar: LocalRegistrar, tmp_path: Path) -> None:
    home = RegistrarHome(tmp_path / "S")
    summary, settled = RegistrarBackup(home, Clock()).restore(
        back(registrar, tmp_path / "r.mien", with_data=False), PASSWORD
    )
    assert (summary.audit_head, settled) == (None, {"invites_ended": 0})
    assert home.ca() == registrar.home.ca()
    assert not (home.folder / "registrar.db").exists()


def test_damage_truncation_and_another_password_leave_nothing(registrar: LocalRegistrar, tmp_path: Path) -> None:
    file = back(registrar, tmp_path / "r.mien")
    data, bad, home = file.read_bytes(), tmp_path / "bad.mien", RegistrarHome(tmp_path / "S")
    for changed in (data[:-1], data[:100], b"", data + b"x", data[:200] + bytes([data[200] ^ 1]) + data[201:]):
        bad.write_bytes(changed)
        with pytest.raises(CorruptDataError):
            RegistrarBackup(home, Clock()).restore(bad, PASSWORD)
    with pytest.raises(CorruptDataError, match="password is another one"):
        RegistrarBackup(home, Clock()).restore(file, "another password")
    assert {path.name for path in tmp_path.iterdir()} == {"r.mien", "bad.mien"}


def test_nothing_is_overwritten_and_each_program_takes_its_own(registrar: LocalRegistrar, tmp_path: Path) -> None:
    file = back(registrar, tmp_path / "r.mien")
    with pytest.raises(AlreadyExistsError, match="exists already"):
        back(registrar, file)
    with pytest.raises(AlreadyExistsError, match="not empty"):
        RegistrarBackup(registrar.home, Clock()).restore(file, PASSWORD)
    with pytest.raises(NotFoundError):
        RegistrarBackup(RegistrarHome(tmp_path / "nobody"), Clock()).make(tmp_path / "x.mien", PASSWORD, with_data=True)
    with pytest.raises(ConfigError, match="at least 10"):
        RegistrarBackup(registrar.home, Clock()).make(tmp_path / "x.mien", "short", with_data=True)
    with pytest.raises(CorruptDataError, match="not that of a coordinator's backup"):
        CoordinatorBackup(CoordinatorHome(tmp_path / "C"), Clock()).restore(file, PASSWORD)
    assert {path.name for path in tmp_path.iterdir()} == {"r.mien"}


def test_a_database_elsewhere_is_saved_by_its_own_tool(registrar: LocalRegistrar, tmp_path: Path) -> None:
    other = RegistrarHome(tmp_path / "R")
    RegistrarBackup(other, Clock()).restore(back(registrar, tmp_path / "r.mien", with_data=False), PASSWORD)
    SETTINGS.write(other.config_path, dataclasses.replace(CONFIG, store_url="postgresql://db/registrar"))
    with pytest.raises(ConfigError, match="pg_dump"):
        RegistrarBackup(other, Clock()).make(tmp_path / "p.mien", PASSWORD, with_data=True)
    RegistrarBackup(other, Clock()).make(tmp_path / "p.mien", PASSWORD, with_data=False)
