"""A real registrar and a real coordinator that know each other, and phones with faces of nobody."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from coordinator.home.home import CoordinatorHome
from coordinator.keys import pki
from coordinator.operator.registrar_client import connect_admin
from coordinator.registrar.config import RegistrarConfig
from coordinator.registrar.home import RegistrarHome
from device_sdk.device import Device
from device_sdk.models.models import Model
from device_sdk.rounds.events import Listener
from mien.backbones import build_backbone, layout_of, theta_of
from mien.layout import Vector, model_id
from mien.methods.base import Runtime
from mien.protocol.canonical import model_to_json
from mien.protocol.v1 import operator_pb2
from mien.specs import ModelSpec, TaskSpec, Threshold
from simulation.testing import FakeFleet, free_port
from simulation.testing.fleet import READY_S
from tests.device_sdk.synthetic import images_of
from tests.helpers import ROOT

_T = TypeVar("_T")

IDENTITIES = ("asian_0007", "caucasian_0002", "african_0000", "asian_0001", "caucasian_0008")


@cache
def small_model() -> Model:
    """Return a MobileFaceNet of random weights whose last layer is trained: quick, and real for all but the faces."""
    backbone = build_backbone("mobilefacenet_folded", seed=3)
    layout, theta = layout_of(backbone), theta_of(backbone)
    spec = ModelSpec(
        "mobilefacenet_folded", layout.sha256, backbone.input_spec, "random weights", "none", ("embedding.*",)
    )
    return Model(model_id(layout.sha256, theta), spec, layout, theta, None)


class Loop:
    """One event loop in a thread of its own: gRPC's channels do not like loops that come and go."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, story: Coroutine[Any, Any, _T]) -> _T:
        """Return what a coroutine returns."""
        return asyncio.run_coroutine_threadsafe(story, self._loop).result(240)

    def close(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@dataclass(frozen=True)
class RealFleet:
    """Both servers, and how to make phones that belong to them."""

    coordinator: FakeFleet
    registrar: RegistrarHome
    admin_address: str
    folder: Path
    loop: Loop

    def invite(self, population: str, *, valid_s: int = 0) -> str:
        """Return a new invite's URL."""

        async def story() -> str:
            async with connect_admin(self.admin_address, self.registrar.operator_credentials()) as admin:
                return (await admin.create_invite(population, valid_s=valid_s)).url

        return self.loop.run(story())

    def revoke(self, device_id: str) -> None:
        """Have the registrar take a device's admission back."""

        async def story() -> None:
            async with connect_admin(self.admin_address, self.registrar.operator_credentials()) as admin:
                await admin.revoke_device(device_id, reason="lost")

        self.loop.run(story())

    def release(self, model: Model, *, shard: Path | None = None) -> None:
        """Import a model and make it the released one."""
        theta = self.folder / f"{model.model_id}.f32"
        theta.write_bytes(np.ascontiguousarray(model.theta, "<f4").tobytes())

        async def story() -> None:
            async with self.coordinator.operator() as operator:
                await operator.import_model(model_to_json(model.spec, model.layout), theta, shard)
                await operator.release(model.model_id)

        self.loop.run(story())

    def add_threshold(self, threshold: Threshold) -> None:
        """Add a threshold to a model that is known already."""

        async def story() -> None:
            async with self.coordinator.operator() as operator:
                await operator.add_threshold(threshold.model_id, threshold)

        self.loop.run(story())

    def submit(self, task: TaskSpec) -> str:
        """Submit a task and return its id."""

        async def story() -> str:
            async with self.coordinator.operator() as operator:
                return (await operator.submit(task, task.name)).task_id

        return self.loop.run(story())

    def outcome(self, task_id: str, *, limit_s: float = 120.0) -> list[operator_pb2.RoundReport]:
        """Return the last report of each attempt, once the task is over."""

        async def story() -> list[operator_pb2.RoundReport]:
            reports: dict[tuple[int, int], operator_pb2.RoundReport] = {}
            async with self.coordinator.operator() as operator, asyncio.timeout(limit_s):
                async for event in operator.watch(task_id):
                    if event.HasField("round"):
                        reports[event.round.round.round, event.round.round.attempt] = event.round
                    if event.task.state == "paused":
                        break
            return [reports[key] for key in sorted(reports)]

        return self.loop.run(story())

    def seen_devices(self) -> list[str]:
        """Return the ids of all devices that called."""

        async def story() -> list[str]:
            async with self.coordinator.operator() as operator:
                return [device.device_id async for device in operator.seen_devices()]

        return self.loop.run(story())

    def theta(self, model: str) -> Vector:
        """Return a model's parameters as the coordinator holds them."""
        return np.asarray(self.coordinator.theta(model))

    def phone(
        self,
        name: str,
        population: str,
        identity: str,
        *,
        tell: Listener = lambda _event: None,
        runtime_loader: Callable[[Model], Runtime] | None = None,
        **options: Any,
    ) -> Device:
        """Return a phone that has joined and enrolled its owner, who agreed to training."""
        device = self.open(name, tell=tell, runtime_loader=runtime_loader, **options)
        device.join(self.invite(population))
        device.enroll("Owner", images_of(identity)[:5], consent=True)
        return device

    def open(
        self,
        name: str,
        *,
        tell: Listener = lambda _event: None,
        runtime_loader: Callable[[Model], Runtime] | None = None,
        **options: Any,
    ) -> Device:
        """Return the phone of that name, whose owner agreed to small and plain sums."""
        agreed = {"participation.min_cohort": 2, "participation.allow_plain_sums": True}
        settings = {"keystore": "file", **agreed, **options}
        return Device.open(
            self.folder / name,
            options=settings,
            rng=random.Random(name),
            tell=tell,
            runtime_loader=runtime_loader,
        )


class LyingFleet(FakeFleet):
    """Fleet whose coordinator lies, as the file says that `MIEN_LIE` names."""

    program = ("-m", "tests.attacks.lying_coordinator")


@contextlib.contextmanager
def lying(lie: Path) -> Iterator[None]:
    """Have coordinators that begin in this block tell phones the lies of a file, and none while it is absent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIEN_LIE", str(lie))
        patch.setitem(globals(), "FakeFleet", LyingFleet)
        yield


@contextlib.contextmanager
def real_fleet(
    folder: Path, *, prepare: Callable[[CoordinatorHome, RegistrarHome], None] | None = None, **settings: Any
) -> Iterator[RealFleet]:
    """Run both servers, as processes of their own, while the block runs; `prepare` changes their folders before."""
    address, admin_address = (f"127.0.0.1:{free_port()}" for _ in range(2))
    fleet = FakeFleet(folder, registrar_address=address, crl_fetch_s=0.5, **settings)
    key = settings.get("release_key", "")
    config = RegistrarConfig(
        address, fleet.address, admin_address, listen=address, max_join_failures=1000, release_key=key
    )
    registrar = RegistrarHome.create(folder / "registrar", config, datetime.now(UTC))
    registrar.trust(fleet.home.public(fleet.home.ca_path), replace=False)
    fleet.home.trust(pki.to_pem(registrar.ca()), replace=True)
    if prepare is not None:
        prepare(fleet.home, registrar)
    loop = Loop()
    try:
        with _serving(registrar, admin_address, folder / "registrar.log"):
            fleet.start()
            yield RealFleet(fleet, registrar, admin_address, folder, loop)
    finally:
        fleet.close()
        loop.close()


@contextlib.contextmanager
def _serving(registrar: RegistrarHome, address: str, log_path: Path) -> Iterator[None]:
    """The registrar's process, from when it answers on."""
    command = [
        sys.executable,
        "-m",
        "coordinator.commands.registrar_cli",
        "serve",
        "--json",
        "--home",
        str(registrar.folder),
    ]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            host, port = address.split(":")
            end = time.monotonic() + READY_S
            while True:
                try:
                    socket.create_connection((host, int(port)), timeout=1.0).close()
                    break
                except OSError:
                    assert process.poll() is None, f"the registrar did not start: {log_path.read_text()[-2000:]}"
                    assert time.monotonic() < end, "the registrar did not start"
                    time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(60)


def with_model(model: Model, theta: Vector) -> Model:
    """Return another version of a model."""
    spec = dataclasses.replace(model.spec, thresholds=())
    return Model(model_id(model.layout.sha256, theta), spec, model.layout, theta, None)
