"""The code of an invite, which people compare."""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import scrypt

from mien.protocol.invite import Invite

INVITE = Invite("phones.example:7000", "ab" * 32, "cd" * 32, "T" * 32)


def test_the_code_is_sixteen_digits_of_a_slow_hash_over_both_fingerprints() -> None:
    both = bytes.fromhex("ab" * 32 + "cd" * 32)
    drawn = scrypt(both, salt=b"mien/v1/invite-code", n=2**15, r=8, p=1, maxmem=64 << 20, dklen=16)
    assert INVITE.code().replace(" ", "") == str(int.from_bytes(drawn, "big"))[-16:]
    assert re.fullmatch(r"\d{4} \d{4} \d{4} \d{4}", INVITE.code())


def test_the_code_is_of_the_authorities_alone_and_of_which_is_which() -> None:
    assert replace(INVITE, token="U" * 32, registrar_address="[::1]:7000").code() == INVITE.code()
    others = {
        replace(INVITE, registrar_ca_sha256="00" * 32).code(),
        replace(INVITE, coordinator_ca_sha256="00" * 32).code(),
        replace(INVITE, registrar_ca_sha256="cd" * 32, coordinator_ca_sha256="ab" * 32).code(),
    }
    assert len(others - {INVITE.code()}) == 3
