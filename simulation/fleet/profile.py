"""Profile of phones, from a TOML file: speed, networks, when they are there, how they fail, what a round asks.

The defaults, each with its source, are in `profile.toml` beside this file. A file of one's own holds only the tables
that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Final, Protocol

from mien.errors import ConfigError
from mien.records import from_mapping, parse_toml
from mien.shell.files import read_limited

MAX_PROFILE_BYTES: Final = 1 << 20
MAX_PARAMETERS: Final = 500_000_000
MAX_ENTRIES: Final = 100
"""Of a list: each phone's place in it is kept in a byte."""


class _Shared(Protocol):
    """Something that a share of the phones has."""

    @property
    def share(self) -> float: ...


def _check(record: object, where: str, low: float, high: float, *names: str) -> None:
    """Raise ConfigError for a field outside of its range."""
    for name in names:
        value = getattr(record, name)
        if not low <= value <= high:
            raise ConfigError(f"{where}.{name} is {value}; it must lie between {low:g} and {high:g}")


@dataclass(frozen=True)
class Tier:
    """A class of phones: its share, and how much longer than the first class a step takes it."""

    name: str
    share: float
    slowdown: float

    def __post_init__(self) -> None:
        _check(self, "tiers", 0, 1, "share")
        _check(self, "tiers", 0.01, 1000, "slowdown")


@dataclass(frozen=True)
class Network:
    """A class of networks: its share, and the median of its rates."""

    name: str
    share: float
    down_mbit_s: float
    up_mbit_s: float

    def __post_init__(self) -> None:
        _check(self, "networks", 0, 1, "share")
        _check(self, "networks", 1e-3, 1e5, "down_mbit_s", "up_mbit_s")


@dataclass(frozen=True)
class Spread:
    """Standard deviations of logarithms: of rates, of phones' steps, of one round's steps; and the latency."""

    network: float
    compute: float
    round: float
    latency_s: float

    def __post_init__(self) -> None:
        _check(self, "spread", 0, 3, "network", "compute", "round")
        _check(self, "spread", 0, 60, "latency_s")


@dataclass(frozen=True)
class Availability:
    """Times when phones are idle, on a charger and on an unmetered network: at night, and now and then in the day."""

    night_share: float
    night_start_h: float
    night_start_sd_h: float
    night_hours: float
    night_hours_sd: float
    day_charges: float
    day_hours: float
    day_from_h: float
    day_to_h: float
    offline_share: float
    zones_h: tuple[float, ...]

    def __post_init__(self) -> None:
        _check(self, "availability", 0, 1, "night_share", "offline_share")
        _check(self, "availability", 0, 24, "night_start_h", "night_hours", "day_hours", "day_from_h", "day_to_h")
        _check(self, "availability", 0, 12, "night_start_sd_h", "night_hours_sd")
        _check(self, "availability", 0, 24, "day_charges")
        if self.day_to_h <= self.day_from_h:
            raise ConfigError("availability.day_to_h must lie after availability.day_from_h")
        if not self.zones_h or any(not -14 <= zone <= 14 for zone in self.zones_h):
            raise ConfigError("availability.zones_h lists hours between -14 and 14, at least one")
        _check_length("availability.zones_h", self.zones_h)


@dataclass(frozen=True)
class Battery:
    """The level at which phones are put on a charger, and from which on they take part."""

    start_level: float
    start_level_sd: float
    least_level: float
    full_hours: float

    def __post_init__(self) -> None:
        _check(self, "battery", 0, 1, "start_level", "start_level_sd", "least_level")
        _check(self, "battery", 0.01, 48, "full_hours")


@dataclass(frozen=True)
class Failures:
    """Share of its rounds in which a phone fails, and share of these in which the coordinator is told."""

    share: float
    told_share: float

    def __post_init__(self) -> None:
        _check(self, "failures", 0, 1, "share", "told_share")


@dataclass(frozen=True)
class Work:
    """Work of a phone in a round; a step on `step_images` takes the first tier `step_ms`."""

    step_ms: float
    step_images: int
    start_s: float
    images: float
    images_spread: float
    model_bytes: int
    trained_parameters: int

    def __post_init__(self) -> None:
        _check(self, "work", 1e-6, 1e7, "step_ms")
        _check(self, "work", 1, 10_000, "step_images", "images")
        _check(self, "work", 0, 86400, "start_s")
        _check(self, "work", 0, 3, "images_spread")
        _check(self, "work", 0, 4 * MAX_PARAMETERS, "model_bytes")
        _check(self, "work", 1, MAX_PARAMETERS, "trained_parameters")


@dataclass(frozen=True)
class CoordinatorSettings:
    """The coordinator's settings, by the names of its own file; and an operator who resumes a paused task."""

    check_in_hold_s: float
    retry_after_s: float
    check_ins_per_s: float
    max_aborted: int
    closing_s: float
    resume_after_s: float

    def __post_init__(self) -> None:
        _check(self, "coordinator", 0.01, 3600, "check_in_hold_s", "retry_after_s")
        _check(self, "coordinator", 0.01, 1e6, "check_ins_per_s")
        _check(self, "coordinator", 1, 1000, "max_aborted")
        _check(self, "coordinator", 0, 3600, "closing_s")
        _check(self, "coordinator", 0, 30 * 86400, "resume_after_s")


@dataclass(frozen=True)
class Profile:
    """All that is known of a fleet's phones before one of them is drawn."""

    tiers: tuple[Tier, ...]
    networks: tuple[Network, ...]
    spread: Spread
    availability: Availability
    battery: Battery
    failures: Failures
    work: Work
    coordinator: CoordinatorSettings

    def __post_init__(self) -> None:
        for name, classes in (("tiers", self.tiers), ("networks", self.networks)):
            _check_length(name, classes)
            _check_shares(name, classes)
            names = [each.name for each in classes]
            if len(set(names)) < len(names):
                raise ConfigError(f"{name} has two entries of one name; give each its own")


def _check_length(name: str, entries: Sequence[object]) -> None:
    if len(entries) > MAX_ENTRIES:
        raise ConfigError(f"{name} has {len(entries)} entries; it may have {MAX_ENTRIES}")


def _check_shares(name: str, classes: Sequence[_Shared]) -> None:
    total = sum(each.share for each in classes)
    if abs(total - 1) > 1e-6:
        raise ConfigError(f"the shares of {name} add up to {total:g}; they must add up to 1")


def default_text() -> str:
    """Return the default profile as its file has it, with the sources of its figures."""
    return resources.files("simulation.fleet").joinpath("profile.toml").read_text(encoding="utf-8")


def parse_profile(text: str, what: str = "the profile") -> Profile:
    """Return a profile; tables that are left out, and fields of single tables, are the default's.

    Raises ConfigError naming the field, its value and the fix.
    """
    values, own = parse_toml(default_text(), "the default profile"), parse_toml(text, what)
    known = {field.name for field in fields(Profile)}
    for name, table in own.items():
        is_single = name in known and isinstance(table, Mapping) and isinstance(values[name], Mapping)
        values[name] = {**values[name], **table} if is_single else table
    return from_mapping(Profile, values)


def read_profile(path: Path | None) -> Profile:
    """Return the profile in a file, or the default one; raises NotFoundError, CorruptDataError or ConfigError."""
    if path is None:
        return parse_profile("")
    data = read_limited(path, MAX_PROFILE_BYTES, what=path.name)
    return parse_profile(data.decode("utf-8", errors="replace"), path.name)
