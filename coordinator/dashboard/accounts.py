"""Access to the dashboard: accounts with passwords, sessions that the server can end, and a log of sign-ins.

All of it lies in a database of the dashboard's own, so that this program need not write to the coordinator's. Passwords
are kept as scrypt hashes, session tokens as SHA-256: neither can be read off the file. The log is a hash chain
(`mien.log.audit`) and never holds what was typed in place of a name, for that may be a password.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa
from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from coordinator.store.audit import AuditedDatabase, AuditLog
from coordinator.store.database import open_migrated, sqlite_url
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError, PermissionDeniedError
from mien.log.audit import Entry
from mien.shell.clock import Clock
from mien.shell.keys import secret_bytes, secret_hex, secret_text

HEAD: Final = "d0001"
"""The newest revision of the schema, which this program reads and writes."""

MIN_PASSWORD: Final = 12
MAX_PASSWORD: Final = 256
IDLE_MS: Final = 60 * 60 * 1000
"""A session ends when it was not used for so long."""

LIFE_MS: Final = 12 * 60 * 60 * 1000
"""A session ends after so long in any case."""

NOBODY: Final = "nobody"
"""Stands in the log for whoever gave a name that there is no account of."""

_SCRYPT_N: Final = 2**16  # 64 MiB; with r = 8 and p = 2 what OWASP advises for passwords
_MAX_SESSIONS: Final = 20
_TOUCH_MS: Final = 60_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_REFUSED: Final = "name or password is wrong"

METADATA: Final = sa.MetaData()
_USERS: Final = sa.Table(
    "users",
    METADATA,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("scrypt_n", sa.Integer, nullable=False),
    sa.Column("salt", sa.LargeBinary, nullable=False),
    sa.Column("password_hash", sa.LargeBinary, nullable=False),
    sa.Column("changed_ms", sa.BigInteger, nullable=False),
)
_SESSIONS: Final = sa.Table(
    "sessions",
    METADATA,
    sa.Column("token_sha256", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(64), sa.ForeignKey("users.name"), nullable=False, index=True),
    sa.Column("began_ms", sa.BigInteger, nullable=False),
    sa.Column("used_ms", sa.BigInteger, nullable=False),
)
_LOG: Final = AuditLog.of(METADATA)


@dataclass(frozen=True)
class User:
    """An account, and when its password was set."""

    name: str
    changed_ms: int


@dataclass(frozen=True)
class Session:
    """Somebody who is signed in; the token is the cookie's."""

    name: str
    token: str = field(repr=False)


class Accounts(AuditedDatabase):
    """The accounts in one database; every method is one transaction."""

    _audit_log = _LOG

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        super().__init__(engine, clock)
        self._decoy = _hashed(secret_hex(16))

    @classmethod
    def open(cls, path: Path, clock: Clock) -> Self:
        """Return the accounts in a file, which is made where it is missing."""
        return cls(open_migrated(sqlite_url(path), _MIGRATIONS, HEAD), clock)

    # Accounts

    def add(self, name: str, password: str, *, actor: str) -> None:
        """Make an account; raises AlreadyExistsError for a name that is taken, ConfigError for a poor password."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                "a name is 1-64 letters, digits, dots, dashes or underscores, and begins with one of the first two"
            )
        values = _password_values(password)
        with self._transaction() as db:
            if db.execute(sa.select(_USERS.c.name).where(_USERS.c.name == name)).first() is not None:
                raise AlreadyExistsError(f"there is an account {name} already; dashboard user password changes it")
            db.execute(sa.insert(_USERS).values(name=name, changed_ms=self._clock.now_ms(), **values))
            self._log(db, actor, "dashboard.add", name)

    def set_password(self, name: str, password: str, *, actor: str) -> None:
        """Set another password and end the account's sessions; raises NotFoundError."""
        values = _password_values(password)
        with self._transaction() as db:
            changed = sa.update(_USERS).where(_USERS.c.name == name)
            if db.execute(changed.values(changed_ms=self._clock.now_ms(), **values)).rowcount != 1:
                raise NotFoundError(_no_account(name))
            db.execute(sa.delete(_SESSIONS).where(_SESSIONS.c.name == name))
            self._log(db, actor, "dashboard.password", name)

    def remove(self, name: str, *, actor: str) -> None:
        """Remove an account and end its sessions; raises NotFoundError."""
        with self._transaction() as db:
            db.execute(sa.delete(_SESSIONS).where(_SESSIONS.c.name == name))
            if db.execute(sa.delete(_USERS).where(_USERS.c.name == name)).rowcount != 1:
                raise NotFoundError(_no_account(name))
            self._log(db, actor, "dashboard.remove", name)

    def users(self) -> list[User]:
        """Return all accounts, by name."""
        with self._transaction() as db:
            rows = db.execute(sa.select(_USERS.c.name, _USERS.c.changed_ms).order_by(_USERS.c.name))
            return [User(*row) for row in rows]

    # Sessions

    def sign_in(self, name: str, password: str, address: str) -> Session:
        """Return a new session; raises PermissionDeniedError, the same one for a wrong name and a wrong password.

        Both take as long: for a name without an account another hash is computed.
        """
        with self._transaction() as db:
            row = db.execute(sa.select(_USERS).where(_USERS.c.name == name)).first()
        kept = self._decoy if row is None else row._mapping
        is_right = _verify(kept, password[:MAX_PASSWORD]) and row is not None
        with self._transaction() as db:
            # Once more: the account may have changed while the hash was computed.
            same = sa.select(_USERS.c.name).where(
                _USERS.c.name == name, _USERS.c.password_hash == kept["password_hash"]
            )
            if not is_right or db.execute(same).first() is None:
                self._log(db, NOBODY if row is None else name, "dashboard.refused", address)
            else:
                return self._new_session(db, name, address)
        raise PermissionDeniedError(_REFUSED)

    def _new_session(self, db: sa.Connection, name: str, address: str) -> Session:
        session, now_ms = Session(name, secret_text(32)), self._clock.now_ms()
        db.execute(sa.delete(_SESSIONS).where(self._over(now_ms)))
        newest = sa.select(_SESSIONS.c.token_sha256).where(_SESSIONS.c.name == name)
        kept = db.scalars(newest.order_by(_SESSIONS.c.began_ms.desc()).limit(_MAX_SESSIONS - 1)).all()
        others = sa.and_(_SESSIONS.c.name == name, _SESSIONS.c.token_sha256.not_in(kept))
        db.execute(sa.delete(_SESSIONS).where(others))
        values = {"name": name, "token_sha256": _digest(session.token), "began_ms": now_ms, "used_ms": now_ms}
        db.execute(sa.insert(_SESSIONS).values(**values))
        self._log(db, name, "dashboard.sign_in", address)
        return session

    def session(self, token: str, *, is_use: bool = True) -> Session | None:
        """Return a token's session, None once it has ended. Only a use keeps it from ending of idleness."""
        now_ms, mine = self._clock.now_ms(), _SESSIONS.c.token_sha256 == _digest(token)
        with self._transaction() as db:
            row = db.execute(sa.select(_SESSIONS).where(mine, sa.not_(self._over(now_ms)))).first()
        if row is None or not hmac.compare_digest(row.token_sha256, _digest(token)):
            return None
        if is_use and now_ms - row.used_ms > _TOUCH_MS:
            with self._transaction() as db:
                db.execute(sa.update(_SESSIONS).where(mine).values(used_ms=now_ms))
        return Session(row.name, token)

    def sign_out(self, session: Session, address: str) -> None:
        """End a session."""
        with self._transaction() as db:
            db.execute(sa.delete(_SESSIONS).where(_SESSIONS.c.token_sha256 == _digest(session.token)))
            self._log(db, session.name, "dashboard.sign_out", address)

    @staticmethod
    def _over(now_ms: int) -> sa.ColumnElement[bool]:
        return sa.or_(_SESSIONS.c.used_ms < now_ms - IDLE_MS, _SESSIONS.c.began_ms < now_ms - LIFE_MS)

    # The log

    def locked(self, address: str) -> None:
        """Note that too many guesses came from an address."""
        with self._transaction() as db:
            self._log(db, NOBODY, "dashboard.locked", address)

    def newest(self, limit: int) -> Sequence[Entry]:
        """Return the newest entries of the log, newest first."""
        with self._transaction() as db:
            return _LOG.read(db, last=limit)[::-1]

    def verify(self) -> int:
        """Return how many entries the log has; raises CorruptDataError that names the first fault."""
        with self._transaction() as db:
            return _LOG.verify(db).position


def _no_account(name: str) -> str:
    return f"there is no account {name[:64]!r}; dashboard user list shows which there are"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _password_values(password: str) -> dict[str, Any]:
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise ConfigError(
            f"the password has {len(password)} characters; choose one of {MIN_PASSWORD} to {MAX_PASSWORD}"
        )
    return _hashed(password)


def _hashed(password: str) -> dict[str, Any]:
    salt = secret_bytes(16)
    return {"scrypt_n": _SCRYPT_N, "salt": salt, "password_hash": _scrypt(salt, _SCRYPT_N).derive(password.encode())}


def _verify(kept: Any, password: str) -> bool:
    try:
        _scrypt(kept["salt"], kept["scrypt_n"]).verify(password.encode(), kept["password_hash"])
    except InvalidKey:
        return False
    return True


def _scrypt(salt: bytes, n: int) -> Scrypt:
    return Scrypt(salt=salt, length=32, n=n, r=8, p=2)
