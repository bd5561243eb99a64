"""Asking a further witness for its cosignature, over HTTP as C2SP's tlog-witness has it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import io
import ssl
from typing import Any, Final, cast
from urllib.parse import urlsplit

from mien.errors import TransparencyError, UnreachableError
from mien.log.checkpoints import MAX_NOTE_BYTES
from mien.log.witnesses import AddCheckpoint, WitnessAddress

TIMEOUT_S: Final = 5.0
"""How long a call may take as a whole: a witness that answers a byte at a time holds nobody up for longer."""

OK: Final = 200
OTHER_SIZE: Final = 409
_SIZE_TYPE: Final = "text/x.tlog.size"
_MAX_HEAD_BYTES: Final = 16 * 1024
_PORTS: Final = {"http": 80, "https": 443}


async def add_checkpoint(witness: WitnessAddress, asked: AddCheckpoint, *, timeout_s: float = TIMEOUT_S) -> bytes | int:
    """Return the witness's signature lines, not checked, or the size that it signed last, to ask again from there.

    Follows no redirect. Raises UnreachableError where no witness answers in time,
    TransparencyError for a refusal.
    """
    try:
        answered = await asyncio.wait_for(_answered(witness.url, asked.to_bytes()), timeout_s)
        with contextlib.closing(http.client.HTTPResponse(cast(Any, _Received(answered)))) as reply:
            reply.begin()
            body = reply.read(MAX_NOTE_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnreachableError(
            f"the witness {witness.key.name} does not answer at {witness.url}; start it, or correct its address"
        ) from error
    if reply.status == OK:
        return body
    told = body[:1024].decode(errors="replace").strip()
    if reply.status == OTHER_SIZE and reply.headers.get_content_type() == _SIZE_TYPE and told.isdecimal():
        return int(told[:16])
    raise TransparencyError(
        f"the witness {witness.key.name} did not cosign the log (HTTP {reply.status}); ask who runs it"
    )


class _Received:
    """What `http.client` parses an answer from: it asks a socket for a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        """Return the bytes."""
        return io.BytesIO(self._data)


@functools.cache
def _context() -> ssl.SSLContext:
    """Return who is trusted to name witnesses' addresses: read once, since that takes longer than a call."""
    return ssl.create_default_context()


async def _answered(url: str, body: bytes) -> bytes:
    """Return the bytes of the answer to a POST, up to where the other side ends it or has said more than it may."""
    at = urlsplit(url)
    context = _context() if at.scheme == "https" else None
    reader, writer = await asyncio.open_connection(at.hostname, at.port or _PORTS[at.scheme], ssl=context)
    try:
        head = (
            f"POST {at.path}/add-checkpoint HTTP/1.1\r\nHost: {at.netloc.rpartition('@')[2]}\r\nConnection: close\r\n"
        )
        writer.write(f"{head}Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        answer = b""
        while len(answer) < _MAX_HEAD_BYTES + MAX_NOTE_BYTES and (more := await reader.read(4096)):
            answer += more
        return answer
    finally:
        writer.transport.abort()
