"""A coordinator as a real process in a folder of its own, with certificates made by the real authorities."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.home.config import CoordinatorConfig
from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.operator.client import Coordinator, connect
from coordinator.store.store import Store
from mien.protocol.canonical import model_to_json
from mien.shell.clock import Clock
from mien.specs import CohortSpec, DeadlineSpec, PrivacySpec, TaskSpec
from tests.integration.light_device import LAYOUT, SECONDS, SPEC, THETA, Credentials, LightDevice, patiently
from tests.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
READY_S = 120.0
STOP_S = 120.0
SHORT_S = 12.0
"""A stage that runs out: the others need a second or so, on a machine that is busy with much else several."""

_T = TypeVar("_T")


def tiny_task(name: str, population: str, **changes: Any) -> TaskSpec:
    """Return a task of plain sums for light devices: 4 devices a round, deadlines that nobody misses."""
    values: dict[str, Any] = {
        "method": "fedavg",
        "rounds": 1,
        "population": population,
        "cohort": CohortSpec(size=4, min_reports=2),
        "deadlines": short(),
        "privacy": PrivacySpec(min_cohort=2, secure_aggregation="off"),
    }
    return TaskSpec(name, **{**values, **changes})


def masked_task(name: str, population: str, *, size: int = 5, min_reports: int = 3, **changes: Any) -> TaskSpec:
    """Return a task under secure aggregation for light devices."""
    values: dict[str, Any] = {
        "cohort": CohortSpec(size=size, min_reports=min_reports),
        "privacy": PrivacySpec(min_cohort=3, max_weight=32),
    }
    return tiny_task(name, population, **{**values, **changes})


def short(*stages: str) -> DeadlineSpec:
    """Return deadlines of which those of these stages run out while a test waits, because somebody does not answer.

    Whoever is to answer in such a stage has a while for it, and time without end in any other.
    """
    hard = [each.name for each in fields(DeadlineSpec) if "_soft" not in each.name]
    return DeadlineSpec(**{**dict.fromkeys(hard, SECONDS), **{f"{stage}_s": SHORT_S for stage in stages}})


class House:
    """A coordinator's folder, the registrar's authority that its devices come from, and the process that serves."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.port = free_port()
        self.address = f"localhost:{self.port}"
        self.now = datetime.now(UTC)
        values: dict[str, Any] = {"check_in_hold_s": 2.0, "retry_after_s": 0.2, "drain_s": 4.0, "restart_grace_s": 60.0}
        values["device_calls_per_minute"] = 1_000_000  # light devices do not wait between calls
        config = CoordinatorConfig(self.address, listen=f"127.0.0.1:{self.port}", **{**values, **settings})
        self.home: CoordinatorHome = CoordinatorHome.create(folder / "coordinator", config, self.now)
        self.registrar = pki.create_authority("registrar", self.now)
        self.home.trust(self.registrar.certificate_pem, replace=False)
        self.log = folder / "coordinator.log"
        self._ready = folder / "ready.json"
        self._process: subprocess.Popen[bytes] | None = None

    # The process

    def start(self) -> float:
        """Start serving and return how long it took to be ready, in seconds."""
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "coordinator.commands.cli", "serve", "--json", "--home", str(self.home.folder)]
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-file", str(self._ready)], cwd=ROOT, stdout=log, stderr=log
            )
        while not self._ready.is_file():
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
        """Ask the process to drain and return its exit code."""
        self.terminate()
        return self.process.wait(STOP_S)

    async def restart(self, *devices: LightDevice) -> None:
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

    def device(
        self, population: str, authority: pki.Authority | None = None, *, key: ec.EllipticCurvePrivateKey | None = None
    ) -> Credentials:
        """Return credentials of a new device, as the registrar would give them; a given key makes it the same one."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        issuer = authority or self.registrar
        leaf = pki.issue_device_leaf(issuer, pki.create_csr(key), population, self.now)
        return Credentials(
            device_id=pki.device_id(key.public_key()),
            population=population,
            coordinator_ca=self.home.public(self.home.ca_path),
            chain=pki.to_pem(leaf) + issuer.certificate_pem,
            key=pki.key_to_pem(key),
        )

    @contextlib.asynccontextmanager
    async def devices(self, population: str, count: int, *, known: bool = False) -> AsyncIterator[list[LightDevice]]:
        """Open connections of new devices; `known` ones have the same names in every run, and draw the same by them."""
        keys = [ec.derive_private_key(1000 + number, ec.SECP256R1()) if known else None for number in range(count)]
        async with contextlib.AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(LightDevice(self.address, self.device(population, key=key)))
                for key in keys
            ]

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Coordinator]:
        """Open an operator's connection."""
        async with connect(self.address, self.home.operator_credentials()) as operator:
            yield operator

    async def give_model(self, operator: Coordinator, folder: Path) -> str:
        """Import and release the tiny model and return its id."""
        theta = folder / "theta.f32"
        theta.write_bytes(THETA.astype("<f4").tobytes())
        model = await operator.import_model(model_to_json(SPEC, LAYOUT), theta, None)
        await operator.release(model.model_id)
        return model.model_id

    # What is on disk

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        """Open the coordinator's database beside it (or after it)."""
        store = Store.open(self.home.database_url(self.home.resolve().config), Clock())
        try:
            yield store
        finally:
            store.close()

    def theta(self, model_id: str) -> Any:
        """Return a model's parameters as they lie on disk, float32."""
        import numpy as np

        with self.store() as store:
            sha256 = store.model(model_id).theta.sha256
        return np.fromfile(self.home.folder / "models" / sha256[:2] / sha256, "<f4")


def run(story: Coroutine[Any, Any, _T], *, limit_s: float = 480.0) -> _T:
    """Return what an asynchronous test returns, within a limit."""

    async def bounded() -> _T:
        async with asyncio.timeout(limit_s):
            return await story

    return asyncio.run(bounded())


def log_lines(house: House, event: str) -> list[dict[str, Any]]:
    """Return the log records of one kind."""
    lines = [line for line in house.log.read_text().splitlines(keepends=True) if line[0] == "{" and line[-1] == "\n"]
    return [record for record in map(json.loads, lines) if record.get("event") == event]


async def until_logged(house: House, event: str, **values: Any) -> None:
    """Return once a log record of one kind, with these values, is there."""
    async with asyncio.timeout(SECONDS):
        while not any(record.items() >= values.items() for record in log_lines(house, event)):
            await asyncio.sleep(0.05)


def is_root() -> bool:
    """Return whether this process may mount file systems."""
    return os.geteuid() == 0
