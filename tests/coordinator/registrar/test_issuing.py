"""Who gets a certificate and whose is taken back: the registry over a real store, with a clock set by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.keys import pki
from coordinator.registrar.config import LIMITS, MAX_INVITE_S
from coordinator.registrar.issuing import Joined, Registry
from coordinator.registrar.store import Store
from mien.errors import CertificateError, ConfigError, InviteError, NotFoundError, RevokedError
from mien.protocol.admission import admitted_unix_s
from tests.coordinator.registrar.running import CONFIG, Phone, csr_der

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
REGISTRAR = pki.create_authority("registrar", NOW)
COORDINATOR = pki.create_authority("coordinator", NOW)


class SetClock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    @property
    def unix_ms(self) -> int:
        return round(self.now.timestamp() * 1000)


@dataclass
class Desk:
    """A registry with its clock, as tests use it."""

    registry: Registry
    clock: SetClock
    path: Path
    store: Store

    def admitted(self, population: str = "default") -> Phone:
        key = ec.generate_private_key(ec.SECP256R1())
        token = self.registry.create_invite(population, 0, "", actor="alice").invite.token
        return Phone(key, certificate(self.registry.join(token, csr_der(key))))

    def renew(self, phone: Phone, new_key: ec.EllipticCurvePrivateKey | None = None, unix_ms: int = 0) -> Joined:
        request = phone.renewal(unix_ms or self.clock.unix_ms, new_key)
        return self.registry.renew(request.certificate_der, request.csr_der, request.signature, request.unix_ms)

    def revoked_serials(self) -> set[int]:
        return {entry.serial_number for entry in pki.load_crl(self.registry.crl(), REGISTRAR.certificate)}


def certificate(joined: Joined) -> x509.Certificate:
    return x509.load_der_x509_certificate(joined.certificate_der)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    store = Store.open(f"sqlite:///{tmp_path / 'registrar.db'}")
    clock = SetClock()
    yield Desk(Registry(store, REGISTRAR, CONFIG, lambda: COORDINATOR.certificate, clock), clock, tmp_path, store)
    store.close()


def test_an_invite_names_both_authorities_and_admits_one_key(desk: Desk) -> None:
    made = desk.registry.create_invite("clinic-7", 600, "Alice's phone", actor="alice")
    assert made.invite.registrar_address == CONFIG.address
    assert made.invite.registrar_ca_sha256 == pki.fingerprint(REGISTRAR.certificate)
    assert made.invite.coordinator_ca_sha256 == pki.fingerprint(COORDINATOR.certificate)
    assert made.expires_unix_s == int(NOW.timestamp()) + 600

    key = ec.generate_private_key(ec.SECP256R1())
    joined = desk.registry.join(made.invite.token, csr_der(key))
    assert joined.coordinator_ca_der == pki.to_der(COORDINATOR.certificate)
    identity = pki.device_identity(certificate(joined), REGISTRAR.certificate, NOW)
    assert (identity.id, identity.population) == (pki.device_id(key.public_key()), "clinic-7")
    ((device, expires),) = desk.registry.devices("", 0)
    assert (device.device_id, device.note, device.population) == (identity.id, "Alice's phone", "clinic-7")
    assert expires == int(NOW.timestamp()) + 7 * 86400


def test_a_lost_answer_is_given_again_even_after_the_invite_expired(desk: Desk) -> None:
    token = desk.registry.create_invite("default", 60, "", actor="alice").invite.token
    key = ec.generate_private_key(ec.SECP256R1())
    first = desk.registry.join(token, csr_der(key))
    desk.clock.now += timedelta(hours=1)
    # ECDSA requests differ from time to time; the key is what counts.
    assert desk.registry.join(token, csr_der(key)) == first
    desk.clock.now += timedelta(days=7)
    with pytest.raises(InviteError, match="its certificate has expired"):
        desk.registry.join(token, csr_der(key))


def test_a_used_invite_is_refused_to_another_key(desk: Desk) -> None:
    token = desk.registry.create_invite("default", 0, "", actor="alice").invite.token
    desk.registry.join(token, csr_der(ec.generate_private_key(ec.SECP256R1())))
    with pytest.raises(InviteError, match="used by another device"):
        desk.registry.join(token, csr_der(ec.generate_private_key(ec.SECP256R1())))
    assert len(desk.registry.devices("", 0)) == 1


def test_an_expired_or_unknown_invite_is_refused(desk: Desk) -> None:
    token = desk.registry.create_invite("default", 60, "", actor="alice").invite.token
    desk.clock.now += timedelta(seconds=60)
    for refused, message in ((token, "expired"), ("A" * 43, "not known here"), ("", "not known here")):
        with pytest.raises(InviteError, match=message):
            desk.registry.join(refused, csr_der(ec.generate_private_key(ec.SECP256R1())))
    assert desk.registry.devices("", 0) == []


def test_a_bad_request_does_not_use_the_invite_up(desk: Desk) -> None:
    token = desk.registry.create_invite("default", 0, "", actor="alice").invite.token
    with pytest.raises(CertificateError):
        desk.registry.join(token, b"not a request")
    desk.registry.join(token, csr_der(ec.generate_private_key(ec.SECP256R1())))


def test_only_the_hash_of_a_token_is_stored(desk: Desk) -> None:
    token = desk.registry.create_invite("default", 0, "", actor="alice").invite.token
    stored = b"".join(path.read_bytes() for path in desk.path.iterdir())
    assert token.encode() not in stored
    assert hashlib.sha256(token.encode()).hexdigest().encode() in stored


@pytest.mark.parametrize(
    ("population", "valid_s", "note"), [("a b", 0, ""), ("default", MAX_INVITE_S + 1, ""), ("default", 0, "a\nb")]
)
def test_an_invite_that_makes_no_sense_is_refused(desk: Desk, population: str, valid_s: int, note: str) -> None:
    with pytest.raises(ConfigError):
        desk.registry.create_invite(population, valid_s, note, actor="alice")


def test_no_invite_before_a_coordinator_is_trusted(tmp_path: Path) -> None:
    def nobody() -> x509.Certificate:
        raise ConfigError("this registrar trusts no coordinator yet")

    store = Store.open(f"sqlite:///{tmp_path / 'registrar.db'}")
    with pytest.raises(ConfigError, match="no coordinator"):
        Registry(store, REGISTRAR, CONFIG, nobody, SetClock()).create_invite("default", 0, "", actor="alice")
    store.close()


def test_moving_to_another_population_ends_the_old_certificates(desk: Desk) -> None:
    phone = desk.admitted("blue")
    token = desk.registry.create_invite("red", 0, "", actor="alice").invite.token
    moved = desk.registry.join(token, csr_der(phone.key))
    assert moved.population == "red"
    assert desk.revoked_serials() == {phone.certificate.serial_number}


def test_renewal_prolongs_and_may_be_repeated(desk: Desk) -> None:
    phone = desk.admitted()
    desk.clock.now += timedelta(days=5)
    first = desk.renew(phone)
    assert certificate(first).not_valid_after_utc == NOW + timedelta(days=12)
    assert first.device_id == phone.device_id
    assert admitted_unix_s(certificate(first)) == NOW.timestamp(), "a renewal makes no phone younger"
    desk.clock.now += timedelta(seconds=59)
    assert desk.renew(phone) == first
    desk.clock.now += timedelta(seconds=1)
    assert certificate(desk.renew(phone)).serial_number != certificate(first).serial_number
    assert desk.revoked_serials() == set()


@pytest.mark.parametrize(("off", "word"), [(timedelta(days=1), "ahead of"), (timedelta(days=-1), "behind")])
def test_a_clock_a_day_off_is_told_by_how_much(desk: Desk, off: timedelta, word: str) -> None:
    phone = desk.admitted()
    unix_ms = round((desk.clock.now + off).timestamp() * 1000)
    with pytest.raises(CertificateError, match=f"clock is 86400 s {word} the registrar's; set it right"):
        desk.renew(phone, unix_ms=unix_ms)


def test_the_freshness_window_is_five_minutes_each_way(desk: Desk) -> None:
    phone = desk.admitted()
    desk.renew(phone, unix_ms=desk.clock.unix_ms + 300_000)
    desk.renew(phone, unix_ms=desk.clock.unix_ms - 300_000)
    for off in (300_001, -300_001):
        with pytest.raises(CertificateError, match="clock"):
            desk.renew(phone, unix_ms=desk.clock.unix_ms + off)


def test_a_phone_that_slept_renews_within_the_grace_period_only(desk: Desk) -> None:
    phone = desk.admitted()
    desk.clock.now = phone.certificate.not_valid_after_utc + timedelta(days=30)
    renewed = certificate(desk.renew(phone))
    assert renewed.not_valid_after_utc == desk.clock.now + timedelta(days=7)
    desk.clock.now += timedelta(seconds=1)
    with pytest.raises(CertificateError, match="expired 2592001 s ago"):
        desk.renew(phone)


def test_certificates_that_ended_long_ago_are_kept_nowhere(desk: Desk) -> None:
    """A phone that renews for a year does not make the database and, once it is lost, the revocation list longer."""
    phone = desk.admitted()
    other = desk.admitted()
    for _ in range(90):
        desk.clock.now += timedelta(days=4)
        phone = Phone(phone.key, certificate(desk.renew(phone)))
    with desk.store.begin() as transaction:
        assert transaction.newest_certificate(other.device_id) is not None  # forgotten when its own phone renews
        told, _ = transaction.issued_after(0, 1000)
    # Seven days of life, and thirty of grace in which an ended one may still be renewed.
    kept = [each for each in map(x509.load_der_x509_certificate, told) if each != other.certificate]
    assert len(kept) == 10
    assert min(each.not_valid_after_utc for each in kept) >= desk.clock.now - timedelta(days=35)
    desk.registry.revoke(phone.device_id, "lost", actor="alice")
    # Good ones, and those that ended within a week.
    listed = [each for each in kept if each.not_valid_after_utc > desk.clock.now - timedelta(days=7)]
    assert len(listed) == 4
    assert desk.revoked_serials() == {each.serial_number for each in listed}
    with pytest.raises(RevokedError):
        desk.renew(phone)


def test_what_a_wrong_clock_kept_off_the_list_is_listed_when_it_is_revoked_again(desk: Desk) -> None:
    phone = desk.admitted()
    desk.clock.now += timedelta(days=400)
    desk.registry.revoke(phone.device_id, "lost", actor="alice")
    assert desk.revoked_serials() == set()
    desk.clock.now = NOW + timedelta(hours=1)
    desk.registry.revoke(phone.device_id, "lost", actor="alice")
    assert desk.revoked_serials() == {phone.certificate.serial_number}


def test_a_revoked_certificate_stays_known(desk: Desk) -> None:
    phone = desk.admitted()
    moved = desk.registry.create_invite("clinic-7", 0, "", actor="alice").invite.token
    again = Phone(phone.key, certificate(desk.registry.join(moved, csr_der(phone.key))))
    desk.clock.now += timedelta(days=5)
    again = Phone(again.key, certificate(desk.renew(again)))
    assert phone.certificate.serial_number in desk.revoked_serials()
    desk.clock.now += timedelta(days=36)
    desk.renew(again)
    assert phone.certificate.serial_number in desk.revoked_serials()


def test_a_new_key_takes_the_place_of_the_old_one(desk: Desk) -> None:
    phone, new_key, thief = desk.admitted("blue"), *(ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    desk.clock.now += timedelta(minutes=2)
    first = desk.renew(phone, new_key)
    assert (first.device_id, first.population) == (pki.device_id(new_key.public_key()), "blue")
    assert admitted_unix_s(certificate(first)) == NOW.timestamp(), "nor does a new key"
    assert desk.revoked_serials() == {phone.certificate.serial_number}
    # The answer was lost: the same question again.
    assert desk.renew(phone, new_key) == first
    # The old key is of no other use.
    with pytest.raises(RevokedError):
        desk.renew(phone)
    with pytest.raises(RevokedError, match="replaced"):
        desk.renew(phone, thief)
    with pytest.raises(RevokedError):
        desk.registry.join(desk.registry.create_invite("blue", 0, "", actor="alice").invite.token, csr_der(phone.key))


def test_a_new_key_cannot_be_another_devices(desk: Desk) -> None:
    phone, other = desk.admitted(), desk.admitted()
    with pytest.raises(CertificateError, match="belongs to another device"):
        desk.renew(phone, other.key)


def test_revocation_follows_the_phone_to_its_new_key(desk: Desk) -> None:
    phone, new_key = desk.admitted(), ec.generate_private_key(ec.SECP256R1())
    desk.clock.now += timedelta(minutes=5)
    renewed = desk.renew(phone, new_key)
    desk.registry.revoke(phone.device_id, "phone lost", actor="alice")
    assert desk.revoked_serials() == {phone.certificate.serial_number, certificate(renewed).serial_number}
    with pytest.raises(RevokedError):
        desk.renew(Phone(new_key, certificate(renewed)))


def test_a_revoked_device_stays_out(desk: Desk) -> None:
    token = desk.registry.create_invite("default", 0, "", actor="alice").invite.token
    key = ec.generate_private_key(ec.SECP256R1())
    phone = Phone(key, certificate(desk.registry.join(token, csr_der(key))))
    desk.registry.revoke(phone.device_id, "phone lost", actor="alice")
    desk.registry.revoke(phone.device_id, "again", actor="alice")
    with pytest.raises(RevokedError):
        desk.renew(phone)
    with pytest.raises(RevokedError):
        desk.registry.join(token, csr_der(key))
    fresh = desk.registry.create_invite("default", 0, "", actor="alice").invite.token
    with pytest.raises(RevokedError):
        desk.registry.join(fresh, csr_der(key))
    desk.registry.join(fresh, csr_der(ec.generate_private_key(ec.SECP256R1())))
    with pytest.raises(NotFoundError):
        desk.registry.revoke("f" * 32, "", actor="alice")


def test_a_renewal_needs_the_current_key_and_this_registrars_certificate(desk: Desk) -> None:
    phone, other = desk.admitted(), desk.admitted()
    with pytest.raises(CertificateError, match="not signed by the certificate's key"):
        desk.renew(Phone(other.key, phone.certificate))
    good = phone.renewal(desk.clock.unix_ms)
    later = good.unix_ms + 1
    with pytest.raises(CertificateError, match="not signed by the certificate's key"):
        desk.registry.renew(good.certificate_der, good.csr_der, good.signature, later)
    foreign = pki.issue_device_leaf(COORDINATOR, phone.key.public_key(), "default", NOW)
    with pytest.raises(CertificateError, match="expected authority"):
        desk.renew(Phone(phone.key, foreign))
    unknown = ec.generate_private_key(ec.SECP256R1())
    leaf = pki.issue_device_leaf(REGISTRAR, unknown.public_key(), "default", NOW)
    with pytest.raises(CertificateError, match="not known here"):
        desk.renew(Phone(unknown, leaf))


def test_the_revocation_list_is_remade_when_needed_and_numbered_upwards(desk: Desk) -> None:
    def number() -> int:
        return pki.crl_number(pki.load_crl(desk.registry.crl(), REGISTRAR.certificate))

    phone = desk.admitted()
    assert [number(), number()] == [1, 1]
    desk.registry.revoke(phone.device_id, "lost", actor="alice")
    revoked_at = desk.clock.now
    assert number() == 2
    desk.clock.now += timedelta(days=1)
    assert number() == 3
    desk.clock.now -= timedelta(days=2)
    assert number() == 4
    # Coordinators expect it for as long as a certificate that was issued by then may live; a day later it is forgotten.
    desk.clock.now = revoked_at + timedelta(days=91)
    assert desk.revoked_serials() == {phone.certificate.serial_number}
    desk.clock.now += timedelta(days=1, seconds=1)
    assert desk.revoked_serials() == set()


def test_the_same_list_is_signed_again_so_that_phones_see_how_fresh_it_is(desk: Desk) -> None:
    first = pki.load_crl(desk.registry.crl(), REGISTRAR.certificate)
    desk.clock.now += timedelta(minutes=14)
    assert pki.load_crl(desk.registry.crl(), REGISTRAR.certificate) == first
    desk.clock.now += timedelta(minutes=2)
    again = pki.load_crl(desk.registry.crl(), REGISTRAR.certificate)
    assert pki.crl_number(again) == pki.crl_number(first)
    assert again.last_update_utc - first.last_update_utc == timedelta(minutes=16)


def test_no_certificate_lives_longer_than_coordinators_remember_its_revocation() -> None:
    assert timedelta(days=LIMITS["device_certificate_days"][1]) == pki.MAX_DEVICE_LIFETIME


def test_the_audit_log_says_who_did_what_and_holds_no_token_and_no_note(desk: Desk) -> None:
    made = desk.registry.create_invite("red", 0, "Alice's phone", actor="alice")
    first, second = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    joined = desk.registry.join(made.invite.token, csr_der(first))
    renewed = desk.renew(Phone(first, certificate(joined)), second)
    desk.registry.revoke(renewed.device_id, "lost", actor="bob")
    with desk.store.begin() as transaction:
        entries = transaction.audit(lambda log, db: log.read(db))
        assert transaction.audit(lambda log, db: log.verify(db)) == entries[-1].anchor
    assert [(e.actor, e.action, e.subject) for e in entries] == [
        ("alice", "invite.make", hashlib.sha256(made.invite.token.encode()).hexdigest()[:16]),
        (f"device:{joined.device_id}", "device.join", joined.device_id),
        ("system:registrar", "certificate.issue", joined.device_id),
        (f"device:{joined.device_id}", "device.replace_key", joined.device_id),
        ("system:registrar", "certificate.issue", renewed.device_id),
        ("bob", "device.revoke", renewed.device_id),
    ]
    told = repr(entries)
    assert made.invite.token not in told
    assert hashlib.sha256(made.invite.token.encode()).hexdigest() not in told
    assert "Alice" not in told


def test_a_refused_join_leaves_no_entry(desk: Desk) -> None:
    with pytest.raises(InviteError):
        desk.registry.join("unknown", csr_der(ec.generate_private_key(ec.SECP256R1())))
    with desk.store.begin() as transaction:
        assert transaction.audit(lambda log, db: log.read(db)) == []
