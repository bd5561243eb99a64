"""The registrar's two gRPC services: messages in, `Registry` decisions out, each caller checked before it is heard."""

# ruff: noqa: N802 - methods are named by the protocol

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final, TypeVar

import structlog
from cryptography import x509

from coordinator.keys import pki
from coordinator.registrar.issuing import Joined, Registry
from coordinator.registrar.witness import Witness
from coordinator.service.limits import FailureLimiter, network_of
from coordinator.service.rpc import hello_reply, peer_host, peer_leaf_pem
from mien.errors import AuthError, MienError
from mien.log.witnesses import Quorum
from mien.protocol.v1 import common_pb2, registrar_pb2, registrar_pb2_grpc

MAX_JOIN_MESSAGE_BYTES: Final = 32 * 1024
"""Limit of a message from a caller that has proved nothing yet; a join needs less than 5 KiB."""

_LOG: Final = structlog.get_logger()
_T = TypeVar("_T")


class Worker:
    """The one thread in which the registry works: decisions follow each other, and the event loop never waits."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="registry")

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return what `work` returns."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Wait for the work in progress, then end the thread."""
        self._executor.shutdown()


class RegistrarService(registrar_pb2_grpc.RegistrarServicer):
    """Calls of devices: server TLS only, so the token or the current key is the proof."""

    def __init__(
        self,
        registry: Registry,
        ca: x509.Certificate,
        coordinator_address: str,
        limiter: FailureLimiter,
        worker: Worker,
        clock: Callable[[], datetime],
        *,
        witness: Witness,
        further: Quorum,
        release_key: str = "",
    ) -> None:
        self._registry, self._release_key, self._witness, self._further = registry, release_key, witness, further
        self._ca_der = pki.to_der(ca)
        self._coordinator_address = coordinator_address
        self._limiter = limiter
        self._worker = worker
        self._clock = clock

    async def Hello(self, request: common_pb2.HelloRequest, context: Any) -> common_pb2.HelloReply:
        """Return the protocol version to speak, and the registrar's clock."""
        return hello_reply(request, "mien-registrar", int(self._clock().timestamp() * 1000))

    async def Join(self, request: registrar_pb2.JoinRequest, context: Any) -> registrar_pb2.JoinReply:
        """Return a device's first certificate for a token."""
        joined = await self._limited(
            context,
            lambda: self._registry.join(request.token, request.csr_der, tuple(request.attestation_chain_der)),
        )
        _LOG.info("joined", device_id=joined.device_id, population=joined.population)
        return self._reply(joined)

    async def Renew(self, request: registrar_pb2.RenewRequest, context: Any) -> registrar_pb2.JoinReply:
        """Return a device's next certificate for a proof of its current key.

        Nothing can be guessed here, so failures are not counted: strangers cannot keep a phone from renewing.
        """
        joined = await self._worker.run(
            lambda: self._registry.renew(request.certificate_der, request.csr_der, request.signature, request.unix_ms)
        )
        _LOG.info("renewed", device_id=joined.device_id, population=joined.population)
        return self._reply(joined)

    async def GetRevocations(
        self, request: registrar_pb2.GetRevocationsRequest, context: Any
    ) -> registrar_pb2.GetRevocationsReply:
        """Return the signed revocation list."""
        return registrar_pb2.GetRevocationsReply(crl_der=await self._worker.run(self._registry.crl))

    async def Cosign(self, request: registrar_pb2.CosignRequest, context: Any) -> registrar_pb2.CosignReply:
        """Return a checkpoint of the coordinator's log with this registrar's cosignature, and what was issued."""
        asked = (request.checkpoint, request.log_key, request.log_key_signature, request.old_size)
        # Not counted with failed joins: whoever fails to join from the coordinator's network must not stop its rounds.
        cosigned = await self._worker.run(
            lambda: self._witness.cosign(*asked, tuple(request.consistency), request.certificates_after)
        )
        return registrar_pb2.CosignReply(
            cosigned=cosigned.note,
            size=cosigned.size,
            certificates=[bytes.fromhex(sha256) for sha256 in cosigned.certificates],
            certificates_after=cosigned.certificates_after,
        )

    async def _limited(self, context: Any, work: Callable[[], Joined]) -> Joined:
        """Run a join unless its address has failed too often; count it when it fails to prove itself."""
        host = network_of(peer_host(context.peer()))
        self._limiter.check(host)
        try:
            return await self._worker.run(work)
        except AuthError:
            self._limiter.record_failure(host)
            raise

    def _reply(self, joined: Joined) -> registrar_pb2.JoinReply:
        return registrar_pb2.JoinReply(
            device_id=joined.device_id,
            certificate_der=joined.certificate_der,
            registrar_ca_der=self._ca_der,
            coordinator_ca_der=joined.coordinator_ca_der,
            coordinator_address=self._coordinator_address,
            population=joined.population,
            release_key=self._release_key,
            witness_key=str(self._witness.key),
            further_witness_keys=[str(key) for key in self._further.keys],
            further_witnesses_needed=self._further.needed,
        )


class RegistrarAdminService(registrar_pb2_grpc.RegistrarAdminServicer):
    """Calls of operators: mutual TLS, and every call needs a certificate of the operators' authority `ca`.

    Phones' certificates come from another authority, and so do not pass the handshake. The trusted coordinator, whose
    authority `coordinator_ca` returns, may ask for revocations: here strangers do not stand in its way.
    """

    def __init__(
        self,
        registry: Registry,
        ca: x509.Certificate,
        coordinator_ca: Callable[[], x509.Certificate],
        worker: Worker,
        clock: Callable[[], datetime],
    ) -> None:
        self._registry = registry
        self._ca, self._coordinator_ca = ca, coordinator_ca
        self._worker = worker
        self._clock = clock

    async def CreateInvite(
        self, request: registrar_pb2.CreateInviteRequest, context: Any
    ) -> registrar_pb2.CreateInviteReply:
        """Return a new invite."""
        operator = self._operator(context)
        made = await self._worker.run(
            lambda: self._registry.create_invite(request.population, request.valid_s, request.note, actor=operator)
        )
        _LOG.info("invited", operator=operator, population=request.population, expires_unix_s=made.expires_unix_s)
        return registrar_pb2.CreateInviteReply(url=made.invite.to_url(), expires_unix_s=made.expires_unix_s)

    async def RevokeDevice(
        self, request: registrar_pb2.RevokeDeviceRequest, context: Any
    ) -> registrar_pb2.RevokeDeviceReply:
        """Revoke a device."""
        operator = self._operator(context)
        await self._worker.run(lambda: self._registry.revoke(request.device_id, request.reason, actor=operator))
        _LOG.info("revoked", operator=operator, device_id=request.device_id, reason=request.reason)
        return registrar_pb2.RevokeDeviceReply()

    async def ListDevices(
        self, request: registrar_pb2.ListDevicesRequest, context: Any
    ) -> registrar_pb2.ListDevicesReply:
        """Return one page of devices."""
        self._operator(context)
        rows = await self._worker.run(lambda: self._registry.devices(request.after_device_id, request.limit))
        return registrar_pb2.ListDevicesReply(
            devices=[
                registrar_pb2.DeviceRecord(
                    device_id=device.device_id,
                    population=device.population,
                    joined_unix_s=device.joined_unix_s,
                    certificate_expires_unix_s=expires_unix_s,
                    revoked=device.revoked_unix_s is not None or device.successor_id is not None,
                    note=device.note,
                    attestation=device.attestation,
                )
                for device, expires_unix_s in rows
            ]
        )

    async def GetRevocations(
        self, request: registrar_pb2.GetRevocationsRequest, context: Any
    ) -> registrar_pb2.GetRevocationsReply:
        """Return the signed revocation list."""
        leaf = pki.load_certificate(peer_leaf_pem(context))
        try:
            pki.operator_identity(leaf, self._coordinator_ca(), self._clock())
        except MienError:
            self._operator(context)
        return registrar_pb2.GetRevocationsReply(crl_der=await self._worker.run(self._registry.crl))

    def _operator(self, context: Any) -> str:
        """Return the calling operator's name; raises unless the certificate is an operator's and valid now."""
        leaf = pki.load_certificate(peer_leaf_pem(context))
        return pki.operator_identity(leaf, self._ca, self._clock()).id
