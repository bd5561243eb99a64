"""Pieces of an upload: what our parser reads is what protobuf's reads, whatever the bytes."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from mien.protocol.uploads import parse_piece, piece_prefix
from mien.protocol.v1 import common_pb2, rounds_pb2

OFFSETS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, 2**14, 2**32, 2**63])


def said(message: bytes) -> tuple[bytes | None, int, bytes] | None:
    """Return what protobuf reads of a message, None where it refuses it."""
    try:
        chunk = rounds_pb2.UploadChunk.FromString(message)
    except DecodeError:
        return None
    return chunk.header.SerializeToString() if chunk.HasField("header") else None, chunk.offset, chunk.data


def read(message: bytes) -> tuple[bytes | None, int, bytes] | None:
    try:
        piece = parse_piece(message)
    except DecodeError:
        return None
    return None if piece.header is None else piece.header.SerializeToString(), piece.offset, bytes(piece.data)


@given(OFFSETS, st.binary(max_size=300))
def test_pieces_are_read_as_protobuf_reads_them(offset: int, data: bytes) -> None:
    message = rounds_pb2.UploadChunk(offset=offset, data=data).SerializeToString()
    assert read(message) == said(message) == (None, offset, data)


@given(st.binary(max_size=40))
@example(b"")
@example(b"\x10")
@example(b"\x1a")
@example(b"\x10\x05")
@example(b"\x1a\x00")
@example(b"\x1a\x02a")  # cut short
@example(b"\x1a\x01ab")  # one byte more
@example(b"\x1a\x80\x00")  # a length in more bytes than it needs
@example(b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x1a\x01a")  # beyond 64 bits
@example(b"\x10\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x1a\x01a")  # no number at all
@example(b"\x1a\x01a\x10\x05")  # the other order
@example(b"\x10\x05\x10\x06\x1a\x01a")  # an offset twice: the last counts
def test_whatever_arrives_is_read_as_protobuf_reads_it(message: bytes) -> None:
    assert read(message) == said(message)


@given(OFFSETS, st.binary(max_size=40), st.data())
def test_pieces_that_are_a_little_off_are_read_as_protobuf_reads_them(
    offset: int, data: bytes, draw: st.DataObject
) -> None:
    message = bytearray(rounds_pb2.UploadChunk(offset=offset, data=data).SerializeToString() or b"\x10\x01")
    message[draw.draw(st.integers(0, len(message) - 1))] = draw.draw(st.integers(0, 255))
    assert read(bytes(message)) == said(bytes(message))


def test_a_header_comes_along() -> None:
    header = rounds_pb2.UploadHeader(contribution=common_pb2.BlobRef(sha256="ab", size_bytes=7), masked=b"m")
    piece = parse_piece(rounds_pb2.UploadChunk(header=header, offset=3, data=b"xyz").SerializeToString())
    assert piece.header == header
    assert (piece.offset, bytes(piece.data)) == (3, b"xyz")


def test_the_bytes_are_not_copied() -> None:
    message = rounds_pb2.UploadChunk(offset=1, data=bytes(1000)).SerializeToString()
    assert parse_piece(message).data.obj is message


@pytest.mark.parametrize("offset", [0, 1, 127, 128, 262_144, 2**40])
@pytest.mark.parametrize("size", [0, 1, 127, 128, 300])
def test_a_prefix_makes_a_piece_of_the_bytes_behind_it(offset: int, size: int) -> None:
    message = piece_prefix(offset, size) + bytes(size)
    chunk = rounds_pb2.UploadChunk.FromString(message)
    assert (chunk.offset, chunk.data) == (offset, bytes(size))
