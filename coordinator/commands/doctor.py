"""Checks of `mien-coordinator doctor`."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from pathlib import Path

from coordinator.commands.checks import OPERATOR_WARNING_DAYS, FolderChecks
from coordinator.dashboard.home import DashboardHome, served_certificate
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.keys.tls import check_tls12_is_refused
from coordinator.operator.client import connect
from coordinator.operator.readiness import ask_readiness
from coordinator.operator.registrar_client import hello
from coordinator.service.revocations import Revocations, check_lists
from coordinator.store.database import open_engine, schema_revision
from coordinator.store.store import SCHEMA, Store
from mien.errors import (
    ConfigError,
    CorruptDataError,
    EmptyFolderError,
    MienError,
    NotFoundError,
    UnreachableError,
    VersionError,
)
from mien.models import bundles
from mien.protocol.ids import ModelId
from mien.rounds.rollouts import RollOutState
from mien.shell.clock import Clock


class CoordinatorChecks(FolderChecks[CoordinatorHome]):
    """The checks of one coordinator's folder."""

    ORDER = (
        *("folder", "settings", "authority", "operator", "disk", "database", "audit log", "models"),
        *("evaluation sets", "release key", "roll-outs", "registrar", "revocations", "coordinator"),
        *("monitoring", "dashboard", "replicas"),
    )

    async def settings(self) -> str:
        return f"devices come to {self._home.resolve().config.address}"

    async def disk(self) -> str:
        return self._home.free_space()

    async def database(self) -> str:
        home = self._home
        url = home.database_url(home.resolve().config)
        if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
            raise NotFoundError("there is no database; it is made by init and by serve")
        engine = open_engine(url)
        try:
            revision = schema_revision(engine)
        finally:
            engine.dispose()
        if revision != SCHEMA:
            raise VersionError(f"schema is {revision}, this program's {SCHEMA}; serve migrates an older one")
        return f"schema {revision}"

    async def models(self) -> str:
        blobs = self._home.blobs(self._home.resolve().config, "models")
        count = 0
        for sha256 in blobs:
            blobs.verify(sha256)
            count += 1
        return f"{count} files, all whole"

    async def evaluation_sets(self) -> str:
        sets = self._home.resolve().config.sets
        if not sets.names:
            return "none (evaluation_sets): no gates, nothing is released by itself"
        for name, folder in {**sets.raw, **sets.crops}.items():
            if not Path(folder).is_dir():
                raise NotFoundError(f"set {name!r} has no folder {folder}; correct coordinator.toml, or bring it back")
            if not any(person.is_dir() for person in Path(folder).iterdir()):
                raise EmptyFolderError(f"set {name!r}: no folder of a person is in {folder}; put pictures there")
        return f"{', '.join(sets.names)}: their folders are there"

    async def release_key(self) -> str:
        """Check that releases in force are signed by the key that phones pin, or they refuse to fetch them."""
        config = self._home.resolve().config
        if not config.release_key:
            return "none (release_key): phones take the coordinator's word for what is released"
        with self._home.store() as store:
            for model_id in sorted(store.released_ids()):
                _check_signed(store, model_id, config.release_key)
        return f"{config.release_key[:16]}…: everything in force is signed by it"

    async def roll_outs(self) -> str:
        """A staged roll-out that is held has stopped in the middle, and only an operator gets it further."""
        with self._home.store() as store:
            active = store.active_roll_outs()
        for each in active:
            if each.state is RollOutState.HELD:
                raise ConfigError(
                    f"roll-out {each.id} of model {each.model_id[:12]} is held at {each.share:.4g} of the phones: "
                    f"{each.reason}"
                )
        return f"{len(active)} under way, none held"

    async def registrar(self) -> str:
        config = self._home.resolve().config
        if not config.registrar_address:
            raise ConfigError("registrar_address is not set, so revoked devices are not noticed; set it")
        reply = await hello(config.registrar_address, self._home.trusted_ca())
        return f"{reply.software} answers at {config.registrar_address}"

    async def revocations(self) -> str:
        home, config = self._home, self._home.resolve().config
        revocations = Revocations(home.crl_path, home.trusted_ca(), Clock(), max_age_s=config.crl_max_age_s)
        check_lists(home.crl_path, Clock())  # first: a list that is not taken confirms nothing
        if revocations.age_s > config.crl_max_age_s:
            raise UnreachableError("no recent revocation list, so devices are refused; start the registrar")
        return f"confirmed {revocations.age_s:.0f} s ago"

    async def coordinator(self) -> str:
        home = self._home
        credentials = home.operator_credentials()
        address = home.resolve().config.address
        async with connect(address, credentials) as coordinator:
            reply = await coordinator.hello()
        client = (home.operator_path, home.operator_key_path)
        await asyncio.to_thread(check_tls12_is_refused, address, credentials.ca_pem, client=client)
        return f"{reply.software} answers at {address}, protocol {reply.protocol_version}, TLS 1.3 only"

    async def replicas(self) -> str:
        from coordinator.replicas.registry import listed

        config = self._home.resolve().config
        with self._home.store() as store:
            found = store.privacy(lambda db: listed(db, config.replica_lease_s))
        alive = [replica for replica in found if replica.is_alive]
        if not config.replica_address:
            if alive:
                raise ConfigError("replicas share this database, and this coordinator does not; set replica_address")
            return "runs alone (replica_address)"
        if config.replica_address not in [replica.address for replica in alive]:
            raise UnreachableError(
                f"the others do not hear of {config.replica_address}; start it, or correct replica_address"
            )
        return f"{len(alive)} alive, {len(found) - len(alive)} gone"

    async def dashboard(self) -> str:
        there = DashboardHome(self._home.folder / "dashboard")
        if not there.certificate_path.is_file():
            return "no certificate of its own"
        leaf = served_certificate(there.certificate_path)
        what = "the dashboard's certificate (dashboard certify)"
        pki.check_validity(leaf, self._clock(), what=what, warn_days=OPERATOR_WARNING_DAYS)
        return f"certificate until {leaf.not_valid_after_utc:%Y-%m-%d}"

    async def monitoring(self) -> str:
        config = self._home.resolve().config
        if config.metrics_port == 0:
            return "off (metrics_port)"
        status, body = await asyncio.to_thread(ask_readiness, config.metrics_host, config.metrics_port)
        problems = [f"{name}: {told}" for name, told in json.loads(body)["checks"].items() if told != "good"]
        if status != HTTPStatus.OK:
            raise UnreachableError(f"the coordinator is not ready ({'; '.join(problems)}); wait, or mend that")
        return f"ready, says port {config.metrics_port}"


def _check_signed(store: Store, model_id: ModelId, release_key: str) -> None:
    """Raise CorruptDataError unless a model in force bears the release key's signature: phones would refuse it."""
    bundle = store.bundle(model_id)
    try:
        if bundle is None:
            raise CorruptDataError("it is not signed")
        bundles.verify(release_key, bundle.manifest_json, bundle.signature)
    except MienError as error:
        raise CorruptDataError(
            f"model {model_id[:12]} is in force, and phones that pin release_key refuse it ({error.message}); run "
            "model export, model sign, model release --bundle"
        ) from error
