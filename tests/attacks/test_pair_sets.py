"""Hostile and damaged `.bin` pair sets: a pickle is a program, and this reader runs none."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
from pathlib import Path

import numpy as np
import pytest

from mien.errors import CorruptDataError
from mien.evaluation.protocols.bins import parse_bin

GOOD = ([bytes([255, 216, i]) for i in range(20)], [i % 2 == 0 for i in range(10)])


class Runs:
    """Something that runs a command when it is unpickled by the standard library."""

    def __init__(self, function: object, *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> object:
        return self._call


@pytest.mark.parametrize("protocol", range(6))
def test_no_command_is_run(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "ran"
    for call in (
        Runs(os.system, f"touch {trace}"),
        Runs(eval, f"open({str(trace)!r}, 'w')"),
        Runs(exec, "1"),
        Runs(print),
    ):
        for content in (call, (call, GOOD[1]), ([call] * 20, GOOD[1]), ([*GOOD[0]], [call] * 10)):
            with pytest.raises(CorruptDataError, match="which no pair set needs"):
                parse_bin(pickle.dumps(content, protocol))
    assert not trace.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy\nfromfile\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nfrombuffer\n(tR.",
        b"cmien.evaluation.protocols.bins\nparse_bin\n(tR.",
        b"ios\nsystem\n.",
        b"(S'true'\nios\nsystem\n.",
        b"Pid\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.tofile\x93.",
    ],
)
def test_names_outside_the_list_are_refused_by_every_opcode(program: bytes) -> None:
    with pytest.raises(CorruptDataError):
        parse_bin(program)


def array_state(shape: object, code: bytes, content: object) -> bytes:
    """Return a protocol-2 pickle of one array with this state, built by the standard pickler from parts."""

    class Dtype:
        def __reduce__(self) -> object:
            return np.dtype, (code.decode(), False, True)

    class Array:
        def __reduce__(self) -> object:
            reconstruct = np.array([1]).__reduce__()[0]
            return reconstruct, (np.ndarray, (0,), b"b"), (1, shape, Dtype(), False, content)

    return pickle.dumps((Array(), [True] * 10), 2)


@pytest.mark.parametrize(
    ("shape", "code", "content"),
    [
        ((2**40,), b"b1", b"\1" * 10),
        ((-1,), b"b1", b""),
        ((2, 5), b"b1", b"\1" * 10),
        ((10,), b"i8", b"\1" * 10),
        ((10,), b"f8", b"\1" * 80),
        ((10,), b"V8", b"\1" * 80),
        ((10,), b"O", b"\1" * 80),
        (("10",), b"b1", b"\1" * 10),
        (10, b"b1", b"\1" * 10),
    ],
)
def test_arrays_that_lie_about_themselves(shape: object, code: bytes, content: object) -> None:
    with pytest.raises(CorruptDataError):
        parse_bin(array_state(shape, code, content))


def test_arrays_of_objects_are_no_images_and_no_flags() -> None:
    objects = np.array([b"x", None] * 5, dtype=object)
    for content in ((objects, GOOD[1]), ([objects] * 20, GOOD[1]), (GOOD[0], objects)):
        with pytest.raises(CorruptDataError):
            parse_bin(pickle.dumps(content, 2))


def test_memory_is_not_taken_on_a_pickles_word() -> None:
    # numpy's own _reconstruct would allocate this shape before any state is seen.
    program = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(L1099511627776L\ntS'b'\ntR."
    with pytest.raises(CorruptDataError, match="does not hold a pair"):
        parse_bin(program)
    longer_than_the_file = b"\x80\x04\x8e" + struct.pack("<Q", 2**50) + b"abc."
    with pytest.raises(CorruptDataError):
        parse_bin(longer_than_the_file)
    # The standard library's machine makes its memo as large as the place that a program names: 16 GiB here.
    with pytest.raises(CorruptDataError):
        parse_bin(b"\x80\x02]r" + struct.pack("<I", 2**30) + b".")
    with pytest.raises(CorruptDataError):
        parse_bin(b"\x80\x05\x96" + struct.pack("<Q", 2**30) + b"abc.")


def test_every_truncation_and_a_flip_of_any_byte_ends_in_one_error_or_in_pairs() -> None:
    data = pickle.dumps(GOOD, 2)
    for end in range(len(data)):
        with pytest.raises(CorruptDataError):
            parse_bin(data[:end])
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x41
        try:
            assert len(parse_bin(bytes(damaged)).mated) >= 10
        except CorruptDataError:
            continue


@pytest.mark.parametrize(
    "content",
    [
        None,
        7,
        (),
        ([], []),
        GOOD[0],
        (GOOD[0], GOOD[1][:9]),
        (GOOD[0][:18], GOOD[1]),
        (["text"] * 20, GOOD[1]),
        ([b""] * 20, GOOD[1]),
        (GOOD[0], [2] * 10),
        (GOOD[0], ["yes"] * 10),
        (GOOD[0], [0.0] * 10),
        (dict.fromkeys(range(20), b"x"), GOOD[1]),
        (GOOD[0][:18], GOOD[1][:9]),
    ],
)
def test_wrong_content_is_refused(content: object) -> None:
    with pytest.raises(CorruptDataError):
        parse_bin(pickle.dumps(content, 2))


def test_a_pickle_that_refers_to_itself_is_no_endless_loop() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(CorruptDataError):
        parse_bin(pickle.dumps((loop, loop), 2))
    nested = b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b"."
    with pytest.raises(CorruptDataError):
        parse_bin(nested)


def test_the_message_names_the_file_and_shows_no_content() -> None:
    buffer = io.BytesIO()
    pickle.dump(Runs(os.system, "secret"), buffer)
    assert "system" in {arg for _, arg, _ in pickletools.genops(buffer.getvalue()) if isinstance(arg, str)}
    with pytest.raises(CorruptDataError, match=r"lfw\.bin") as caught:
        parse_bin(buffer.getvalue(), "lfw.bin")
    assert "secret" not in str(caught.value)
