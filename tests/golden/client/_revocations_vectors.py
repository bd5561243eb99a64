"""What `revocations.json` holds: lists of revoked phones as a coordinator may hand them on, and rosters under them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from mien.errors import CertificateError, MienError
from mien.protocol.revocations import MAX_AGE_S, RevocationList
from mien.secagg.leaves import leaf_verifier
from mien.secagg.roster import read_roster
from mien.secagg.wire import Advertise, invite_from_bytes
from tests.golden.secagg._certificates import NOW, authority, fixed_key
from tests.golden.secagg.write import FOLDER

Json = dict[str, Any]

ROUND = "round_n9_two_losses"
FIRST_SERIAL = 100
"""The serial number of the first device's certificate in the vectors of rounds; the others follow it."""
LARGE_SERIAL = 2**158 + 5


def revocation_list(*serials: int, signed: datetime = NOW, by: str = "registrar", issuer: str | None = None) -> bytes:
    """Return a list (DER) as the registrar makes it (`coordinator.keys.pki.build_crl`), the same bytes each time."""
    name = authority().subject if issuer is None else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)])
    entries = [x509.RevokedCertificateBuilder(serial, NOW).build() for serial in serials]
    builder = (
        x509.CertificateRevocationListBuilder(revoked_certificates=entries)
        .issuer_name(name)
        .last_update(signed)
        .next_update(signed + timedelta(days=7))
        .add_extension(x509.CRLNumber(7), critical=False)
    )
    return builder.sign(fixed_key(by), hashes.SHA256(), ecdsa_deterministic=True).public_bytes(Encoding.DER)


def revocations() -> Json:
    """Return lists that are taken and refused, and which devices of a recorded round leave its roster, by codes."""
    return {
        "authority": authority().public_bytes(Encoding.DER).hex(),
        "now_unix_s": int(NOW.timestamp()),
        "lists": [_list(what, der) for what, der in _lists().items()],
        "taken_with_one_bit_changed": _taken_with_one_bit_changed(_lists()["one is revoked"]),
        "round": ROUND,
        "rosters": [_roster(what) for what in ("nobody is revoked", "one is revoked", "others are revoked")],
    }


def _lists() -> dict[str, bytes]:
    oldest, one = timedelta(seconds=MAX_AGE_S), revocation_list(FIRST_SERIAL + 2)
    changed = bytearray(one)
    changed[one.index(bytes([2, 1, FIRST_SERIAL + 2])) + 2] += 1
    return {
        "nobody is revoked": revocation_list(),
        "one is revoked": one,
        "others are revoked": revocation_list(7, LARGE_SERIAL),
        "the oldest that counts": revocation_list(7, signed=NOW - oldest),
        "of a clock that is ahead": revocation_list(7, signed=NOW + timedelta(minutes=5)),
        "too old": revocation_list(7, signed=NOW - oldest - timedelta(seconds=1)),
        "much too old, and signed by another": revocation_list(7, signed=NOW - 30 * oldest, by="another"),
        "signed by another of the same name": revocation_list(7, by="another"),
        "another registrar's": revocation_list(7, by="another", issuer="another registrar"),
        "under another's name": revocation_list(7, issuer="another registrar"),
        "another serial than was signed": bytes(changed),
        "cut off": one[:-5],
        "cut off at the half": one[: len(one) // 2],
        "with more behind it": one + b"\0",
        "nothing": b"",
        "a certificate": authority().public_bytes(Encoding.DER),
        "a text": b"-----BEGIN X509 CRL-----\n",
    }


def _list(what: str, der: bytes) -> Json:
    serials = (7, FIRST_SERIAL + 1, FIRST_SERIAL + 2, FIRST_SERIAL + 3, LARGE_SERIAL)
    ends = _code(lambda: _taken(der))
    revoked = None if ends == CertificateError.code else RevocationList.parse(der, authority())
    named = [str(serial) for serial in serials if revoked is not None and revoked.names(serial)]
    return {"what": what, "der": der.hex(), "ends": ends, "names": named}


def _taken(der: bytes) -> str:
    """Return "ok" for a list that a phone takes now, as `device_sdk.rounds.participate` asks for it."""
    RevocationList.parse(der, authority()).check_age(NOW.timestamp())
    return "ok"


def _taken_with_one_bit_changed(der: bytes) -> list[int]:
    """Return at which bytes the last bit may be another: how many bits of the signature's last byte count, alone."""
    changed = [der[:at] + bytes([der[at] ^ 1]) + der[at + 1 :] for at in range(len(der))]
    return [at for at, each in enumerate(changed) if _code(lambda each=each: _taken(each)) == "ok"]


def _code(check: Callable[[], str]) -> str:
    try:
        return check()
    except MienError as error:
        return error.code


def _roster(what: str) -> Json:
    """Return how the roster of the recorded round ends for each of its devices, by id, under a list."""
    told = json.loads((FOLDER / f"{ROUND}.json").read_text(encoding="utf-8"))
    revoked = RevocationList.parse(_lists()[what], authority())
    verify = leaf_verifier(authority(), "default", lambda: NOW, revoked.names)
    config, messages = invite_from_bytes(bytes.fromhex(told["invite"])), told["messages"]

    def read(device: str) -> str:
        own = Advertise.from_bytes(bytes.fromhex(messages["1"][device])).entry
        read_roster(bytes.fromhex(messages["2"]["all"]), config, own, verify)
        return "ok"

    ids = [device["id"] for device in told["devices"]]
    return {"list": what, "ends": {device: _code(lambda device=device: read(device)) for device in ids}}
