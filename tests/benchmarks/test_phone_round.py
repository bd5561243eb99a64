"""The benchmark of a phone's round runs, and counts what there is to count."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
from pathlib import Path

import pytest

from benchmarks.phone_round import CROWDED, PARAMETERS, round_of, row
from mien.errors import UnreachableError
from simulation.testing.fleet import FakeFleet


def test_a_round_of_three_phones_is_taken_apart() -> None:
    found = row(66, 3)
    assert found["phones"] == 3
    assert found["connecting_cpu_ms_per_phone"] > 0
    assert found["server_cpu_ms_per_phone"] < 60_000
    assert 4 * PARAMETERS[66] < found["bytes_sent_per_phone"] < found["bytes_per_phone"]
    assert found["messages_per_phone"] >= 26, "Hello, ProveRound, ReportTrained, status and steps, and their answers"
    assert found["peak_mb"] > 20


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ("the coordinator", r"the coordinator ended with code -9 .* its log ends:\n.*"),
        ("phones", "a process of phones"),
    ],
)
def test_what_ends_too_soon_ends_the_benchmark_and_is_named(tmp_path: Path, ends: str, reason: str) -> None:
    """Phones that have nobody to wait for would wait for an hour."""

    async def broken_off(fleet: FakeFleet) -> None:
        before = set(multiprocessing.active_children())
        measuring = asyncio.create_task(round_of(fleet, tmp_path, 66, 3))
        while not (tmp_path / "connected-0").exists() and not measuring.done():
            await asyncio.sleep(0.02)
        children = set(multiprocessing.active_children()) - before
        for process in [fleet.process] if ends == "the coordinator" else children:
            process.kill()
        with pytest.raises(UnreachableError, match=re.compile(reason, re.DOTALL)):
            await measuring
        assert not set(multiprocessing.active_children()) - before

    with FakeFleet(tmp_path, **CROWDED) as fleet:
        asyncio.run(broken_off(fleet))
