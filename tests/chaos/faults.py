"""What goes wrong: each fault is a coroutine that strikes at random until cancelled, and then mends what it broke."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from tests.chaos import shim
from tests.chaos.proxy import FAIR, Weather

if TYPE_CHECKING:
    from tests.chaos.engine import Site
    from tests.chaos.site import Victim

TRICKLE: Final = Weather(rate_bytes_s=8000.0)
"""64 kbit/s."""

_PASSING: Final[Mapping[str, Weather]] = {
    "loss": Weather(loss=0.03),
    "trickle": TRICKLE,
    "delay": Weather(delay_s=0.15),
    "storm": Weather(loss=0.01, rate_bytes_s=32_000.0, delay_s=0.05),
}
WEATHERS: Final = (*_PASSING, "cut", "half-open", "silence")
"""What a network can have."""

_LONGEST_FUSE: Final = 60
_WRITES_WITHIN_S: Final = 1.0


async def kill_coordinators(site: Site, until: float) -> None:
    """Kill one after another and start it again, until the scenario has had its kills and its time."""
    scenario, end = site.scenario, time.monotonic() + site.scenario.seconds
    while (site.kills < scenario.kills or time.monotonic() < end) and time.monotonic() < until:
        if site.kills >= scenario.kills:
            await asyncio.sleep(0.2)
            continue
        victim, how = await _kill(site)
        site.killed_how[how] += 1
        if site.luck.random() < 0.1:  # once more, before it is ready
            starting = asyncio.create_task(victim.start(site.wrong_by()))
            await asyncio.sleep(site.luck.uniform(0.0, 0.4))
            victim.send(signal.SIGKILL)
            await starting
            await victim.kill()
            site.killed_how["while it starts"] += 1
        await site.start_again(victim)
        await asyncio.sleep(site.luck.uniform(0.0, scenario.pause_s))


async def _kill(site: Site) -> tuple[Victim, str]:
    """Kill a coordinator; return which one, and how the instant was chosen."""
    victim = site.luck.choice(site.victims)
    await site.look_after(victim)
    how = site.luck.choice(("at any time", "during a call", "in a write", "in a write"))
    if how == "in a write":
        if (burnt := await _burn(site)) is not None:
            return burnt, how
        how = "at any time"
    if how == "during a call":
        try:
            async with asyncio.timeout(_WRITES_WITHIN_S):
                how = f"during {await site.moments.next()}"
        except TimeoutError:
            how = "at any time"
        await asyncio.sleep(site.luck.uniform(0.0, 0.03))
    else:
        await asyncio.sleep(site.luck.uniform(0.0, 0.5))
    await victim.kill()
    return victim, how


async def _burn(site: Site) -> Victim | None:
    """Light a fuse and return whom it has ended: who wrote the n-th time from then on. None where nobody did."""
    if site.disk is None:
        return None
    deaths, end = site.disk.deaths, time.monotonic() + _WRITES_WITHIN_S
    site.disk.light_fuse(site.luck.randrange(1, _LONGEST_FUSE), after=site.luck.random() < 0.5)
    try:
        while site.disk.deaths == deaths and time.monotonic() < end:
            await asyncio.sleep(0.002)
    finally:
        site.disk.douse()
    if site.disk.deaths == deaths:
        return None
    while True:  # it is dying
        for victim in site.victims:
            if victim.has_ended and await victim.gone():
                return victim
        await asyncio.sleep(0.002)


async def weather(site: Site) -> None:
    """Loss, a trickle, delay, silence, cut and half-open connections, one after another."""
    luck, proxy = site.luck, site.proxy
    try:
        while True:
            await asyncio.sleep(luck.uniform(0.3, 2.0))
            kind = luck.choice(site.scenario.weathers)
            site.injected[kind] += 1
            if kind == "cut":
                proxy.cut()
            elif kind == "half-open":
                proxy.leave_half_open()
            else:
                proxy.weather = Weather(is_silent=True) if kind == "silence" else _PASSING[kind]
                await asyncio.sleep(site.scenario.silence_s if kind == "silence" else luck.uniform(0.5, 4.0))
                proxy.weather = FAIR
    finally:
        proxy.weather = FAIR


async def disk(site: Site) -> None:
    """A disk that is full, read-only or failing for a while."""
    here = site.disk
    if here is None:
        site.injected[shim.missing()] += 1
        return

    async def mend() -> None:
        here.mend()

    while True:
        await asyncio.sleep(site.luck.uniform(1.5, 5.0))
        how = site.luck.choice(tuple(shim.REFUSALS))
        site.injected[f"disk {how}"] += 1
        async with site.uptime.outage(mend):
            here.refuse(how)
            await asyncio.sleep(site.luck.uniform(0.2, 1.5))


async def clock(site: Site) -> None:
    """The wall clock of a running coordinator jumps by ten minutes. (Each one starts with a wrong clock, too.)"""
    while True:
        await asyncio.sleep(site.luck.uniform(0.5, 3.0))
        for victim in site.victims:
            if victim.is_ready:
                site.injected["clock jump"] += 1
                victim.send(site.luck.choice((signal.SIGUSR1, signal.SIGUSR2)))


async def freezing(site: Site) -> None:
    """A coordinator stands still for a moment, as a machine that swaps, and goes on as if nothing had been.

    A replica that stands still for longer than its lease finds that others have taken over.
    """
    while True:
        await asyncio.sleep(site.luck.uniform(2.0, 8.0))
        victim = site.luck.choice(site.victims)
        if victim.is_ready:
            site.injected["frozen"] += 1
            victim.send(signal.SIGSTOP)
            try:
                await asyncio.sleep(site.luck.uniform(0.2, 4.0))
            finally:
                victim.send(signal.SIGCONT)


async def deaths(site: Site) -> None:
    """Devices are killed and come back with nothing but what was on their disks."""
    while True:
        await asyncio.sleep(site.luck.uniform(1.0, 6.0))
        number = site.luck.randrange(len(site.memories))
        if number not in site.lives:
            continue
        site.injected["device killed"] += 1
        await site.end_life(number)
        try:
            await asyncio.sleep(site.luck.uniform(0.0, 1.0))
        finally:
            site.bear(number)


async def registrar(site: Site) -> None:
    """The registrar is killed, and away for a moment."""
    try:
        while True:
            await asyncio.sleep(site.luck.uniform(1.0, 6.0))
            site.injected["registrar killed"] += 1
            await site.registrar.kill()
            await asyncio.sleep(site.luck.uniform(0.0, 3.0))
            await site.registrar.start()
    finally:
        await site.registrar.kill()
        await site.registrar.start()


async def postgres(site: Site) -> None:
    """The database's server crashes, and is away for a moment."""
    assert site.postgres is not None, "this scenario needs PostgreSQL"
    server = site.postgres[0]

    async def mend() -> None:
        await asyncio.to_thread(server.start)

    while True:
        await asyncio.sleep(site.luck.uniform(3.0, 9.0))
        site.injected["PostgreSQL crashed"] += 1
        async with site.uptime.outage(mend):
            await asyncio.to_thread(server.stop, crash=True)
            await asyncio.sleep(site.luck.uniform(0.0, 1.0))


async def bucket(site: Site) -> None:
    """The object store cannot be reached for a moment."""
    assert site.bucket is not None, "this scenario needs an object store"
    server = site.bucket[0]

    async def mend() -> None:
        await asyncio.to_thread(server.mend)

    while True:
        await asyncio.sleep(site.luck.uniform(2.0, 8.0))
        site.injected["object store away"] += 1
        async with site.uptime.outage(mend):
            await asyncio.to_thread(server.cut)
            await asyncio.sleep(site.luck.uniform(0.2, 1.5))


FAULTS: Final[Mapping[str, Callable[[Site], Coroutine[Any, Any, None]]]] = {
    "weather": weather,
    "disk": disk,
    "clock": clock,
    "freezing": freezing,
    "deaths": deaths,
    "registrar": registrar,
    "postgres": postgres,
    "bucket": bucket,
}
