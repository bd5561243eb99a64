"""Checks of `mien-registrar doctor`."""

from __future__ import annotations

import asyncio

from coordinator.commands.checks import FolderChecks
from coordinator.keys import pki
from coordinator.keys.tls import check_tls12_is_refused
from coordinator.operator.registrar_client import connect_admin, hello
from coordinator.registrar.attestation.policy import Policy
from coordinator.registrar.home import RegistrarHome
from mien.errors import ConfigError
from mien.format import several

_STATUS_WARNING_DAYS = 30


class RegistrarChecks(FolderChecks[RegistrarHome]):
    """The checks of one registrar's folder."""

    ORDER = (
        *("folder", "settings", "authority", "operator", "coordinator", "release key", "attestation"),
        *("audit log", "joining port", "operators' port"),
    )

    async def settings(self) -> str:
        return f"devices join at {self._home.resolve().config.address}"

    async def coordinator(self) -> str:
        return f"fingerprint {pki.fingerprint(self._home.trusted_ca())}"

    async def release_key(self) -> str:
        key = self._home.resolve().config.release_key
        return (
            f"{key[:16]}…: pinned by phones that join" if key else "none (release_key): phones take unsigned releases"
        )

    async def attestation(self) -> str:
        config = self._home.resolve().config
        policy = Policy.of(config, self._home.folder)
        if policy is None:
            return "off (attestation): phones join with whatever key they have"
        words = f"{config.attestation}, {config.attestation_level} or better, {several(len(policy.roots), 'root')}"
        if policy.revoked.path is None:
            return f"{words}; no list of revoked keys (attestation_status)"
        held = policy.revoked.serials()
        age_days = (self._clock().timestamp() - policy.revoked.path.stat().st_mtime) / 86400
        if age_days > _STATUS_WARNING_DAYS:
            raise ConfigError(
                f"the list of revoked attestation keys is {several(round(age_days), 'day')} old; fetch it again"
            )
        return f"{words}; {several(len(held), 'revoked key')}, {several(round(age_days), 'day')} old"

    async def joining_port(self) -> str:
        address = self._home.resolve().config.address
        reply = await hello(address, self._home.ca())
        await asyncio.to_thread(check_tls12_is_refused, address, pki.to_pem(self._home.ca()))
        return f"{reply.software} answers at {address}, protocol {reply.protocol_version}, TLS 1.3 only"

    async def operators_port(self) -> str:
        address = self._home.resolve().config.admin_address
        async with connect_admin(address, self._home.operator_credentials(), setting="admin_address") as admin:
            count = len([device async for device in admin.list_devices()])
        return f"answers at {address}; {several(count, 'device')}"
