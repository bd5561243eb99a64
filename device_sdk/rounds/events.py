"""What a device tells its owner while it works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from device_sdk.server.offers import Progress


@dataclass(frozen=True)
class Event:
    """Event that the owner may want to see: a stable `kind`, a sentence, and the facts behind it."""

    kind: str
    text: str
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Transfer:
    """Progress of a download or upload."""

    what: str
    done_bytes: int
    total_bytes: int


Listener = Callable[[Event | Transfer], None]


def transfer(tell: Listener, what: str) -> Progress:
    """Return a progress callback that tells of a transfer."""
    return lambda done, total: tell(Transfer(what, done, total))
