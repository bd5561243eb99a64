"""Signatures have one form, key agreement is symmetric and bound, sealed shares open for one receiver."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from mien.errors import CertificateError, KeyStoreError, MienError, ViolationError
from mien.secagg.keys import (
    SEALED_BYTES,
    SMALL_ORDER_ED25519,
    AgreementKey,
    EcdsaSigner,
    Ed25519Signer,
    MaskKey,
    SealingKey,
    Suite,
    VerifiedLeaf,
    check_agreement_key,
    check_identity,
    commitment_b,
    cover,
    derive,
    encapsulate,
    identity_id,
    kem_key,
    open_shares,
    pair_seed,
    seal_shares,
    self_seed,
    verify_signature,
)
from tests.mien.secagg import reference
from tests.mien.secagg.cohort import person

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
R = bytes(range(32))
U, V = b"u" * 16, b"v" * 16
# RFC 6979, appendix A.2.5: the key, and the signature of "sample" under SHA-256.
RFC6979_KEY = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
RFC6979_R = 0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716
RFC6979_S = 0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8


def test_ecdsa_is_rfc_6979_with_the_lower_s() -> None:
    signature = EcdsaSigner.of(ec.derive_private_key(RFC6979_KEY, ec.SECP256R1()), deterministic=True).sign(b"sample")
    assert signature == RFC6979_R.to_bytes(32, "big") + (ORDER - RFC6979_S).to_bytes(32, "big")


def test_the_upper_s_is_refused_though_it_verifies() -> None:
    key = ec.derive_private_key(RFC6979_KEY, ec.SECP256R1()).public_key()
    key.verify(encode_dss_signature(RFC6979_R, RFC6979_S), b"sample", ec.ECDSA(hashes.SHA256()))
    upper = RFC6979_R.to_bytes(32, "big") + RFC6979_S.to_bytes(32, "big")
    with pytest.raises(ViolationError):
        verify_signature(Suite.ECDSA_P256, key, b"sample", upper, what="it")


@pytest.mark.parametrize("suite", Suite)
def test_signatures_verify_for_their_message_key_and_suite_only(suite: Suite) -> None:
    leaf, other = (key_of(person(number, suite).certificate) for number in (0, 1))
    signature = person(0, suite).signer.sign(b"message")
    assert len(signature) == 64
    verify_signature(suite, leaf, b"message", signature, what="it")
    flipped = [signature[:i] + bytes([signature[i] ^ 1]) + signature[i + 1 :] for i in range(64)]
    wrong: list[tuple[object, bytes, bytes]] = [(leaf, b"message", bad) for bad in flipped]
    wrong += [(leaf, b"messagf", signature), (other, b"message", signature)]
    wrong += [(leaf, b"message", bad) for bad in (b"", signature[:-1], signature + b"\0", bytes(64), b"\xff" * 64)]
    for key, message, bad in wrong:
        with pytest.raises(ViolationError, match="is not signed by"):
            verify_signature(suite, key, message, bad, what="it")  # type: ignore[arg-type]
    swapped = Suite.ED25519 if suite is Suite.ECDSA_P256 else Suite.ECDSA_P256
    with pytest.raises(ViolationError):
        verify_signature(swapped, leaf, b"message", signature, what="it")


def key_of(certificate: bytes) -> ec.EllipticCurvePublicKey | Ed25519PublicKey:
    from tests.mien.secagg.cohort import verify

    return verify(certificate).public_key


def test_ed25519_refuses_s_beyond_the_group_order() -> None:
    group_order = 2**252 + 27742317777372353535851937790883648493
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    signature = Ed25519Signer(key).sign(b"m")
    larger = int.from_bytes(signature[32:], "little") + group_order
    with pytest.raises(ViolationError):
        verify_signature(
            Suite.ED25519, key.public_key(), b"m", signature[:32] + larger.to_bytes(32, "little"), what="it"
        )


# The curve of Ed25519 in plain integers, to show what the list of small-order encodings holds.
P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def order_of(encoded: bytes) -> int:
    """Return the order (1, 2, 4 or 8) of the point in a lax reading of its encoding."""
    y = (int.from_bytes(encoded, "little") & (1 << 255) - 1) % P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    assert x * x % P == square
    if encoded[31] >> 7 != x & 1:
        x = -x % P
    point, order = (x, y), 1
    while point != (0, 1):
        point, order = add(point, (x, y)), order + 1
        assert order <= 8
    return order


def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + product, -1, P) % P
    return x, (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, -1, P) % P


def test_small_order_identities_are_refused() -> None:
    assert {order_of(encoded) for encoded in SMALL_ORDER_ED25519} == {1, 2, 4, 8}
    assert len(SMALL_ORDER_ED25519) == 14
    refused = 0
    for encoded in SMALL_ORDER_ED25519:
        key = Ed25519PublicKey.from_public_bytes(encoded)
        with pytest.raises(CertificateError):
            check_identity(VerifiedLeaf(identity_id(key), key, 0), identity_id(key), Suite.ED25519)
        refused += 1
    assert refused == 14


def test_an_identity_is_its_key() -> None:
    own, other = person(0), person(1)
    key = key_of(own.certificate)
    check_identity(VerifiedLeaf(own.id, key, 0), own.id, Suite.ECDSA_P256)
    p384 = ec.derive_private_key(5, ec.SECP384R1()).public_key()
    for leaf, claimed, suite in (
        (VerifiedLeaf(own.id, key, 0), other.id, Suite.ECDSA_P256),
        (VerifiedLeaf(other.id, key, 0), other.id, Suite.ECDSA_P256),
        (VerifiedLeaf(own.id, key, 0), own.id, Suite.ED25519),
        (VerifiedLeaf(identity_id(p384), p384, 0), identity_id(p384), Suite.ECDSA_P256),
    ):
        with pytest.raises(CertificateError):
            check_identity(leaf, claimed, suite)


def test_a_key_store_that_returns_nonsense_is_named() -> None:
    with pytest.raises(KeyStoreError):
        EcdsaSigner(lambda message: b"nonsense").sign(b"m")


def test_pairs_agree_and_are_bound_to_everything() -> None:
    a, b, c = (MaskKey(bytes([i]) * 32) for i in (1, 2, 3))
    part = a.part(R, U, V)
    seed = pair_seed(a, b.public, part, R, U, V)
    assert part == reference.hkdf(b"\1" * 32, R, b"MSA2/part" + U + V)
    assert a.public == AgreementKey(reference.hkdf(b"\1" * 32, bytes(32), b"MSA2/mask")).public
    agreed = a.agree(b.public) + part
    assert seed == pair_seed(b, a.public, part, R, V, U) == reference.hkdf(agreed, R, b"MSA2/pair" + U + V)
    others = {
        pair_seed(a, c.public, part, R, U, V),
        pair_seed(a, b.public, part, R[::-1], U, V),
        pair_seed(a, b.public, part, R, U, U),
        pair_seed(a, b.public, part[::-1], R, U, V),
        derive(agreed, R, "self", U, V),
    }
    assert len(others | {seed}) == 6
    parts = {a.part(R, *ids) for ids in ((U, V), (V, U), (U, U))}
    assert len(parts | {b.part(R, U, V), a.part(R[::-1], U, V)}) == 5
    assert self_seed(b"b" * 32, R, U) == reference.hkdf(b"b" * 32, R, b"MSA2/self" + U)
    assert commitment_b(b"b" * 32, R, U) == reference.tagged_hash("b", R, U, b"b" * 32)


def test_a_cover_lifts_both_ways_and_tells_nothing_without_the_other_part() -> None:
    part, peer_part = bytes(range(32)), bytes(range(1, 33))
    covered = cover(part, peer_part, R, U, V)
    assert cover(covered, peer_part, R, U, V) == part
    wrong = {cover(covered, bytes(32), R, U, V), cover(covered, peer_part, R, V, U), cover(covered, peer_part, U, U, V)}
    assert part not in wrong | {covered}


def test_shares_open_for_their_receiver_only() -> None:
    a, b, c = (SealingKey(bytes([i]) * 32, bytes([i]) * 64) for i in (1, 2, 3))
    half = SealingKey(bytes([2]) * 32, bytes([9]) * 64)
    other = SealingKey(bytes([9]) * 32, bytes([2]) * 64)
    plain, kem = bytes(range(96)), encapsulate(b.kem_public, bytes)
    sealed = seal_shares(a, b.public, R, U, V, plain, encapsulated=kem)
    assert len(sealed) == SEALED_BYTES == 1200
    assert open_shares(b, a.public, R, U, V, sealed) == plain
    for key, peer, binding, sender, receiver, ciphertext in (
        (c, a.public, R, U, V, sealed),
        (half, a.public, R, U, V, sealed),  # who has broken X25519 alone
        (other, a.public, R, U, V, sealed),  # who has broken ML-KEM alone
        (b, c.public, R, U, V, sealed),
        (b, a.public, R[::-1], U, V, sealed),
        (b, a.public, R, V, U, sealed),
        (b, a.public, R, U, V, sealed[:-1] + bytes([sealed[-1] ^ 1])),
        (b, a.public, R, U, V, bytes([sealed[0] ^ 1]) + sealed[1:]),
        (b, a.public, R, U, V, b"\0" * SEALED_BYTES),
    ):
        with pytest.raises(ViolationError, match="do not open"):
            open_shares(key, peer, binding, sender, receiver, ciphertext)


# u-coordinates of the points of order 1, 2, 4 and 8 of Curve25519 and its twist, some of them not reduced.
SMALL_U = (
    bytes(32),
    (1).to_bytes(32, "little"),
    (P - 1).to_bytes(32, "little"),
    P.to_bytes(32, "little"),
    (P + 1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
)


@pytest.mark.parametrize("public", SMALL_U, ids=lambda u: u.hex()[:8])
def test_agreement_keys_of_small_order_are_refused(public: bytes) -> None:
    for refuse in (check_agreement_key, AgreementKey(bytes([9]) * 32).agree):
        with pytest.raises(MienError):
            refuse(public)


@pytest.mark.parametrize("start", [b"\xff\xff\xff", b"\x01\x0d\x00"], ids=["4095", "q"])
def test_a_kem_key_with_numbers_beyond_q_is_refused(start: bytes) -> None:
    """FIPS 203, 7.2: every 12 bits of a key are below q = 3329."""
    public = start + SealingKey(bytes(32), bytes(64)).kem_public[3:]
    for refuse in (kem_key, lambda key: encapsulate(key, bytes)):
        with pytest.raises(ViolationError, match="no key pair has"):
            refuse(public)


def test_secrets_do_not_show() -> None:
    assert "***" in repr(SealingKey(bytes(32), bytes(64)))
    assert "***" in repr(MaskKey(bytes(32)))
    assert "***" in repr(AgreementKey(bytes(32)))
    assert "sign_der" not in repr(person(0))
