"""A process's phones: a thread each, which spends nearly all of its life waiting for the coordinator."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from device_sdk.faces.crops import fit_crops
from device_sdk.models.models import Model, ModelStore
from device_sdk.rounds.conditions import StatedConditions
from device_sdk.rounds.disclosure import Agreement
from device_sdk.rounds.events import Event, Listener
from device_sdk.rounds.participate import Counted, Failed, NotCounted, Participant, Step, local_seed
from device_sdk.server.client import CoordinatorClient
from device_sdk.server.identity import Identity
from device_sdk.server.join import join
from mien.errors import MienError, NotFoundError
from mien.methods.base import Crops, Runtime
from mien.protocol.ids import DeviceId
from mien.protocol.invite import Invite
from mien.protocol.rounds import RoundRef, Wait
from mien.secagg.keys import RandomBytes
from mien.shell.clock import WallClock
from mien.shell.keys import SYSTEM_RANDOM, secret_bytes
from mien.specs import REVEALS, TaskSpec
from simulation.phones.client import Faults, MeteredClient, VanishedError
from simulation.phones.holdings import (
    MemoryGallery,
    MemoryIdentity,
    ReplayRuntime,
    SharedModels,
    SharedRuntimes,
    SumsInMemory,
)
from simulation.phones.notes import Notes, ProcessNotes
from simulation.phones.usage import cpu_s, peak_bytes, resident_bytes

JOINING: Final = 4
"""Phones that join at the same time: more would only queue for the registrar's processor."""
STACK_BYTES: Final = 1 << 20
LOOK_S: Final = 0.1
END_S: Final = 10.0
MOST_FAILURES: Final = 5
"""A phone that has to leave so many rounds in a row for reasons of its own stays out."""
FAILED_PAUSE_S: Final = 1.0

AGREED: Final = Agreement(
    min_cohort=2,
    allow_reveal=REVEALS,
    allow_profiles=("honest_but_curious",),
    allow_plain_sums=True,
    max_sums_per_model=1_000_000,
    max_sums_per_day=1_000_000,
)
"""Emulated phones have no owner to ask: they take part in whatever is asked of them, days of rounds in minutes."""


class StoppedError(Exception):
    """The fleet is being stopped; a phone that waits goes home."""


class StoppableClock(WallClock):
    """The system's time; sleepers wake up when the fleet stops."""

    def __init__(self) -> None:
        super().__init__()
        self.stopping = threading.Event()

    def sleep(self, seconds: float) -> None:
        """Wait; raises StoppedError as soon as the fleet stops."""
        if self.stopping.wait(seconds):
            raise StoppedError


class Chance:
    """Sources of a phone's randomness: secrets of the operating system, and the seeds of local rounds."""

    random_bytes: RandomBytes = staticmethod(secret_bytes)
    local_seed: Callable[[DeviceId, TaskSpec, RoundRef], int] = staticmethod(local_seed)


@dataclass(frozen=True)
class FleetOptions:
    """Options of a process's phones.

    The fleet stops when its phones have seen `rounds` rounds close (0: no limit), or nothing of a round for `idle_s`.
    With `replays` a phone sends random numbers and trains nothing. `seed` draws faults.
    """

    rounds: int = 0
    idle_s: float = 30.0
    replays: bool = False
    seed: int = 0
    faults: Faults = field(default_factory=Faults)


@dataclass(frozen=True)
class Shared:
    """Parts shared by a process's phones, none of it secret: models, the runtime, notes and the time."""

    models: SharedModels
    runtimes: Callable[[Model], Runtime]
    notes: Notes
    clock: StoppableClock
    options: FleetOptions
    working: threading.Semaphore

    def client(self, identity: Identity, draws: random.Random) -> MeteredClient:
        """Return a new connection of a phone."""
        return MeteredClient(identity, self.clock, draws, self.notes, self.options.faults, self.working)


@dataclass
class EmulatedPhone:
    """One phone: what it would have on its disk. `run` is its life; `chance` and `tell` are seams for tests.

    `number` is its place among all phones: with the same seed, the same faults are drawn for it.
    """

    identity: Identity
    gallery: MemoryGallery
    shared: Shared = field(repr=False)
    number: int = 0
    sums: SumsInMemory = field(default_factory=SumsInMemory, repr=False)
    chance: Chance = field(default_factory=Chance, repr=False)
    tell: Listener = lambda _event: None
    client: MeteredClient | None = field(default=None, repr=False)
    error: MienError | None = None

    def run(self) -> None:
        """Take part until the fleet stops; after each disappearance the phone is back as a program started anew."""
        options, clock = self.shared.options, self.shared.clock
        draws = random.Random(f"{options.seed}/{self.number}")  # noqa: S311 (faults)
        with contextlib.suppress(StoppedError):
            while not self._lived(draws):
                clock.sleep(options.faults.away_s)

    def _lived(self, draws: random.Random) -> bool:
        """Take part with one connection after another; tells whether this is the end of it, not a disappearance."""
        shared = self.shared
        with shared.client(self.identity, draws) as client:
            self.client = client
            try:
                client.hello()
                self._take_part(client)
            except VanishedError:
                return False
            except MienError as error:
                if not shared.clock.stopping.is_set():
                    self.error = error
                    shared.notes.not_counted(error.code)
            except ValueError:  # gRPC's own, of a connection that `stop` closed
                if not shared.clock.stopping.is_set():
                    raise
        return True

    def participant(self, client: MeteredClient) -> Participant:
        """Return this phone as the device's own code sees it."""
        shared = self.shared
        return Participant(
            client,
            self.gallery,
            shared.models,
            AGREED,
            StatedConditions(),
            shared.runtimes,
            self.sums,
            shared.clock,
            tell=self.tell,
            random_bytes=self.chance.random_bytes,
            local_seed=self.chance.local_seed,
        )

    def _take_part(self, client: MeteredClient) -> None:
        participant, clock, failures = self.participant(client), self.shared.clock, 0
        while not clock.stopping.is_set():
            outcome = participant.step()
            self._note(outcome)
            failures = failures + 1 if isinstance(outcome, Failed) else 0
            if isinstance(outcome, Failed):
                if failures == MOST_FAILURES:
                    raise outcome.error
                clock.sleep(FAILED_PAUSE_S * failures)
            elif isinstance(outcome, Wait):
                clock.sleep(max(outcome.retry_after_s, LOOK_S))

    def _note(self, outcome: Step) -> None:
        notes = self.shared.notes
        match outcome:
            case Counted():
                notes.add("counted")
            case NotCounted(code=code):
                notes.not_counted(code)
            case Failed(error=error):
                notes.not_counted(error.code)


class PhoneFleet:
    """A process's phones, joined and run together; use it in a `with` block, which ends them all."""

    def __init__(self, folder: Path, options: FleetOptions) -> None:
        """Keep the shared models in `folder`."""
        clock = StoppableClock()
        load = (lambda model: ReplayRuntime(model.spec.input.dim)) if options.replays else None
        self._runtimes = SharedRuntimes(load)
        self.shared = Shared(
            SharedModels(ModelStore(folder)),
            self._runtimes.for_model,
            Notes(clock.now),
            clock,
            options,
            threading.Semaphore(len(os.sched_getaffinity(0))),
        )
        self.phones: list[EmulatedPhone] = []
        self._threads: list[threading.Thread] = []
        self._first_bytes, self._first_cpu_s = 0, 0.0

    def __enter__(self) -> PhoneFleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def join(self, invites: Sequence[str], crops: Sequence[Crops], *, first: int = 0) -> None:
        """Add one phone an invite, with these crops, numbered from `first` on.

        Raises as `device_sdk.server.join.join` for the first that fails.
        """
        clock = self.shared.clock

        def one(invite: str) -> Identity:
            return join(Invite.from_url(invite), MemoryIdentity(), clock, SYSTEM_RANDOM)

        with ThreadPoolExecutor(JOINING) as pool:
            identities = list(pool.map(one, invites))
        self.phones += [
            EmulatedPhone(identity, MemoryGallery(own), self.shared, number)
            for number, (identity, own) in enumerate(zip(identities, crops, strict=True), first)
        ]

    def warm_up(self) -> None:
        """Fetch the released model and embed one phone's crops before the first round: what is shared is ready then."""
        phone = self.phones[0]
        client = CoordinatorClient(phone.identity, self.shared.clock, SYSTEM_RANDOM)
        with client, contextlib.suppress(NotFoundError):
            model = self.shared.models.fetch(client, client.manifest())
            self.shared.runtimes(model).embed(model.theta, fit_crops(phone.gallery.crops, model.spec.input))

    def start(self) -> None:
        """Let every phone begin its life."""
        self._first_bytes, self._first_cpu_s = resident_bytes(), cpu_s()
        before = threading.stack_size(STACK_BYTES)
        try:
            self._threads = [threading.Thread(target=phone.run, daemon=True) for phone in self.phones]
            for thread in self._threads:
                thread.start()
        finally:
            threading.stack_size(before)

    def wait(self) -> Iterator[None]:
        """Yield every tenth of a second until the fleet's options say that it is over, or no phone is left."""
        options, notes = self.shared.options, self.shared.notes
        while any(thread.is_alive() for thread in self._threads):
            if 0 < options.rounds <= notes.num_closed or notes.idle_s > options.idle_s:
                return
            time.sleep(LOOK_S)
            yield

    def stop(self) -> None:
        """End every phone: those that sleep wake up, those that wait for an answer lose their connection."""
        self.shared.clock.stopping.set()
        end_s = time.monotonic() + END_S
        for phone in self.phones:
            if phone.client is not None:
                phone.client.close()
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        self._runtimes.close()

    @property
    def num_closed(self) -> int:
        """Rounds that a phone of this process saw close."""
        return self.shared.notes.num_closed

    def notes(self) -> ProcessNotes:
        """Return the notes since `start`."""
        return self.shared.notes.figures(
            len(self.phones), cpu_s=cpu_s() - self._first_cpu_s, first_bytes=self._first_bytes, peak_bytes=peak_bytes()
        )

    def errors(self) -> list[MienError]:
        """Return why phones gave up, those that did."""
        return [phone.error for phone in self.phones if phone.error is not None]


__all__ = ["AGREED", "Chance", "EmulatedPhone", "Event", "FleetOptions", "PhoneFleet"]
