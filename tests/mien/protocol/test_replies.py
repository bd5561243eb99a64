"""Replies: what stays in the message, and a stream that is the safetensors blob of its arrays from any byte on."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import safetensors.numpy

from mien.errors import CorruptDataError, ViolationError
from mien.protocol import CHUNK_BYTES
from mien.protocol.replies import INLINE_BYTES, SHORT_BYTES, TensorStream, check_reply, longest_reply, split_reply

ARRAYS = {
    "momentum": np.arange(CHUNK_BYTES // 4 + 500, dtype=np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "rows": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
}


def test_a_stream_is_what_another_reader_takes_for_the_same_arrays() -> None:
    stream = TensorStream(ARRAYS)
    data = b"".join(stream.pieces())
    assert len(data) == stream.size_bytes
    assert hashlib.sha256(data).hexdigest() == stream.sha256
    read = safetensors.numpy.load(data)
    assert read.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        np.testing.assert_array_equal(read[name], values)


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 200, CHUNK_BYTES, CHUNK_BYTES + 300])
def test_a_stream_goes_on_from_any_byte(offset: int) -> None:
    stream = TensorStream(ARRAYS)
    pieces = list(stream.pieces(offset))
    assert b"".join(pieces) == b"".join(stream.pieces())[offset:]
    assert max(map(len, pieces)) <= CHUNK_BYTES
    assert list(stream.pieces(stream.size_bytes)) == []


def test_equal_arrays_have_one_name_whatever_their_order() -> None:
    assert TensorStream(ARRAYS).sha256 == TensorStream(dict(reversed(ARRAYS.items()))).sha256
    changed = {**ARRAYS, "rows": ARRAYS["rows"] + 1}
    assert TensorStream(changed).sha256 != TensorStream(ARRAYS).sha256


def test_a_short_reply_stays_in_the_message() -> None:
    reply = {"phi": np.zeros(INLINE_BYTES // 4, np.float32)}
    assert split_reply(reply) == (reply, {})


def test_only_long_arrays_are_streamed() -> None:
    reply = {"control": np.zeros(INLINE_BYTES // 4, np.float32), "round": np.ones(1, np.float32)}
    short, long = split_reply(reply)
    assert (short.keys(), long.keys()) == ({"round"}, {"control"})


def test_very_many_short_arrays_are_streamed_too() -> None:
    reply = {f"row {k}": np.zeros(SHORT_BYTES // 4, np.float32) for k in range(INLINE_BYTES // SHORT_BYTES + 1)}
    short, long = split_reply(reply)
    assert short == {}
    assert long.keys() == reply.keys()


def test_a_reply_may_be_about_as_long_as_a_contribution() -> None:
    assert 4 * 1000 < longest_reply(1000) < 4 * 1000 + 2**20
    assert TensorStream({"control": np.zeros(1000, np.float32)}).size_bytes < longest_reply(1000)


NAMES = ("rows", "a", "b", "c")


def test_a_device_takes_no_array_that_its_task_does_not_name() -> None:
    told = {"a": np.zeros(1, np.float32), "class_embedding": np.zeros(1, np.float32)}
    with pytest.raises(ViolationError, match=r"told 'class_embedding', .* one phone's update out of the sum"):
        check_reply(told, names=("a",), most_bytes=100)
    check_reply(told, names=told, most_bytes=100)


def test_a_device_takes_finite_float32_arrays_and_lists_that_are_yet_empty() -> None:
    check_reply(ARRAYS, names=ARRAYS, most_bytes=longest_reply(ARRAYS["momentum"].size + 500))
    check_reply({}, names=(), most_bytes=0)
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(CorruptDataError, match="'rows', which is not finite float32"):
            check_reply({"rows": np.array([[0, bad]], np.float32)}, names=NAMES, most_bytes=100)
    for other in (np.ones(1), np.ones(1, np.int32), np.ones(0, np.float32), np.ones((3, 0), np.float32)):
        with pytest.raises(CorruptDataError, match="'rows', which is not finite float32"):
            check_reply({"rows": other}, names=NAMES, most_bytes=100)


def test_a_device_takes_no_more_than_the_bound_whatever_the_number_of_arrays() -> None:
    half = np.zeros(INLINE_BYTES // 8, np.float32)
    check_reply({"a": half, "b": half}, names=NAMES, most_bytes=100)
    with pytest.raises(CorruptDataError, match=rf"told {INLINE_BYTES + 4} bytes, .* more than {INLINE_BYTES};"):
        check_reply({"a": half, "b": half, "c": half[:1]}, names=NAMES, most_bytes=100)
    check_reply({"a": half, "b": half, "c": half[:1]}, names=NAMES, most_bytes=INLINE_BYTES + 4)
