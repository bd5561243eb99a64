"""Checks of `mien-coordinator doctor`.

The running coordinator is asked first, where it listens: what it was told counts, and not what this shell would tell
another one. What the two do not agree on is a finding.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

from coordinator.commands.checks import OPERATOR_WARNING_DAYS, FolderChecks
from coordinator.dashboard.home import DashboardHome, served_certificate
from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.home.settings import shown
from coordinator.keys import pki
from coordinator.keys.tls import Answer, check_tls12_is_refused, who_answers
from coordinator.operator.client import Examined, connect
from coordinator.operator.readiness import ask_readiness
from coordinator.operator.registrar_client import hello
from coordinator.service.revocations import Revocations, check_lists
from coordinator.store.store import Store
from mien.errors import (
    ConfigError,
    CorruptDataError,
    EmptyFolderError,
    MienError,
    NotFoundError,
    UnreachableError,
)
from mien.format import several
from mien.models import bundles
from mien.protocol.addresses import host_of
from mien.protocol.ids import ModelId
from mien.records import from_mapping
from mien.rounds.rollouts import RollOutState
from mien.shell.clock import Clock
from mien.shell.doctor import Finding

_STORES: Final = {
    "audit log": ("database_url",),
    "models": ("blobs_url", "blobs_endpoint"),
    "release key": ("database_url",),
    "roll-outs": ("database_url",),
    "replicas": ("database_url",),
}
"""Settings that say where the checks look that open a store of their own."""


class CoordinatorChecks(FolderChecks[CoordinatorHome]):
    """The checks of one coordinator's folder."""

    ORDER = (
        *("folder", "settings", "authority", "operator", "disk", "database", "audit log", "models"),
        *("evaluation sets", "release key", "roll-outs", "registrar", "revocations", "coordinator"),
        *("monitoring", "dashboard", "replicas"),
    )

    def __init__(self, home: CoordinatorHome, clock: Callable[[], datetime]) -> None:
        super().__init__(home, clock)
        self._running: Examined | None = None
        self._differing: tuple[str, ...] = ()

    async def examine(self) -> list[Finding]:
        """Return one finding per check, after asking the running coordinator."""
        with contextlib.suppress(MienError):  # the checks below find out why; an older one has nothing to say
            self._running = await self._ask()
        if self._running is not None:
            here, there = shown(self._home.resolve().config), self._running.settings
            # serve --listen is no fault: the server was reached.
            self._differing = tuple(n for n in here if n in there and here[n] != there[n] and n != "listen")
        return await super().examine()

    async def _look(self, name: str) -> str:
        apart = [each for each in self._differing if each in _STORES.get(name, ())]
        if apart:
            return f"not looked at: the running coordinator's {apart[0]} is not the one that this shell reads"
        return await super()._look(name)

    async def _ask(self) -> Examined:
        """Return what the running coordinator knows of itself: this folder's own, and not whom a balancer chooses."""
        config, credentials = self._home.resolve().config, self._home.operator_credentials()
        host = config.address.rpartition(":")[0].strip("[]")
        try:
            async with connect(_local_address(config), credentials, named=host) as coordinator:
                return await coordinator.examine()
        except UnreachableError:
            if config.replica_address:
                raise
        async with connect(config.address, credentials) as coordinator:  # it was told to listen elsewhere
            return await coordinator.examine()

    @property
    def _config(self) -> CoordinatorConfig:
        """The settings in force: the running coordinator's where one answers."""
        own = self._home.resolve().config
        if self._running is None:
            return own
        told = {name: value for name, value in self._running.settings.items() if name in shown(own)}
        return from_mapping(CoordinatorConfig, told)

    async def settings(self) -> str:
        if self._differing:
            raise ConfigError(
                f"the running coordinator has other settings than this shell reads ({', '.join(self._differing)}): run "
                "doctor with the environment of its service, or restart it where coordinator.toml was changed"
            )
        asked = "" if self._running is None else "; the running coordinator has the same"
        return f"devices come to {self._config.address}{asked}"

    async def disk(self) -> str:
        return self._home.free_space()

    async def database(self) -> str:
        if self._running is not None and (problem := self._running.checks.get("database")):
            raise UnreachableError(
                f"the running coordinator says of its database: {problem}; start the database, or mend the way to it"
            )
        if "database_url" in self._differing:
            return "answers, says the running coordinator; this shell reads another database_url"
        return f"schema {self._revision()}"

    async def models(self) -> str:
        blobs = self._home.blobs(self._config, "models")
        count = 0
        for sha256 in blobs:
            blobs.verify(sha256)
            count += 1
        return f"{several(count, 'file')}, all whole"

    async def evaluation_sets(self) -> str:
        sets = self._config.sets
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
        config = self._config
        if not config.release_key:
            return "none (release_key): phones take the coordinator's word for what is released"
        with self._store() as store:
            for model_id in sorted(store.released_ids()):
                _check_signed(store, model_id, config.release_key)
        return f"{config.release_key[:16]}…: everything in force is signed by it"

    async def roll_outs(self) -> str:
        """A staged roll-out that is held has stopped in the middle, and only an operator gets it further."""
        with self._store() as store:
            active = store.active_roll_outs()
        for each in active:
            if each.state is RollOutState.HELD:
                raise ConfigError(
                    f"roll-out {each.id} of model {each.model_id[:12]} is held at {each.share:.4g} of the phones: "
                    f"{each.reason}"
                )
        return f"{len(active)} under way, none held"

    async def registrar(self) -> str:
        config = self._config
        if not config.registrar_address:
            raise ConfigError("registrar_address is not set, so revoked devices are not noticed; set it")
        reply = await hello(config.registrar_address, self._home.trusted_ca())
        return f"{reply.software} answers at {config.registrar_address}"

    async def revocations(self) -> str:
        home, config = self._home, self._config
        revocations = Revocations(home.crl_path, home.trusted_ca(), Clock(), max_age_s=config.crl_max_age_s)
        check_lists(home.crl_path, Clock())  # first: a list that is not taken confirms nothing
        if revocations.age_s > config.crl_max_age_s:
            raise UnreachableError("no recent revocation list, so devices are refused; start the registrar")
        return f"confirmed {revocations.age_s:.0f} s ago"

    async def coordinator(self) -> str:
        home, config = self._home, self._config
        credentials, address = home.operator_credentials(), config.address
        if self._running is not None and self._running.problems:
            raise UnreachableError(f"the running coordinator takes no devices ({self._running.problems}); mend that")
        try:
            async with connect(address, credentials) as coordinator:
                reply = await coordinator.hello()
        except UnreachableError as error:
            if self._running is None:
                raise
            here = f"; the coordinator itself runs, and answers at {_local_address(config)} on this machine"
            raise UnreachableError(error.message + here) from error
        client = (home.operator_path, home.operator_key_path)
        await asyncio.to_thread(check_tls12_is_refused, address, credentials.ca_pem, client=client)
        return f"{reply.software} answers at {address}, protocol {reply.protocol_version}, TLS 1.3 only"

    async def replicas(self) -> str:
        from coordinator.replicas.registry import listed

        config = self._config
        with self._store() as store:
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
        told = f"{len(alive)} alive, {len(found) - len(alive)} gone"
        if not config.public_address:
            return told
        host, ca_pem = host_of(config.address), self._home.public(self._home.ca_path)
        answer = await asyncio.to_thread(who_answers, config.public_address, ca_pem, named=host)
        if answer is not Answer.SERVER:
            raise UnreachableError(f"public_address: {answer.advice('coordinator', config.public_address)}")
        await self._check_is_itself(config.public_address, host)
        return f"{told}; phones are told of {config.public_address}, whose certificate is for {host}"

    async def _check_is_itself(self, public_address: str, host: str) -> None:
        """Raise ConfigError where another replica answers at the address that phones are told of."""
        if self._running is None or not self._running.instance:  # who runs here did not say who it is
            return
        async with connect(public_address, self._home.operator_credentials(), named=host) as there:
            found = await there.examine()
        if found.instance and found.instance != self._running.instance:
            other = found.settings.get("replica_address") or "one without a replica_address"
            raise ConfigError(
                f"public_address: at {public_address} answers another replica ({other}), which would pass on the calls "
                "of every phone that is told to go there; name a port that leads to this replica alone, or leave "
                "public_address empty"
            )

    async def dashboard(self) -> str:
        there = DashboardHome(self._home.folder / "dashboard")
        if not there.certificate_path.is_file():
            return "no certificate of its own"
        leaf = served_certificate(there.certificate_path)
        what = "the dashboard's certificate (dashboard certify)"
        pki.check_validity(leaf, self._clock(), what=what, warn_days=OPERATOR_WARNING_DAYS)
        return f"certificate until {leaf.not_valid_after_utc:%Y-%m-%d}"

    async def monitoring(self) -> str:
        config = self._config
        if config.metrics_port == 0:
            return "off (metrics_port)"
        status, body = await asyncio.to_thread(ask_readiness, config.metrics_host, config.metrics_port)
        problems = [f"{name}: {told}" for name, told in json.loads(body)["checks"].items() if told != "good"]
        if status != HTTPStatus.OK:
            raise UnreachableError(f"the coordinator is not ready ({'; '.join(problems)}); wait, or mend that")
        return f"ready, says port {config.metrics_port}"


def _local_address(config: CoordinatorConfig) -> str:
    """Return where this machine reaches its own coordinator, whatever is between it and the phones."""
    host, _, port = config.listens_at.rpartition(":")
    if port == "0":  # any free port: nobody knows which
        return config.address
    return f"{'localhost' if host in ('[::]', '0.0.0.0') else host}:{port}"  # noqa: S104 - asked, not bound


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
