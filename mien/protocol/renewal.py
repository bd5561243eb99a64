"""Bytes that a device signs with its current key for its next certificate (`mien.v1.RenewRequest.signature`)."""

from __future__ import annotations

import hashlib
from typing import Final

_CONTEXT: Final = b"mien/v1/renew"


def renewal_message(csr_der: bytes, unix_ms: int) -> bytes:
    """Return the bytes under a renewal's signature: context, SHA-256 of the request, time (8 bytes, big-endian).

    The signature is ECDSA P-256 with SHA-256 in ASN.1 DER, as every key store gives it out.
    """
    return _CONTEXT + hashlib.sha256(csr_der).digest() + unix_ms.to_bytes(8, "big", signed=True)
