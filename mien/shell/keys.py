"""The one seam through which key material, nonces, salts and tokens come in: the operating system's generator.

Everything that nobody may predict is drawn here, so that one place shows where it is from; a test holds that no other
module draws any. Whoever needs known bytes for vectors passes another source of them, a `RandomBytes`; nothing here can
be seeded. `cryptography` is imported by what makes key pairs only: installs without it import the rest.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

RandomBytes: TypeAlias = Callable[[int], bytes]
"""Returns that many bytes nobody can predict: `secret_bytes`, except in tests against vectors."""


def secret_bytes(count: int) -> bytes:
    """Return that many bytes nobody can predict, for keys, nonces and salts."""
    return secrets.token_bytes(count)


def secret_hex(num_bytes: int) -> str:
    """Return a token or an id of that many secret bytes, as hex digits."""
    return secret_bytes(num_bytes).hex()


def secret_text(num_bytes: int) -> str:
    """Return a token of that many secret bytes that URLs and cookies carry as it is."""
    return secrets.token_urlsafe(num_bytes)


def p256_key() -> EllipticCurvePrivateKey:
    """Return a new key pair for certificates, which the library draws from the system's generator."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def ed25519_key() -> Ed25519PrivateKey:
    """Return a new key pair for signatures of releases, which the library draws from the system's generator."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


SYSTEM_RANDOM: Final[random.Random] = random.SystemRandom()
"""Draws of the operating system's generator: for jitter, ports and cohorts that nobody may foresee."""
