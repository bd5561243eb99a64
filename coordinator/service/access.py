"""Access to calls: every call's certificate is checked before its handler runs, and again while it stays open."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, Final

from cryptography import x509

from coordinator.keys import pki
from coordinator.keys.pki import PeerIdentity, Role
from coordinator.service.limits import CallLimiter
from coordinator.service.revocations import Revocations
from coordinator.service.rpc import FirstMessages, ReadableInterceptor, parsed, peer_leaf_pem
from mien.errors import CertificateError, PermissionDeniedError
from mien.shell.clock import Clock

ALLOWED: Final = {
    "mien.v1.Rounds": frozenset({Role.DEVICE}),
    "mien.v1.Models": frozenset({Role.DEVICE, Role.OPERATOR}),
    "mien.v1.Operator": frozenset({Role.OPERATOR}),
}
"""Roles that may call each service; a service that is not named may not be called."""

_CALLER: ContextVar[PeerIdentity] = ContextVar("caller")
_CACHED_LEAVES: Final = 4096
_FIRST_MESSAGE_S: Final = 10.0
_WAITING_CALLS: Final = 64


def caller() -> PeerIdentity:
    """Return the caller of the call that is being handled."""
    return _CALLER.get()


class Gate:
    """Tells who a certificate belongs to, and whether it is good now."""

    def __init__(
        self, device_ca: x509.Certificate, operator_ca: x509.Certificate, revocations: Revocations, clock: Clock
    ) -> None:
        self._device_ca, self._operator_ca = device_ca, operator_ca
        self._revocations, self._clock = revocations, clock
        self._known: OrderedDict[bytes, PeerIdentity] = OrderedDict()

    def admit(self, leaf_pem: bytes) -> PeerIdentity:
        """Return the peer that a leaf names; raises CertificateError, RevokedError or PermissionDeniedError.

        Signatures are checked once for each certificate, its end and the revocation list at every call.
        """
        identity = self._known.get(leaf_pem)
        if identity is None:
            identity = pki.peer_identity(leaf_pem, self._device_ca, self._operator_ca, self._clock.now_utc())
            self._known[leaf_pem] = identity
            if len(self._known) > _CACHED_LEAVES:
                self._known.popitem(last=False)
        self.check(identity)
        return identity

    def check(self, identity: PeerIdentity) -> None:
        """Raise unless a peer that was admitted before is still welcome."""
        if self._clock.now_utc() > identity.expires_at:
            raise CertificateError("certificate expired; renew it, or join again")
        if identity.role is Role.DEVICE:
            self._revocations.check(identity.serial)


class AccessInterceptor(ReadableInterceptor):
    """Lets a call through only if its service is open to the caller's role. Goes behind `ErrorInterceptor`.

    Who calls is known by the call's beginning, before a message of it is waited for. Without a `limiter` nobody's calls
    are counted. `heard` is told of each call that may go on: its peer, and which device that proved to be.
    """

    def __init__(
        self,
        gate: Gate,
        limiter: CallLimiter | None,
        allowed: Mapping[str, frozenset[Role]] = ALLOWED,
        *,
        first_message_s: float = _FIRST_MESSAGE_S,
        heard: Callable[[str, str], None] = lambda _peer, _owner: None,
    ) -> None:
        self._gate, self._limiter, self._allowed, self._heard = gate, limiter, allowed, heard
        self._first = FirstMessages(first_message_s, _WAITING_CALLS)

    def wrapped(self, call: Any, form: str, method: str) -> Any:
        """Return a method that answers those only whom its service is open to."""
        roles = self._allowed.get(method.strip("/").rpartition("/")[0], frozenset())
        ways = {"unary_unary": self._call, "stream_unary": self._streamed, "unary_stream": self._stream}
        return ways[form](call, roles)

    @contextlib.contextmanager
    def _admitted(self, context: Any, roles: frozenset[Role]) -> Iterator[PeerIdentity]:
        """Yield the caller of a call that may go on; a device's is counted, operators have no allowance."""
        identity = self._identify(context)
        if identity.role not in roles:
            raise PermissionDeniedError(f"a {identity.role.value}'s certificate may not do this; use another one")
        _CALLER.set(identity)
        self._heard(context.peer(), identity.id if identity.role is Role.DEVICE else "")
        limiter = self._limiter if identity.role is Role.DEVICE else None
        with contextlib.nullcontext() if limiter is None else limiter.call(identity.device_id):
            yield identity

    def _identify(self, context: Any) -> PeerIdentity:
        """Return the caller of a call."""
        return self._gate.admit(peer_leaf_pem(context))

    def _call(self, call: Any, roles: frozenset[Role]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def admitted(requests: AsyncIterator[Any], context: Any) -> Any:
            with self._admitted(context, roles) as identity:
                return await call(await self._first.read(requests, identity.id), context)

        return admitted

    def _streamed(self, call: Any, roles: frozenset[Role]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def admitted(requests: AsyncIterator[Any], context: Any) -> Any:
            with self._admitted(context, roles) as identity:
                return await call(self._checked(requests, identity), context)

        return admitted

    async def _checked(self, requests: AsyncIterator[Any], identity: PeerIdentity) -> AsyncIterator[Any]:
        yield await self._first.read(requests, identity.id)
        async for request in requests:
            self._gate.check(identity)
            yield parsed(request)

    def _stream(self, call: Any, roles: frozenset[Role]) -> Callable[[Any, Any], AsyncGenerator[Any, None]]:
        async def admitted(requests: AsyncIterator[Any], context: Any) -> AsyncGenerator[Any, None]:
            with self._admitted(context, roles) as identity:
                request = await self._first.read(requests, identity.id)
                async with aclosing(call(request, context)) as replies:
                    async for reply in replies:
                        self._gate.check(identity)
                        yield reply

        return admitted
