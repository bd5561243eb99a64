"""What answers at a coordinator's port of monitoring, and what only seems to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from coordinator.operator.readiness import Waiting, ask_waiting
from mien.errors import UnreachableError

GOOD = """# TYPE mien_round_devices gauge
mien_round_devices{population="people",step="waiting",task="night"} 3.0
mien_round_devices{population="people",step="waiting",task="day"} 4.0
mien_round_devices{population="people",step="waiting_labelled",task="day"} 1.0
mien_round_devices{population="people",step="trained",task="night"} 2.0
"""


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Say the same to one caller, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as caller:
                caller.recv(65536)
                caller.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


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
