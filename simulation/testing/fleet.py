"""A coordinator as a real process in a folder of its own, and fake devices that it takes for admitted ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.operator.client import Coordinator, connect
from coordinator.store.store import Store
from mien.layout import Vector
from mien.protocol.canonical import model_to_json
from mien.protocol.ids import ModelId, PopulationId
from mien.shell.clock import Clock
from mien.shell.keys import p256_key
from simulation.testing.device import DeviceCredentials, FakeDevice, patiently
from simulation.testing.ports import free_port
from simulation.testing.tiny import LAYOUT, SPEC, STEP_LIMIT_S, THETA

READY_S: Final = 120.0
STOP_S: Final = 120.0


class FakeFleet:
    """A coordinator's folder, the process that serves it, and the authority that makes its devices.

    In a `with` block it serves while the block runs; without one, `start` it, and `close` it in the end. Nothing of the
    coordinator is fake but its registrar, which is an authority without a server. `program` is what Python runs: to
    test against a coordinator that misbehaves, name another one in a subclass.
    """

    program: ClassVar[tuple[str, ...]] = ("-m", "coordinator.commands.cli")

    def __init__(self, folder: Path, **settings: Any) -> None:
        """`folder` is for its files; `settings` are fields of `CoordinatorConfig` that differ from a test's usual ones.

        Raises ConfigError for a wrong setting, and AlreadyExistsError for a folder that holds a coordinator.
        """
        self.port = free_port()
        self.address = f"localhost:{self.port}"
        self.now = datetime.now(UTC)
        values: dict[str, Any] = {"check_in_hold_s": 2.0, "retry_after_s": 0.2, "drain_s": 4.0, "restart_grace_s": 60.0}
        values["device_calls_per_minute"] = 1_000_000  # fake devices do not wait between calls
        config = CoordinatorConfig(self.address, listen=f"127.0.0.1:{self.port}", **{**values, **settings})
        self.home: CoordinatorHome = CoordinatorHome.create(folder / "coordinator", config, self.now)
        self.registrar = pki.create_authority("registrar", self.now)
        self.home.trust(self.registrar.certificate_pem, replace=False)
        self.log = folder / "coordinator.log"
        self.ready_file = folder / "ready.json"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The process

    def start(self) -> float:
        """Start serving and return how long it took to be ready, in seconds.

        Raises AssertionError, with the end of its log, where it does not start.
        """
        self.ready_file.unlink(missing_ok=True)
        command = [sys.executable, *self.program, "serve", "--json", "--home", str(self.home.folder)]
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*command, "--ready-file", str(self.ready_file)], stdout=log, stderr=log)
        while not self.ready_file.is_file():
            if self._process.poll() is not None or time.monotonic() - began > READY_S:
                raise AssertionError(f"the coordinator did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.01)
        return time.monotonic() - began

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The serving process."""
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        """End the process as a power cut would: it gets no chance to do anything."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """Ask the process to drain."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Ask the process to drain and return its exit code; raises TimeoutExpired after `STOP_S`."""
        self.terminate()
        return self.process.wait(STOP_S)

    async def restart(self, *devices: FakeDevice) -> None:
        """End the process as a power cut would, start another, and return once it has answered each of the devices.

        Until then a device's call may go out on the connection that the old process left behind, and fail.
        """
        self.kill()
        await asyncio.to_thread(self.start)
        await asyncio.gather(*(patiently(device.hello) for device in devices))

    def close(self) -> None:
        """Leave no process behind."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    # Who calls

    def admit(
        self, population: str, authority: pki.Authority | None = None, *, key: ec.EllipticCurvePrivateKey | None = None
    ) -> DeviceCredentials:
        """Return credentials of a new device, as the registrar would give them; a given key makes it the same one.

        With another `authority` than the fleet's it is a stranger, whose calls raise UnreachableError.
        """
        key = key or p256_key()
        issuer = authority or self.registrar
        leaf = pki.issue_device_leaf(issuer, key.public_key(), PopulationId(population), self.now)
        return DeviceCredentials(
            device_id=pki.device_id(key.public_key()),
            population=PopulationId(population),
            coordinator_ca=self.home.public(self.home.ca_path),
            chain=pki.to_pem(leaf) + issuer.certificate_pem,
            key=pki.key_to_pem(key),
        )

    @contextlib.asynccontextmanager
    async def devices(self, population: str, count: int, *, known: bool = False) -> AsyncIterator[list[FakeDevice]]:
        """Open connections of new devices; `known` ones have the same names in every run, and draw the same by them."""
        keys = [ec.derive_private_key(1000 + number, ec.SECP256R1()) if known else None for number in range(count)]
        async with contextlib.AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(FakeDevice(self.address, self.admit(population, key=key)))
                for key in keys
            ]

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Coordinator]:
        """Open an operator's connection, closed when the block is left."""
        async with connect(self.address, self.home.operator_credentials()) as operator:
            yield operator

    async def release_tiny_model(self, operator: Coordinator) -> str:
        """Import and release the tiny model and return its id, 64 hexadecimal digits."""
        theta = self.home.folder.with_name("theta.f32")
        theta.write_bytes(THETA.astype("<f4").tobytes())
        model = await operator.import_model(model_to_json(SPEC, LAYOUT), theta, None)
        await operator.release(model.model_id)
        return model.model_id

    # What is on disk

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        """Open the coordinator's database beside it (or after it); its tables are inner and change without notice."""
        store = Store.open(self.home.database_url(self.home.resolve().config), Clock())
        try:
            yield store
        finally:
            store.close()

    def theta(self, model_id: str) -> Vector:
        """Return a model's parameters as they lie on disk, (P,) float32; raises NotFoundError for an unknown one."""
        with self.store() as store:
            sha256 = store.model(ModelId(model_id)).theta.sha256
        return np.fromfile(self.home.folder / "models" / sha256[:2] / sha256, "<f4")

    def log_records(self, event: str) -> list[dict[str, Any]]:
        """Return the log's records of one kind, oldest first."""
        lines = [line for line in self.log.read_text().splitlines(keepends=True) if line[0] == "{" and line[-1] == "\n"]
        return [record for record in map(json.loads, lines) if record.get("event") == event]

    async def until_logged(self, event: str, **values: Any) -> None:
        """Return once a log record of one kind, with these values, is there; raises TimeoutError after a while."""
        async with asyncio.timeout(STEP_LIMIT_S):
            while not any(record.items() >= values.items() for record in self.log_records(event)):
                await asyncio.sleep(0.05)
