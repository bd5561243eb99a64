"""The invite: what an operator hands to a person, as a URL or QR code, so that a phone can join."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from mien.errors import InviteError
from mien.format import grouped
from mien.protocol.addresses import ADDRESS

_HEX = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,64}")
_CODE_LABEL = b"mien/v1/invite-code"
_CODE_DIGITS = 16
_CODE_BYTES = 16
# 32 MiB and some tenths of a second a try: what makes 16 digits enough (decision record 0116).
_CODE_COST = {"n": 2**15, "r": 8, "p": 1}


@dataclass(frozen=True)
class Invite:
    """Invite to a fleet: the addresses to join at, the two authorities to trust, and a one-time token.

    The fingerprints are SHA-256 over the authorities' DER certificates, lower-case hex.
    """

    registrar_address: str
    registrar_ca_sha256: str
    coordinator_ca_sha256: str
    token: str = field(repr=False)

    def to_url(self) -> str:
        """Return the mien://join URL that a QR code holds."""
        query = {
            "r": self.registrar_address,
            "rf": self.registrar_ca_sha256,
            "cf": self.coordinator_ca_sha256,
            "t": self.token,
        }
        return "mien://join?" + urlencode(query)

    def code(self) -> str:
        """Return the 16 digits by which people compare both fingerprints, as "0123 4567 8901 2345".

        scrypt over the registrar's fingerprint and then the coordinator's (64 bytes; salt "mien/v1/invite-code",
        N 2¹⁵, r 8, p 1), of which 16 bytes are taken as a big-endian number modulo 10¹⁶. Another pair of authorities
        with the code of a given one costs 10¹⁶ tries on average, of 32 MiB each: twenty thousand years of a graphics
        card (decision record 0116).
        """
        both = bytes.fromhex(self.registrar_ca_sha256) + bytes.fromhex(self.coordinator_ca_sha256)
        drawn = Scrypt(salt=_CODE_LABEL, length=_CODE_BYTES, **_CODE_COST).derive(both)
        return grouped(f"{int.from_bytes(drawn, 'big') % 10**_CODE_DIGITS:0{_CODE_DIGITS}}")

    @classmethod
    def from_url(cls, url: str) -> Invite:
        """Return the invite in a URL; raises InviteError saying which piece is wrong, never showing the token."""
        try:
            parts = urlsplit(url.strip())
        except ValueError as error:
            raise InviteError("the invite is cut off or damaged; copy the whole line") from error
        if parts.scheme != "mien" or parts.netloc != "join":
            raise InviteError("this is not an invite: it must begin with mien://join?; copy the whole line")
        try:
            query = parse_qs(parts.query, strict_parsing=True, max_num_fields=8)
        except ValueError as error:
            raise InviteError("the invite is cut off or damaged; copy the whole line") from error
        patterns = {"r": ADDRESS, "rf": _HEX, "cf": _HEX, "t": _TOKEN}
        for name, pattern in patterns.items():
            values = query.get(name, [])
            if len(values) != 1 or not pattern.fullmatch(values[0]):
                raise InviteError(f"the invite is cut off or damaged (piece {name!r}); copy the whole line")
        return cls(query["r"][0], query["rf"][0], query["cf"][0], query["t"][0])
