"""A registrar, a coordinator and its dashboard as real processes on this machine, with phones that were admitted."""

from __future__ import annotations

import contextlib
import itertools
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc

from benchmarks._attacks import Target
from coordinator.dashboard.home import certify
from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.registrar.config import RegistrarConfig
from coordinator.registrar.home import RegistrarHome
from mien.errors import UnreachableError
from mien.protocol import PROTOCOL_VERSIONS
from mien.protocol.ids import PopulationId
from mien.protocol.v1 import common_pb2, registrar_pb2, registrar_pb2_grpc, rounds_pb2_grpc
from mien.shell.keys import p256_key
from simulation.testing import free_port

READY_S = 60.0
NUM_PHONES = 16
"""Phones that take turns in visiting the coordinator, so that none comes more often than one may."""
Metadata = tuple[tuple[str, str], ...]
HELLO = common_pb2.HelloRequest(protocol_versions=PROTOCOL_VERSIONS)


@dataclass(frozen=True)
class House:
    """What `open_house` runs: targets by the names of ports, and for each a visit by somebody who means no harm."""

    folder: Path
    registrar: RegistrarHome
    coordinator: CoordinatorHome
    targets: dict[str, Target]
    visits: dict[str, Callable[..., None]]
    processes: dict[str, subprocess.Popen[bytes]]


@contextlib.contextmanager
def open_house(folder: Path) -> Iterator[House]:
    """Run the programs with their usual settings while a block runs; raises UnreachableError where one fails."""
    now = datetime.now(UTC)
    join, admin, rounds, dashboard = (free_port() for _ in range(4))
    registrar = RegistrarHome.create(
        folder / "registrar",
        RegistrarConfig(f"127.0.0.1:{join}", f"localhost:{rounds}", f"127.0.0.1:{admin}", listen=f"127.0.0.1:{join}"),
        now,
    )
    coordinator = CoordinatorHome.create(
        folder / "coordinator",
        config := CoordinatorConfig(
            f"localhost:{rounds}",
            listen=f"127.0.0.1:{rounds}",
            registrar_address=f"127.0.0.1:{join}",
            registrar_admin_address=f"127.0.0.1:{admin}",
            dashboard_listen=f"127.0.0.1:{dashboard}",
        ),
        now,
    )
    registrar.trust(coordinator.ca_path.read_bytes(), replace=False)
    coordinator.trust(registrar.ca_path.read_bytes(), replace=False)
    certify(coordinator, config, now)
    thief, *phones = (_phone(folder, f"phone-{number}", registrar, now) for number in range(1 + NUM_PHONES))
    targets = {
        "registrar": Target(join, str(registrar.ca_path)),
        "operators": Target(admin, str(registrar.ca_path), *thief),
        "coordinator": Target(rounds, str(coordinator.ca_path), *thief),
        "dashboard": Target(dashboard, str(coordinator.ca_path)),
    }
    visits = {
        "registrar": _hello(f"127.0.0.1:{join}", registrar.ca_path, (), registrar_pb2_grpc.RegistrarStub),
        "operators": _listed(f"127.0.0.1:{admin}", registrar),
        "coordinator": _hello(f"localhost:{rounds}", coordinator.ca_path, phones, rounds_pb2_grpc.RoundsStub),
        "dashboard": _page(dashboard, coordinator.ca_path),
    }
    programs = {
        "registrar": ("coordinator.commands.registrar_cli", "serve", "--home", registrar.folder),
        "coordinator": ("coordinator.commands.cli", "serve", "--home", coordinator.folder),
        "dashboard": ("coordinator.commands.cli", "dashboard", "serve", "--home", coordinator.folder),
    }
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, line in programs.items():
            processes[name] = stack.enter_context(_running(folder, name, *line))
            if name != "registrar":  # the dashboard reads a database that the coordinator makes
                _patiently(visits[name])
        for visit in visits.values():
            _patiently(visit)
        yield House(folder, registrar, coordinator, targets, visits, processes)


def _phone(folder: Path, name: str, registrar: RegistrarHome, now: datetime) -> tuple[str, str]:
    """Return the files of an admitted phone's certificate chain and key."""
    key, authority = p256_key(), registrar.authority()
    leaf = pki.issue_device_leaf(authority, key.public_key(), PopulationId("default"), now)
    chain, secret = folder / f"{name}.pem", folder / f"{name}.key"
    chain.write_bytes(pki.to_pem(leaf) + authority.certificate_pem)
    secret.write_bytes(pki.key_to_pem(key))
    return str(chain), str(secret)


@contextlib.contextmanager
def _running(folder: Path, name: str, *line: object) -> Iterator[subprocess.Popen[bytes]]:
    with (
        (folder / f"{name}.log").open("wb") as log,
        subprocess.Popen([sys.executable, "-m", *map(str, line)], stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _hello(
    address: str, ca: Path, own: Sequence[tuple[str, str]], stub: Callable[[grpc.Channel], object]
) -> Callable[..., None]:
    root = ca.read_bytes()
    pairs = [(Path(key).read_bytes(), Path(chain).read_bytes()) for chain, key in own]
    turns = itertools.cycle(pairs or [(None, None)])

    def visit(timeout_s: float, metadata: Metadata = ()) -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(root, *next(turns)), options) as channel:
            call: Callable[..., object] = stub(channel).Hello  # type: ignore[attr-defined]
            call(HELLO, timeout=timeout_s, metadata=metadata)

    return visit


def _listed(address: str, home: RegistrarHome) -> Callable[[float], None]:
    own = home.operator_credentials()

    def visit(timeout_s: float) -> None:
        tls = grpc.ssl_channel_credentials(own.ca_pem, own.key_pem, own.chain_pem)
        with grpc.secure_channel(address, tls, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            stub = registrar_pb2_grpc.RegistrarAdminStub(channel)
            stub.ListDevices(registrar_pb2.ListDevicesRequest(limit=1), timeout=timeout_s)

    return visit


def _page(port: int, ca: Path) -> Callable[[float], None]:
    context = ssl.create_default_context(cafile=str(ca))

    def visit(timeout_s: float) -> None:
        with urllib.request.urlopen(f"https://localhost:{port}/login", timeout=timeout_s, context=context) as reply:
            reply.read()

    return visit


def _patiently(visit: Callable[[float], None]) -> None:
    """Return once a server answers; raises UnreachableError after `READY_S`."""
    began = time.monotonic()
    while True:
        try:
            return visit(5.0)
        except (grpc.RpcError, OSError) as error:
            if time.monotonic() - began > READY_S:
                raise UnreachableError(f"a server did not start: {error}; read its log") from error
            time.sleep(0.05)


@contextlib.contextmanager
def attacking(name: str, target: Target, method: str) -> Iterator[None]:
    """Run an attack as a process of its own while a block runs, from when it has begun."""
    own = (target.chain, target.key) if target.chain else ()
    line = [sys.executable, "-m", "benchmarks._attacks", name, str(target.port), target.ca, method, *own]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()
