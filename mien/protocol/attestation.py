"""Statement that a phone's hardware attests when it joins, so that the attestation is good for that joining only."""

from __future__ import annotations

import hashlib


def attestation_challenge(token: str, registrar_ca_sha256: str) -> bytes:
    """Return the 32 bytes that a key is made with (Android's `setAttestationChallenge`) for an invite.

    SHA-256 of "mien/v1/key-attestation", the registrar's fingerprint (hex) and the invite's token, each behind its
    length (one byte). The key is made with it, so it cannot hold the key; that the attested key is the one of the
    certificate request is checked apart.
    """
    parts = (b"mien/v1/key-attestation", registrar_ca_sha256.encode(), token.encode())
    return hashlib.sha256(b"".join(bytes([len(part) & 0xFF]) + part for part in parts)).digest()
