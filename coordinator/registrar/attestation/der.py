"""A strict reader of the little DER that a key description needs (ITU-T X.690): one value after the other.

Lengths are definite and as short as can be, integers and booleans have one form, and nothing is left over. Every
deviation is a CertificateError; nothing is read recursively, so that no nesting exhausts anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from mien.errors import CertificateError

SEQUENCE: Final = 0x30
SET: Final = 0x31
BOOLEAN: Final = 0x01
INTEGER: Final = 0x02
OCTETS: Final = 0x04
ENUMERATED: Final = 0x0A

_MAX_TAG: Final = 1 << 20
_CONTEXT_CONSTRUCTED: Final = 0xA0
_DAMAGED: Final = "the key attestation is damaged"


@dataclass(frozen=True)
class Value:
    """One value: its first byte (class and form), its tag number, and its content."""

    kind: int
    number: int
    content: bytes = field(repr=False)

    @property
    def is_context(self) -> bool:
        """True for a constructed value with a tag of the context, as explicit tags are."""
        return self.kind & 0xE0 == _CONTEXT_CONSTRUCTED


def values(data: bytes) -> Iterator[Value]:
    """Yield the values that follow each other in `data`, to its end."""
    at = 0
    while at < len(data):
        kind = data[at]
        number, at = _number(data, at)
        length, at = _length(data, at)
        if at + length > len(data):
            raise CertificateError(f"{_DAMAGED}: a value is cut off")
        yield Value(kind, number, data[at : at + length])
        at += length


def only(data: bytes, kind: int) -> bytes:
    """Return the content of the one value in `data`, which has to be of a kind."""
    found = list(values(data))
    if len(found) != 1:
        raise CertificateError(f"{_DAMAGED}: it holds {len(found)} values where one belongs")
    return content(found[0], kind)


def content(value: Value, kind: int) -> bytes:
    """Return a value's content; raises CertificateError unless it is of that kind."""
    if value.kind != kind:
        raise CertificateError(f"{_DAMAGED}: a value is of kind {value.kind:#x}, not {kind:#x}")
    return value.content


def number(value: Value, kind: int = INTEGER) -> int:
    """Return a whole number from 0 to 2^63 - 1."""
    data = content(value, kind)
    is_short = len(data) == 1 or (1 < len(data) <= 8 and (data[0] != 0 or data[1] & 0x80))
    if not is_short or data[0] & 0x80:
        raise CertificateError(f"{_DAMAGED}: a number is negative, too large or not in its shortest form")
    return int.from_bytes(data)


def boolean(value: Value) -> bool:
    """Return a truth value."""
    data = content(value, BOOLEAN)
    if data not in (b"\x00", b"\xff"):
        raise CertificateError(f"{_DAMAGED}: a truth value is neither true nor false")
    return data == b"\xff"


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a tag's number and where its length begins."""
    low = data[at] & 0x1F
    if low != 0x1F:
        return low, at + 1
    tag, start = 0, at + 1
    for position in range(start, min(start + 3, len(data))):
        tag = tag << 7 | data[position] & 0x7F
        if position == start and tag == 0:
            break
        if not data[position] & 0x80:
            if tag < 0x1F or tag > _MAX_TAG:
                break
            return tag, position + 1
    raise CertificateError(f"{_DAMAGED}: a tag is cut off, too large or not in its shortest form")


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return a value's length and where its content begins."""
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    count = data[at] & 0x7F if at < len(data) else 0
    encoded = data[at + 1 : at + 1 + count]
    length = int.from_bytes(encoded)
    if not 1 <= count <= 3 or len(encoded) != count or encoded[0] == 0 or length < 0x80:
        raise CertificateError(f"{_DAMAGED}: a length is cut off, too large or not in its shortest form")
    return length, at + 1 + count
