"""Real servers that tests start for themselves: PostgreSQL and an S3-compatible object store."""

import socket


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
