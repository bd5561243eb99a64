"""Facts on pages that are not in the database: revocations, certificates, disk, whether the coordinator answers."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

from coordinator.dashboard.chain import ChainState
from coordinator.dashboard.home import served_certificate
from coordinator.dashboard.reading import Reader
from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.operator.readiness import Waiting, ask_readiness, ask_waiting
from coordinator.service.revocations import check_lists
from mien.errors import ConfigError, CorruptDataError, MienError, UnreachableError
from mien.shell.clock import Clock
from mien.shell.doctor import Finding, look
from mien.shell.files import read_limited

_CA_WARNING_DAYS: Final = 180
_LEAF_WARNING_DAYS: Final = 30
_PROBE_S: Final = 2.0


@dataclass(frozen=True)
class Situation:
    """All that pages tell besides the database's content, as of `now_ms`."""

    now_ms: int
    checks: tuple[Finding, ...]
    chain: ChainState
    num_revoked: int | None
    revocations_words: str
    waiting: Mapping[tuple[str, str], Waiting] = field(default_factory=dict)
    """How many phones wait for a round of a task, by its name and population, where the coordinator tells."""

    @property
    def revoked_words(self) -> str:
        """Return how many certificates are revoked, as far as that is known."""
        return "unknown" if self.num_revoked is None else str(self.num_revoked)

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Return the checks that found a fault."""
        return tuple(check for check in self.checks if not check.ok)


class Surveyor:
    """Looks at what needs no secret: public certificates, the revocation list, disk, ports, the audit log's chain."""

    def __init__(
        self, home: CoordinatorHome, config: CoordinatorConfig, reader: Reader, leaf: Path | None, clock: Clock
    ) -> None:
        """`leaf` is the dashboard's own certificate, None without TLS."""
        self._home, self._config, self._reader = home, config, reader
        self._leaf, self._clock = leaf, clock
        self._crl: tuple[int, int, int] | None = None

    def survey(self, chain: ChainState) -> Situation:
        """Return the situation; blocks for a moment."""
        revoked, words = self._revocations()
        checks = (
            look("database", self._database),
            Finding("audit log", chain.words, CorruptDataError(chain.problem) if chain.problem else None),
            look("coordinator", self._coordinator),
            look("monitoring", self._monitoring),
            look("revocations", self._revocation_age),
            look("authority", self._authority),
            look("registrar", self._registrar),
            look("dashboard's certificate", self._own_certificate),
            look("disk", self._home.free_space),
        )
        return Situation(self._clock.now_ms(), checks, chain, revoked, words, self._waiting())

    def _database(self) -> str:
        return f"schema {self._reader.check_schema()}, opened for reading only"

    def _coordinator(self) -> str:
        host, _, port = self._config.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
        except OSError as error:
            raise UnreachableError(
                f"nothing answers at {self._config.address}; start mien-coordinator serve (or quickstart, where that "
                "made the fleet), or check the address"
            ) from error
        return f"answers at {self._config.address}"

    def _monitoring(self) -> str:
        config = self._config
        if config.metrics_port == 0:
            return "off (metrics_port)"
        status, _ = ask_readiness(config.metrics_host, config.metrics_port)
        if status != HTTPStatus.OK:
            raise UnreachableError("the coordinator is not ready; mien-coordinator doctor says why")
        return f"ready, says port {config.metrics_port}"

    def _waiting(self) -> Mapping[tuple[str, str], Waiting]:
        if self._config.metrics_port == 0:
            return {}
        try:
            return ask_waiting(self._config.metrics_host, self._config.metrics_port)
        except MienError:
            return {}  # the check of monitoring says why

    def _revocation_age(self) -> str:
        age_s = self._clock.now() - self._confirmed_at()
        if not self._config.registrar_address:
            raise ConfigError("registrar_address is not set, so revoked phones are not noticed; set it")
        check_lists(self._home.crl_path, self._clock)
        if age_s > self._config.crl_max_age_s:
            raise UnreachableError("no recent revocation list, so phones are refused; start the registrar")
        return f"list confirmed {age_s:.0f} s ago"

    def _revocations(self) -> tuple[int | None, str]:
        """Return how many certificates are revoked, and which list says so; parsed anew only when the file changes."""
        path = self._home.crl_path
        if not path.is_file():
            return None, "no revocation list yet"
        try:
            changed = path.stat().st_mtime_ns
            if self._crl is None or self._crl[0] != changed:
                crl = pki.load_crl(read_limited(path, pki.MAX_CRL_BYTES, what=path.name), self._home.trusted_ca())
                self._crl = (changed, len(crl), pki.crl_number(crl))
        except MienError as error:
            return None, error.message
        return self._crl[1], f"list {self._crl[2]} of the registrar"

    def _confirmed_at(self) -> float:
        path = self._home.crl_path
        return path.stat().st_mtime if path.is_file() else float("-inf")

    def _authority(self) -> str:
        certificate = pki.load_authority_certificate(self._home.public(self._home.ca_path))
        pki.check_validity(
            certificate, self._clock.now_utc(), what="the authority's certificate", warn_days=_CA_WARNING_DAYS
        )
        return f"fingerprint {pki.fingerprint(certificate)[:16]}…, until {certificate.not_valid_after_utc:%Y-%m-%d}"

    def _registrar(self) -> str:
        return f"trusted, fingerprint {pki.fingerprint(self._home.trusted_ca())[:16]}…"

    def _own_certificate(self) -> str:
        if self._leaf is None:
            return "none: plain HTTP on this machine only"
        leaf = served_certificate(self._leaf)
        what = "the dashboard's certificate (mien-coordinator dashboard certify)"
        pki.check_validity(leaf, self._clock.now_utc(), what=what, warn_days=_LEAF_WARNING_DAYS)
        return f"until {leaf.not_valid_after_utc:%Y-%m-%d}"
