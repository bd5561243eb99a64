"""The store's thread: calls that wait together are one transaction, and a database may be away for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from coordinator.store.thread import Grouped, StoreThread
from mien.errors import DiskFullError, UnreachableError


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
        thread = StoreThread(patience_s=0.2, retry_s=0.05)
        assert await thread.run(Away(2)) == "here"
        with pytest.raises(UnreachableError):
            await thread.run(Away(1000))
        settling = asyncio.create_task(thread.settle(Away(20)))
        await asyncio.sleep(0.1)
        with pytest.raises(UnreachableError, match="does not answer"):
            await thread.run(Away(0))  # waits behind the one that has to know, and no longer than its patience
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
