"""The registrar's decisions: who gets a certificate, for how long, and whose is taken back.

No sockets here: `service` brings requests, `store` remembers, `coordinator.keys.pki` signs. Methods raise the errors of
`mien.errors` and are not for use by two threads at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from coordinator.registrar.attestation.policy import Policy, holds
from coordinator.registrar.config import MAX_INVITE_S, RegistrarConfig
from coordinator.registrar.store import (
    CERTIFICATE_ISSUED,
    ENDED_LISTED_S,
    CertificateRecord,
    DeviceRecord,
    InviteRecord,
    Store,
    Transaction,
)
from coordinator.store import audit
from mien.errors import CertificateError, ConfigError, InviteError, NotFoundError, RateLimitedError, RevokedError
from mien.protocol.attestation import attestation_challenge
from mien.protocol.ids import PopulationId
from mien.protocol.invite import Invite
from mien.protocol.names import clean_text
from mien.protocol.renewal import renewal_message
from mien.shell.keys import secret_text

RENEWAL_FRESHNESS_S: Final = 300
"""Largest distance of a device's clock from the registrar's at a renewal; a renewal could be replayed as long."""

RENEWAL_REPEAT_S: Final = 60
"""A device that renews again within this time gets the certificate it was given: an answer may have been lost."""

MAX_LISTED: Final = 1000
"""Most devices that one answer holds, which keeps it within a message's limit."""

_DAY_S: Final = 86400
_USED: Final = "this invite was used by another device; if that was not you, tell the operator and ask for a new one"
_REVOKED: Final = f"this device was revoked, or its key was replaced; {pki.AFTER_REVOCATION}"
_RECOUNT: Final = timedelta(seconds=1)
_CRL_REFRESH: Final = pki.CRL_LIFETIME / 8
_CRL_SIGN_AGAIN: Final = timedelta(minutes=15)
# Coordinators expect each revocation for that long, by their own clocks.
_CRL_MIN_MEMORY: Final = pki.MAX_DEVICE_LIFETIME + timedelta(days=1)
_MAX_TEXT: Final = 200
_MAX_SIGNATURE_BYTES: Final = 80


@dataclass(frozen=True)
class Joined:
    """The answer to a device that joins: its id, its certificate, and where to go."""

    device_id: str
    certificate_der: bytes = field(repr=False)
    population: str
    coordinator_ca_der: bytes = field(repr=False)


@dataclass(frozen=True)
class NewInvite:
    """An invite that was just made; the only time its token is known."""

    invite: Invite
    expires_unix_s: int


@dataclass(frozen=True)
class _SignedList:
    """A revocation list: when it was made, when it was signed last, and what it names."""

    made: datetime
    signed: datetime
    number: int
    revocations: tuple[pki.Revocation, ...] = field(repr=False)
    der: bytes = field(repr=False)


class Registry:
    """The registrar's decisions over one store and one authority.

    `clock` returns the time with its zone. `coordinator_ca` returns the coordinator's public certificate, or raises
    ConfigError while none is trusted. `policy` is what hardware has to attest of a key.
    """

    def __init__(
        self,
        store: Store,
        authority: pki.Authority,
        config: RegistrarConfig,
        coordinator_ca: Callable[[], x509.Certificate],
        clock: Callable[[], datetime],
        policy: Policy | None = None,
    ) -> None:
        self._store = store
        self._authority = authority
        self._config = config
        self._coordinator_ca = coordinator_ca
        self._clock = clock
        self._policy = policy
        self._crl: _SignedList | None = None
        self._counted = (clock(), 0)

    def create_invite(self, population: str, valid_s: int, note: str, *, actor: str) -> NewInvite:
        """Return a new invite into a population; `valid_s` of 0 takes the configured validity.

        `actor` is the operator who asks, for the audit log, which holds neither the token nor the note. Raises
        RateLimitedError once `invites_per_day` were made.
        """
        pki.check_name(population)
        valid_s = valid_s or self._config.invite_valid_s
        if valid_s > MAX_INVITE_S:
            raise ConfigError(f"an invite of {valid_s} s is too long; the limit is {MAX_INVITE_S} s (30 days)")
        coordinator_ca, token, now = self._coordinator_ca(), secret_text(32), self._now_s()
        record = InviteRecord(token_hash(token), population, _checked_text(note, "note"), now, now + valid_s)
        with self._store.begin() as transaction:
            left = self._config.invites_per_day - transaction.invites_since(now - _DAY_S)
            if left < 1:
                raise RateLimitedError(
                    f"{self._config.invites_per_day} invites were made within 24 hours, the most that invites_per_day "
                    "lets all operators make; wait, or raise it in registrar.toml and restart the registrar"
                )
            transaction.add_invite(record)
            detail = {"population": population, "expires_unix_s": record.expires_unix_s, "left_today": left - 1}
            transaction.log(now, actor, "invite.make", _invite_id(record), detail)
        ca_sha256 = pki.fingerprint(self._authority.certificate)
        invite = Invite(self._config.address, ca_sha256, pki.fingerprint(coordinator_ca), token)
        return NewInvite(invite, record.expires_unix_s)

    def join(self, token: str, csr_der: bytes, attestation_der: Sequence[bytes] = ()) -> Joined:
        """Return the certificate for the key in `csr_der`, for the holder of an unused invite's token.

        `attestation_der` is the chain of the key's attestation. The same token with the same key gets the same
        certificate again. A request that is refused leaves the invite as it was.
        """
        coordinator_ca, now = self._coordinator_ca(), self._now_s()
        with self._store.begin() as transaction:
            invite = transaction.invite(token_hash(token))
            if invite is None:
                raise InviteError("this invite is not known here; ask the operator for a new one")
            public_key = pki.csr_public_key(csr_der)
            device = _good_device(transaction, pki.device_id(public_key))
            if invite.used_unix_s is None:
                attested = self._attested(token, public_key, attestation_der)
                certificate = self._admit(transaction, invite, device, public_key, attested)
            else:
                certificate = _repeated_join(transaction, invite, public_key, now)
        return self._joined(certificate, invite.population, coordinator_ca)

    def renew(self, certificate_der: bytes, csr_der: bytes, signature: bytes, unix_ms: int) -> Joined:
        """Return the next certificate of a device that proves its current key, for the same key or a new one.

        A certificate may have expired up to `renewal_grace_days` ago. A new key ends the old one: its certificates are
        revoked at once, and only that same new key may ask again with the old one.
        """
        coordinator_ca, now = self._coordinator_ca(), self._clock()
        _check_fresh(unix_ms, now)
        leaf = pki.load_certificate(certificate_der)
        identity = self._holder(leaf, now)
        _check_signature(leaf, signature, renewal_message(csr_der, unix_ms))
        public_key = pki.csr_public_key(csr_der)
        with self._store.begin() as transaction:
            device = transaction.device(identity.id)
            if device is None:
                raise CertificateError("this device is not known here; join again with a new invite")
            if pki.device_id(public_key) == identity.id:
                _good_device(transaction, identity.id)
                if transaction.is_revoked(identity.serial):
                    raise RevokedError(_REVOKED)
                certificate = self._prolong(transaction, device, public_key)
            else:
                if self._policy is not None:
                    self._policy.check_new_key()
                device, certificate = self._replace_key(transaction, device, public_key)
        return self._joined(certificate, device.population, coordinator_ca)

    def revoke(self, device_id: str, reason: str, *, actor: str) -> None:
        """Revoke a device and every key that replaced it.

        Of one that is revoked already only certificates are listed that were not, as after a time with a wrong clock.
        """
        reason, now = _checked_text(reason, "reason"), self._now_s()
        with self._store.begin() as transaction:
            device = transaction.device(device_id)
            if device is None:
                raise NotFoundError(f"there is no device {device_id[:32]!r}; mien-registrar list shows all")
            while device is not None:
                count = transaction.revoke_certificates(device.device_id, reason, now)
                if device.revoked_unix_s is None or count:
                    transaction.put_device(replace(device, revoked_unix_s=device.revoked_unix_s or now))
                    detail = {"reason": reason, "certificates": count}
                    transaction.log(now, actor, "device.revoke", device.device_id, detail)
                device = transaction.device(device.successor_id) if device.successor_id else None
        self._crl = None

    def find(self, wanted: str) -> str:
        """Return the id of the one device that an id or its beginning means; raises NotFoundError."""
        with self._store.begin() as transaction:
            near = transaction.devices_like(wanted) if wanted else []
        if len(near) != 1:
            found = "several devices fit" if near else "no device fits"
            raise NotFoundError(f"{found} {wanted[:32]!r}; give an id that mien-registrar list shows")
        return near[0]

    def crl(self) -> bytes:
        """Return the signed revocation list (DER), made anew after a revocation and well before it is old.

        Phones ask how old it is, so that in between the same list is signed again. Others may revoke in the same
        database (`revoke --local`), so that is looked at once a second.
        """
        now = self._clock()
        if self._crl is not None and not timedelta(0) <= now - self._counted[0] < _RECOUNT:
            with self._store.begin() as transaction:
                count = transaction.count_revocations()
            if count != self._counted[1]:
                self._crl = None
            self._counted = (now, count)
        if self._crl is None or not timedelta(0) <= now - self._crl.made < _CRL_REFRESH:
            with self._store.begin() as transaction:
                self._counted = (now, transaction.count_revocations())
                revocations = transaction.revocations(
                    int(now.timestamp()) - ENDED_LISTED_S, int((now - _CRL_MIN_MEMORY).timestamp())
                )
                number = transaction.next_list_number(int(now.timestamp()))
            self._crl = _SignedList(now, now, number, tuple(revocations), b"")
        if not self._crl.der or not timedelta(0) <= now - self._crl.signed < _CRL_SIGN_AGAIN:
            der = pki.build_crl(self._authority, self._crl.revocations, self._crl.number, now)
            self._crl = replace(self._crl, signed=now, der=der)
        return self._crl.der

    def devices(self, after_device_id: str, limit: int) -> Sequence[tuple[DeviceRecord, int]]:
        """Return up to `limit` devices (0: 100) after an id, each with when its newest certificate expires."""
        with self._store.begin() as transaction:
            return transaction.devices_after(after_device_id, min(limit or 100, MAX_LISTED))

    def _admit(
        self,
        transaction: Transaction,
        invite: InviteRecord,
        known: DeviceRecord | None,
        public_key: ec.EllipticCurvePublicKey,
        attestation: str,
    ) -> CertificateRecord:
        """Use up an invite for a key; certificates that the key held in another population end."""
        now = self._now_s()
        if invite.expires_unix_s <= now:
            raise InviteError("this invite has expired; ask the operator for a new one")
        device = DeviceRecord(pki.device_id(public_key), invite.population, invite.note, now, attestation=attestation)
        if known is not None and known.population != device.population:
            reason = "moved to another population"
            count = transaction.revoke_certificates(device.device_id, reason, now)
            moved = {"reason": reason, "certificates": count}
            transaction.log(now, audit.REGISTRAR, "device.revoke", device.device_id, moved)
            self._crl = None
        transaction.put_device(device)
        if not transaction.claim_invite(invite.token_sha256, device.device_id, now):
            raise InviteError(_USED)
        detail = {"population": device.population, "invite": _invite_id(invite)}
        if attestation:
            detail["attestation"] = attestation
        transaction.log(now, f"device:{device.device_id}", "device.join", device.device_id, detail)
        return self._issue(transaction, device, public_key)

    def _attested(self, token: str, public_key: ec.EllipticCurvePublicKey, chain_der: Sequence[bytes]) -> str:
        """Return the record to keep of a key's attestation; raises CertificateError where it does not suffice."""
        if self._policy is None:
            return ""
        challenge = attestation_challenge(token, pki.fingerprint(self._authority.certificate))
        return self._policy.judge(chain_der, public_key, challenge, self._clock())

    def _prolong(
        self, transaction: Transaction, device: DeviceRecord, public_key: ec.EllipticCurvePublicKey
    ) -> CertificateRecord:
        newest = transaction.newest_certificate(device.device_id)
        if newest is not None and 0 <= self._now_s() - newest.issued_unix_s < RENEWAL_REPEAT_S:
            return newest
        return self._issue(transaction, device, public_key)

    def _replace_key(
        self, transaction: Transaction, old: DeviceRecord, public_key: ec.EllipticCurvePublicKey
    ) -> tuple[DeviceRecord, CertificateRecord]:
        """Let a new key take the place of an old one, which is over from then on."""
        new_id, now = pki.device_id(public_key), self._now_s()
        known = _good_device(transaction, new_id)
        if old.revoked_unix_s is not None:
            raise RevokedError(_REVOKED)
        if old.successor_id == new_id and known is not None:
            return known, self._prolong(transaction, known, public_key)
        if old.successor_id is not None:
            raise RevokedError("this key was replaced by another one; use the new key, or ask the operator")
        if known is not None:
            raise CertificateError("the new key belongs to another device already; make a fresh key")
        new = DeviceRecord(new_id, old.population, old.note, old.joined_unix_s)
        transaction.put_device(new)
        transaction.put_device(replace(old, successor_id=new_id))
        count = transaction.revoke_certificates(old.device_id, "key replaced", now)
        detail = {"new_device_id": new_id, "certificates": count}
        transaction.log(now, f"device:{old.device_id}", "device.replace_key", old.device_id, detail)
        self._crl = None
        return new, self._issue(transaction, new, public_key)

    def _issue(
        self, transaction: Transaction, device: DeviceRecord, public_key: ec.EllipticCurvePublicKey
    ) -> CertificateRecord:
        lifetime = timedelta(days=self._config.device_certificate_days)
        population, now = PopulationId(device.population), self._clock()
        leaf = pki.issue_device_leaf(
            *(self._authority, public_key, population, now, lifetime),
            admitted_unix_s=device.joined_unix_s,
            is_attested=holds(device.attestation),
        )
        record = CertificateRecord(
            leaf.serial_number,
            device.device_id,
            pki.to_der(leaf),
            self._now_s(),
            int(leaf.not_valid_after_utc.timestamp()),
        )
        # A phone renews every few days for years, and all that it holds would be revoked with it.
        transaction.forget_ended(device.device_id, self._now_s() - _DAY_S * (self._config.renewal_grace_days + 1))
        transaction.add_certificate(record)
        detail = {"serial": f"{record.serial:x}", "expires_unix_s": record.expires_unix_s}
        transaction.log(self._now_s(), audit.REGISTRAR, CERTIFICATE_ISSUED, device.device_id, detail)
        return record

    def _holder(self, leaf: x509.Certificate, now: datetime) -> pki.PeerIdentity:
        """Return whose certificate it is, judged at its last valid instant while within the grace period."""
        expired_for = now - leaf.not_valid_after_utc
        grace = timedelta(days=self._config.renewal_grace_days)
        within_grace = timedelta(0) < expired_for <= grace
        return pki.device_identity(leaf, self._authority.certificate, leaf.not_valid_after_utc if within_grace else now)

    def _joined(self, certificate: CertificateRecord, population: str, coordinator_ca: x509.Certificate) -> Joined:
        return Joined(certificate.device_id, certificate.der, population, pki.to_der(coordinator_ca))

    def _now_s(self) -> int:
        return int(self._clock().timestamp())


def _good_device(transaction: Transaction, device_id: str) -> DeviceRecord | None:
    """Return the record of a key; raises RevokedError for one that was revoked or replaced."""
    device = transaction.device(device_id)
    if device is not None and (device.revoked_unix_s is not None or device.successor_id is not None):
        raise RevokedError(_REVOKED)
    return device


def _repeated_join(
    transaction: Transaction, invite: InviteRecord, public_key: ec.EllipticCurvePublicKey, now: int
) -> CertificateRecord:
    """Return the certificate that a device was given for this invite, to the very key that used it."""
    if invite.device_id != pki.device_id(public_key):
        raise InviteError(_USED)
    certificate = transaction.newest_certificate(invite.device_id)
    if certificate is None or certificate.expires_unix_s <= now:
        raise InviteError("this invite was used, and its certificate has expired; renew, or ask for a new invite")
    return certificate


def _check_fresh(unix_ms: int, now: datetime) -> None:
    """Raise CertificateError that names the difference when a device's clock is not near the registrar's."""
    ahead_s = unix_ms / 1000 - now.timestamp()
    if abs(ahead_s) > RENEWAL_FRESHNESS_S:
        direction = "ahead of" if ahead_s > 0 else "behind"
        raise CertificateError(
            f"this device's clock is {abs(ahead_s):.0f} s {direction} the registrar's; set it right, then renew again"
        )


def _check_signature(leaf: x509.Certificate, signature: bytes, message: bytes) -> None:
    public_key = leaf.public_key()
    try:
        if not isinstance(public_key, ec.EllipticCurvePublicKey) or len(signature) > _MAX_SIGNATURE_BYTES:
            raise InvalidSignature
        public_key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise CertificateError("the renewal is not signed by the certificate's key; join again") from error


def token_hash(token: str) -> str:
    """Return the name by which an invite of that token is stored: hex, which admits nobody."""
    return hashlib.sha256(token.encode()).hexdigest()


def _invite_id(invite: InviteRecord) -> str:
    """Return an invite's id in the audit log: it tells invites apart and admits nobody."""
    return invite.token_sha256[:16]


def _checked_text(text: str, what: str) -> str:
    clean = clean_text(text)
    if clean is None or len(clean) > _MAX_TEXT:
        raise ConfigError(f"{what} must be at most {_MAX_TEXT} printable characters; shorten it")
    return clean
