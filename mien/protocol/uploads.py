"""Pieces of an upload, read from the wire without a copy of their bytes.

protobuf's own parser copies a piece's bytes twice, which at hundreds of megabytes a second is what a coordinator does
most. Messages in the form that every protobuf library writes (`offset`, then `data`) are read here; whatever looks
different goes to that parser, which decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mien.protocol.v1 import rounds_pb2

_OFFSET: Final = rounds_pb2.UploadChunk.OFFSET_FIELD_NUMBER << 3
_DATA: Final = rounds_pb2.UploadChunk.DATA_FIELD_NUMBER << 3 | 2
_MAX_VARINT: Final = 9  # bytes; a tenth could go beyond 64 bits


@dataclass(frozen=True, slots=True)
class UploadPiece:
    """A run of bytes of a contribution and where it belongs; a stream's first piece has a header."""

    header: rounds_pb2.UploadHeader | None
    offset: int
    data: memoryview


def parse_piece(message: bytes) -> UploadPiece:
    """Return the fields of an `UploadChunk`, its data a view of `message`; raises DecodeError as protobuf's parser."""
    offset, at = 0, 0
    if message[:1] == bytes([_OFFSET]):
        offset, at = _varint(message, 1)
    if at >= 0 and message[at : at + 1] == bytes([_DATA]):
        size, at = _varint(message, at + 1)
        if at >= 0 and at + size == len(message):
            return UploadPiece(None, offset, memoryview(message)[at:])
    chunk = rounds_pb2.UploadChunk.FromString(message)
    header = chunk.header if chunk.HasField("header") else None
    return UploadPiece(header, chunk.offset, memoryview(chunk.data))


def piece_prefix(offset: int, size_bytes: int) -> bytes:
    """Return the bytes that make an `UploadChunk` of the data that follows them."""
    head = bytes([_OFFSET]) + _as_varint(offset) if offset else b""
    return head + bytes([_DATA]) + _as_varint(size_bytes)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a place and where it ends; -1 where none does that fits."""
    value = 0
    for shift, byte in enumerate(message[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    return 0, -1


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
