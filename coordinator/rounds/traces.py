"""Traces of rounds. The class here sends nothing; `coordinator.rounds.tracing` sends to a collector."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mien.protocol.rounds import RoundRef
from mien.rounds.records import RoundRecord


class RoundTraces:
    """Receives each stage that an attempt comes to, and the work on it. Calls are quick and never fail a round."""

    def stage(self, task: str, record: RoundRecord, stage: str) -> None:
        """Note that an attempt of a task (its name) came to a stage; the same again changes nothing."""

    @contextlib.contextmanager
    def work(self, name: str, attempt: RoundRef) -> Iterator[None]:
        """Time a block of work on an attempt (0: the one that closed); an error that leaves it is noted."""
        yield

    def close(self) -> None:
        """Send the rest."""

    @contextlib.contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Time the handling of a call (`/package.Service/Method`)."""
        yield


NO_TRACES = RoundTraces()
"""Traces that go nowhere."""
