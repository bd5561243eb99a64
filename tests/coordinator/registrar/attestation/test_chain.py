"""Published chains of real phones, and chains in which somebody vouches who may not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.registrar.attestation.chain import MAX_CERTIFICATES, key_bytes, verify_chain
from coordinator.registrar.attestation.description import SecurityLevel, parse_description
from coordinator.registrar.attestation.policy import parse_status_list, read_roots
from mien.errors import CertificateError, CorruptDataError
from tests.coordinator.registrar.attestation.phones import Issuer, Maker, description, issue

DATA = Path(__file__).parent / "data"
MADE = datetime(2023, 3, 10, tzinfo=UTC)
"""When the published chains were fresh."""

KEY = ec.generate_private_key(ec.SECP256R1())


def published(name: str) -> list[bytes]:
    files = (name, "above_the_phone.pem", "google_root.pem")
    found = [c for file in files for c in x509.load_pem_x509_certificates((DATA / file).read_bytes())]
    return [certificate.public_bytes(Encoding.DER) for certificate in found]


@pytest.fixture(scope="module")
def google() -> frozenset[bytes]:
    return read_roots([DATA / "google_root.pem"])


@pytest.fixture(scope="module")
def maker() -> Maker:
    return Maker.new()


def test_a_published_chain(google: frozenset[bytes]) -> None:
    leaf, chain, (described,) = verify_chain(published("leaf_of_tee.pem"), google, MADE)
    assert len(chain) == 5
    assert isinstance(leaf.public_key(), ec.EllipticCurvePublicKey)
    assert (described.version, described.attested, described.kept) == (200, SecurityLevel.TEE, SecurityLevel.TEE)
    assert described.challenge == b"challenge"
    assert described.purposes == {2}
    assert described.origin == 0
    assert (described.is_locked, described.is_verified, described.patch_level) == (True, True, 202302)
    assert described.app_digests == {"68856d1d06f637d6255face5b224db43a9514ace538bb1548b844480fcd85c87"}


def test_a_published_chain_with_attest_keys(google: frozenset[bytes]) -> None:
    _, chain, described = verify_chain(published("attest_keys.pem"), google, MADE)
    assert len(chain) == 7
    assert [each.purposes for each in described] == [{2}, {7}, {7}]


def test_a_published_fake_that_an_apps_own_hardware_key_signed(google: frozenset[bytes]) -> None:
    with pytest.raises(CertificateError, match="vouches for another one, which it may not"):
        verify_chain(published("fake_attest_keys.pem"), google, MADE)


def test_published_chains_end(google: frozenset[bytes]) -> None:
    for when in (MADE - timedelta(days=365), MADE + timedelta(days=365)):
        with pytest.raises(CertificateError, match="valid from 2023-0"):
            verify_chain(published("leaf_of_tee.pem"), google, when)


def test_another_root(google: frozenset[bytes], maker: Maker) -> None:
    chain = maker.chain(KEY, b"c")
    assert verify_chain(chain, {key_bytes(maker.root.certificate)}, datetime.now(UTC))
    with pytest.raises(CertificateError, match="does not lead to a root"):
        verify_chain(chain, google, datetime.now(UTC))
    with pytest.raises(CertificateError, match="not issued by the next one"):
        verify_chain([*chain[:2], published("leaf_of_tee.pem")[-1]], google, datetime.now(UTC))


def refused(maker: Maker, chain: list[bytes], words: str) -> None:
    with pytest.raises(CertificateError, match=words):
        verify_chain(chain, {key_bytes(maker.root.certificate)}, datetime.now(UTC))


def test_who_may_not_vouch(maker: Maker) -> None:
    said, root = description(b"c"), maker.root.der

    def under(issuer: Issuer) -> list[bytes]:
        return [issue("leaf", issuer, key=KEY, said=said, authority=False).der, issuer.der]

    plain = issue("no authority", maker.root, authority=False)
    refused(maker, [*under(plain), root], "which it may not")
    for purposes in ((2,), (2, 7), ()):
        signs = issue("signing key", maker.environment, said=description(b"c", purposes=purposes), authority=False)
        refused(maker, [*under(signs), maker.environment.der, root], "which it may not")
    attests = issue("attest key", maker.environment, said=description(b"c", purposes=(7,)), authority=False)
    assert verify_chain(
        [*under(attests), maker.environment.der, root], {key_bytes(maker.root.certificate)}, datetime.now(UTC)
    )
    short = issue("short", maker.root, constraints={"path_length": 0})
    below = issue("below", short)
    refused(maker, [*under(below), short.der, root], "which it may not")


def test_chains_out_of_order_too_long_too_short_and_none(maker: Maker) -> None:
    leaf, environment, root = maker.chain(KEY, b"c")
    refused(maker, [environment, leaf, root], "not issued by the next one")
    refused(maker, [leaf, root], "not issued by the next one")
    refused(maker, [root], "has 1 certificates")
    refused(maker, [leaf] * MAX_CERTIFICATES + [root], "has 11 certificates")
    refused(maker, [b"", root], "damaged")
    refused(maker, [environment, root], "says nothing of this key")


def test_every_truncation_and_every_flipped_bit_of_a_description_is_one_error_or_another_description() -> None:
    data = description(b"challenge")
    assert parse_description(data).challenge == b"challenge"
    for end in range(len(data)):
        with pytest.raises(CertificateError):
            parse_description(data[:end])
    with pytest.raises(CertificateError):
        parse_description(data + b"\x00")
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            parse_description(bytes(changed))
        except CertificateError:
            continue


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x30\x80\x00\x00", "length"),  # an indefinite length
        (b"\x30\x81\x05" + bytes(5), "length"),  # a long form where the short one does
        (b"\x30\x84\xff\xff\xff\xff", "length"),
        (b"\x31\x00", "kind"),
        (b"\x30\x00", "0 parts, not 8"),
        (description(b"c", more=b"\xbf\x80\x01\x00"), "tag"),
        (description(b"c", more=b"\xbf\x1e\x00"), "tag"),
        (description(b"c", more=b"\xbf\x85\x3e\x03\x02\x01\x00"), "one thing twice"),  # origin, once more
        (description(b"c", level=3), "security level 3"),
        (description(b"c").replace(b"\x01\x01\xff", b"\x01\x01\x01"), "neither true nor false"),
        (description(b"c").replace(b"\x02\x02\x00\xc8", b"\x02\x02\x00\x48"), "shortest form"),
    ],
)
def test_der_that_is_not_strict(data: bytes, words: str) -> None:
    with pytest.raises(CertificateError, match=words):
        parse_description(data)


def test_the_published_form_of_the_list_of_revoked_keys() -> None:
    held = parse_status_list((DATA / "status.json").read_bytes())
    assert held == {
        "6681152659205225093",
        "8350192447815228107",
        "9408173275444922801",
        "11244410301401252959",
        "cc66e9a93713b6e643b26c15879786f7",
    }
    for damaged in (
        b"",
        b"[]",
        b'{"entries": []}',
        b'{"entries": {"1": {}}}',
        b'{"entries": {"1": 5}}',
        b"[" * 100_000,
    ):
        with pytest.raises(CorruptDataError):
            parse_status_list(damaged)
