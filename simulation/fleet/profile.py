"""Profile of phones, from a TOML file: speed, networks, when they are there, how they fail, what a round asks.

The defaults, each with its source, are in `profile.toml` beside this file. A file of one's own holds only the tables
that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, ClassVar, Final, Protocol

from mien.errors import ConfigError
from mien.records import check_limits, from_mapping, parse_toml, within
from mien.shell.files import read_limited

MAX_PROFILE_BYTES: Final = 1 << 20
MAX_PARAMETERS: Final = 500_000_000
MAX_ENTRIES: Final = 100
"""Of a list: each phone's place in it is kept in a byte."""


class _Shared(Protocol):
    """Something that a share of the phones has."""

    @property
    def share(self) -> float: ...


Share = Annotated[float, within(0, 1)]
Deviation = Annotated[float, within(0, 3)]
Hours = Annotated[float, within(0, 24)]


@dataclass(frozen=True)
class _Table:
    """A table of the profile, by its name in the file."""

    table: ClassVar[str]

    def __post_init__(self) -> None:
        check_limits(self, f"{self.table}.")


@dataclass(frozen=True)
class Tier(_Table):
    """A class of phones: its share, and how much longer than the first class a step takes it."""

    table = "tiers"
    name: str
    share: Share
    slowdown: Annotated[float, within(0.01, 1000)]


@dataclass(frozen=True)
class Network(_Table):
    """A class of networks: its share, and the median of its rates."""

    table = "networks"
    name: str
    share: Share
    down_mbit_s: Annotated[float, within(1e-3, 1e5)]
    up_mbit_s: Annotated[float, within(1e-3, 1e5)]


@dataclass(frozen=True)
class Spread(_Table):
    """Standard deviations of logarithms: of rates, of phones' steps, of one round's steps; and the latency."""

    table = "spread"
    network: Deviation
    compute: Deviation
    round: Deviation
    latency_s: Annotated[float, within(0, 60)]


@dataclass(frozen=True)
class Availability(_Table):
    """Times when phones are idle, on a charger and on an unmetered network: at night, and now and then in the day.

    With `job_minutes` above 0 the app works in that time for so long only, from start to start `job_every_minutes`.
    """

    table = "availability"
    night_share: Share
    night_start_h: Hours
    night_start_sd_h: Annotated[float, within(0, 12)]
    night_hours: Hours
    night_hours_sd: Annotated[float, within(0, 12)]
    day_charges: Annotated[float, within(0, 24)]
    day_hours: Hours
    day_from_h: Hours
    day_to_h: Hours
    offline_share: Share
    job_minutes: Annotated[float, within(0, 1440)]
    job_every_minutes: Annotated[float, within(1, 1440)]
    restricted_share: Share
    zones_h: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.day_to_h <= self.day_from_h:
            raise ConfigError("availability.day_to_h must lie after availability.day_from_h")
        if self.job_every_minutes < self.job_minutes:
            raise ConfigError(
                f"availability.job_every_minutes is {self.job_every_minutes:g}, from start to start; it must not be "
                f"less than availability.job_minutes, {self.job_minutes:g}"
            )
        if not self.zones_h or any(not -14 <= zone <= 14 for zone in self.zones_h):
            raise ConfigError("availability.zones_h lists hours between -14 and 14, at least one")
        _check_length("availability.zones_h", self.zones_h)


@dataclass(frozen=True)
class Battery(_Table):
    """The level at which phones are put on a charger, and from which on they take part."""

    table = "battery"
    start_level: Share
    start_level_sd: Share
    least_level: Share
    full_hours: Annotated[float, within(0.01, 48)]


@dataclass(frozen=True)
class Failures(_Table):
    """Share of its rounds in which a phone fails, and share of these in which the coordinator is told."""

    table = "failures"
    share: Share
    told_share: Share


@dataclass(frozen=True)
class Work(_Table):
    """Work of a phone in a round; a step on `step_images` takes the first tier `step_ms`."""

    table = "work"
    step_ms: Annotated[float, within(1e-6, 1e7)]
    step_images: Annotated[int, within(1, 10_000)]
    start_s: Annotated[float, within(0, 86400)]
    images: Annotated[float, within(1, 10_000)]
    images_spread: Deviation
    labelled: Annotated[int, within(0, 1_000_000)]
    model_bytes: Annotated[int, within(0, 4 * MAX_PARAMETERS)]
    trained_parameters: Annotated[int, within(1, MAX_PARAMETERS)]


@dataclass(frozen=True)
class CoordinatorSettings(_Table):
    """The coordinator's settings, by the names of its own file; and an operator who resumes a paused task."""

    table = "coordinator"
    check_in_hold_s: Annotated[float, within(0.01, 3600)]
    retry_after_s: Annotated[float, within(0.01, 3600)]
    check_ins_per_s: Annotated[float, within(0.01, 1e6)]
    max_aborted: Annotated[int, within(1, 1000)]
    closing_s: Annotated[float, within(0, 3600)]
    resume_after_s: Annotated[float, within(0, 30 * 86400)]


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
