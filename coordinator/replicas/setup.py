"""The parts of a coordinator that is one of several, put together; `coordinator.serve` starts and stops it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import grpc
import structlog

from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys.tls import ServerLeaf
from coordinator.replicas.contributions import SharedSpool
from coordinator.replicas.fencing import FencedStore
from coordinator.replicas.forwarding import ForwardingInterceptor, PeerAccess, Routes, is_passed_on
from coordinator.replicas.keeper import Keeper
from coordinator.replicas.peers import SERVER_OPTIONS, Peers
from coordinator.replicas.registry import Registry, Replica
from coordinator.replicas.service import ReplicasService
from coordinator.replicas.sums import Sums
from coordinator.replicas.upload_routing import Desks
from coordinator.rounds.closing import Stores
from coordinator.rounds.engine import Engine
from coordinator.rounds.pulse import in_thread
from coordinator.service.access import Gate
from coordinator.service.metrics import Metrics
from coordinator.service.rpc import ErrorInterceptor, connection_limits, listen, wrapping
from coordinator.store.thread import StoreThread
from mien.protocol.ids import PopulationId
from mien.protocol.v1 import replicas_pb2_grpc
from mien.shell.clock import Clock
from mien.shell.keys import secret_hex
from mien.shell.version import software

_LOG: Final = structlog.get_logger()
_LAST_ANSWERS_S: Final = 2.0
_SILENT_TRANSACTION_S: Final = 20.0
"""Longest that a replica which was stopped in the middle of a transaction keeps others from its rows.

A privacy ledger's arithmetic, between two statements, takes seconds at most.
"""


class Replication:
    """One replica: its leases, its way to the others, and the port that only they may enter."""

    def __init__(
        self, home: CoordinatorHome, config: CoordinatorConfig, clock: Clock, stores: Stores, metrics: Metrics
    ) -> None:
        """`stores` are those of `open_stores`, whose database and spool are made for sharing."""
        assert isinstance(stores.store, FencedStore)
        assert isinstance(stores.spool, SharedSpool)
        self._home, self._config, self._clock, self._metrics = home, config, clock, metrics
        self._store, self._spool, lease_s = stores.store, stores.spool, config.replica_lease_s
        name, replica_id = socket.gethostname(), secret_hex(8)
        replica = Replica(replica_id, name, config.replica_address, software("mien-coordinator"), clock.now_ms())
        self._registry = Registry(home.database_url(config), replica, lease_s=lease_s)
        self._store.limit_idle(_SILENT_TRANSACTION_S)
        self._thread = StoreThread(patience_s=lease_s / 2)
        self._peers = Peers(home.authority(), replica_id, clock.now_utc)
        self.keeper = Keeper(self._registry, self._thread, self._store, lease_s=lease_s)
        self._routes = Routes(self.keeper, self._store, stores.thread)
        sums = Sums(self.keeper, self._registry, self._thread, self._spool, self._peers)
        self.stores = replace(stores, sums=sums)
        self._server: grpc.aio.Server | None = None

    @property
    def forwarding(self) -> ForwardingInterceptor:
        """The interceptor that passes devices' and operators' calls on; goes behind the one that admits them."""
        return ForwardingInterceptor(self.keeper, self._routes, self._peers)

    def desks(self, engine: Engine) -> Desks:
        """Return where uploads find their rounds."""
        return Desks(engine, self.stores, self._spool, self.keeper, self._peers, self._registry, self._thread)

    def owner_address(self, population: PopulationId, context: Any) -> str:
        """Return where a phone reaches this replica, which runs its tasks, if its call came to another one.

        Empty for a phone that is here already, and where nobody said.
        """
        return self._config.public_address if is_passed_on(context) and self.keeper.owns(population) else ""

    def serve(self, engine: Engine, gate: Gate, add_services: Callable[[grpc.aio.Server], None]) -> None:
        """Open the replicas' own port; `add_services` adds those whose calls are passed on."""
        config, authority = self._config, self._home.authority()
        host, _, port = config.replica_address.rpartition(":")
        access = PeerAccess(gate, authority.certificate, self._clock)
        last = ForwardingInterceptor(self.keeper, self._routes, None)
        self._server = server = grpc.aio.server(
            options=(*SERVER_OPTIONS, *connection_limits(calls=config.max_calls), ("grpc.so_reuseport", 0)),
        )
        leaf = ServerLeaf(authority, (host, "localhost", "127.0.0.1"), self._clock.now_utc)
        address = config.replica_listen or f"[::]:{port}"
        change = " for other replicas; free the port, or change replica_listen"
        listen(server, address, leaf.credentials(client_ca=authority.certificate_pem), change=change)
        services = wrapping(server, ErrorInterceptor(self._metrics.call_ended), access, last)
        add_services(services)
        replicas_pb2_grpc.add_ReplicasServicer_to_server(ReplicasService(engine, self.stores, self.keeper), services)

    async def start(self, engine: Engine) -> None:
        """Clear away what this replica may, then be one of them; tasks begin as their leases are taken."""
        assert self._server is not None, "serve comes first"
        is_alone = await self._thread.run(self._registry.enter)
        await engine.clear_away(is_alone=is_alone)
        shared = await in_thread(self._spool.shared_rounds)  # before the live ones, or new ones would seem to be over
        for round_id in shared - await self.stores.thread.run(self._store.live_rounds):
            self._spool.remove_round(round_id)
        await self._server.start()
        await self._thread.run(self._registry.register)
        await self.keeper.start(engine)
        _LOG.info("replica", replica=self.keeper.replica_id, address=self._config.replica_address, is_alone=is_alone)

    async def stop(self) -> None:
        """Leave the tasks to the others, and answer them no more."""
        await self.keeper.stop()
        await self._peers.close()
        if self._server is not None:
            await self._server.stop(_LAST_ANSWERS_S)

    def close(self) -> None:
        """Close database and threads."""
        self._thread.close()
        self._registry.close()
        self._spool.close()

    async def check(self) -> None:
        """Raise UnreachableError unless the others hear of this replica."""
        self.keeper.check()
