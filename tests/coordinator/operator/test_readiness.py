"""What answers at a coordinator's port of monitoring, and what only seems to."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from coordinator.operator.readiness import Waiting, ask_waiting
from mien.errors import UnreachableError
from tests.helpers import one_caller


@pytest.fixture(autouse=True)
def _however_busy_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the answer take its time."""
    monkeypatch.setattr("coordinator.operator.readiness._PROBE_S", 240.0)


GOOD = """# TYPE mien_round_devices gauge
mien_round_devices{population="people",step="waiting",task="night"} 3.0
mien_round_devices{population="people",step="waiting",task="day"} 4.0
mien_round_devices{population="people",step="waiting_labelled",task="day"} 1.0
mien_round_devices{population="people",step="trained",task="night"} 2.0
"""


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Say the same to one caller, and yield the port."""

    def serve(caller: socket.socket) -> None:
        caller.recv(65536)
        caller.sendall(answer)

    with one_caller(serve) as port:
        yield port


def http(body: str, status: str = "200 OK") -> bytes:
    """Return an HTTP answer that says how long it is."""
    data = body.encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


def test_phones_that_wait_are_told_by_task_and_population() -> None:
    with answering(http(GOOD)) as port:
        assert ask_waiting("127.0.0.1", port) == {("night", "people"): Waiting(3, 0), ("day", "people"): Waiting(4, 1)}


@pytest.mark.parametrize(
    "answer",
    [
        http(GOOD[: GOOD.index('",step="trained')]),
        http('mien_round_devices{step="waiting"} 3.0\n'),
        http("<html>"),
        http(GOOD, "503 Service Unavailable"),
        http(GOOD)[:-5],
        b"220 mail.example ESMTP\r\n",
    ],
    ids=["cut", "other labels", "a page", "not ready", "less than it says", "mail"],
)
def test_another_answer_is_told_in_words(answer: bytes) -> None:
    with answering(answer) as port, pytest.raises(UnreachableError):
        ask_waiting("127.0.0.1", port)
