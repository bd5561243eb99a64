"""An operator's credentials for a server."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class OperatorCredentials:
    """The server's pinned authority, and an operator's certificate chain of that authority with its key (PEM)."""

    ca_pem: bytes
    chain_pem: bytes
    key_pem: bytes = field(repr=False)
