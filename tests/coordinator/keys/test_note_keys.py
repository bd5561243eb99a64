"""Keys of log and witness: the same after every start, apart from each other, and vouched for by the authority."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from coordinator.keys import pki
from coordinator.keys.note_keys import check_vouched, log_signer, vouch, witness_signer
from mien.errors import CertificateError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_an_authority_has_one_key_for_each_use() -> None:
    one, other = pki.create_authority("coordinator", NOW), pki.create_authority("coordinator", NOW)
    again = pki.load_authority(one.certificate_pem, one.key_pem)
    assert log_signer(again).key == log_signer(one).key
    keys = {each(authority).key.public for each in (log_signer, witness_signer) for authority in (one, other)}
    assert len(keys) == 4
    assert one.key_pem.decode() not in repr(log_signer(one))


def test_only_the_authority_itself_vouches_for_its_log() -> None:
    one, other = pki.create_authority("coordinator", NOW), pki.create_authority("coordinator", NOW)
    public = log_signer(one).key.public
    check_vouched(one.certificate, public, vouch(one, public))
    for ca, key, word in (
        (other.certificate, public, vouch(one, public)),
        (one.certificate, log_signer(other).key.public, vouch(one, public)),
        (one.certificate, public, b"no signature"),
    ):
        with pytest.raises(CertificateError, match="not the trusted coordinator's"):
            check_vouched(ca, key, word)
