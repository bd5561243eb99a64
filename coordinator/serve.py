"""Running the coordinator: ready in a moment, and a stop that drops nothing which was begun."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
import structlog

from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.home.settings import settings_sha256, shown
from coordinator.keys import pki
from coordinator.keys.tls import ServerLeaf
from coordinator.operator.registrar_client import cosign
from coordinator.release.rollouts_worker import RollOutKeeper
from coordinator.rounds.closing import Stores
from coordinator.rounds.engine import Engine, EngineSettings
from coordinator.rounds.pulse import log_end
from coordinator.rounds.spool import Spool
from coordinator.rounds.states import ServerStates
from coordinator.rounds.task import TaskSettings
from coordinator.rounds.traces import NO_TRACES, RoundTraces
from coordinator.rounds.uploads import Uploads
from coordinator.service.access import AccessInterceptor, Gate
from coordinator.service.connections import ConnectionShares
from coordinator.service.health import Probes, listening
from coordinator.service.limits import CallLimiter
from coordinator.service.log_keeper import LogKeeper
from coordinator.service.measured import MeasuredStore, MeasuredThread
from coordinator.service.metrics import Metrics, Now
from coordinator.service.models import ModelsService
from coordinator.service.operator import OperatorService
from coordinator.service.revocations import Revocations
from coordinator.service.rounds import RoundsService, add_rounds_service
from coordinator.service.rpc import CallInterceptor, ErrorInterceptor, connection_limits, listen, wrapping
from coordinator.store import audit
from coordinator.store.database import sole_server
from coordinator.store.ownership import check_ownership
from coordinator.store.report import Budgets
from coordinator.store.sealing import MasterKey
from coordinator.store.store import SCHEMA, Store
from coordinator.store.thread import StoreThread
from mien.errors import DrainingError, KeyStoreError, MienError
from mien.protocol import MAX_MESSAGE_BYTES
from mien.protocol.v1 import models_pb2_grpc, operator_pb2_grpc, registrar_pb2
from mien.secagg.leaves import leaf_verifier
from mien.shell.clock import Clock
from mien.shell.lock import exclusive
from mien.shell.memory import keep_freed_memory
from mien.shell.serving import serve_until_signalled
from mien.shell.tls import refuse_tls12
from mien.shell.version import software

if TYPE_CHECKING:
    from coordinator.replicas.setup import Replication

_LOG: Final = structlog.get_logger()
_WINDOW_BYTES: Final = 64 * 1024
_FIRST_FETCH_S: Final = 0.5
_LAST_ANSWERS_S: Final = 2.0
_CREDENTIALS_LIFETIME: Final = timedelta(hours=1)
_KEY_SETTING: Final = "store_key_check"


def serve(home: CoordinatorHome, config: CoordinatorConfig, announce: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is told the port once calls are accepted."""
    os.umask(0o077)
    keep_freed_memory()
    refuse_tls12()
    program = "mien-coordinator"
    with exclusive(home.lock_path, program=program), sole_server(home.database_url(config), program=program):
        asyncio.run(serve_until_signalled(running(home, config, Clock()), announce, drain_s=config.drain_s))


@contextlib.asynccontextmanager
async def running(home: CoordinatorHome, config: CoordinatorConfig, clock: Clock) -> AsyncIterator[int]:
    """Run the coordinator while the block runs and yield its port.

    At the block's end no new cohort is chosen; sums under way get `drain_s` to finish, and whatever was committed is
    there after the next start.
    """
    metrics, traces = Metrics(software("mien-coordinator")), _traces(config)
    stores = dataclasses.replace(open_stores(home, config, clock, metrics), traces=traces)
    replication = None
    try:
        if config.replica_address:
            from coordinator.replicas.setup import Replication

            replication = Replication(home, config, clock, stores, metrics)
            stores = replication.stores
        elif not home.database_url(config).startswith("sqlite:"):
            from coordinator.replicas.registry import refuse_beside_replicas

            stores.store.privacy(lambda db: refuse_beside_replicas(db, config.replica_lease_s))
        _enter_start(stores.store, config)
        registrar_ca = home.trusted_ca()
        engine = Engine(
            stores,
            clock,
            _engine_settings(config),
            lambda population: leaf_verifier(registrar_ca, population, clock.now_utc),
        )
        desk = engine if replication is None else replication.desks(engine)
        uploads = Uploads(desk, stores, idle_s=config.upload_idle_s)
        max_age_s = config.crl_max_age_s if config.registrar_address else float("inf")

        async def listed(action: str, number: int, detail: Mapping[str, object]) -> None:
            await stores.thread.run(stores.store.log, audit.REGISTRAR, action, str(number), detail)

        authority = home.authority()
        revocations = Revocations(
            *(home.crl_path, registrar_ca, clock),
            max_age_s=max_age_s,
            on_new=listed,
            first_ask=(
                config.registrar_admin_address,
                lambda: pki.issue_operator_leaf(authority, "coordinator", clock.now_utc(), _CREDENTIALS_LIFETIME),
            ),
        )
        gate = Gate(registrar_ca, home.ca(), revocations, clock)
        passed_on = () if replication is None else (replication.forwarding,)
        shares = ConnectionShares(
            config.connections_per_address, config.connections_per_device, silent_s=2 * config.first_message_s
        )
        server, services, port = _server(home, config, clock, gate, shares, metrics, traces, *passed_on)
        log = _log_keeper(home, config, stores, clock)
        await stores.thread.run(stores.store.log_releases)
        owner_address = (lambda _population, _context: "") if replication is None else replication.owner_address
        rounds = RoundsService(engine, uploads, stores.store, stores.thread, clock, log, revocations, owner_address)
        probes = _probes(metrics, engine, uploads, stores, revocations, config, replication)
        operators = OperatorService(
            *(engine, stores, clock),
            max_model_bytes=config.max_model_bytes,
            max_shard_bytes=config.max_shard_bytes,
            settings=shown(config),
            readiness=probes.readiness,
            release_key=config.release_key,
        )

        def add_services(to: grpc.aio.Server) -> None:
            add_rounds_service(rounds, to)
            operator_pb2_grpc.add_OperatorServicer_to_server(operators, to)

        add_services(services)
        models = ModelsService(stores.store, stores.thread, stores.models)
        models_pb2_grpc.add_ModelsServicer_to_server(models, services)
        if replication is not None:
            replication.serve(engine, gate, add_services)
        async with (
            _fresh_revocations(revocations, config),
            _told_to_monitoring(probes, config),
            shares.kept(port),
        ):
            await (engine.start() if replication is None else replication.start(engine))
            await server.start()
            cosigning = asyncio.create_task(log.run(config.crl_fetch_s), name="cosigning")
            ended = "the log is cosigned no more because of an internal error; phones wait for a restart"
            cosigning.add_done_callback(partial(log_end, what=ended))
            gates = asyncio.create_task(_keep_gates(engine, stores, clock, config), name="gates")
            ended = "gates stopped by an internal error; candidates wait for a restart"
            gates.add_done_callback(partial(log_end, what=ended))
            leads = (lambda _population: True) if replication is None else replication.keeper.owns
            keeper = RollOutKeeper(engine, stores, config.release_key, leads=leads)
            roll_outs = asyncio.create_task(keeper.run(), name="roll-outs")
            try:
                yield port
            finally:
                for each in (gates, roll_outs, cosigning):
                    each.cancel()
                await asyncio.wait({gates, roll_outs, cosigning})
                engine.drain()
                if replication is not None:
                    replication.keeper.retire()
                await engine.finish(config.drain_s)
                await engine.stop()
                if replication is not None:
                    await replication.stop()
                await server.stop(_LAST_ANSWERS_S)
        await _enter_stop(stores, config)
    finally:
        if replication is not None:
            replication.close()
        stores.thread.close()
        stores.store.close()
        await asyncio.to_thread(traces.close)


def _traces(config: CoordinatorConfig) -> RoundTraces:
    """Return the traces of rounds and calls; without a collector nothing of tracing is loaded."""
    if not config.otlp_endpoint:
        return NO_TRACES
    from coordinator.rounds.tracing import OtlpTraces

    return OtlpTraces(config.otlp_endpoint, config.otlp_share, software("mien-coordinator"))


def _enter_start(store: Store, config: CoordinatorConfig) -> None:
    """Enter the start in the audit log, and the log's head in this program's: an anchor kept elsewhere for free."""
    detail = {"software": software("mien-coordinator"), "schema": SCHEMA, "settings_sha256": settings_sha256(config)}
    head = store.log(audit.COORDINATOR, "server.start", config.address, detail)
    _LOG.info("audit log", head=str(head))


async def _enter_stop(stores: Stores, config: CoordinatorConfig) -> None:
    """Enter the stop in the audit log; where the database is away, also behind another call, it ends all the same."""
    try:
        head = await stores.thread.run(stores.store.log, audit.COORDINATOR, "server.stop", config.address)
    except MienError as error:
        _LOG.warning("the stop is not in the audit log", reason=error.message)
    else:
        _LOG.info("audit log", head=str(head))


def open_stores(
    home: CoordinatorHome, config: CoordinatorConfig, clock: Clock, metrics: Metrics | None = None
) -> Stores:
    """Return database, blobs and spool, which belong together.

    Raises VersionError for a newer program's, KeyStoreError for another key's, ConfigError for blobs of another
    database.
    """
    key = MasterKey.load(home.store_key_path)
    store = _store_class(config).open(home.database_url(config), clock)
    store.metrics = metrics
    try:
        remembered = store.setting(_KEY_SETTING)
        if remembered is not None and remembered != key.check:
            raise KeyStoreError("store.key is not the one that sealed this store; restore both from one backup")
        models, states = home.blobs(config, "models"), home.blobs(config, "states")
        check_ownership(store, models, states)
        if remembered is None:
            store.remember(_KEY_SETTING, key.check)
        spool = _spool(home, config, key)
    except MienError:
        store.close()
        raise
    return Stores(
        store=store,
        thread=StoreThread() if metrics is None else MeasuredThread(metrics),
        models=models,
        states=ServerStates(states, key),
        spool=spool,
    )


def _store_class(config: CoordinatorConfig) -> type[MeasuredStore]:
    """Return the store that a coordinator writes to alone, or that replicas share."""
    if not config.replica_address:
        return MeasuredStore
    from coordinator.replicas.fencing import FencedStore

    return FencedStore


def _spool(home: CoordinatorHome, config: CoordinatorConfig, key: MasterKey) -> Spool:
    """Return the spool of arriving contributions; replicas share what is complete."""
    folder = Path(home.spool_folder(config))
    if not config.replica_address:
        return Spool(folder, key)
    from coordinator.replicas.contributions import Bucket, SharedSpool

    bucket = Bucket(home.blobs_url(config, "contributions"), endpoint=config.blobs_endpoint)
    return SharedSpool(folder, key, bucket)


def _engine_settings(config: CoordinatorConfig) -> EngineSettings:
    tasks = TaskSettings(
        max_step_ratio=config.max_step_ratio,
        max_aborted=config.max_aborted,
        restart_grace_s=config.restart_grace_s,
        has_gates=bool(config.sets.names),
        releases_by_itself=not config.release_key,
        keep_round_models=config.keep_round_models,
    )
    return EngineSettings(
        config.check_in_hold_s,
        config.retry_after_s,
        tasks,
        config.sets.names,
        check_ins_per_s=config.check_ins_per_s,
    )


def _log_keeper(home: CoordinatorHome, config: CoordinatorConfig, stores: Stores, clock: Clock) -> LogKeeper:
    """Return the keeper of the log of rounds; where no registrar is named nobody cosigns it."""
    address, registrar_ca = config.registrar_address, home.trusted_ca()

    async def ask(request: registrar_pb2.CosignRequest) -> registrar_pb2.CosignReply:
        return await cosign(address, registrar_ca, request)

    asked = ask if address else None
    return LogKeeper(stores.store, stores.thread, home.authority(), clock, asked, config.further_witnesses)


async def _keep_gates(engine: Engine, stores: Stores, clock: Clock, config: CoordinatorConfig) -> None:
    """Judge candidates, from the first one on: until then nothing of evaluation is loaded."""
    while not engine.checking():
        await engine.changed.after(engine.changed.count)
    from coordinator.release.gates_worker import Gatekeeper

    await Gatekeeper(engine, stores, clock, config.sets, limit_s=config.gates_limit_s).run()


def _server(
    home: CoordinatorHome,
    config: CoordinatorConfig,
    clock: Clock,
    gate: Gate,
    shares: ConnectionShares,
    metrics: Metrics,
    traces: RoundTraces,
    *last: CallInterceptor,
) -> tuple[grpc.aio.Server, grpc.aio.Server, int]:
    """Return a server that demands a certificate of either authority, what takes its services, and its port.

    `last` see admitted calls.
    """
    authority = home.authority()
    leaf = ServerLeaf(authority, config.server_names, clock.now_utc)
    client_cas = authority.certificate_pem + home.public(home.trusted_ca_path)
    options = (
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        *connection_limits(calls=min(config.max_calls, config.device_calls_at_once)),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        # As a device sends, so it is read. With larger windows (or ones that grow by probes, gRPC's default) a server
        # takes less time for each contribution, but holds megabytes of everyone who sends at the same time.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    )
    limiter = CallLimiter(config.device_calls_per_minute, config.device_calls_at_once)
    access = AccessInterceptor(gate, limiter, first_message_s=config.first_message_s, heard=shares.heard)
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=config.max_calls)
    change = "; free the port, or set listen in coordinator.toml: where it listens, whatever the address is"
    port = listen(server, config.listens_at, leaf.credentials(client_ca=client_cas), change=change)
    return server, wrapping(server, ErrorInterceptor(metrics.call_ended, traces.call), access, *last), port


def _probes(
    metrics: Metrics,
    engine: Engine,
    uploads: Uploads,
    stores: Stores,
    revocations: Revocations,
    config: CoordinatorConfig,
    replication: Replication | None,
) -> Probes:
    """Return the probes for monitoring."""
    budgets, thread = Budgets(), stores.thread

    async def now() -> Now:
        tasks, spent = await thread.run(stores.store.tasks), await thread.run(stores.store.privacy, budgets)
        return Now(
            is_draining=engine.is_draining,
            tasks=tuple(engine.tasks_now()),
            tasks_by_state=Counter(task.state.value for task in tasks),
            waiting_check_ins=engine.waiting_check_ins,
            active_uploads=uploads.num_arriving,
            roll_outs=tuple(await thread.run(stores.store.newest_roll_outs)),
            store_queue=thread.queue_length if isinstance(thread, MeasuredThread) else 0,
            revocation_age_s=revocations.age_s,
            is_revocation_list_refused=revocations.is_refused,
            forgotten_revocations=revocations.num_forgotten,
            replicas=0 if replication is None else replication.keeper.num_alive,
            populations_run=0 if replication is None else replication.keeper.num_owned,
            budgets=spent,
        )

    async def database() -> None:
        await thread.run(stores.store.setting, _KEY_SETTING)

    async def revocation_list() -> None:
        if config.registrar_address:
            revocations.check_age()

    async def draining() -> None:
        if engine.is_draining:
            raise DrainingError("the coordinator is shutting down")

    checks = {"database": database, "revocations": revocation_list, "draining": draining}
    return Probes(metrics, now, checks if replication is None else checks | {"replicas": replication.check})


@contextlib.asynccontextmanager
async def _told_to_monitoring(probes: Probes, config: CoordinatorConfig) -> AsyncIterator[None]:
    """Serve metrics and health while the block runs, where the settings name a port."""
    if config.metrics_port == 0:
        yield
        return
    async with listening(probes, config.metrics_host, config.metrics_port) as port:
        _LOG.info("metrics", address=f"http://{config.metrics_host}:{port}/metrics")
        yield


@contextlib.asynccontextmanager
async def _fresh_revocations(revocations: Revocations, config: CoordinatorConfig) -> AsyncIterator[None]:
    """Keep the revocation list fresh while the block runs; the start waits for it only a moment."""
    if not config.registrar_address:
        _LOG.warning("no registrar_address is set: revoked devices are not noticed")
        yield
        return
    try:
        await revocations.fetch(config.registrar_address, timeout_s=_FIRST_FETCH_S)
    except MienError as error:
        _LOG.warning("no revocation list yet; devices wait until the registrar answers", reason=error.message)
    fetching = asyncio.create_task(revocations.keep_fresh(config.registrar_address, config.crl_fetch_s))
    try:
        yield
    finally:
        fetching.cancel()
        await asyncio.wait({fetching})
