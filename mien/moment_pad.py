"""A pad over the moment lane that the server cannot remove: it adds up what it cannot read, members open it.

Under secure aggregation a server opens the sum of all lanes, and the sum of second moments tells membership. So each
device adds a pad of its own to that lane, on top of the masks: the key stream of a key that all devices of the round
share and the server does not have. Masks cancel in the sum, pads do not: the server sends the padded sum to the
devices, and each subtracts the pads of the survivors.

Not wired into rounds. Decision record 0015 has the argument, which nobody outside this project has checked, and the
limits: one device that works for the server gives it the key.

The group key is a hash over pieces that a few members, the leaders, send to every member end to end encrypted. One pad
for all would not do: |U3| P mod 2^32 shows its low bits wherever |U3| is even.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mien.errors import ConfigError
from mien.secagg.canonical import HASH_BYTES, PREFIX, tagged_hash
from mien.secagg.masks import Words, add_masks

KEY_BYTES: Final = 32


def leaders(binding: bytes, members: Iterable[bytes], count: int) -> tuple[bytes, ...]:
    """Return the `count` members whose pieces make the group key: those with the smallest H("pad/leader", R, id).

    R is the hash of the roster, so that the server can move the choice only by enrolling other devices.
    """
    ranked = sorted(set(members), key=lambda member: tagged_hash("pad/leader", binding, member))
    if not 1 <= count <= len(ranked):
        raise ConfigError(f"{count} leaders cannot be chosen among {len(ranked)} members; ask for 1 to that many")
    return tuple(ranked[:count])


def group_key(binding: bytes, pieces: Mapping[bytes, bytes]) -> bytes:
    """Return G = H("pad/group", R, id, piece, ...) over the leaders' pieces in the order of ids.

    One honest leader's piece is enough to make it unknown to everybody else. Raises ConfigError for no piece, or one
    that is not 32 bytes long.
    """
    if not pieces or any(len(piece) != KEY_BYTES for piece in pieces.values()):
        raise ConfigError(f"a group key is made of at least one piece, each of {KEY_BYTES} bytes; leave the round")
    return tagged_hash("pad/group", binding, *(part for leader in sorted(pieces) for part in (leader, pieces[leader])))


def key_check(key: bytes, binding: bytes) -> bytes:
    """Return what members sign to agree on G, which tells nothing of it: H("pad/check", R, G)."""
    return tagged_hash("pad/check", binding, key)


def add_pad(words: Words, key: bytes, binding: bytes, member: bytes) -> None:
    """Add a member's pad to its lane (uint32, modulo 2^32), in place; devices do it before they mask."""
    add_masks(words, [_seed(key, binding, member)], [])


def remove_pads(words: Words, key: bytes, binding: bytes, survivors: Sequence[bytes]) -> None:
    """Subtract the survivors' pads from the sum of their lanes, in place: exactly, whoever dropped out.

    Raises ConfigError for a survivor that is named twice.
    """
    if len(set(survivors)) != len(survivors):
        raise ConfigError("a survivor is named twice; its pad is in the sum once")
    add_masks(words, [], [_seed(key, binding, member) for member in survivors])


def _seed(key: bytes, binding: bytes, member: bytes) -> bytes:
    """Return HKDF-SHA256(ikm = G, salt = R, info = "MSA1/pad" ‖ id), from which the pad is drawn as masks are."""
    if len(key) != HASH_BYTES:
        raise ConfigError(f"a group key has {HASH_BYTES} bytes, this one {len(key)}")
    return HKDF(hashes.SHA256(), KEY_BYTES, binding, (PREFIX + "pad").encode() + member).derive(key)
