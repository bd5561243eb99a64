"""Whether the phone may work now: what an operating system's job scheduler would ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Conditions(Protocol):
    """Whether the phone may work now."""

    def unmet(self) -> tuple[str, ...]:
        """Return what is missing ("charging"), nothing when the phone may work."""
        ...


@dataclass(frozen=True)
class StatedConditions:
    """Conditions as options state them, for machines that have no battery to ask."""

    idle: bool = True
    charging: bool = True
    unmetered: bool = True

    def unmet(self) -> tuple[str, ...]:
        """Return the names of the conditions that do not hold."""
        return tuple(name for name in ("idle", "charging", "unmetered") if not getattr(self, name))
