"""The emulated sum is the protocol's, bit for bit."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mien.errors import ConfigError, CorruptDataError
from mien.secagg.emulation import EmulatedSum
from mien.secagg.keys import RandomBytes
from mien.secagg.planner import plan_numbers
from mien.specs import DpSpec
from tests.mien.secagg.cohort import Cohort, drbg, make_config, people


class Recorded:
    """A source of known bytes that remembers the last ones it gave: a device draws its rounding seed last."""

    def __init__(self, source: RandomBytes) -> None:
        self._source = source
        self.last = b""

    def __call__(self, size: int) -> bytes:
        self.last = self._source(size)
        return self.last


@settings(max_examples=15, deadline=None)
@given(n=st.integers(3, 7), ring_bits=st.sampled_from([24, 32]), clip=st.sampled_from([0.5, 100.0]))
def test_the_emulated_sum_is_the_protocols_bit_for_bit(n: int, ring_bits: int, clip: float) -> None:
    """Also where updates are clipped (norm about 6 under a clip of 0.5) and with a device lost after sharing."""
    numbers = plan_numbers(n, l2_clip=clip, max_weight=8, ring_bits=ring_bits)
    config = replace(make_config(n), numbers=numbers)
    cohort = Cohort.of(config, people(n), lost={5: [0]} if n > 5 else {})
    sources = {}
    for identity, device in cohort.devices.items():
        sources[identity] = Recorded(drbg(identity.hex()))
        device._random_bytes = sources[identity]
    opened = cohort.run().sum
    emulated = EmulatedSum(config)
    for identity in cohort.payloads:
        seed = sources[identity].last
        emulated.add(cohort.addends[identity], DpSpec(), lambda size, seed=seed: seed[:size])
    again = emulated.open()
    assert np.array_equal(again.update, opened.update)
    for each in fields(opened):  # from Python 3.13 on, records with arrays do not compare, not even with themselves
        if each.name != "update":
            assert getattr(again, each.name) == getattr(opened, each.name), each.name


def test_what_the_server_would_refuse_is_refused() -> None:
    config = make_config(4)
    emulated = EmulatedSum(config)
    emulated._words[0] = 1
    with pytest.raises(CorruptDataError):
        emulated.open()


def test_sums_of_different_rounds_are_not_added() -> None:
    with pytest.raises(ConfigError, match="different rounds"):
        EmulatedSum(make_config(4)).merge(EmulatedSum(make_config(5)))
