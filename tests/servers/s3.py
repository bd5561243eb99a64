"""A real S3-compatible server (moto) on loopback, asked over HTTP, and a line to it that a test can cut."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulation.testing import free_port
from tests.servers.relay import Relay

READY_S = 120.0
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test-id",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def missing() -> str:
    """Return why no server can be started here, nothing if one can."""
    lacking = [name for name in ("moto", "s3fs", "flask") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(lacking)}; pip install '.[dev]'" if lacking else ""


class S3Server:
    """One server, its objects in memory. `endpoint` goes through a line that `cut` and `mend` break and repair."""

    def __init__(self, folder: Path) -> None:
        self._direct, self._port = free_port(), free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        with (folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._direct)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"moto did not start:\n{(folder / 'log').read_text()[-4000:]}")
            time.sleep(0.05)
        self._line = _Line(self._port, self._direct)
        self.mend = self._line.mend
        self.cut = self._line.cut
        self.mend()

    def close(self) -> None:
        """Leave nothing behind."""
        self._line.close()
        self._process.kill()
        self._process.wait()

    def new_bucket(self) -> str:
        """Return the name of a new bucket."""
        name = f"mien-{secrets.token_hex(6)}"
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{self._direct}/{name}", method="PUT"), timeout=60
        ) as answer:
            assert answer.status == 200
        return name

    @contextlib.contextmanager
    def checking_credentials(self) -> Iterator[None]:
        """Let nobody in who has no credentials of the server's, which nobody has, while the block runs."""
        self._allow("0")
        try:
            yield
        finally:
            self._allow("inf")

    def _allow(self, count: str) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._direct}/moto-api/reset-auth",
            data=count.encode(), method="POST", headers={"Content-Type": "text/plain"},
        )  # fmt: skip
        urllib.request.urlopen(request, timeout=60).close()

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self._direct}/moto-api/", timeout=10).close()
        except OSError:
            return False
        return True


class _Line:
    """A relay on a thread of its own."""

    def __init__(self, port: int, target: int) -> None:
        self._relay = Relay([target], port=port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def mend(self) -> None:
        """Take connections again."""
        self._run(self._relay.__aenter__())

    def cut(self) -> None:
        """Break all connections, and take none."""
        self._run(self._relay.close())

    def close(self) -> None:
        """End the thread."""
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _run(self, what: Any) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(60)


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server while the block runs, with credentials for it in the environment."""
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="mien-s3-") as name:
        server = S3Server(Path(name))
        try:
            yield server
        finally:
            server.close()
            for variable, value in before.items():
                if value is None:
                    del os.environ[variable]
                else:
                    os.environ[variable] = value
