"""The phones themselves: how fast each is, and how each of its rounds goes. Arrays for all, a draw for each that works.

A phone's n-th round is drawn from the phone and n alone, so that two policies meet the same phones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError
from mien.protocol.ids import DeviceId
from mien.protocol.rounds import Stage
from mien.specs import TaskSpec
from simulation.fleet.costs import RoundCost
from simulation.fleet.profile import Profile
from simulation.fleet.windows import Diurnal, Presence

MAX_PHONES: Final = 20_000_000
_BYTES_PER_MBIT: Final = 1e6 / 8


@dataclass(frozen=True)
class Outlook:
    """A phone's round if nobody stops it: its time to be trained, and when in the round it fails.

    `fails_after_s` is of time at work, None for never; `tells` whether the coordinator hears of it.
    """

    training_s: float
    fails_after_s: float | None = None
    tells: bool = False


class Phones(Protocol):
    """Phones by their numbers from 0."""

    @property
    def tiers(self) -> tuple[str, ...]:
        """The names of the classes that reports tell apart."""
        ...

    @property
    def tier_of(self) -> NDArray[np.int8]:
        """Each phone's class."""
        ...

    @property
    def presence(self) -> Presence:
        """The spans of time in which phones are there."""
        ...

    @property
    def cost(self) -> RoundCost:
        """Cost of a round for each of them."""
        ...

    @property
    def latency_s(self) -> float:
        """Time that a phone takes to come again after a round."""
        ...

    @property
    def num_labelled(self) -> int:
        """Number of phones, the first ones, that know whose faces they train on."""
        ...

    def name(self, phone: int) -> DeviceId:
        """Return a phone's device id."""
        ...

    def number(self, name: DeviceId) -> int:
        """Return the phone of a device id."""
        ...

    def outlook(self, phone: int, nth: int) -> Outlook:
        """Return how a phone's nth round will go, counted from 0."""
        ...

    def stage_s(self, phone: int, stage: Stage) -> float:
        """Return how long a phone takes for its part of a stage after training."""
        ...


@dataclass(frozen=True)
class Capacity:
    """Each phone's speed: how much longer its steps take than a phone's of the first tier, and bytes a second."""

    slowdown: NDArray[np.float32]
    down_bytes_s: NDArray[np.float32]
    up_bytes_s: NDArray[np.float32]
    tier_of: NDArray[np.int8]
    tiers: tuple[str, ...]


def check_number(num_phones: int) -> None:
    """Raise ConfigError for a number of phones that no fleet has."""
    if not 1 <= num_phones <= MAX_PHONES:
        raise ConfigError(f"--phones is {num_phones}; it must lie between 1 and {MAX_PHONES}")


def draw_capacity(profile: Profile, num_phones: int, seed: int) -> Capacity:
    """Return the phones that a profile describes."""
    check_number(num_phones)
    rng, spread = np.random.default_rng([seed, 3]), profile.spread
    tier_of = _classes(rng, [tier.share for tier in profile.tiers], num_phones)
    network_of = _classes(rng, [network.share for network in profile.networks], num_phones)
    line = np.exp(np.float32(spread.network) * rng.standard_normal(num_phones, dtype=np.float32))
    down = _of([network.down_mbit_s * _BYTES_PER_MBIT for network in profile.networks])[network_of] * line
    up = _of([network.up_mbit_s * _BYTES_PER_MBIT for network in profile.networks])[network_of] * line
    slowdown = _of([tier.slowdown for tier in profile.tiers])[tier_of]
    slowdown = slowdown * np.exp(np.float32(spread.compute) * rng.standard_normal(num_phones, dtype=np.float32))
    return Capacity(slowdown, down, up, tier_of, tuple(tier.name for tier in profile.tiers))


class DrawnPhones:
    """Phones as a profile describes them, or with the capacity and presence of a trace."""

    def __init__(
        self,
        profile: Profile,
        task: TaskSpec,
        cost: RoundCost,
        num_phones: int,
        seed: int,
        *,
        capacity: Capacity | None = None,
        presence: Presence | None = None,
        images: Sequence[int] | None = None,
    ) -> None:
        """`images` says how many each phone holds, in the place of the profile."""
        self.cost, self._profile, self._task, self._seed = cost, profile, task, seed
        self._capacity = capacity or draw_capacity(profile, num_phones, seed)
        self.tiers, self.tier_of = self._capacity.tiers, self._capacity.tier_of
        self.presence: Presence = presence or Diurnal(profile.availability, profile.battery, num_phones, seed)
        self.latency_s, self.num_labelled = profile.spread.latency_s, profile.work.labelled
        work, rng = profile.work, np.random.default_rng([seed, 4])
        held = work.images * np.exp(work.images_spread * rng.standard_normal(num_phones, dtype=np.float32))
        held = held if images is None else np.array(images, np.float32)
        self._images: NDArray[np.int16] = np.clip(np.rint(held), 1, 10_000).astype(np.int16)

    def name(self, phone: int) -> DeviceId:
        """Return a phone's device id."""
        return DeviceId(f"{phone:08d}")

    def number(self, name: DeviceId) -> int:
        """Return the phone of a device id."""
        return int(name)

    def outlook(self, phone: int, nth: int) -> Outlook:
        """Return how a phone's nth round will go."""
        rng, failures = np.random.default_rng([self._seed, 5, phone, nth]), self._profile.failures
        training_s = self._training_s(phone) + self._steps_s(phone) * float(
            np.exp(self._profile.spread.round * rng.standard_normal())
        )
        if rng.random() >= failures.share:
            return Outlook(training_s)
        whole_s = training_s + sum(self.stage_s(phone, stage) for stage in self.cost.stages)
        return Outlook(training_s, whole_s * float(rng.random()), bool(rng.random() < failures.told_share))

    def stage_s(self, phone: int, stage: Stage) -> float:
        """Return a stage's bytes over the phone's rates, and the latency.

        What a phone computes for secure aggregation is left out: some tens of milliseconds for 10^6 parameters.
        """
        each, capacity = self.cost.stages[stage], self._capacity
        received_s = each.received / float(capacity.down_bytes_s[phone])
        return self.latency_s + received_s + each.sent / float(capacity.up_bytes_s[phone])

    def _training_s(self, phone: int) -> float:
        """Return the time before the first step."""
        fetched_s = self.cost.model_bytes / float(self._capacity.down_bytes_s[phone])
        return self.latency_s + fetched_s + self._profile.work.start_s

    def _steps_s(self, phone: int) -> float:
        work, local, images = self._profile.work, self._task.local, int(self._images[phone])
        batch = min(local.batch_size or images, images)
        step_s = work.step_ms / 1000 * batch / work.step_images * float(self._capacity.slowdown[phone])
        return local.num_steps(images) * step_s


def _classes(rng: np.random.Generator, shares: Sequence[float], num: int) -> NDArray[np.int8]:
    """Return a class for each of `num` phones."""
    ends = np.cumsum(shares)[:-1]
    return np.searchsorted(ends, rng.random(num, dtype=np.float32), side="right").astype(np.int8)


def _of(values: Sequence[float]) -> NDArray[np.float32]:
    return np.array(values, np.float32)
