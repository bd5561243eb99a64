"""Asking a running coordinator whether it takes phones and which wait for it, over the port that monitoring uses."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Final

from mien.errors import UnreachableError

_PROBE_S: Final = 5.0
_MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024


def ask_readiness(host: str, port: int) -> tuple[int, bytes]:
    """Return status and body of the readiness probe; one that listens everywhere is asked here."""
    return _ask(host, port, "/readyz")


@dataclass(frozen=True)
class Waiting:
    """How many phones wait for a round of a task, and how many of them are labelled."""

    there: int
    labelled: int


def ask_waiting(host: str, port: int) -> dict[tuple[str, str], Waiting]:
    """Return how many phones wait for a round of each task that gathers some, by the task's name and population."""
    from prometheus_client.parser import text_string_to_metric_families

    status, body = _ask(host, port, "/metrics")
    if status != HTTPStatus.OK:
        raise UnreachableError(f"the coordinator at {host}:{port} tells no metrics now; try again")
    try:
        families = text_string_to_metric_families(body.decode(errors="replace"))
        samples = [each for family in families if family.name == "mien_round_devices" for each in family.samples]
        counts = {
            (each.labels["task"], each.labels["population"], each.labels["step"]): int(each.value) for each in samples
        }
        return {
            (task, population): Waiting(count, counts.get((task, population, "waiting_labelled"), 0))
            for (task, population, step), count in counts.items()
            if step == "waiting"
        }
    except (ValueError, KeyError) as error:  # cut in the middle, or another program's
        raise UnreachableError(f"what answers at {host}:{port} are no coordinator's metrics") from error


def _ask(host: str, port: int, path: str) -> tuple[int, bytes]:
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - asked, not bound
    connection = HTTPConnection(here, port, timeout=_PROBE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(_MAX_ANSWER_BYTES)
    except HTTPException as error:
        raise UnreachableError(f"what answers at {here}:{port} speaks no HTTP; check metrics_port") from error
    except OSError as error:
        raise UnreachableError(
            f"nothing answers at {here}:{port}; start the coordinator, or set metrics_port"
        ) from error
    finally:
        connection.close()
