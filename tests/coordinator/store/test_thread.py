"""The store's thread: calls that wait together are one transaction, and a database may be away for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from coordinator.store.store import Store
from coordinator.store.thread import Grouped, StoreThread
from mien.errors import ConfigError, DiskFullError, UnreachableError
from mien.shell.clock import Clock


def test_calls_that_wait_together_are_one() -> None:
    groups: list[list[int]] = []

    def doubled(items: Sequence[int]) -> list[int]:
        groups.append(list(items))
        return [2 * item for item in items]

    async def story() -> list[int]:
        thread, gate = StoreThread(), threading.Event()
        grouped = Grouped(thread, doubled)
        blocking = asyncio.create_task(thread.run(gate.wait))
        await asyncio.sleep(0)
        calls = [asyncio.create_task(grouped(item)) for item in range(3)]
        await asyncio.sleep(0.05)
        calls += [asyncio.create_task(grouped(item)) for item in range(3, 6)]
        await asyncio.sleep(0.05)
        gate.set()
        answers = await asyncio.gather(*calls)
        await blocking
        thread.close()
        return answers

    assert asyncio.run(story()) == [0, 2, 4, 6, 8, 10]
    assert groups == [[0, 1, 2], [3, 4, 5]]


def test_a_refused_group_refuses_all_of_it_and_the_next_goes_on() -> None:
    def refuse(items: Sequence[str]) -> list[str]:
        if "bad" in items:
            raise DiskFullError("no space left")
        return list(items)

    async def story() -> None:
        thread = StoreThread()
        grouped = Grouped(thread, refuse)
        answers = await asyncio.gather(grouped("bad"), grouped("good"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [DiskFullError, DiskFullError]
        assert await grouped("good") == "good"
        thread.close()

    asyncio.run(story())


def test_what_cannot_be_stored_is_refused_alone(database_url: str) -> None:
    """Whatever a call raises, nobody waits for ever, and one item does not refuse those that came with it."""

    async def story() -> None:
        store, thread = Store.open(database_url, Clock()), StoreThread()
        saw, gate = Grouped(thread, store.saw_devices), threading.Event()
        blocking = asyncio.create_task(thread.run(gate.wait))
        await asyncio.sleep(0)
        first = asyncio.create_task(saw(("0" * 32, "p", "ok")))
        await asyncio.sleep(0.05)
        texts: list[Any] = ["ok", "ev\x00il", 7, "ok"]
        calls = [asyncio.create_task(saw((f"{i:032x}", "p", text))) for i, text in enumerate(texts, start=1)]
        await asyncio.sleep(0.05)
        gate.set()
        answers = await asyncio.wait_for(asyncio.gather(first, *calls, return_exceptions=True), 60.0)
        await blocking
        assert [answers[i] for i in (0, 1, 4)] == [False] * 3
        nul = answers[2]
        assert nul is False if database_url.startswith("sqlite") else isinstance(nul, ConfigError)
        assert isinstance(answers[3], TypeError)
        await asyncio.wait_for(saw(("f" * 32, "p", "ok")), 60.0)
        thread.close()
        kept = {device.device_id for device in store.devices()}
        assert {f"{i:032x}" for i in (0, 1, 4)} | {"f" * 32} <= kept
        store.close()

    asyncio.run(story())


def test_a_database_that_is_away_is_not_asked_for_each_alone() -> None:
    asked: list[int] = []

    def away(items: Sequence[int]) -> list[int]:
        asked.append(len(items))
        raise UnreachableError("away") if len(asked) > 1 else ValueError("a fault of the program")

    async def story() -> None:
        thread = StoreThread(patience_s=0.0)
        grouped = Grouped(thread, away)
        answers = await asyncio.gather(*(grouped(item) for item in range(5)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [UnreachableError] * 5
        thread.close()

    asyncio.run(story())
    assert asked == [5, 1]


class Away:
    """A call that finds nobody for the first few times."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> str:
        self.left -= 1
        if self.left >= 0:
            raise UnreachableError("away")
        return "here"


def test_calls_wait_a_while_and_settled_ones_until_they_know() -> None:
    async def story() -> None:
        patient, thread = StoreThread(patience_s=60.0, retry_s=0.02), StoreThread(patience_s=0.5, retry_s=0.02)
        assert await patient.run(Away(2)) == "here"
        patient.close()
        with pytest.raises(UnreachableError):
            await thread.run(Away(10**9))
        away = Away(10**9)
        settling = asyncio.create_task(thread.settle(away))
        await asyncio.sleep(0)
        with pytest.raises(UnreachableError, match="does not answer"):
            await thread.run(Away(0))  # waits behind the one that has to know, and no longer than its patience
        away.left = 0
        assert await settling == "here"
        assert await thread.run(Away(0)) == "here"
        thread.close()

    asyncio.run(story())


def test_closing_ends_the_waiting() -> None:
    async def story() -> None:
        thread = StoreThread(retry_s=0.05)
        settling = asyncio.create_task(thread.settle(Away(10**9)))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(thread.close)
        with pytest.raises(UnreachableError):
            await settling

    asyncio.run(story())
