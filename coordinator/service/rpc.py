"""Parts shared by the coordinator's and the registrar's gRPC servers: errors as status, and who is calling."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from typing import Any, Final, NoReturn, TypeAlias, cast
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf.message import DecodeError

from mien.errors import (
    CertificateError,
    ConfigError,
    CorruptDataError,
    MienError,
    RateLimitedError,
    UnreachableError,
)
from mien.protocol.status import choose_version, to_status
from mien.protocol.v1 import common_pb2
from mien.shell.version import software

_LOG = structlog.get_logger()

_HANDSHAKE_MS: Final = 20_000
_METADATA_BYTES: Final = 4096

_Call: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
_Stream: TypeAlias = Callable[[Any, Any], AsyncGenerator[Any, None]]
_Told: TypeAlias = Callable[[str], AbstractContextManager[None]]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def connection_limits(*, calls: int, handshake_ms: int = _HANDSHAKE_MS) -> tuple[tuple[str, int], ...]:
    """Return options of a server for what one connection may take: time to shake hands, open calls, a call's beginning.

    A handshake takes as long as a phone tries to connect at most; gRPC's own two minutes let a few idle sockets use up
    all that a process may have open. gRPC keeps all calls that were begun in one queue, in the order in which they came
    and whether or not their connection is still there, and asks for them one by one: what a new connection can put
    into it before anybody looks is what it may have open, so `calls` is as few as a caller needs. Metadata of ours are
    a few hundred bytes; larger ones are refused before they reach that queue.
    """
    return (
        ("grpc.max_concurrent_streams", calls),
        ("grpc.server_handshake_timeout_ms", handshake_ms),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    )


def hello_reply(request: common_pb2.HelloRequest, program: str, unix_ms: int) -> common_pb2.HelloReply:
    """Return the protocol version to speak, which program answers, and its clock."""
    chosen = choose_version(list(request.protocol_versions))
    return common_pb2.HelloReply(protocol_version=chosen, software=software(program), unix_ms=unix_ms)


def listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials, *, change: str) -> int:
    """Return the port that a server now listens at; raises ConfigError, saying what to `change`, for one in use."""
    try:
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {address}{change}") from error


class CallInterceptor(ABC):
    """Stands around every method of a server, in a way of its own; what handles calls has one of gRPC's four forms."""

    def around_handler(self, handler: Handler, method: str) -> Handler:
        """Return a method's handler, wrapped."""
        sides = (handler.request_streaming, handler.response_streaming)
        form = "_".join("stream" if streaming else "unary" for streaming in sides)
        call = self.wrapped(getattr(handler, form), form, method)
        made: Handler = getattr(grpc, f"{self.form(form)}_rpc_method_handler")(call, *self.codec(handler))
        return made

    def form(self, form: str) -> str:
        """Return the form of what `wrapped` returns for a method of a form."""
        return form

    @abstractmethod
    def wrapped(self, call: Any, form: str, method: str) -> Any:
        """Return what is to answer in the place of `call`, which is of `form` (`unary_stream` or so)."""

    def codec(self, handler: Handler) -> tuple[Any, Any]:
        """Return what reads requests and what writes replies."""
        return handler.request_deserializer, handler.response_serializer


class _Wrapping:
    """Takes services for a server: what `add_XServicer_to_server` asks of one."""

    def __init__(self, server: grpc.aio.Server, interceptors: Sequence[CallInterceptor]) -> None:
        self._server, self._interceptors = server, interceptors

    def add_generic_rpc_handlers(self, _handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Take nothing: generated code registers the same methods by their names as well."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Give the server a service's methods, each within all that stands around it."""
        made = {name: self._wrapped(each, f"/{service_name}/{name}") for name, each in method_handlers.items()}
        self._server.add_registered_method_handlers(service_name, made)

    def _wrapped(self, handler: Handler, method: str) -> Handler:
        for interceptor in reversed(self._interceptors):
            handler = interceptor.around_handler(handler, method)
        return handler


def wrapping(server: grpc.aio.Server, *interceptors: CallInterceptor) -> grpc.aio.Server:
    """Return what takes services for a server, with `interceptors` around each of their methods, the outermost first.

    They are wrapped once. gRPC asks a server's own interceptors at each call, which costs more than many calls' work.
    """
    return cast("grpc.aio.Server", _Wrapping(server, interceptors))


class ErrorInterceptor(CallInterceptor):
    """Turns a MienError that a handler raises into the gRPC status that `mien.protocol.status` reads on the other side.

    Handlers are coroutines or asynchronous generators. Any other exception is a bug: gRPC logs it and answers UNKNOWN.
    `on_end` is told of each call's end: its method, and the error's code, "cancelled", "internal" or "" for none or an
    expected one.
    `around` gives a block that each call is handled in, by its method.
    """

    def __init__(
        self,
        on_end: Callable[[str, str], None] = lambda _method, _reason: None,
        around: Callable[[str], AbstractContextManager[None]] = lambda _method: nullcontext(),
    ) -> None:
        self._on_end, self._around = on_end, around

    def wrapped(self, call: Any, form: str, method: str) -> Any:
        """Return a method that answers with an error's status in the place of the error."""
        return (_guard_stream if form.endswith("stream") else _guard_call)(call, method, self._told)

    @contextmanager
    def _told(self, method: str) -> Iterator[None]:
        """Report a call's end, whatever it was."""
        reason = "internal"
        try:
            with self._around(method):
                yield
            reason = ""
        except MienError as error:
            reason = "" if _is_expected(error) else error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            reason = "cancelled"
            raise
        finally:
            self._on_end(method, reason)


class FirstMessages:
    """Waits for calls' first messages: each for `wait_s`, and of one caller `at_once`, of which the oldest gives way.

    gRPC waits without end for the message of a call that was begun, before its handler is asked. So calls are taken as
    streams, which look the same on the wire, and the wait is here.
    """

    def __init__(self, wait_s: float, at_once: int) -> None:
        self._wait_s, self._at_once = wait_s, at_once
        self._waiting: dict[str, dict[asyncio.Timeout, None]] = {}

    async def read(self, requests: AsyncIterator[Any], caller: str) -> Any:
        """Return a call's first message; raises UnreachableError where it is late, CorruptDataError without one."""
        waiting = self._waiting.setdefault(caller, {})
        try:
            async with asyncio.timeout(self._wait_s) as limit:
                waiting[limit] = None
                if len(waiting) > self._at_once:
                    oldest = next(iter(waiting))
                    del waiting[oldest]
                    if not oldest.expired():
                        oldest.reschedule(0)
                async for request in requests:
                    return parsed(request)
        except TimeoutError as error:
            raise UnreachableError(
                f"no message came within {self._wait_s:g} s of the call's beginning, or too many such calls are open; "
                "send the call again"
            ) from error
        finally:
            waiting.pop(limit, None)
            if not waiting:
                self._waiting.pop(caller, None)
        raise CorruptDataError("the call ended without a message; upgrade the calling program")


class ReadableInterceptor(CallInterceptor):
    """Refuses a message that is none of the protocol, and a call without one. Goes behind `ErrorInterceptor`.

    Handlers of single messages are given to gRPC as handlers of streams: see `FirstMessages`.
    """

    def form(self, form: str) -> str:
        """Return the form that takes a stream of requests."""
        return f"stream_{form.rpartition('_')[2]}"

    def codec(self, handler: Handler) -> tuple[Any, Any]:
        """Return what reads requests, and never raises, and what writes replies."""
        return tolerant(handler.request_deserializer), handler.response_serializer


class _Unreadable:
    """Stands for a message that is not one, so that a handler of ours and not gRPC's log has to deal with it."""


def tolerant(deserializer: Any) -> Callable[[bytes], Any]:
    """Return a deserializer that never raises; `parsed` then does, where errors have a status."""

    def parse(data: bytes) -> Any:
        try:
            return deserializer(data)
        except DecodeError:
            return _Unreadable()

    return parse


def parsed(request: Any) -> Any:
    """Return a message that `tolerant` has read; raises CorruptDataError for bytes that are none."""
    if isinstance(request, _Unreadable):
        raise CorruptDataError("the message cannot be read; upgrade the calling program")
    return request


def peer_host(peer: str) -> str:
    """Return the address in a gRPC peer name (``ipv4:192.0.2.1:4711``) without the port."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer


def peer_leaf_pem(context: Any) -> bytes:
    """Return the client certificate (PEM) of a mutual TLS call; raises CertificateError when there is none."""
    certificates = context.auth_context().get("x509_pem_cert", [])
    if not certificates:
        raise CertificateError("this port needs a client certificate; join first, or use the operator's credentials")
    return bytes(certificates[0])


def _guard_call(call: _Call, method: str, told: _Told) -> _Call:
    async def guarded(request: Any, context: Any) -> Any:
        try:
            with told(method):
                return await call(request, context)
        except MienError as error:
            await _abort(context, error, method)

    return guarded


def _guard_stream(call: _Stream, method: str, told: _Told) -> _Stream:
    async def guarded(request: Any, context: Any) -> AsyncGenerator[Any, None]:
        try:
            with told(method):
                async with aclosing(call(request, context)) as replies:
                    async for reply in replies:
                        yield reply
        except MienError as error:
            await _abort(context, error, method)

    return guarded


def _is_expected(error: MienError) -> bool:
    """Return whether an error belongs to a healthy round, so that nobody need hear of it but the caller."""
    return isinstance(error, RateLimitedError) and error.is_expected


async def _abort(context: Any, error: MienError, method: str) -> NoReturn:
    if not _is_expected(error):
        _LOG.info("refused", method=method, peer=context.peer(), error=error.code, reason=error.message)
    code, details, metadata = to_status(error)
    await context.abort(code, details, metadata)
    raise AssertionError("abort returns never")
