"""Conditions under which the phone may work: those that an operating system's job scheduler would ask for."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

ConditionSource = Literal["stated", "system"]
NAMES: Final = ("idle", "charging", "unmetered")
IDLE_LOAD_PER_CORE: Final = 0.25
"""A machine counts as idle while other programs keep less than this share of its processor busy."""
_LOAD_PERIOD_S: Final = 60.0
_BUS_PATIENCE_S: Final = 2.0
# NetworkManager's NMMetered: yes, no, and its guesses of both; 0 is unknown.
_UNMETERED: Final = {1: False, 2: True, 3: False, 4: True}
_METERED_PROPERTY: Final = (
    "--system",
    "get-property",
    "org.freedesktop.NetworkManager",
    "/org/freedesktop/NetworkManager",
    "org.freedesktop.NetworkManager",
    "Metered",
)


class Conditions(Protocol):
    """Conditions under which the phone may work now."""

    def unmet(self) -> tuple[str, ...]:
        """Return the unmet conditions ("charging"), none when the phone may work."""
        ...


@dataclass(frozen=True)
class StatedConditions:
    """Conditions as options state them, for machines that have no battery to ask."""

    idle: bool = True
    charging: bool = True
    unmetered: bool = True

    def unmet(self) -> tuple[str, ...]:
        """Return the names of the conditions that do not hold."""
        return tuple(name for name in NAMES if not getattr(self, name))


class SystemConditions:
    """Conditions as a Linux machine tells them, and as they are stated where it does not.

    Charging is what /sys/class/power_supply says, idle the load average less this program's own share of it, unmetered
    what NetworkManager says on the system's bus (asked through `busctl`). What is stated as missing is missing,
    whatever the machine says.
    """

    def __init__(
        self,
        stated: StatedConditions | None = None,
        *,
        root: Path = Path("/"),
        busctl: str | None = None,
        num_cores: int | None = None,
        own_times_s: Callable[[], tuple[float, float]] | None = None,
    ) -> None:
        """Take where to look: a file tree, the program that asks the bus, how many cores there are.

        `own_times_s` gives the processor time that this program has used, and the time.
        """
        self._stated = stated or StatedConditions()
        self._root = root
        self._busctl = busctl or shutil.which("busctl")
        self._num_cores = num_cores or os.cpu_count() or 1
        self._own_load = _OwnLoad(own_times_s or _own_times_s)

    def unmet(self) -> tuple[str, ...]:
        """Return the names of the conditions that do not hold."""
        told = self.told()
        return tuple(name for name in NAMES if told[name] is False or not getattr(self._stated, name))

    def told(self) -> dict[str, bool | None]:
        """Return the machine's answer for each condition; None where it cannot tell."""
        return {"idle": self._idle(), "charging": self._charging(), "unmetered": self._unmetered()}

    def _charging(self) -> bool | None:
        """Return whether the machine is on mains; None for one without a battery of its own, or without such files."""
        folder = self._root / "sys/class/power_supply"
        supplies = sorted(folder.iterdir()) if folder.is_dir() else []
        batteries = [
            _word(each / "status")
            for each in supplies
            if _word(each / "type") == "Battery" and _word(each / "scope") != "Device"  # not a mouse's
        ]
        if not batteries:
            return None
        if any(_word(each / "online") == "1" for each in supplies if _word(each / "type") != "Battery"):
            return True
        if "Discharging" in batteries:
            return False
        return True if {"Charging", "Full", "Not charging"} & set(batteries) else None

    def _idle(self) -> bool | None:
        try:
            load = float(_word(self._root / "proc/loadavg").split()[0])
        except (ValueError, IndexError):
            return None
        return load - self._own_load() < IDLE_LOAD_PER_CORE * self._num_cores

    def _unmetered(self) -> bool | None:
        """Return NetworkManager's word on the network ("u 4" for "probably not"); None where it is not there."""
        if self._busctl is None:
            return None
        try:
            answer = subprocess.run(
                [self._busctl, *_METERED_PROPERTY], capture_output=True, timeout=_BUS_PATIENCE_S, check=False, text=True
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        kind, _, number = answer.stdout.strip().partition(" ")
        return _UNMETERED.get(int(number)) if kind == "u" and number.isdecimal() else None


class _OwnLoad:
    """This program's own part of the load average: its share of the processor, damped over a minute as the kernel's."""

    def __init__(self, own_times_s: Callable[[], tuple[float, float]]) -> None:
        self._times_s = own_times_s
        self._used_s, self._at_s = own_times_s()
        self._load = 0.0

    def __call__(self) -> float:
        used_s, at_s = self._times_s()
        passed_s = at_s - self._at_s
        if passed_s > 0:
            kept = math.exp(-passed_s / _LOAD_PERIOD_S)
            self._load = kept * self._load + (1 - kept) * (used_s - self._used_s) / passed_s
            self._used_s, self._at_s = used_s, at_s
        return self._load


def conditions_from(source: ConditionSource, stated: StatedConditions) -> Conditions:
    """Return the conditions of a setting: as they are stated, or as the machine tells them where it can."""
    return stated if source == "stated" else SystemConditions(stated)


def _own_times_s() -> tuple[float, float]:
    times = os.times()
    return times.user + times.system, times.elapsed


def _word(path: Path) -> str:
    """Return a small file of the kernel's, "" where it cannot be read: some drivers refuse single values."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
