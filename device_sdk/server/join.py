"""Joining a fleet by invite, and renewing the certificate before it ends.

The token goes only over a channel verified with the authority whose fingerprint the invite carries. Everything may be
repeated after a crash: the same key is used again, the registrar answers the same token and key with the same
certificate, and what is stored is stored in one rename.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from device_sdk.server.certificates import (
    check_clock,
    check_device_certificate,
    check_period,
    fetch_unverified_chain,
    find_authority,
    fingerprint,
    is_issued_by,
    load_certificate,
    to_der,
)
from device_sdk.server.identity import Identity, IdentityKeeper, create_csr
from device_sdk.server.retry import RetryPolicy
from device_sdk.server.rpc import CLOCK_TOLERANCE_S, UNARY_S, Hello, call, open_channel, say_hello
from mien.errors import (
    AlreadyExistsError,
    CertificateError,
    ConfigError,
    FingerprintError,
    MienError,
)
from mien.log.witnesses import Quorum, witness_key
from mien.models.bundles import public_key
from mien.protocol.invite import Invite
from mien.protocol.renewal import renewal_message
from mien.protocol.v1 import registrar_pb2, registrar_pb2_grpc
from mien.protocol.words import plain_words
from mien.shell.clock import Clock

_NO_WITNESS: Final = "the registrar names a key for the log of rounds that cannot be; ask the operator"
_RETRY: Final = RetryPolicy(give_up_s=20.0)


def join(invite: Invite, files: IdentityKeeper, clock: Clock, rng: random.Random) -> Identity:
    """Return the identity that an invite gives this home, stored; the same invite again returns the same identity.

    Raises FingerprintError for servers that the invite does not name, InviteError for a token that is used up,
    AlreadyExistsError when the home belongs to another fleet, CertificateError when the clock is off. Witnesses that
    this home knows stay those whose cosignatures it wants, whatever the registrar names now.
    """
    used = hashlib.sha256(invite.token.encode()).hexdigest()
    present: Identity | None = None
    if files.joined():
        present = files.load()
        _check_same_fleet(present, invite)
        if present.invite_sha256 == used:
            return present
    # 1. Which of the certificates that the registrar shows is the one that the invite pins?
    unverified_chain = fetch_unverified_chain(invite.registrar_address)
    authority = find_authority(unverified_chain, invite.registrar_ca_sha256, who="the registrar")
    # 2. A key of our own, the same one if this is a repetition.
    key = files.key()
    # 3. The token, over a channel verified with that authority.
    with _registrar(invite.registrar_address, authority, clock, rng) as (stub, _):
        request = registrar_pb2.JoinRequest(token=invite.token, csr_der=create_csr(key))
        unverified_reply = call(
            lambda: stub.Join(request, timeout=UNARY_S), "the registrar", _RETRY, clock=clock, rng=rng
        )
    # 4. The answer is checked piece by piece, then stored as a whole.
    pinned = invite.coordinator_ca_sha256
    identity = _identity(unverified_reply, key, authority, invite.registrar_address, pinned)
    identity = _with_known_witnesses(replace(identity, invite_sha256=used), present)
    check_period(identity.certificate, clock.now_utc(), whose="this device's")
    files.save(identity)
    return identity


def renew(identity: Identity, files: IdentityKeeper, clock: Clock, rng: random.Random) -> Identity:
    """Return the identity with its next certificate, stored; key and device id stay the same."""
    csr = create_csr(identity.key)
    with _registrar(identity.registrar_address, identity.registrar_ca, clock, rng) as (stub, hello):
        # By the registrar's clock, so that a slightly wrong one of ours does not stand in the way.
        unix_ms = round((clock.now() + hello.skew_s) * 1000)
        signature = identity.key.sign(renewal_message(csr, unix_ms), ec.ECDSA(hashes.SHA256()))
        request = registrar_pb2.RenewRequest(
            certificate_der=to_der(identity.certificate), csr_der=csr, signature=signature, unix_ms=unix_ms
        )
        unverified_reply = call(
            lambda: stub.Renew(request, timeout=UNARY_S), "the registrar", _RETRY, clock=clock, rng=rng
        )
    pinned = fingerprint(identity.coordinator_ca)
    renewed = _identity(unverified_reply, identity.key, identity.registrar_ca, identity.registrar_address, pinned)
    if renewed.population != identity.population:
        # There sums would be counted from nothing, and a promised epsilon with them: only an invite moves a device.
        raise CertificateError(
            "the registrar renewed this device's certificate into another population, which only an invite does; the "
            "certificate stays as it was, ask the operator"
        )
    # A renewal brings a release key to a device that has none, and never another.
    release_key = identity.release_key or renewed.release_key
    renewed = replace(renewed, invite_sha256=identity.invite_sha256, release_key=release_key)
    renewed = _with_known_witnesses(renewed, identity)
    files.save(renewed)
    return renewed


def _with_known_witnesses(made: Identity, known: Identity | None) -> Identity:
    """Return an identity with the witnesses that a home knew before, where it knew any.

    They are there for a registrar that lies: it may name some to a device that has none, and never others. Nor may it
    add to those of whom a few are enough, for then its own would do.
    """
    if known is None:
        return made
    made = replace(made, witness_key=known.witness_key or made.witness_key)
    if not known.further_witnesses:
        return made
    return replace(made, further_witnesses=known.further_witnesses, witnesses_needed=known.witnesses_needed)


def relocate(identity: Identity, invite: Invite, files: IdentityKeeper, clock: Clock, rng: random.Random) -> Identity:
    """Return the identity at the addresses to which its fleet moved, stored: same key, device id and authorities.

    The registrar is asked where the invite says it is; it names the coordinator's address. The invite's token is not
    used. Raises AlreadyExistsError for another fleet's invite, errors as `renew`.
    """
    _check_same_fleet(identity, invite)
    return renew(replace(identity, registrar_address=invite.registrar_address), files, clock, rng)


@contextmanager
def _registrar(
    address: str, authority: x509.Certificate, clock: Clock, rng: random.Random
) -> Iterator[tuple[registrar_pb2_grpc.RegistrarStub, Hello]]:
    """The registrar over a channel that was verified with its authority, and its greeting."""
    check_server(address, authority, clock, who="the registrar")
    with open_channel(address, authority) as channel:
        stub = registrar_pb2_grpc.RegistrarStub(channel)
        hello = say_hello(stub.Hello, "the registrar", _RETRY, clock=clock, rng=rng)
        check_clock(hello.skew_s, CLOCK_TOLERANCE_S, server="registrar")
        yield stub, hello


def check_server(address: str, authority: x509.Certificate, clock: Clock, *, who: str) -> None:
    """Raise what is wrong with a server before a library refuses it with fewer words.

    UnreachableError: nobody answers. CertificateError: the clock or the certificate's period. FingerprintError: the
    server's certificate is not of the expected authority. A server that passes is verified again by TLS itself.
    """
    unverified_chain = fetch_unverified_chain(address)
    if not unverified_chain or not is_issued_by(unverified_chain[0], authority):
        raise FingerprintError(
            f"{who} at {address} is not the one that this device trusts: its certificate is of another authority; "
            "do not go on, ask the operator"
        )
    for certificate in (authority, unverified_chain[0]):
        check_period(certificate, clock.now_utc(), whose=f"{who}'s")


def _identity(
    unverified: registrar_pb2.JoinReply,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    registrar_address: str,
    coordinator_ca_sha256: str,
) -> Identity:
    """Return the identity in the registrar's answer; raises unless every piece of it is what was pinned or proved."""
    certificate = load_certificate(unverified.certificate_der, whose="this device's")
    device_id, population = check_device_certificate(certificate, key, authority)
    unverified_ca = load_certificate(unverified.coordinator_ca_der, whose="the coordinator's")
    coordinator_ca = find_authority([unverified_ca], coordinator_ca_sha256, who="the coordinator")
    if not unverified.coordinator_address or (unverified.device_id, unverified.population) != (device_id, population):
        raise CertificateError("the registrar's answer does not fit the certificate it gave; ask the operator")
    further = _further(unverified)
    return Identity(
        release_key=_release_key(unverified),
        witness_key=_witness_key(unverified),
        further_witnesses=tuple(map(str, further.keys)),
        witnesses_needed=further.needed,
        device_id=device_id,
        population=population,
        registrar_address=registrar_address,
        coordinator_address=plain_words(unverified.coordinator_address),
        certificate=certificate,
        registrar_ca=authority,
        coordinator_ca=coordinator_ca,
        key=key,
    )


def _release_key(unverified: registrar_pb2.JoinReply) -> str:
    """Return the operator's release key, which the registrar vouches for; empty where the fleet has none."""
    if unverified.release_key:
        try:
            public_key(unverified.release_key)
        except ConfigError as error:
            raise CertificateError("the registrar names a release key that cannot be; ask the operator") from error
    return str(unverified.release_key)


def _witness_key(unverified: registrar_pb2.JoinReply) -> str:
    """Return the key with which the registrar cosigns the log of rounds; empty for a registrar that does not."""
    if not unverified.witness_key:
        return ""
    try:
        return str(witness_key(unverified.witness_key))
    except ConfigError as error:
        raise CertificateError(_NO_WITNESS) from error


def _further(unverified: registrar_pb2.JoinReply) -> Quorum:
    """Return whose cosignatures the log needs as well."""
    try:
        return Quorum.of(unverified.further_witness_keys, unverified.further_witnesses_needed)
    except ConfigError as error:
        raise CertificateError(_NO_WITNESS) from error


def registrar_answers(identity: Identity, clock: Clock) -> bool:
    """Return whether this device can reach its registrar now."""
    try:
        check_server(identity.registrar_address, identity.registrar_ca, clock, who="the registrar")
    except MienError:
        return False
    return True


def _check_same_fleet(present: Identity, invite: Invite) -> None:
    same = (fingerprint(present.registrar_ca), fingerprint(present.coordinator_ca)) == (
        invite.registrar_ca_sha256,
        invite.coordinator_ca_sha256,
    )
    if not same:
        raise AlreadyExistsError(
            f"this home has joined another fleet (population {present.population}); name another `home`"
        )
