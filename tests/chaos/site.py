"""The programs that are killed: coordinators that start in an instant, a registrar, and how long they were up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator.keys import pki
from coordinator.registrar.config import RegistrarConfig
from coordinator.registrar.home import RegistrarHome
from simulation.testing import FakeFleet, free_port
from tests.chaos import shim
from tests.chaos.shim import Disk
from tests.helpers import ROOT

READY_S = 120.0


class Launcher:
    """`tests.chaos.launcher`: takes orders one after another."""

    def __init__(self, disk: Disk | None, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.launcher"],
                cwd=ROOT, env=shim.environment(disk), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip

    def launch(self, order: dict[str, Any]) -> int:
        """Return the process id of a coordinator that has begun to start."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it, and with it every coordinator that still runs."""
        self._process.kill()
        self._process.communicate()


class Victim:
    """One coordinator: started, killed and started again, always in the same folder."""

    def __init__(self, fleet: FakeFleet, launcher: Launcher) -> None:
        self.fleet = fleet
        self._launcher, self._pipe = launcher, fleet.home.folder.parent / "ready.pipe"
        os.mkfifo(self._pipe)
        self._pidfd = -1
        self.is_ready = False
        self.num_starts = 0

    async def start(self, offset_s: float = 0.0) -> bool:
        """Start it and return whether it is ready, or has ended before it was."""
        reading = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            order = {"home": str(self.fleet.home.folder), "log": str(self.fleet.log), "offset_s": offset_s}
            pid = await asyncio.to_thread(self._launcher.launch, {**order, "ready": str(self._pipe)})
            self.num_starts += 1
            try:
                self._pidfd = os.pidfd_open(pid)
            except ProcessLookupError:  # it has ended already
                return False
            end = time.monotonic() + READY_S
            while not self.has_ended and time.monotonic() < end:
                with contextlib.suppress(BlockingIOError):
                    if os.read(reading, 1):
                        self.is_ready = True
                        return True
                await asyncio.sleep(0.01)
            return False
        finally:
            os.close(reading)

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._pidfd < 0 or bool(select.select([self._pidfd], [], [], 0)[0])

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal, if it is there."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def kill(self) -> None:
        """End it as a power cut would, and return once it is gone."""
        self.send(signal.SIGKILL)
        await self.gone()

    async def gone(self, limit_s: float = READY_S) -> bool:
        """Return whether it has ended by itself within the limit."""
        end = time.monotonic() + limit_s
        while not self.has_ended:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.002)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self.is_ready = False
        return True


class Registrar:
    """A real registrar, the authority of every device."""

    def __init__(self, folder: Path, address: str, coordinator_address: str) -> None:
        self.address = address
        config = RegistrarConfig(address, coordinator_address, f"127.0.0.1:{free_port()}", listen=address)
        self.home: RegistrarHome = RegistrarHome.create(folder / "registrar", config, datetime.now(UTC))
        self._log = folder / "registrar.log"
        self._process: subprocess.Popen[bytes] | None = None

    def introduce(self, fleets: Sequence[FakeFleet]) -> None:
        """Make it and the coordinators, which are one, know each other."""
        self.home.trust(fleets[0].home.public(fleets[0].home.ca_path), replace=False)
        for fleet in fleets:
            fleet.home.trust(pki.to_pem(self.home.ca()), replace=True)
            fleet.registrar = self.home.authority()

    async def start(self) -> None:
        """Start it and return once it answers."""
        command = [sys.executable, "-m", "coordinator.commands.registrar_cli", "serve", "--json", "--home"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*command, str(self.home.folder)], cwd=ROOT, stdout=log, stderr=log)
        host, port = self.address.split(":")
        end = time.monotonic() + READY_S
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1.0).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"the registrar did not start:\n{self._log.read_text()[-2000:]}") from None
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)


class Uptime:
    """Seconds in which nothing but devices kept rounds from going on: the time that deadlines are judged by."""

    def __init__(self, is_up: Callable[[], bool]) -> None:
        self._is_up = is_up
        self._outages = 0
        self.num_outages = 0
        self.seconds = 0.0

    async def count(self) -> None:
        """Count until cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            if self._is_up() and self._outages == 0:
                self.seconds += min(now - last, 0.5)  # this machine's own pauses are nobody's delay
            last = now

    @property
    def is_disturbed(self) -> bool:
        """Whether something that a coordinator needs is away."""
        return self._outages > 0

    @contextlib.asynccontextmanager
    async def outage(self, mend: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Something that the coordinator needs is away while the block runs, and mended at its end."""
        self._outages += 1
        self.num_outages += 1
        try:
            yield
        finally:
            await mend()
            self._outages -= 1
