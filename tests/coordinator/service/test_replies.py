"""Long replies: hashed once a round, however many devices of its cohort ask at the same time."""

from __future__ import annotations

import asyncio

import numpy as np

from coordinator.service.replies import ReplyStreams
from mien.protocol.replies import INLINE_BYTES
from tests.helpers import run

LONG = {"momentum": np.ones(INLINE_BYTES, np.float32)}


def test_the_same_arrays_are_one_stream_for_all_who_ask_at_once() -> None:
    async def story() -> None:
        streams = ReplyStreams()
        (_, first), *others = await asyncio.gather(*(streams.split(LONG) for _ in range(20)))
        assert first is not None
        assert all(stream is first for _, stream in others)

    run(story())
