"""A coordinator under load, for `benchmarks.coordinator`: its process, its devices, and the bare sink beside it.

``python -m benchmarks._load FOLDER`` is the sink: a gRPC server with the coordinator's own TLS and gRPC's defaults. One
of its methods counts the bytes of a stream and does nothing else with them. The other does what any server has to that
acknowledges only what it has checked and keeps sealed: SHA-256, AES-256-GCM, a file, fdatasync.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks._common import ROOT
from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.keys.tls import ServerLeaf
from coordinator.operator.client import Coordinator, connect
from coordinator.rounds.block_file import BlockFile, Buffers, whole_blocks
from coordinator.store.store import Store
from device_sdk.server.identity import Identity
from mien.contribution import ContributionLayout
from mien.layout import ParameterEntry, ParameterLayout
from mien.methods import METHODS
from mien.protocol import CHUNK_BYTES
from mien.protocol.canonical import model_to_json
from mien.protocol.ids import PopulationId
from mien.protocol.uploads import piece_prefix
from mien.protocol.v1 import common_pb2, rounds_pb2
from mien.shell.clock import Clock
from mien.specs import FaceInputSpec, ModelSpec, TaskSpec
from simulation.demo.programs import free_ports

COUNT_METHOD: Final = "/mien.benchmark.Sink/Count"
KEEP_METHOD: Final = "/mien.benchmark.Sink/Keep"
UPLOAD_METHOD: Final = "/mien.v1.Rounds/Upload"
POPULATION: Final = PopulationId("load")
READY_S: Final = 60.0
CALL_S: Final = 120.0
LAYOUT: Final = ParameterLayout((ParameterEntry("weight", (1000, 1000)),))
SPEC: Final = ModelSpec(
    backbone="load",
    layout_sha256=LAYOUT.sha256,
    input=FaceInputSpec(dim=8),
    source="random numbers",
    terms="public domain",
    trainable=("*",),
)


def contribution_layout(task: TaskSpec) -> ContributionLayout:
    """Return the form of a contribution: a million parameters, 4 MB."""
    return METHODS[task.method].contribution_layout(task, LAYOUT.part(SPEC.trainable), SPEC.input.dim)


def contribution(task: TaskSpec, seed: int) -> bytes:
    """Return a contribution of weight 1."""
    layout = contribution_layout(task)
    vector = (1e-3 * np.random.default_rng(seed).standard_normal(layout.size)).astype("<f4")
    vector[layout.slices["count"]], vector[layout.slices["weight"]] = 1.0, 1.0
    return vector.tobytes()


@dataclass
class Program:
    """A process that was started, and the port at which it answers."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def peak_bytes(self) -> int:
        """The most memory that the process held since it began, or since `forget_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])

    def forget_peak(self) -> None:
        """Begin to measure the peak anew."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")

    @property
    def cpu_s(self) -> float:
        """Processor time that all the process's threads have taken."""
        return time.clock_gettime(~self.process.pid << 3 | 2)  # clock_getcpuclockid(3): a process's own clock


class Site:
    """A coordinator's folder, the registrar's authority that its devices come from, and both servers."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.now = folder, datetime.now(UTC)
        (self.port,) = free_ports(1)
        config = CoordinatorConfig(
            f"localhost:{self.port}",
            listen=f"127.0.0.1:{self.port}",
            check_in_hold_s=5.0,
            retry_after_s=0.2,
            device_calls_per_minute=1_000_000,
            connections_per_address=100_000,  # all emulated phones share one address
            **settings,
        )
        self.home: CoordinatorHome = CoordinatorHome.create(folder / "coordinator", config, self.now)
        self._registrar = pki.create_authority("registrar", self.now)
        self.home.trust(self._registrar.certificate_pem, replace=False)

    @contextlib.contextmanager
    def coordinator(self) -> Iterator[Program]:
        """Run the coordinator while the block runs."""
        command = ["coordinator.commands.cli", "serve", "--json", "--home", str(self.home.folder)]
        with _program(command, self.folder / "coordinator.ready") as program:
            yield program

    @contextlib.contextmanager
    def sink(self) -> Iterator[Program]:
        """Run the bare sink while the block runs."""
        with _program(["benchmarks._load", str(self.home.folder)], self.folder / "sink.ready") as program:
            yield program

    def device(self) -> Phone:
        """Return a new device with the registrar's certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        return Phone(
            Identity(
                device_id=pki.device_id(key.public_key()),
                population=POPULATION,
                registrar_address="",
                coordinator_address=f"localhost:{self.port}",
                certificate=pki.issue_device_leaf(self._registrar, key.public_key(), POPULATION, self.now),
                registrar_ca=self._registrar.certificate,
                coordinator_ca=x509.load_pem_x509_certificate(self.home.public(self.home.ca_path)),
                key=key,
            )
        )

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Coordinator]:
        """Open an operator's connection."""
        async with connect(f"localhost:{self.port}", self.home.operator_credentials()) as operator:
            yield operator

    async def give_model(self, operator: Coordinator) -> None:
        """Import and release a model of a million parameters."""
        theta = self.folder / "theta.f32"
        theta.write_bytes(np.random.default_rng(1).standard_normal(LAYOUT.size).astype("<f4").tobytes())
        model = await operator.import_model(model_to_json(SPEC, LAYOUT), theta, None)
        await operator.release(model.model_id)

    def store(self) -> Store:
        """Return the coordinator's store, opened beside it."""
        return Store.open(self.home.database_url(self.home.resolve().config), Clock())


@dataclass(frozen=True)
class Phone:
    """One device as the device SDK knows it, and a channel to one of the servers."""

    identity: Identity

    def channel(self, port: int) -> grpc.aio.Channel:
        """Return a channel of its own over mutual TLS."""
        own = self.identity
        tls = grpc.ssl_channel_credentials(pki.to_pem(own.coordinator_ca), own.key_pem, own.chain_pem)
        return grpc.aio.secure_channel(f"localhost:{port}", tls, options=(("grpc.use_local_subchannel_pool", 1),))


async def send_to_sink(channel: grpc.aio.Channel, data: bytes, method: str = COUNT_METHOD) -> None:
    """Stream bytes to the sink as they are."""
    counted = await _streamed(channel, method, (b"" for _ in _starts(data)), data)
    assert int.from_bytes(counted, "big") == len(data)


async def upload(
    channel: grpc.aio.Channel, ref: rounds_pb2.RoundRef, data: bytes, sha256: str, masked: bytes = b""
) -> None:
    """Stream a contribution to the coordinator and wait until it counts."""
    header = rounds_pb2.UploadHeader(
        round=ref, contribution=common_pb2.BlobRef(sha256=sha256, size_bytes=len(data)), masked=masked
    )
    begin = rounds_pb2.UploadChunk(header=header).SerializeToString()
    prefixes = (piece_prefix(start, min(CHUNK_BYTES, len(data) - start)) for start in _starts(data))
    answer = await _streamed(channel, UPLOAD_METHOD, prefixes, data, begin=begin)
    assert rounds_pb2.UploadStatus.FromString(answer).accepted


async def _streamed(
    channel: grpc.aio.Channel, method: str, prefixes: Iterable[bytes], data: bytes, *, begin: bytes = b""
) -> bytes:
    """Return the answer to bytes that are sent in pieces, with something before each: one copy, whichever server."""
    view = memoryview(data)

    async def messages() -> AsyncIterator[bytes]:
        if begin:
            yield begin
        for start, prefix in zip(_starts(data), prefixes, strict=True):
            yield b"".join((prefix, view[start : start + CHUNK_BYTES]))

    call: Any = channel.stream_unary(method)
    answer: bytes = await call(messages(), timeout=CALL_S)
    return answer


def _starts(data: bytes) -> range:
    return range(0, len(data), CHUNK_BYTES)


def sha256_of(data: bytes) -> str:
    """Return a contribution's address."""
    return hashlib.sha256(data).hexdigest()


# Processes


@contextlib.contextmanager
def _program(command: list[str], ready: Path) -> Iterator[Program]:
    """Run a module that writes its port to a file once it is ready; its log goes beside that file."""
    ready.unlink(missing_ok=True)
    with ready.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--ready-file", str(ready)], cwd=ROOT, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + READY_S
        while not ready.is_file():
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{command[0]} did not start; its log: {ready.with_suffix('.log')}")
            time.sleep(0.01)
        yield Program(process, int(json.loads(ready.read_text(encoding="utf-8"))["port"]))
    finally:
        process.kill()
        process.wait()


class _Keeper:
    """Keeps streams in files: the least that has to be done to a contribution, in as few steps as Python allows."""

    _BATCH: Final = 4

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._cipher = folder, AESGCM(secrets.token_bytes(32))
        self._frame = whole_blocks(CHUNK_BYTES + 28)
        self._buffers = Buffers(self._BATCH * self._frame)
        self._threads = ThreadPoolExecutor(4)

    async def keep(self, pieces: AsyncIterator[bytes], _context: Any) -> bytes:
        """Return how many bytes arrived, once they are hashed, sealed, and on stable storage."""
        run = functools.partial(asyncio.get_running_loop().run_in_executor, self._threads)
        path = self._folder / secrets.token_hex(8)
        file, digest, size = BlockFile(path, is_direct=True), hashlib.sha256(), 0
        batch, writing = list[bytes](), None
        async for piece in pieces:
            batch.append(piece)
            size += len(piece)
            if len(batch) == self._BATCH:
                if writing is not None:
                    await writing
                writing, batch = run(self._write, file, digest, batch), []
        if writing is not None:
            await writing
        await run(self._finish, file, digest, batch)
        path.unlink()
        return size.to_bytes(8, "big")

    def _write(self, file: BlockFile, digest: Any, batch: list[bytes]) -> None:
        with self._buffers.lent() as buffer:
            for number, piece in enumerate(batch):
                digest.update(piece)
                at, nonce = number * self._frame, os.urandom(12)
                buffer[at : at + 12] = nonce
                self._cipher.encrypt_into(nonce, piece, b"", buffer[at + 12 : at + 28 + len(piece)])
            file.append(buffer[: len(batch) * self._frame])

    def _finish(self, file: BlockFile, digest: Any, batch: list[bytes]) -> None:
        self._write(file, digest, batch)
        file.sync()
        file.close()
        digest.digest()


async def _serve_sink(folder: Path, ready: Path) -> None:
    from mien.shell.files import write_atomically

    home = CoordinatorHome(folder)
    authority = home.authority()
    leaf = ServerLeaf(authority, ("localhost", "127.0.0.1"), Clock().now_utc)

    async def count(pieces: AsyncIterator[bytes], _context: Any) -> bytes:
        size = 0
        async for piece in pieces:
            size += len(piece)
        return size.to_bytes(8, "big")

    keeper = _Keeper(folder.parent / "kept")
    service = COUNT_METHOD.strip("/").partition("/")[0]
    handlers: dict[str, Any] = {
        method.rpartition("/")[2]: grpc.stream_unary_rpc_method_handler(handler)
        for method, handler in ((COUNT_METHOD, count), (KEEP_METHOD, keeper.keep))
    }
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    client_cas = authority.certificate_pem + home.public(home.trusted_ca_path)
    port = server.add_secure_port("127.0.0.1:0", leaf.credentials(client_ca=client_cas))
    await server.start()
    write_atomically(ready, json.dumps({"port": port}).encode())
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_serve_sink(Path(sys.argv[1]), Path(sys.argv[3])))
