"""A replica's tasks come and go with its leases, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from coordinator.replicas.fencing import FencedStore
from coordinator.replicas.keeper import Keeper, Owner
from coordinator.replicas.registry import Registry, Replica
from coordinator.store.thread import StoreThread
from mien.errors import UnreachableError
from mien.shell.clock import Clock
from tests.coordinator.replicas.test_registry import MODEL, TASK

LONG_S, SHORT_S = 60.0, 3.0


class Told:
    """Tasks that only take note of what they are told; `busy` holds a take-over up."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.free = asyncio.Event()
        self.free.set()

    async def take_over(self, population: str | None = None) -> None:
        self.said.append(f"take {population}")
        await self.free.wait()

    async def let_go(self, population: str) -> None:
        self.said.append(f"let go {population}")


@asynccontextmanager
async def keeping(url: str, name: str, told: Told, lease_s: float = LONG_S) -> AsyncIterator[Keeper]:
    """Run one replica's keeper while the block runs."""
    registry = Registry(url, Replica(name, "host", f"{name}:1", "mien", 1), lease_s=lease_s)
    store, thread = FencedStore.open(url, Clock()), StoreThread(patience_s=0.2)
    keeper = Keeper(registry, thread, store, lease_s=lease_s)
    try:
        registry.enter()
        registry.register()
        await keeper.start(told)
        yield keeper
    finally:
        await keeper.stop()
        thread.close()
        registry.close()
        store.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.fixture
def url(postgres_url: str) -> str:
    """A database with one task of population "east"."""
    store = FencedStore.open(postgres_url, Clock())
    store.add_model(MODEL, actor="someone")
    store.add_task(TASK)
    store.close()
    return postgres_url


def test_tasks_are_taken_once_and_others_are_told_where_they_are(url: str) -> None:
    async def story() -> None:
        mine, theirs = Told(), Told()
        async with keeping(url, "first", mine) as first, keeping(url, "second", theirs) as second:
            await until(lambda: first.owns("east"))
            assert await first.owner("east") == Owner("first", None)
            assert await second.owner("east") == Owner("first", "first:1")
            assert await second.owner("nowhere") is None
            assert await second.claim("west") == Owner("second", None)
            assert await first.owner("west") == Owner("second", "second:1")
            assert (mine.said, theirs.said) == (["take east"], ["take west"])
            assert (first.num_alive, first.num_owned) == (2, 1)

    asyncio.run(story())


def test_a_replica_that_stops_hands_its_tasks_over(url: str) -> None:
    async def story() -> None:
        mine, theirs = Told(), Told()
        async with keeping(url, "second", theirs) as second:
            await until(lambda: second.owns("east"))
            async with keeping(url, "first", mine) as first:
                assert not first.owns("east")
                await second.stop()
                assert not second.owns("east")
                first.nudge()
                await until(lambda: first.owns("east"))
        assert (mine.said, theirs.said) == (["take east"], ["take east"]), "the engine's own end ends its runners"

    asyncio.run(story())


def test_what_is_lost_while_it_is_being_taken_is_let_go(url: str) -> None:
    async def story() -> None:
        told = Told()
        told.free.clear()
        async with keeping(url, "first", told) as keeper:
            await until(lambda: told.said == ["take east"])
            with pytest.raises(UnreachableError, match="being taken over"):
                await keeper.owner("east")
            keeper._lose("east")  # what the store's thread tells of a commit that was refused
            await until(lambda: told.said[:2] == ["take east", "let go east"])
            told.free.set()
            keeper.nudge()  # the database says it is this replica's all the same
            await until(lambda: keeper.owns("east"))
            assert told.said == ["take east", "let go east", "take east"]

    asyncio.run(story())


def test_without_the_database_tasks_are_let_go_when_the_lease_may_have_run_out(url: str) -> None:
    async def story() -> None:
        told = Told()
        async with keeping(url, "first", told, SHORT_S) as keeper:
            await until(lambda: keeper.owns("east"))
            beat = keeper._registry.beat

            def silent(*, takes: bool = True) -> None:
                raise UnreachableError("the database does not answer")

            keeper._registry.beat = silent  # type: ignore[method-assign, assignment]
            await until(lambda: not keeper.owns("east"))
            await until(lambda: told.said[-1] == "let go east")
            with pytest.raises(UnreachableError, match="have not heard of this one"):
                keeper.check()
            keeper._registry.beat = beat  # type: ignore[method-assign]
            await until(lambda: keeper.owns("east"))

    asyncio.run(story())
