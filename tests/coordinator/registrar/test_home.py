"""The registrar's folder: private, made whole or not at all, and careful about whom it trusts."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.keys import pki
from coordinator.registrar.home import RegistrarHome
from mien.errors import AlreadyExistsError, CertificateError, ConfigError, KeyStoreError
from tests.coordinator.registrar.running import CONFIG

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path) -> RegistrarHome:
    return RegistrarHome.create(tmp_path / "R", CONFIG, NOW)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_the_owners_alone(home: RegistrarHome) -> None:
    assert mode(home.folder) == 0o700
    assert mode(home.ca_key_path) == mode(home.operator_key_path) == 0o600
    home.check_private()
    home.ca_key_path.chmod(0o640)
    with pytest.raises(KeyStoreError, match="chmod 600"):
        home.check_private()
    with pytest.raises(KeyStoreError, match="chmod 600"):
        home.authority()


def test_a_second_init_changes_nothing(home: RegistrarHome) -> None:
    before = {path.name: path.read_bytes() for path in home.folder.iterdir()}
    with pytest.raises(AlreadyExistsError, match="nothing was changed"):
        RegistrarHome.create(home.folder, CONFIG, NOW)
    assert {path.name: path.read_bytes() for path in home.folder.iterdir()} == before


def test_an_init_that_was_cut_off_can_be_repeated(home: RegistrarHome) -> None:
    home.ca_key_path.unlink()
    again = RegistrarHome.create(home.folder, CONFIG, NOW)
    leaf = pki.load_certificate(again.operator_credentials().chain_pem)
    assert pki.operator_identity(leaf, again.operators(NOW).certificate, NOW).id == "registrar"


def test_a_folder_of_an_older_program_gets_an_authority_for_operators(home: RegistrarHome) -> None:
    home.operators_ca_key_path.unlink()
    home.operators_ca_path.unlink()
    home.write_operator(home.authority(), NOW)
    made = home.operators(NOW)
    assert made.certificate == home.operators(NOW).certificate != home.ca()
    leaf = pki.load_certificate(home.operator_credentials().chain_pem)
    assert pki.operator_identity(leaf, made.certificate, NOW).id == "registrar"


def test_coordinators_are_trusted_on_purpose(home: RegistrarHome) -> None:
    first, second = (pki.create_authority("coordinator", NOW) for _ in range(2))
    with pytest.raises(ConfigError, match="trust-coordinator"):
        home.trusted_ca()
    assert home.trust(first.certificate_pem, replace=False) == pki.fingerprint(first.certificate)
    home.trust(first.certificate_pem, replace=False)
    with pytest.raises(AlreadyExistsError, match="--replace"):
        home.trust(second.certificate_pem, replace=False)
    assert home.trusted_ca() == first.certificate
    home.trust(second.certificate_pem, replace=True)
    assert home.trusted_ca() == second.certificate


def test_a_certificate_that_is_no_coordinators_is_refused(home: RegistrarHome) -> None:
    leaf = pki.issue_operator_leaf(home.authority(), "alice", NOW)
    with pytest.raises(ConfigError, match="registrar's own"):
        home.trust(home.ca_path.read_bytes(), replace=False)
    with pytest.raises(CertificateError, match="not an authority's"):
        home.trust(leaf.chain_pem, replace=False)


def test_validity_warnings_come_in_time(home: RegistrarHome) -> None:
    certificate = home.ca()
    pki.check_validity(certificate, NOW, what="ca", warn_days=180)
    with pytest.raises(CertificateError, match="ends on"):
        pki.check_validity(certificate, NOW + timedelta(days=3600), what="ca", warn_days=180)
    with pytest.raises(CertificateError, match="check the clock"):
        pki.check_validity(certificate, NOW - timedelta(days=1), what="ca", warn_days=180)
