"""Ports for servers that tests start, stop and start again."""

from __future__ import annotations

import itertools
import os
import socket

from mien.shell.keys import SYSTEM_RANDOM

_FIRST, _COUNT = 20_000, 12_000
"""Below the ports that systems give to outgoing connections and to whoever asks for any (Linux: from 32768 on)."""
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_turns = itertools.count(SYSTEM_RANDOM.randrange(_COUNT))  # another place in every process


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on, and that nobody else is given before it is used.

    A server that is killed may come back to it later: nothing takes such a port by chance meanwhile.
    """
    for turn in itertools.islice(_turns, _COUNT):
        port = _FIRST + _WORKER + turn % (_COUNT // _WORKERS) * _WORKERS
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"no port between {_FIRST} and {_FIRST + _COUNT} is free")
