"""Addresses of servers, host:port, and to which others a server may send a phone that knows one of them."""

from __future__ import annotations

import re
from typing import Final

ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})")
"""Form of host:port; whether the port is one, `is_address` says."""

_NUMBERS: Final = re.compile(r"[0-9.]+|\[.*")
_MAX_CHARS: Final = 253 + len(":65535")
"""The longest name that DNS has, and a port."""


def is_address(text: str, *, lowest_port: int = 1) -> bool:
    """Return whether a text is host:port, with an IPv6 address in brackets."""
    found = ADDRESS.fullmatch(text)
    return found is not None and lowest_port <= int(found[2]) < 65536


def host_of(address: str) -> str:
    """Return the host of host:port, an IPv6 address in its brackets."""
    return address.rpartition(":")[0]


def may_lead_to(known: str, hint: str) -> bool:
    """Return whether who knows a server as `known` (host:port) may be sent to `hint` for the same certificate.

    That is another port of the same host, or a host whose name lies below its name (`a.known.example`): who answers for
    those answers for `known` as well, so that nobody gains a machine to send phones to.
    """
    if len(hint) > _MAX_CHARS or not is_address(hint) or not is_address(known):
        return False
    host, other = host_of(known).lower(), host_of(hint).lower()
    is_below = other.endswith(f".{host}") and not other.startswith(".") and ".." not in other
    return other == host or (is_below and not _NUMBERS.fullmatch(host))
