"""Registry of replicas, and of the populations whose tasks each runs: leases in the database that they share.

Every comparison of times is the database's own, in one statement; the clocks of two machines never meet. A lease that
ran out stays its owner's until somebody takes it: `epoch` then grows, and with it every later commit of the earlier
owner is refused (`coordinator.replicas.fencing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from coordinator.store.database import database_errors, open_engine
from coordinator.store.tables import LEASES, REPLICAS, TASKS, UPLOADS
from mien.errors import ConfigError
from mien.protocol.ids import DeviceId, PopulationId, RoundId
from mien.rounds.records import TaskState

_JOINING: Final = 0x4D49_4A4E
"""PostgreSQL's advisory lock that one replica at a time begins under."""

_SILENT: Final = 3
"""A replica that was not heard of for so many leases has to be gone: others may begin without it."""

_FORGOTTEN: Final = 30
"""After so many leases nobody lists it any more."""

# BIGINT before the arithmetic, so that two of these compare as whole milliseconds.
_NOW_MS: Final = sa.cast(sa.func.floor(sa.extract("epoch", sa.func.clock_timestamp()) * 1000), sa.BigInteger)


@dataclass(frozen=True)
class Replica:
    """A replica as the others see it: `silent_s` since it was heard of, and the populations whose tasks it runs.

    One that was not heard of for the time of a lease has none any more, and is not `is_alive`.
    """

    replica_id: str
    name: str
    address: str
    software: str
    started_ms: int
    silent_s: float = 0.0
    is_alive: bool = True
    populations: tuple[PopulationId, ...] = ()


@dataclass(frozen=True)
class View:
    """One replica's view at one instant: its leases' epochs by population, each lease's owner, who is alive where.

    The owner of a lease that ran out, or was given up, is "".
    """

    held: Mapping[PopulationId, int]
    owners: Mapping[PopulationId, str]
    addresses: Mapping[str, str]


def check_engine(engine: sa.Engine) -> None:
    """Raise ConfigError unless replicas can share a database of this kind."""
    if engine.dialect.name != "postgresql":
        raise ConfigError(
            "replica_address is set, and replicas can only share PostgreSQL: set database_url to postgresql://…, or "
            "leave replica_address empty to run alone"
        )


def limit_idle_transactions(engine: sa.Engine, limit_s: float) -> None:
    """Have the server end transactions whose client has fallen silent: a stopped replica must not hold locks."""

    def limit(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET idle_in_transaction_session_timeout = {int(limit_s * 1000)}")
        connection.commit()

    sa.event.listen(engine, "connect", limit)


class Registry:
    """One replica's side of the tables `replicas` and `leases`. Calls block, each is one transaction or two."""

    def __init__(self, url: str, replica: Replica, *, lease_s: float) -> None:
        self._engine = open_engine(url)
        check_engine(self._engine)
        limit_idle_transactions(self._engine, lease_s / 2)
        self.replica, self._lease_ms = replica, int(lease_s * 1000)
        self._begun: sa.Connection | None = None

    def close(self) -> None:
        """Let go of the database, and of the lock that `enter` took."""
        if self._begun is not None:
            self._begun.close()
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with database_errors(), self._engine.begin() as connection:
            yield connection

    # Life

    def enter(self) -> bool:
        """Return whether nobody else is there, and keep others from beginning until `register`."""
        with database_errors():
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._begun = connection
            connection.execute(sa.select(sa.func.pg_advisory_lock(_JOINING)))
            heard = REPLICAS.c.seen_ms > _NOW_MS - _SILENT * self._lease_ms
            return connection.execute(sa.select(REPLICAS.c.replica_id).where(heard)).first() is None

    def register(self) -> None:
        """Be listed from now on, and let others begin."""
        with self._transaction() as db:
            forgotten = REPLICAS.c.seen_ms < _NOW_MS - _FORGOTTEN * self._lease_ms
            db.execute(sa.delete(REPLICAS).where(forgotten))
            # Who listened at this address before has ended: nobody has to wait until its leases run out.
            here = REPLICAS.c.address == self.replica.address
            ended = list(db.scalars(sa.select(REPLICAS.c.replica_id).where(here)))
            db.execute(sa.update(LEASES).where(LEASES.c.replica_id.in_(ended)).values(until_ms=0))
            db.execute(sa.delete(REPLICAS).where(here))
            self._list(db)
        if self._begun is not None:
            self._begun.execute(sa.select(sa.func.pg_advisory_unlock(_JOINING)))
            self._begun.close()
            self._begun = None

    def leave(self) -> None:
        """Give up all leases, so that others take them at once, and be listed no more."""
        with self._transaction() as db:
            db.execute(sa.update(LEASES).where(self._is_mine).values(until_ms=0))
            db.execute(sa.delete(REPLICAS).where(REPLICAS.c.replica_id == self.replica.replica_id))

    # Leases

    def beat(self, *, takes: bool = True) -> View:
        """Return who runs what, after this replica was heard of, renewed its leases, and took those that are free."""
        with self._transaction() as db:
            self._list(db)
            db.execute(sa.update(LEASES).where(self._is_mine).values(until_ms=_NOW_MS + self._lease_ms))
        with self._transaction() as db:  # of its own: two replicas must not hold their rows and want each other's
            for population in self._unattended(db) if takes else ():
                self._take(db, population)
            return self._view(db)

    def claim(self, population: PopulationId) -> View:
        """Return who runs what, after this replica took a population's lease if it was free."""
        with self._transaction() as db:
            self._take(db, population)
            return self._view(db)

    def look(self) -> View:
        """Return the view of owners and replicas."""
        with self._transaction() as db:
            return self._view(db)

    @property
    def _is_mine(self) -> sa.ColumnElement[bool]:
        return LEASES.c.replica_id == self.replica.replica_id

    def _list(self, db: sa.Connection) -> None:
        replica = self.replica
        values = {"name": replica.name[:80], "address": replica.address, "software": replica.software[:80]}
        insert = postgresql.insert(REPLICAS).values(
            replica_id=replica.replica_id, started_ms=replica.started_ms, seen_ms=_NOW_MS, **values
        )
        db.execute(insert.on_conflict_do_update(index_elements=["replica_id"], set_={"seen_ms": _NOW_MS}))

    def _unattended(self, db: sa.Connection) -> list[PopulationId]:
        """Return the populations that have tasks, or had some, and that nobody attends to."""
        ended = [state.value for state in TaskState if state.is_over]
        known = sa.exists().where(LEASES.c.population == TASKS.c.population)
        new = sa.select(TASKS.c.population).where(TASKS.c.state.not_in(ended), ~known).distinct()
        ran_out = sa.select(LEASES.c.population).where(LEASES.c.until_ms <= _NOW_MS)
        return sorted(PopulationId(name) for name in {*db.scalars(new), *db.scalars(ran_out)})

    def _take(self, db: sa.Connection, population: PopulationId) -> None:
        """Take a lease that is free, or ran out; of several replicas that try, the first has it."""
        until = _NOW_MS + self._lease_ms
        mine = self.replica.replica_id
        insert = postgresql.insert(LEASES).values(population=population, replica_id=mine, epoch=1, until_ms=until)
        taken = {"replica_id": mine, "epoch": LEASES.c.epoch + 1, "until_ms": until}
        ran_out = sa.and_(LEASES.c.until_ms <= _NOW_MS, LEASES.c.replica_id != mine)
        db.execute(insert.on_conflict_do_update(index_elements=["population"], set_=taken, where=ran_out))

    def _view(self, db: sa.Connection) -> View:
        lives = (LEASES.c.until_ms > _NOW_MS).label("lives")
        rows = db.execute(sa.select(LEASES.c.population, LEASES.c.replica_id, LEASES.c.epoch, lives)).all()
        heard = REPLICAS.c.seen_ms > _NOW_MS - _SILENT * self._lease_ms
        addresses = db.execute(sa.select(REPLICAS.c.replica_id, REPLICAS.c.address).where(heard)).all()
        mine = self.replica.replica_id
        return View(
            held={row.population: row.epoch for row in rows if row.replica_id == mine},
            owners={row.population: row.replica_id if row.lives else "" for row in rows},
            addresses={row.replica_id: row.address for row in addresses},
        )

    # Contributions

    def hold(self, uploads: Sequence[tuple[RoundId, DeviceId]]) -> list[None]:
        """Have it known that this replica can add these contributions up."""
        upload = sa.and_(UPLOADS.c.round_id == sa.bindparam("of"), UPLOADS.c.device_id == sa.bindparam("by"))
        held = sa.update(UPLOADS).where(upload).values(held_by=self.replica.replica_id)
        with self._transaction() as db:
            db.execute(held, [{"of": round_id, "by": device_id} for round_id, device_id in sorted(uploads)])
        return [None] * len(uploads)

    def holders(self, round_id: RoundId) -> dict[DeviceId, str]:
        """Return which replica holds which device's contribution to an attempt."""
        held = sa.and_(UPLOADS.c.round_id == round_id, UPLOADS.c.held_by.is_not(None))
        with self._transaction() as db:
            return {row.device_id: row.held_by for row in db.execute(sa.select(UPLOADS).where(held))}


def listed(db: sa.Connection, lease_s: float) -> list[Replica]:
    """Return all replicas that a shared database lists, the oldest first; none on a database that is not shared."""
    if db.dialect.name != "postgresql":
        return []
    silent_ms = (_NOW_MS - REPLICAS.c.seen_ms).label("silent_ms")
    rows = db.execute(sa.select(REPLICAS, silent_ms).order_by(REPLICAS.c.started_ms, REPLICAS.c.replica_id)).all()
    leases = db.execute(sa.select(LEASES).where(LEASES.c.until_ms > _NOW_MS).order_by(LEASES.c.population)).all()
    return [
        Replica(
            replica_id=row.replica_id,
            name=row.name,
            address=row.address,
            software=row.software,
            started_ms=row.started_ms,
            silent_s=max(row.silent_ms, 0) / 1000,
            is_alive=row.silent_ms <= lease_s * 1000,
            populations=tuple(lease.population for lease in leases if lease.replica_id == row.replica_id),
        )
        for row in rows
    ]


def refuse_beside_replicas(db: sa.Connection, lease_s: float) -> None:
    """Raise ConfigError where replicas share a database: a coordinator that knows nothing of them must not serve."""
    alive = [replica for replica in listed(db, lease_s) if replica.silent_s <= _SILENT * lease_s]
    if alive:
        raise ConfigError(
            f"{len(alive)} replicas share this database, the first at {alive[0].address}: set replica_address to be "
            "one of them, or stop them all and wait a minute"
        )
