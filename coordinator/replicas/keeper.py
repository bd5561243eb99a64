"""Keeps a replica's leases, and begins and ends its tasks as they come and go.

A replica that cannot reach the database for as long as a lease lasts lets all its tasks go: somebody else may run them
now, and devices are told to ask again. What was committed is the database's; nothing else is believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from coordinator.replicas.fencing import FencedStore
from coordinator.replicas.registry import Registry, View
from coordinator.rounds.engine import Engine
from coordinator.rounds.pulse import log_end
from coordinator.store.thread import StoreThread
from mien.errors import MienError, UnreachableError
from mien.protocol.ids import PopulationId

_LOG: Final = structlog.get_logger()
_BEATS: Final = 3
"""Heartbeats of a replica in the time of a lease."""

_LOOK_S: Final = 1.0
"""For so long a look at who runs what is good enough for a device that only asks for work."""

_NOBODY: Final = View({}, {}, {})
_ended: Final = functools.partial(log_end, what="replica stopped by an internal error")


@dataclass(frozen=True)
class Owner:
    """The replica that runs a population's tasks; `address` is None where it is this one."""

    replica_id: str
    address: str | None


class Keeper:
    """One replica's leases. Methods run on one event loop."""

    def __init__(
        self,
        registry: Registry,
        thread: StoreThread,
        store: FencedStore,
        *,
        lease_s: float,
    ) -> None:
        """`thread` is the registry's own: a lease must not wait behind other transactions."""
        self._registry, self._thread, self._store = registry, thread, store
        self._tasks: Engine | None = None
        self._is_retiring = False
        self._lease_s = lease_s
        self._ready: set[PopulationId] = set()
        self._changes: dict[PopulationId, asyncio.Task[None]] = {}
        self._valid_until, self._looked_at = 0.0, 0.0
        self._nudge = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self.view = _NOBODY
        self.on_view: list[Callable[[View], None]] = []
        """Callbacks that receive each view of the leases."""

    @property
    def replica_id(self) -> str:
        """This replica's id."""
        return self._registry.replica.replica_id

    @property
    def num_alive(self) -> int:
        """Number of replicas that were heard of lately."""
        return len(self.view.addresses)

    @property
    def num_owned(self) -> int:
        """Number of populations whose tasks this replica runs."""
        return len(self._ready)

    # What others ask

    def owns(self, population: PopulationId) -> bool:
        """Return whether this replica runs a population's tasks, and they are there."""
        return population in self._ready

    async def owner(self, population: PopulationId, *, is_sure: bool = True) -> Owner | None:
        """Return the owner of a population's tasks, None where it has none; raises UnreachableError in between.

        Where it `is_sure` that there are some, the database is asked before it is denied.
        """
        if self.owns(population):
            return Owner(self.replica_id, None)
        is_old = time.monotonic() - self._looked_at > min(_LOOK_S, self._lease_s)
        if population not in self.view.owners and (is_sure or is_old):
            self._saw(await self._thread.run(self._registry.look))
        replica_id = self.view.owners.get(population)
        if replica_id is None:
            return None
        if replica_id == self.replica_id or replica_id not in self.view.addresses:
            self.nudge()
            raise UnreachableError("this task is being taken over; try again", retry_after_s=0.5)
        return Owner(replica_id, self.view.addresses[replica_id])

    async def claim(self, population: PopulationId) -> Owner | None:
        """Return the owner of a population's tasks from now on: this replica, if nobody ran them."""
        if not self.owns(population):
            self._follow(await self._thread.run(self._registry.claim, population))
            if population in self._changes:
                await asyncio.wait({self._changes[population]})
        return await self.owner(population)

    def nudge(self) -> None:
        """Look at once who runs what: somebody was asked who does not any more."""
        self._nudge.set()

    def check(self) -> None:
        """Raise UnreachableError unless this replica was heard of within the time of a lease."""
        if time.monotonic() > self._valid_until:
            raise UnreachableError("the other replicas have not heard of this one; it cannot reach the database")

    # Life

    async def start(self, tasks: Engine) -> None:
        """Be one of the replicas from now on, whose tasks `tasks` runs."""
        self._tasks = tasks
        loop = asyncio.get_running_loop()

        def lost(population: PopulationId) -> None:
            """Hear from the store's thread of a lease that another replica has."""
            loop.call_soon_threadsafe(self._lose, population)

        self._store.on_lost = lost
        await self._beat()
        self._loop = asyncio.create_task(self._run(), name="leases")
        self._loop.add_done_callback(_ended)

    def retire(self) -> None:
        """Keep the leases that are held, and take no more."""
        self._is_retiring = True

    async def stop(self) -> None:
        """Give the leases up, so that others go on at once."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})
        for change in list(self._changes.values()):
            change.cancel()
        self._ready.clear()
        try:
            await self._thread.run(self._registry.leave)
        except MienError as error:
            _LOG.warning("leases were not given up; they run out", reason=error.message)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease_s / _BEATS):
                    await self._nudge.wait()
            self._nudge.clear()
            await self._beat()

    async def _beat(self) -> None:
        """Be heard of, and do what the answer asks for; without one, let all go once the leases may have run out."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(self._valid_until - began, self._lease_s / _BEATS)):
                view = await self._thread.run(self._registry.beat, takes=not self._is_retiring)
        except (MienError, TimeoutError) as error:
            if time.monotonic() >= self._valid_until and self._store.held:
                reason = error.message if isinstance(error, MienError) else "the database does not answer"
                _LOG.error("leases may have run out; tasks are let go", reason=reason)
                for population in list(self._store.held):
                    self._lose(population)
            return
        self._valid_until = began + self._lease_s
        self._follow(view)

    def _saw(self, view: View) -> None:
        self.view, self._looked_at = view, time.monotonic()
        for told in self.on_view:
            told(view)

    def _follow(self, view: View) -> None:
        """Let go of what somebody else has taken, and go on with what is this replica's now."""
        for population, epoch in list(self._store.held.items()):
            if view.held.get(population) != epoch:
                self._lose(population)
        for population, epoch in view.held.items():
            if population not in self._store.held:
                self._store.held[population] = epoch
                self._change(population, functools.partial(self._take, population, epoch))
        self._saw(view)

    def _lose(self, population: PopulationId) -> None:
        assert self._tasks is not None, "what was never started holds nothing"
        if self._store.held.pop(population, None) is not None:
            self._ready.discard(population)
            _LOG.warning("tasks of a population let go", population=population, replica=self.replica_id)
            self._change(population, functools.partial(self._tasks.let_go, population), cuts_short=True)

    async def _take(self, population: PopulationId, epoch: int) -> None:
        assert self._tasks is not None, "what was never started holds nothing"
        while self._store.held.get(population) == epoch:
            try:
                await self._tasks.take_over(population)
            except MienError as error:
                _LOG.error("tasks cannot be taken over yet", population=population, reason=error.message)
                await asyncio.sleep(self._lease_s / _BEATS)
            else:
                break
        if self._store.held.get(population) == epoch:
            self._ready.add(population)
            _LOG.info("tasks of a population taken", population=population, replica=self.replica_id, epoch=epoch)

    def _change(
        self, population: PopulationId, change: Callable[[], Coroutine[Any, Any, None]], *, cuts_short: bool = False
    ) -> None:
        """Run a change of a population's tasks behind the one before it; what is let go is not begun to its end."""
        before = self._changes.get(population)

        async def run() -> None:
            if before is not None:
                if cuts_short:
                    before.cancel()
                await asyncio.wait({before})
            await change()

        task = asyncio.create_task(run(), name=f"replica: {population}")
        self._changes[population] = task
        task.add_done_callback(lambda ended: self._changed(population, ended))

    def _changed(self, population: PopulationId, ended: asyncio.Task[None]) -> None:
        if self._changes.get(population) is ended:
            del self._changes[population]
        _ended(ended)
