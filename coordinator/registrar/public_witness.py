"""A witness of other people's logs: one key, what it signed last of each log, and `add-checkpoint` over HTTP.

For somebody who is neither the coordinator's operator nor the registrar's. It learns sizes and hashes alone. It speaks
plain HTTP, since what it says is signed: put a web server with TLS before it to face the internet.

::

    witness.key     the Ed25519 key (0600)
    logs.json       of each log its key, and the size and root that were signed last; written before each signature
    witness.lock    held by the process that serves
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from coordinator.service.http import HttpLimits, listening, serving
from mien.errors import AlreadyExistsError, CorruptDataError, KeyStoreError, NotFoundError, TransparencyError
from mien.log.checkpoints import WITNESS, Checkpoint, Note, NoteKey, NoteSigner
from mien.log.witnesses import MAX_REQUEST_BYTES, AddCheckpoint, added, cosigned
from mien.shell.clock import Clock
from mien.shell.files import InFolder, create_private, make_folder, read_limited, read_private, write_atomically
from mien.shell.keys import ed25519_key
from mien.shell.lock import exclusive
from mien.shell.serving import serve_until_signalled

_LOG: Final = structlog.get_logger()
_MAX_FILE_BYTES: Final = 1024 * 1024
_LIMITS: Final = HttpLimits(connections=256, per_address=32, request_s=10.0)
_STOP_S: Final = 3
_WHAT: Final = "the list of logs that this witness knows"


@dataclass(frozen=True)
class WitnessHome:
    """The paths in a witness's folder, and what lies there."""

    folder: Path

    key_path = InFolder("witness.key")
    """The key that cosigns."""

    logs_path = InFolder("logs.json")
    """Logs, and what was signed of each last."""

    lock_path = InFolder("witness.lock")
    """Held by the process that serves."""

    def make(self) -> NoteKey:
        """Make folder and key where there are none; return the key to hand to operators."""
        make_folder(self.folder)
        if not self.key_path.exists():
            form = serialization.PrivateFormat.PKCS8
            pem = ed25519_key().private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
            create_private(self.key_path, pem)
        return self.signer().key

    def signer(self) -> NoteSigner:
        """Return what cosigns; raises NotFoundError where this is no witness's folder."""
        if not self.key_path.exists():
            raise NotFoundError(f"there is no witness in {self.folder}; run mien-registrar witness init")
        try:
            key = serialization.load_pem_private_key(read_private(self.key_path, what="the witness's key"), None)
        except (ValueError, TypeError) as error:
            raise KeyStoreError("the witness's key cannot be read; restore it from a copy") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyStoreError("the witness's key is not an Ed25519 key; restore it from a copy")
        return NoteSigner.of(WITNESS, key)

    def logs(self) -> dict[str, WitnessedLog]:
        """Return what is known of each log by its origin; raises CorruptDataError for a damaged file."""
        if not self.logs_path.exists():
            return {}
        try:
            stored = json.loads(read_limited(self.logs_path, _MAX_FILE_BYTES, what=_WHAT))
            return {origin: WitnessedLog.of(origin, **told) for origin, told in stored.items()}
        except (ValueError, TypeError, AttributeError, TransparencyError) as error:
            raise CorruptDataError(
                f"{_WHAT} is damaged; restore {self.logs_path.name}, and never an older one"
            ) from error

    def keep(self, logs: dict[str, WitnessedLog]) -> None:
        """Keep what was signed, on stable storage before this returns."""
        stored = {origin: log.to_mapping() for origin, log in logs.items()}
        write_atomically(self.logs_path, json.dumps(stored, indent=1).encode())

    def add(self, keys: list[NoteKey]) -> None:
        """Add logs by their keys; one that is known stays as it is.

        Raises AlreadyExistsError beside a server, and for another key of a log that is known.
        """
        with exclusive(self.lock_path, program="witness"):
            logs = self.logs()
            for key in keys:
                if logs.setdefault(key.name, WitnessedLog(key, None)).key != key:
                    raise AlreadyExistsError(
                        f"a log {key.name[:80]} is known by another key; what signs under a name once keeps its key"
                    )
            self.keep(logs)


@dataclass(frozen=True)
class WitnessedLog:
    """A log's key, and the checkpoint that was signed last."""

    key: NoteKey
    last: Checkpoint | None

    @classmethod
    def of(cls, origin: str, key: str, size: int | None = None, root: str = "") -> WitnessedLog:
        """Return the log in its stored form."""
        return cls(NoteKey.parse(key), None if size is None else Checkpoint(origin, int(size), bytes.fromhex(root)))

    def to_mapping(self) -> dict[str, object]:
        """Return the stored form."""
        signed = {} if self.last is None else {"size": self.last.size, "root": self.last.root.hex()}
        return {"key": str(self.key), **signed}


class PublicWitness:
    """Answers `add-checkpoint`, one after the other."""

    def __init__(self, home: WitnessHome, clock: Clock) -> None:
        self._home, self._clock = home, clock
        self._signer, self._logs = home.signer(), home.logs()
        self._one = asyncio.Lock()

    def app(self) -> Starlette:
        """Return the web application."""
        return Starlette(routes=[Route("/add-checkpoint", self._add_checkpoint, methods=["POST"])])

    async def _add_checkpoint(self, request: Request) -> Response:
        try:
            asked = AddCheckpoint.parse(await _body(request))
            origin = Checkpoint.parse(Note.parse(asked.note).text).origin
        except (TransparencyError, ClientDisconnect):
            return PlainTextResponse("no add-checkpoint request (c2sp.org/tlog-witness)\n", 400)
        if origin not in self._logs:
            return PlainTextResponse("this witness does not know that log\n", 404)
        async with self._one:
            return await asyncio.to_thread(self._answer, origin, asked)

    def _answer(self, origin: str, asked: AddCheckpoint) -> Response:
        known = self._logs[origin]
        try:
            Note.parse(asked.note).check(known.key)
        except TransparencyError as error:
            return PlainTextResponse(f"{error.message}\n", 403)
        try:
            new = added(known.last, asked, known.key)
        except TransparencyError as error:
            _LOG.error("a log does not go on from what was signed", log=origin, reason=error.message)
            return PlainTextResponse(f"{error.message}\n", 422)
        if isinstance(new, int):
            return Response(f"{new}\n", 409, media_type="text/x.tlog.size")
        if new != known.last:
            logs = {**self._logs, origin: WitnessedLog(known.key, new)}
            self._home.keep(logs)
            self._logs = logs
            _LOG.info("cosigned", log=origin, entries=new.size)
        return Response(cosigned(self._signer, asked, int(self._clock.now())), media_type="text/plain")


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_REQUEST_BYTES:
            raise TransparencyError("the request is too long")
    return body


def serve(home: WitnessHome, listen: str, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is told the URL once it answers."""
    os.umask(0o077)
    with exclusive(home.lock_path, program="witness"):
        asyncio.run(serve_until_signalled(running(home, listen, Clock()), announce, drain_s=_STOP_S))


@contextlib.asynccontextmanager
async def running(home: WitnessHome, listen: str, clock: Clock) -> AsyncIterator[str]:
    """Serve while the block runs, and yield the URL."""
    host, _, port = listen.rpartition(":")
    witness = PublicWitness(home, clock)
    settings = {"lifespan": "off", "timeout_keep_alive": 5, "timeout_graceful_shutdown": _STOP_S}
    with listening(host.strip("[]"), int(port), change="name another --listen") as listener:
        async with serving(witness.app(), listener, _LIMITS, **settings):
            yield f"http://{host}:{listener.getsockname()[1]}"
