"""Contributions that arrive: what is gathered before it is written stays in bounds, however small the pieces."""

from __future__ import annotations

import tracemalloc

import pytest

from coordinator.rounds.uploads import _Batch
from mien.protocol.uploads import parse_piece
from mien.protocol.v1 import rounds_pb2

BATCH_BYTES = 1024 * 1024


@pytest.mark.parametrize("piece_bytes", [1, 64, 4096])
def test_a_batch_takes_no_more_memory_than_it_counts(piece_bytes: int) -> None:
    message = rounds_pb2.UploadChunk(offset=2**40, data=bytes(piece_bytes)).SerializeToString()
    batch, sent = _Batch(), 0
    tracemalloc.start()
    try:
        while batch.memory_bytes < BATCH_BYTES and sent < 20_000:
            batch.add(parse_piece(bytes(bytearray(message))))  # a message of its own, as each that arrives
            sent += 1
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert batch.memory_bytes >= BATCH_BYTES, "pieces without end"
    assert taken < 1.1 * BATCH_BYTES
