"""What `mien-registrar doctor` looks at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from coordinator.keys import pki
from coordinator.keys.tls import check_tls12_is_refused
from coordinator.operator.registrar_client import connect_admin, hello
from coordinator.registrar.attestation.policy import Policy
from coordinator.registrar.home import RegistrarHome, check_private, check_validity
from coordinator.registrar.store import Store
from mien.errors import ConfigError, MienError

_CA_WARNING_DAYS = 180
_OPERATOR_WARNING_DAYS = 30
_STATUS_WARNING_DAYS = 30


@dataclass(frozen=True)
class Finding:
    """One check: what it found, or the error that says what to do."""

    name: str
    detail: str
    error: MienError | None = None

    def to_mapping(self) -> dict[str, object]:
        """Return the finding as plain data."""
        code = None if self.error is None else self.error.code
        return {"name": self.name, "ok": self.error is None, "error": code, "detail": self.detail}


async def examine(home: RegistrarHome, clock: Callable[[], datetime]) -> list[Finding]:
    """Return one finding per check, in the order in which faults should be mended."""

    async def folder() -> str:
        check_private(home)
        return "folder and keys are private"

    async def settings() -> str:
        return f"devices join at {home.config().config.address}"

    async def authority() -> str:
        certificate = home.authority().certificate
        check_validity(certificate, clock, what="the authority's certificate", warn_days=_CA_WARNING_DAYS)
        return f"fingerprint {pki.fingerprint(certificate)}, until {certificate.not_valid_after_utc:%Y-%m-%d}"

    async def operator() -> str:
        leaf = pki.load_certificate(home.operator_credentials().chain_pem)
        pki.operator_identity(leaf, home.ca(), clock())
        check_validity(
            leaf, clock, what="the operator's certificate (operator renew)", warn_days=_OPERATOR_WARNING_DAYS
        )
        return f"until {leaf.not_valid_after_utc:%Y-%m-%d}"

    async def coordinator() -> str:
        return f"fingerprint {pki.fingerprint(home.coordinator_ca())}"

    async def release_key() -> str:
        key = home.config().config.release_key
        return (
            f"{key[:16]}…: pinned by phones that join" if key else "none (release_key): phones take unsigned releases"
        )

    async def attestation() -> str:
        config = home.config().config
        policy = Policy.of(config, home.folder)
        if policy is None:
            return "off (attestation): phones join with whatever key they have"
        words = f"{config.attestation}, {config.attestation_level} or better, {len(policy.roots)} roots"
        if policy.revoked.path is None:
            return f"{words}; no list of revoked keys (attestation_status)"
        held = policy.revoked.serials()
        age_days = (clock().timestamp() - policy.revoked.path.stat().st_mtime) / 86400
        if age_days > _STATUS_WARNING_DAYS:
            raise ConfigError(f"the list of revoked attestation keys is {age_days:.0f} days old; fetch it again")
        return f"{words}; {len(held)} revoked keys, {age_days:.0f} days old"

    async def audit_log() -> str:
        store = Store.open(home.store_url(home.config().config))
        try:
            with store.begin() as transaction:
                newest = transaction.audit(lambda log, db: log.verify(db))
        finally:
            store.close()
        return f"{newest.position} entries, each following from the one before"

    async def joining() -> str:
        address = home.config().config.address
        reply = await hello(address, home.ca())
        await asyncio.to_thread(check_tls12_is_refused, address, pki.to_pem(home.ca()))
        return f"{reply.software} answers at {address}, protocol {reply.protocol_version}, TLS 1.3 only"

    async def operators() -> str:
        address = home.config().config.admin_address
        async with connect_admin(address, home.operator_credentials(), setting="admin_address") as admin:
            count = len([device async for device in admin.list_devices()])
        return f"answers at {address}; {count} devices"

    checks: dict[str, Callable[[], Awaitable[str]]] = {
        "folder": folder,
        "settings": settings,
        "authority": authority,
        "operator": operator,
        "coordinator": coordinator,
        "release key": release_key,
        "attestation": attestation,
        "audit log": audit_log,
        "joining port": joining,
        "operators' port": operators,
    }
    return [await _finding(name, check) for name, check in checks.items()]


async def _finding(name: str, check: Callable[[], Awaitable[str]]) -> Finding:
    try:
        return Finding(name, await check())
    except MienError as error:
        return Finding(name, error.message, error)
