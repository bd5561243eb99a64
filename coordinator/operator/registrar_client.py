"""Asking a registrar: revocations over TLS with a pinned authority, an operator's requests over mutual TLS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

import grpc
from cryptography import x509

from coordinator.keys import pki
from coordinator.keys.credentials import OperatorCredentials
from coordinator.keys.tls import who_answers
from mien.errors import NotFoundError, UnreachableError
from mien.protocol import MAX_MESSAGE_BYTES, PROTOCOL_VERSIONS
from mien.protocol.status import from_rpc_error, is_ours
from mien.protocol.v1 import common_pb2, registrar_pb2, registrar_pb2_grpc

TIMEOUT_S: Final = 10.0

_PAGE: Final = 1000
_T = TypeVar("_T")


@dataclass(frozen=True)
class IssuedInvite:
    """An invite to hand to one person; the URL holds the token."""

    url: str = field(repr=False)
    expires_unix_s: int


@dataclass(frozen=True)
class Device:
    """One device as the registrar knows it; `revoked` also when a new key took its place, `attestation` in words."""

    device_id: str
    population: str
    note: str
    joined_unix_s: int
    certificate_expires_unix_s: int
    revoked: bool
    attestation: str = ""


@dataclass(frozen=True)
class _Address:
    """A registrar's address, and the setting that holds it."""

    target: str
    setting: str = ""

    def __str__(self) -> str:
        """Return the address as errors name it."""
        return f"{self.target} ({self.setting})" if self.setting else self.target


class RegistrarAdmin:
    """An operator's requests over one channel; see `connect_admin`."""

    def __init__(self, channel: grpc.aio.Channel, address: _Address, ca_pem: bytes, timeout_s: float) -> None:
        self._stub = registrar_pb2_grpc.RegistrarAdminStub(channel)
        self._address, self._ca_pem = address, ca_pem
        self._timeout_s = timeout_s

    async def create_invite(self, population: str, *, valid_s: int = 0, note: str = "") -> IssuedInvite:
        """Return a new invite; `valid_s` of 0 takes the registrar's own validity."""
        request = registrar_pb2.CreateInviteRequest(population=population, valid_s=valid_s, note=note)
        reply = await self._answer(self._stub.CreateInvite(request, timeout=self._timeout_s))
        return IssuedInvite(reply.url, reply.expires_unix_s)

    async def revoke_device(self, device_id: str, *, reason: str = "") -> None:
        """Revoke a device and every key that replaced it; raises NotFoundError for an unknown one."""
        request = registrar_pb2.RevokeDeviceRequest(device_id=device_id, reason=reason)
        await self._answer(self._stub.RevokeDevice(request, timeout=self._timeout_s))

    async def list_devices(self) -> AsyncIterator[Device]:
        """Yield every device in the order of ids, fetched page by page."""
        after = ""
        while True:
            request = registrar_pb2.ListDevicesRequest(limit=_PAGE, after_device_id=after)
            reply = await self._answer(self._stub.ListDevices(request, timeout=self._timeout_s))
            for row in reply.devices:
                yield Device(**{each.name: getattr(row, each.name) for each in fields(Device)})
            if len(reply.devices) < _PAGE:
                return
            after = reply.devices[-1].device_id

    async def _answer(self, call: Awaitable[_T]) -> _T:
        return await _answer(call, self._address, self._ca_pem)


async def find_device(registrar: RegistrarAdmin, wanted: str, *, listed_by: str) -> str:
    """Return the id of the one device that an id or its beginning means; raises NotFoundError naming `listed_by`."""
    wanted = wanted.rstrip("….")
    near = [device.device_id async for device in registrar.list_devices() if device.device_id.startswith(wanted)]
    if wanted in near:
        return wanted
    if not wanted or len(near) != 1:
        found = "several devices fit" if near else "no device fits"
        raise NotFoundError(f"{found} {wanted[:32]!r}; give an id that {listed_by} shows")
    return near[0]


@contextlib.asynccontextmanager
async def connect_admin(
    address: str, credentials: OperatorCredentials, *, setting: str = "", timeout_s: float = TIMEOUT_S
) -> AsyncIterator[RegistrarAdmin]:
    """Open a mutual TLS channel to a registrar's operators' port; calls raise UnreachableError when nobody answers.

    `setting` is the name of the one that holds `address`, which errors then tell.
    """
    tls = grpc.ssl_channel_credentials(credentials.ca_pem, credentials.key_pem, credentials.chain_pem)
    async with _channel(address, tls, MAX_MESSAGE_BYTES) as channel:
        yield RegistrarAdmin(channel, _Address(address, setting), credentials.ca_pem, timeout_s)


async def fetch_revocations(
    address: str,
    registrar_ca: x509.Certificate,
    *,
    credentials: pki.Credentials | None = None,
    timeout_s: float = TIMEOUT_S,
) -> x509.CertificateRevocationList:
    """Return the registrar's current revocation list, its signature checked.

    `address` is the operators' port with `credentials`, the joining port without. Whether the list replaces the one at
    hand, `Revocations.accept` decides.
    """
    own = (None, None) if credentials is None else (credentials.key_pem, credentials.chain_pem)
    ca_pem = pki.to_pem(registrar_ca)
    tls = grpc.ssl_channel_credentials(ca_pem, *own)
    async with _channel(address, tls, pki.MAX_CRL_BYTES) as channel:
        stub: Any = (
            registrar_pb2_grpc.RegistrarStub(channel)
            if credentials is None
            else registrar_pb2_grpc.RegistrarAdminStub(channel)
        )
        call = stub.GetRevocations(registrar_pb2.GetRevocationsRequest(), timeout=timeout_s)
        reply = await _answer(call, _Address(address), ca_pem)
    return pki.load_crl(reply.crl_der, registrar_ca)


async def cosign(
    address: str,
    registrar_ca: x509.Certificate,
    request: registrar_pb2.CosignRequest,
) -> registrar_pb2.CosignReply:
    """Return the registrar's answer to a checkpoint of the coordinator's log; raises TransparencyError for another."""
    ca_pem = pki.to_pem(registrar_ca)
    tls = grpc.ssl_channel_credentials(ca_pem)
    async with _channel(address, tls, MAX_MESSAGE_BYTES) as channel:
        stub = registrar_pb2_grpc.RegistrarStub(channel)
        return await _answer(stub.Cosign(request, timeout=TIMEOUT_S), _Address(address), ca_pem)


async def hello(address: str, registrar_ca: x509.Certificate) -> common_pb2.HelloReply:
    """Return a registrar's greeting: protocol version, software and clock; raises VersionError without a common one."""
    ca_pem = pki.to_pem(registrar_ca)
    tls = grpc.ssl_channel_credentials(ca_pem)
    async with _channel(address, tls, MAX_MESSAGE_BYTES) as channel:
        stub = registrar_pb2_grpc.RegistrarStub(channel)
        request = common_pb2.HelloRequest(protocol_versions=PROTOCOL_VERSIONS)
        return await _answer(stub.Hello(request, timeout=TIMEOUT_S), _Address(address), ca_pem)


def _channel(address: str, tls: grpc.ChannelCredentials, max_message_bytes: int) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(address, tls, options=(("grpc.max_receive_message_length", max_message_bytes),))


async def _answer(call: Awaitable[_T], address: _Address, ca_pem: bytes) -> _T:
    """Return a call's answer; a call to a registrar that is down fails at once."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNAVAILABLE and not is_ours(error):
            answer = await asyncio.to_thread(who_answers, address.target, ca_pem)
            raise UnreachableError(answer.advice("registrar", address)) from error
        raise from_rpc_error(error, peer=f"the registrar at {address}") from error
