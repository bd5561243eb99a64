"""Asking a running coordinator whether it takes phones, over the port that monitoring uses."""

from __future__ import annotations

from http.client import HTTPConnection
from typing import Final

from mien.errors import UnreachableError

_PROBE_S: Final = 5.0
_MAX_ANSWER_BYTES: Final = 64 * 1024


def ask_readiness(host: str, port: int) -> tuple[int, bytes]:
    """Return status and body of the readiness probe; one that listens everywhere is asked here."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - asked, not bound
    connection = HTTPConnection(here, port, timeout=_PROBE_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, answer.read(_MAX_ANSWER_BYTES)
    except OSError as error:
        raise UnreachableError(
            f"nothing answers at {here}:{port}; start the coordinator, or set metrics_port"
        ) from error
    finally:
        connection.close()
