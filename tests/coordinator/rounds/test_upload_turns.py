"""Turns: how many are read at once, in which order, and that nobody who is slow holds the others up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from coordinator.rounds.pulse import Together
from coordinator.rounds.upload_turns import Turns
from tests.simulation.fleet.virtual import VirtualLoop

NEVER_S = 3600.0


def run(story: Coroutine[Any, Any, None]) -> None:
    """Play a story on virtual time: no machine is too slow for it."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_no_more_than_so_many_have_a_turn_and_the_next_is_who_waits_longest() -> None:
    async def main() -> None:
        turns, had, most = Turns(2, slow_s=NEVER_S), list[int](), 0
        now = set[int]()

        async def upload(number: int) -> None:
            nonlocal most
            async with turns.one():
                had.append(number)
                now.add(number)
                most = max(most, len(now))
                await settled()
                now.remove(number)

        await asyncio.gather(*(upload(number) for number in range(7)))
        assert had == list(range(7))
        assert most == 2
        assert turns.num_waiting == 0

    run(main())


def test_who_goes_away_while_it_waits_leaves_no_gap() -> None:
    async def main() -> None:
        turns, had = Turns(1, slow_s=NEVER_S), list[str]()

        async def upload(name: str) -> None:
            async with turns.one():
                had.append(name)

        async with turns.one():
            waiting = [asyncio.create_task(upload(name)) for name in ("a", "b", "c")]
            await settled()
            assert turns.num_waiting == 3
            waiting[1].cancel()
            await settled()
            assert turns.num_waiting == 2
        await asyncio.wait(waiting)
        assert had == ["a", "c"]

    run(main())


def test_one_told_to_go_on_in_the_moment_it_goes_away_does_not_keep_the_turn() -> None:
    async def main() -> None:
        turns = Turns(1, slow_s=NEVER_S)

        async def upload() -> None:
            async with turns.one():
                pass

        async with turns.one():
            waiting = asyncio.create_task(upload())
            await settled()
        waiting.cancel()
        await asyncio.wait({waiting})
        async with asyncio.timeout(30), turns.one():
            pass

    run(main())


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_silent_sender_gives_its_turn_up_but_not_one_that_waits_for_the_disk(is_busy: bool) -> None:
    async def main() -> None:
        turns = Turns(1, slow_s=0.01)
        async with turns.one() as slow:
            if is_busy:
                slow.busy()
            next_one = asyncio.create_task(turns.one().__aenter__())
            if is_busy:
                await asyncio.sleep(0.1)
                assert not next_one.done()
                slow.heard()
            async with asyncio.timeout(30):
                await next_one

    run(main())


def test_where_the_others_bring_enough_a_silent_sender_keeps_its_turn_for_longer() -> None:
    async def main() -> None:
        turns = Turns(2, slow_s=0.05)
        async with turns.one(), turns.one() as fast:
            for _ in range(3):
                fast.heard()
            began = asyncio.get_running_loop().time()
            next_one = asyncio.create_task(turns.one().__aenter__())
            while not next_one.done():
                for _ in range(3):
                    fast.heard()
                await asyncio.sleep(0.001)
            assert asyncio.get_running_loop().time() - began >= 0.5 - 0.05

    run(main())


def test_who_comes_within_the_time_goes_on_with_the_first() -> None:
    async def main() -> None:
        together, order = Together(0.05), list[str]()

        async def come(name: str) -> None:
            await together.ready()
            order.append(name)

        first = asyncio.create_task(come("first"))
        await settled()
        second = asyncio.create_task(come("second"))
        await asyncio.wait({first}, timeout=30)
        await settled()
        assert order == ["first", "second"]
        await second
        await asyncio.wait_for(come("third"), 30)

    run(main())
