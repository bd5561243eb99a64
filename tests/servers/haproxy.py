"""A real HAProxy on loopback, set up by `deploy/haproxy.cfg`: its ports, its servers and its haste are a test's own."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulation.testing import free_port
from tests.helpers import ROOT

CONFIG = ROOT / "deploy" / "haproxy.cfg"
READY_S = 60.0


@dataclass(frozen=True)
class Server:
    """A replica behind the balancer: its `address`, and the port of its `/readyz` on 127.0.0.1."""

    address: str
    metrics_port: int


def binary() -> str | None:
    """Return HAProxy's program; Debian puts it where only root looks."""
    return shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")


def missing() -> str:
    """Return why no balancer can be started here, nothing if one can."""
    return "" if binary() else "HAProxy is not installed; on Debian: apt-get install haproxy"


def configuration(port: int, servers: Sequence[Server]) -> str:
    """Return what is deployed, with one port on loopback, these servers, and checks every fifth of a second."""
    text, sample = CONFIG.read_text(encoding="utf-8"), re.compile(r"^ +server .*\n", re.MULTILINE)
    assert sample.search(text)
    own = [
        f"    server replica{n} {each.address} check port {each.metrics_port}\n" for n, each in enumerate(servers, 1)
    ]
    changes = {
        "bind :7443": f"bind 127.0.0.1:{port}",
        "check port 9443 inter 2s": "inter 200ms",
        "maxconn 20000": "maxconn 500",
    }
    for found, change in changes.items():
        assert text.count(found) == 1, found
        text = text.replace(found, change)
    return sample.sub("", text).rstrip() + "\n" + "".join(own)


@contextlib.contextmanager
def haproxy(servers: Sequence[Server]) -> Iterator[str]:
    """Run a balancer while the block runs, and yield its address; TLS goes through it."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="mien-haproxy-") as name:
        config, log = Path(name) / "haproxy.cfg", Path(name) / "log"
        config.write_text(configuration(port, servers), encoding="utf-8")
        with log.open("ab") as out:
            process = subprocess.Popen([str(binary()), "-db", "-f", str(config)], stdout=out, stderr=out)
        try:
            end = time.monotonic() + READY_S
            while not _takes_connections(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"HAProxy did not start:\n{log.read_text()[-4000:]}")
                time.sleep(0.05)
            yield f"localhost:{port}"
        finally:
            process.kill()
            process.wait()


def _takes_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except OSError:
        return False
    return True
