"""The registrar's list of revoked certificates as phones read it: whose it is, whom it names, how old it may be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from mien.errors import CertificateError, CohortError
from mien.protocol.revocations import MAX_AGE_S, MAX_BYTES, RevocationList
from mien.secagg.leaves import leaf_verifier

NOW = datetime(2030, 1, 1, tzinfo=UTC)
REGISTRAR = pki.create_authority("registrar", NOW)


def list_of(*serials: int, authority: pki.Authority = REGISTRAR) -> bytes:
    return pki.build_crl(authority, [pki.Revocation(serial, NOW) for serial in serials], 7, NOW)


def test_a_list_names_whom_the_registrar_revoked() -> None:
    found = RevocationList.parse(list_of(3, 2**158 + 5), REGISTRAR.certificate)
    assert [found.names(serial) for serial in (3, 4, 2**158 + 5)] == [True, False, True]
    assert found.signed_unix_s == NOW.timestamp()


def test_only_the_registrar_s_own_list_counts() -> None:
    other = pki.create_authority("registrar", NOW)
    with pytest.raises(CertificateError, match="did not sign"):
        RevocationList.parse(list_of(3, authority=other), REGISTRAR.certificate)
    for damaged in (b"", list_of(3)[:-5], bytes(MAX_BYTES + 1)):
        with pytest.raises(CertificateError, match="damaged"):
            RevocationList.parse(damaged, REGISTRAR.certificate)


def test_an_old_list_tells_nothing() -> None:
    found = RevocationList.parse(list_of(), REGISTRAR.certificate)
    found.check_age(NOW.timestamp() + MAX_AGE_S)
    with pytest.raises(CohortError, match="26 hours old, and 25 are the most"):
        found.check_age(NOW.timestamp() + MAX_AGE_S + 3600)


def test_a_list_of_the_future_tells_nothing_until_its_time_has_come() -> None:
    found = RevocationList.parse(list_of(), REGISTRAR.certificate)
    found.check_age(NOW.timestamp() - MAX_AGE_S)
    with pytest.raises(CohortError, match="dated 26 hours ahead"):
        found.check_age(NOW.timestamp() - MAX_AGE_S - 3600)


def test_a_peer_whose_certificate_was_revoked_is_refused() -> None:
    leaves = [
        pki.issue_device_leaf(REGISTRAR, ec.generate_private_key(ec.SECP256R1()).public_key(), "default", NOW)
        for _ in range(2)
    ]
    revoked = RevocationList.parse(list_of(leaves[0].serial_number), REGISTRAR.certificate)
    verify = leaf_verifier(REGISTRAR.certificate, "default", lambda: NOW + timedelta(hours=1), revoked.names)
    with pytest.raises(CohortError, match="has revoked a phone of this cohort"):
        verify(pki.to_der(leaves[0]))
    assert verify(pki.to_der(leaves[1])).admitted_unix_s == NOW.timestamp()
