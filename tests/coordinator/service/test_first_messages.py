"""A call's first message: waited for so long, and of one caller in so many calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from coordinator.service.rpc import FirstMessages
from mien.errors import CorruptDataError, UnreachableError


async def message(number: int) -> AsyncIterator[int]:
    yield number


async def silence() -> AsyncIterator[int]:
    await asyncio.Event().wait()
    yield 0


async def nothing() -> AsyncIterator[int]:
    for number in ():
        yield number


def test_a_message_is_read() -> None:
    assert asyncio.run(FirstMessages(60, 1).read(message(7), "a")) == 7


def test_a_call_that_stays_silent_ends() -> None:
    with pytest.raises(UnreachableError, match="no message came"):
        asyncio.run(FirstMessages(0.01, 1).read(silence(), "a"))


def test_a_call_without_a_message_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="without a message"):
        asyncio.run(FirstMessages(60, 1).read(nothing(), "a"))


def test_of_one_callers_silent_calls_the_oldest_gives_way() -> None:
    async def story() -> tuple[bool, bool, bool, int]:
        first = FirstMessages(600, 2)
        stalled = [asyncio.create_task(first.read(silence(), "a")) for _ in range(2)]
        other = asyncio.create_task(first.read(silence(), "b"))
        await asyncio.sleep(0)
        answer = await first.read(message(7), "a")
        await asyncio.wait(stalled, return_when=asyncio.FIRST_COMPLETED)
        ended = (stalled[0].done(), stalled[1].done(), other.done())
        for each in (*stalled, other):
            each.cancel()
        await asyncio.gather(*stalled, other, return_exceptions=True)
        return (*ended, answer)

    assert asyncio.run(story()) == (True, False, False, 7)
