"""Messages of the protocol that are nearly right: fields of a real round, damaged, and the bytes of whole messages."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from tests.attacks.fuzz.mutations import mutate

Pool: TypeAlias = Mapping[str, Sequence[Any]]
"""Values that are valid somewhere, by the name of a field or of a message type."""

_NUMBERS: Final = (0, 1, 2, 7, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**63))
_DOUBLES: Final = (0.0, -1.0, 0.5, 1e308, float("inf"), float("nan"), 5e-324)
_TEXTS: Final = ("", "x", "x" * 5000, "é\u202e", "../../etc/passwd", "a\x00b", "'; DROP TABLE tasks; --", "%s%n", "[/]")
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


@st.composite
def encoded(draw: st.DrawFn, kind: Descriptor, pool: Pool) -> bytes:
    """Return a message's bytes: right in form, or right and then damaged."""
    message = GetMessageClass(kind)()
    rng = random.Random(draw(st.integers(0, 2**32)))
    fill(message, rng, pool)
    data = message.SerializeToString()
    return mutate(rng, data) if rng.random() < 0.25 else data


def fill(message: Message, rng: random.Random, pool: Pool, depth: int = 0) -> None:
    """Give most fields of a message a value; mostly one that is valid somewhere."""
    seeds = pool.get(message.DESCRIPTOR.name, ())
    if seeds and rng.random() < 0.7:
        message.CopyFrom(rng.choice(seeds))
        if rng.random() < 0.6:
            return
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.8:
            _fill(message, field, rng, pool, depth)


def _fill(message: Message, field: Any, rng: random.Random, pool: Pool, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return
    if field.is_repeated:
        values = getattr(message, field.name)
        for _ in range(rng.choice((0, 1, 2, 50))):
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                fill(values.add(), rng, pool, depth + 1)
            else:
                values.append(_scalar(field, rng, pool))
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if depth < 4:
            getattr(message, field.name).SetInParent()
            fill(getattr(message, field.name), rng, pool, depth + 1)
    else:
        setattr(message, field.name, _scalar(field, rng, pool))


def _scalar(field: Any, rng: random.Random, pool: Pool) -> Any:
    seeds = pool.get(field.name, ())
    is_bytes, is_text = field.type == FieldDescriptor.TYPE_BYTES, field.type == FieldDescriptor.TYPE_STRING
    if seeds and rng.random() < 0.7:
        value = rng.choice(seeds)
        if is_bytes and rng.random() < 0.4:
            return mutate(rng, value, seeds)
        return value
    if is_text:
        return rng.choice(_TEXTS)
    if is_bytes:
        return rng.randbytes(rng.choice((0, 1, 32, 4096)))
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values] + [99])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice(_DOUBLES)
    low, high = _RANGES[field.cpp_type]
    return min(max(rng.choice(_NUMBERS), low), high)
