"""The registrar's store: invites, devices, certificates, revocations. SQLAlchemy, SQLite by default.

Every change happens in one transaction that is on disk before the caller hears of it. Tokens are kept as SHA-256 only.
All times are Unix seconds.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, Row

from coordinator.keys import pki
from coordinator.store.audit import AuditLog
from coordinator.store.database import Schema, database_errors, open_migrated
from mien.log.audit import Anchor

_T = TypeVar("_T")

HEAD: Final = "r0004"
"""The newest revision of the schema, which this program reads and writes."""

CERTIFICATE_ISSUED: Final = "certificate.issue"
"""Action of the audit log's entries about certificates."""

ENDED_LISTED_S: Final = 7 * 86400
"""How long a revoked certificate is listed beyond its end, for clocks differ."""

_MIGRATIONS: Final = Path(__file__).parent / "migrations"

_META: Final = sa.MetaData()
_DEVICES: Final = sa.Table(
    "devices",
    _META,
    sa.Column("device_id", sa.String(32), primary_key=True),
    sa.Column("population", sa.String(64), nullable=False),
    sa.Column("note", sa.String(200), nullable=False),
    sa.Column("joined_unix_s", sa.BigInteger, nullable=False),
    sa.Column("revoked_unix_s", sa.BigInteger),
    sa.Column("successor_id", sa.String(32), sa.ForeignKey("devices.device_id")),
    sa.Column("attestation", sa.String(200), nullable=False, server_default=""),
)
_INVITES: Final = sa.Table(
    "invites",
    _META,
    sa.Column("token_sha256", sa.String(64), primary_key=True),
    sa.Column("population", sa.String(64), nullable=False),
    sa.Column("note", sa.String(200), nullable=False),
    sa.Column("created_unix_s", sa.BigInteger, nullable=False),
    sa.Column("expires_unix_s", sa.BigInteger, nullable=False),
    sa.Column("used_unix_s", sa.BigInteger),
    sa.Column("device_id", sa.String(32), sa.ForeignKey("devices.device_id")),
)
_CERTIFICATES: Final = sa.Table(
    "certificates",
    _META,
    sa.Column("serial", sa.String(40), primary_key=True),
    sa.Column("device_id", sa.String(32), sa.ForeignKey("devices.device_id"), nullable=False, index=True),
    sa.Column("der", sa.LargeBinary, nullable=False),
    sa.Column("issued_unix_s", sa.BigInteger, nullable=False),
    sa.Column("expires_unix_s", sa.BigInteger, nullable=False),
)
_REVOCATIONS: Final = sa.Table(
    "revocations",
    _META,
    sa.Column("serial", sa.String(40), sa.ForeignKey("certificates.serial"), primary_key=True),
    sa.Column("revoked_unix_s", sa.BigInteger, nullable=False),
    sa.Column("expires_unix_s", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.String(200), nullable=False),
)
_IS_NOT_REVOKED: Final = ~sa.exists().where(_REVOCATIONS.c.serial == _CERTIFICATES.c.serial)
_REVOCATION_LISTS: Final = sa.Table(
    "revocation_lists",
    _META,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("issued_unix_s", sa.BigInteger, nullable=False),
)

_WITNESSED: Final = sa.Table(
    "witnessed",
    _META,
    sa.Column("coordinator_sha256", sa.String(64), primary_key=True),
    sa.Column("origin", sa.String(200), nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("root", sa.LargeBinary, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("at_unix_s", sa.BigInteger, nullable=False),
)

AUDIT: Final = AuditLog.of(_META)
"""Log of every action with actor and time, a hash chain (`mien.log.audit`); only ever added to."""

SCHEMA: Final = Schema(_META, _MIGRATIONS, HEAD)
"""The tables above, and how they are made."""


@dataclass(frozen=True)
class InviteRecord:
    """One invite: usable until `expires_unix_s`, by one key, after which `device_id` names that key's device."""

    token_sha256: str = field(repr=False)
    population: str
    note: str
    created_unix_s: int
    expires_unix_s: int
    used_unix_s: int | None = None
    device_id: str | None = None


@dataclass(frozen=True)
class DeviceRecord:
    """One key that joined. `successor_id` is the key that replaced it, `revoked_unix_s` when an operator ended it.

    `attestation` is what hardware attested of the key, in words.
    """

    device_id: str
    population: str
    note: str
    joined_unix_s: int
    revoked_unix_s: int | None = None
    successor_id: str | None = None
    attestation: str = ""


@dataclass(frozen=True)
class CertificateRecord:
    """One certificate that was issued; `serial` is the certificate's serial number."""

    serial: int
    device_id: str
    der: bytes = field(repr=False)
    issued_unix_s: int
    expires_unix_s: int


@dataclass(frozen=True)
class WitnessedRecord:
    """The newest checkpoint of a coordinator's log that the registrar cosigned, by that coordinator's authority."""

    coordinator_sha256: str
    origin: str
    size: int
    root: bytes
    note: str = field(repr=False)
    at_unix_s: int


class Transaction:
    """Reads and writes that happen together or not at all."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add_invite(self, invite: InviteRecord) -> None:
        """Keep a new invite."""
        self._connection.execute(sa.insert(_INVITES).values(**_values(invite)))

    def invite(self, token_sha256: str) -> InviteRecord | None:
        """Return the invite of a token's hash."""
        row = self._one(sa.select(_INVITES).where(_INVITES.c.token_sha256 == token_sha256))
        return None if row is None else InviteRecord(**row._mapping)

    def invites_since(self, unix_s: int) -> int:
        """Return how many invites were made after a time."""
        made = sa.select(sa.func.count()).select_from(_INVITES).where(_INVITES.c.created_unix_s > unix_s)
        return int(self._connection.execute(made).scalar_one())

    def claim_invite(self, token_sha256: str, device_id: str, now: int) -> bool:
        """Mark an unused invite as used by a device; False when somebody was faster."""
        unused = (_INVITES.c.token_sha256 == token_sha256) & _INVITES.c.used_unix_s.is_(None)
        result = self._connection.execute(
            sa.update(_INVITES).where(unused).values(used_unix_s=now, device_id=device_id)
        )
        return result.rowcount == 1

    def end_open_invites(self, now: int) -> int:
        """Let every invite that could still be used expire now, and return how many those were."""
        is_open = _INVITES.c.used_unix_s.is_(None) & (_INVITES.c.expires_unix_s > now)
        return self._connection.execute(sa.update(_INVITES).where(is_open).values(expires_unix_s=now)).rowcount

    def device(self, device_id: str) -> DeviceRecord | None:
        """Return a device."""
        row = self._one(sa.select(_DEVICES).where(_DEVICES.c.device_id == device_id))
        return None if row is None else DeviceRecord(**row._mapping)

    def put_device(self, device: DeviceRecord) -> None:
        """Keep a device, new or changed."""
        values = _values(device)
        changed = sa.update(_DEVICES).where(_DEVICES.c.device_id == device.device_id).values(**values)
        if self._connection.execute(changed).rowcount == 0:
            self._connection.execute(sa.insert(_DEVICES).values(**values))

    def devices_after(self, device_id: str, limit: int) -> Sequence[tuple[DeviceRecord, int]]:
        """Return devices in the order of their ids, each with the time its newest certificate expires (0: none)."""
        expires = sa.func.coalesce(sa.func.max(_CERTIFICATES.c.expires_unix_s), 0).label("expires")
        rows = self._connection.execute(
            sa.select(_DEVICES, expires)
            .join(_CERTIFICATES, _CERTIFICATES.c.device_id == _DEVICES.c.device_id, isouter=True)
            .where(_DEVICES.c.device_id > device_id)
            .group_by(*_DEVICES.c)
            .order_by(_DEVICES.c.device_id)
            .limit(limit)
        )
        return [(DeviceRecord(*row[:-1]), int(row.expires)) for row in rows]

    def add_certificate(self, certificate: CertificateRecord) -> None:
        """Keep a certificate that was just issued."""
        self._connection.execute(sa.insert(_CERTIFICATES).values(**_values(certificate)))

    def forget_ended(self, device_id: str, before: int) -> None:
        """Forget a device's certificates that ended before a time, but for those that were revoked."""
        has_ended = (_CERTIFICATES.c.device_id == device_id) & (_CERTIFICATES.c.expires_unix_s < before)
        self._connection.execute(sa.delete(_CERTIFICATES).where(has_ended, _IS_NOT_REVOKED))

    def newest_certificate(self, device_id: str) -> CertificateRecord | None:
        """Return the certificate of a device that was issued last and is not revoked."""
        row = self._one(
            sa.select(_CERTIFICATES)
            .where(_CERTIFICATES.c.device_id == device_id, _IS_NOT_REVOKED)
            .order_by(_CERTIFICATES.c.issued_unix_s.desc(), _CERTIFICATES.c.expires_unix_s.desc())
            .limit(1)
        )
        return None if row is None else CertificateRecord(**{**row._mapping, "serial": int(row.serial, 16)})

    def issued_after(self, position: int, limit: int) -> tuple[list[bytes], int]:
        """Return certificates (DER) whose issue stands behind `position` in the audit log, oldest first.

        And the position of the last of them, or the given one where there are none. Those that were forgotten because
        they ended long ago are left out.
        """
        entries = AUDIT.entries.c
        issued = (entries.position > position, entries.action == CERTIFICATE_ISSUED)
        found = AUDIT.find(self._connection, *issued, oldest=limit)
        serials = [json.loads(entry.detail_json)["serial"] for entry in found]
        wanted = sa.select(_CERTIFICATES.c.serial, _CERTIFICATES.c.der).where(_CERTIFICATES.c.serial.in_(serials))
        ders = {row.serial: row.der for row in self._connection.execute(wanted)}
        return [ders[serial] for serial in serials if serial in ders], found[-1].position if found else position

    def witnessed(self, coordinator_sha256: str) -> WitnessedRecord | None:
        """Return what was cosigned last of a coordinator's log; the row is locked where the database can."""
        wanted = sa.select(_WITNESSED).where(_WITNESSED.c.coordinator_sha256 == coordinator_sha256)
        row = self._one(wanted.with_for_update())
        return None if row is None else WitnessedRecord(**row._mapping)

    def put_witnessed(self, record: WitnessedRecord) -> None:
        """Keep what is about to be cosigned."""
        changed = sa.update(_WITNESSED).where(_WITNESSED.c.coordinator_sha256 == record.coordinator_sha256)
        if self._connection.execute(changed.values(**vars(record))).rowcount == 0:
            self._connection.execute(sa.insert(_WITNESSED).values(**vars(record)))

    def revoke_certificates(self, device_id: str, reason: str, now: int) -> int:
        """Put a device's certificates on the revocation list, and return how many were new there.

        Those that ended more than a week ago, for clocks differ, are good for nothing and not listed: each phone of a
        round downloads the list.
        """
        rows = self._connection.execute(
            sa.select(_CERTIFICATES.c.serial, _CERTIFICATES.c.expires_unix_s).where(
                _CERTIFICATES.c.device_id == device_id,
                _CERTIFICATES.c.expires_unix_s > now - ENDED_LISTED_S,
                _IS_NOT_REVOKED,
            )
        ).all()
        for row in rows:
            values = {
                "serial": row.serial,
                "revoked_unix_s": now,
                "expires_unix_s": row.expires_unix_s,
                "reason": reason,
            }
            self._connection.execute(sa.insert(_REVOCATIONS).values(**values))
        return len(rows)

    def is_revoked(self, serial: int) -> bool:
        """Return whether a certificate is on the revocation list."""
        return self._one(sa.select(_REVOCATIONS).where(_REVOCATIONS.c.serial == f"{serial:x}")) is not None

    def revocations(self, not_expired_before: int, revoked_since: int) -> Sequence[pki.Revocation]:
        """Return the revocations of certificates that expire or were revoked at these times or later, oldest first."""
        is_listed = (_REVOCATIONS.c.expires_unix_s >= not_expired_before) | (
            _REVOCATIONS.c.revoked_unix_s >= revoked_since
        )
        rows = self._connection.execute(
            sa.select(_REVOCATIONS).where(is_listed).order_by(_REVOCATIONS.c.revoked_unix_s, _REVOCATIONS.c.serial)
        )
        return [pki.Revocation(int(r.serial, 16), datetime.fromtimestamp(r.revoked_unix_s, UTC)) for r in rows]

    def count_revocations(self) -> int:
        """Return how many certificates were ever revoked: it tells whether a list is still whole."""
        return int(self._connection.execute(sa.select(sa.func.count()).select_from(_REVOCATIONS)).scalar_one())

    def devices_like(self, beginning: str) -> Sequence[str]:
        """Return up to two ids of devices that begin with some digits."""
        rows = self._connection.execute(
            sa.select(_DEVICES.c.device_id).where(_DEVICES.c.device_id.startswith(beginning, autoescape=True)).limit(2)
        )
        return [row.device_id for row in rows]

    def next_list_number(self, now: int) -> int:
        """Return a number for a new revocation list, larger than all before it even when the clock went back."""
        last = self._connection.execute(sa.select(sa.func.max(_REVOCATION_LISTS.c.number))).scalar_one()
        return self._number_list((last or 0) + 1, now)

    def skip_list_numbers(self, now: int) -> int:
        """Let the next list's number be larger than any that a database which this is a copy of has reached by now.

        Numbers grow far slower than one a second, so the time in seconds is such a number.
        """
        return self._number_list(max(self.next_list_number(now), now), now)

    def _number_list(self, number: int, now: int) -> int:
        self._connection.execute(sa.delete(_REVOCATION_LISTS))
        self._connection.execute(sa.insert(_REVOCATION_LISTS).values(number=number, issued_unix_s=now))
        return int(number)

    def log(
        self, now: int, actor: str, action: str, subject: str, detail: Mapping[str, object] | None = None
    ) -> Anchor:
        """Enter a deed in the audit log and return its place there; `now` in Unix seconds like all times here."""
        entry = AUDIT.append(
            self._connection, at_ms=now * 1000, actor=actor, action=action, subject=subject, detail=detail
        )
        return entry.anchor

    def audit(self, call: Callable[[AuditLog, Connection], _T]) -> _T:
        """Return the result of a call on the audit log."""
        return call(AUDIT, self._connection)

    def _one(self, statement: sa.Select[Any]) -> Row[Any] | None:
        return self._connection.execute(statement).one_or_none()


class Store:
    """The registrar's durable state; not for use by two threads at once."""

    def __init__(self, engine: Engine, unix_s: Callable[[], float]) -> None:
        self._engine, self._unix_s = engine, unix_s

    @classmethod
    def open(cls, url: str, unix_s: Callable[[], float] = time.time) -> Store:
        """Return the store at a database URL, its schema brought up to date; raises VersionError for a newer one."""
        return cls(open_migrated(url, _MIGRATIONS, HEAD, setting="store_url"), unix_s)

    @contextlib.contextmanager
    def begin(self) -> Iterator[Transaction]:
        """Open a transaction that is committed when the block ends and undone when it raises."""
        with database_errors(), self._engine.begin() as connection:
            yield Transaction(connection)

    def log(self, actor: str, action: str, subject: str, detail: Mapping[str, object] | None = None) -> Anchor:
        """Enter a deed in the audit log and return its place there."""
        with self.begin() as transaction:
            return transaction.log(int(self._unix_s()), actor, action, subject, detail)

    def audit(self, call: Callable[[AuditLog, Connection], _T]) -> _T:
        """Return the result of a call on the audit log."""
        with self.begin() as transaction:
            return transaction.audit(call)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _values(record: InviteRecord | DeviceRecord | CertificateRecord) -> dict[str, Any]:
    values = dict(vars(record))
    if isinstance(record, CertificateRecord):
        values["serial"] = f"{record.serial:x}"
    return values
