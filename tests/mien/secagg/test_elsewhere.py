"""One sum of which several machines hold the vectors: bit for bit the same, each vector once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest

from mien.errors import CorruptDataError, ViolationError
from mien.secagg import Elsewhere, ServerRound
from mien.secagg.masks import Words
from mien.secagg.quantise import unpack
from tests.mien.secagg.cohort import Cohort, make_config, people, verify


def held(payload: bytes) -> Elsewhere:
    return Elsewhere(hashlib.sha256(payload).digest(), len(payload))


def summed(cohort: Cohort, devices: Sequence[bytes]) -> Words:
    words = [unpack(cohort.payloads[device], cohort.config.numbers.ring_bits) for device in devices]
    return np.sum(words, axis=0, dtype=np.uint32)


def replayed(cohort: Cohort, here: Sequence[bytes]) -> ServerRound:
    """Return a server at its last stage that heard what the cohort's heard, but holds only the vectors of `here`."""
    server, wire = ServerRound(cohort.config, verify=verify), cohort.wire
    devices = sorted(cohort.devices)
    for device in devices:
        server.accept_advertise(device, wire[1, device])
    server.close_keys()
    for device in devices:
        server.accept_shares(device, wire[3, device])
    server.close_shares()
    for device in devices:
        payload = cohort.payloads[device]
        server.accept_masked(device, wire[5, device], payload if device in here else held(payload))
    server.close_upload()
    for device in devices:
        server.accept_consistency(device, wire[7, device])
    server.close_consistency()
    for device in devices:
        server.accept_unmask(device, wire[9, device])
    return server


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    cohort = Cohort.of(make_config(6), people(6))
    cohort.run()
    return cohort


def test_sums_of_three_machines_are_the_sum_of_one(cohort: Cohort) -> None:
    devices = sorted(cohort.devices)
    server = replayed(cohort, devices[:2])
    assert server.elsewhere == frozenset(devices[2:])
    assert server.can_open, "shares are one thing, vectors another"
    server.add_sum(devices[2:4], summed(cohort, devices[2:4]))
    with pytest.raises(ViolationError, match="2 vectors are not in the sum"):
        server.open()
    server.add_sum(devices[4:], summed(cohort, devices[4:]))
    opened, expected = server.open().sum, cohort.server.open().sum
    assert opened.update.tobytes() == expected.update.tobytes()
    assert (opened.count, opened.weight, opened.metrics) == (expected.count, expected.weight, expected.metrics)


def test_no_vector_is_added_twice_or_unasked(cohort: Cohort) -> None:
    devices = sorted(cohort.devices)
    server = replayed(cohort, devices[:2])
    pair = summed(cohort, devices[2:4])
    with pytest.raises(ViolationError):
        server.add_sum(devices[1:3], pair)  # one is in the sum already
    with pytest.raises(ViolationError):
        server.add_sum([devices[2], devices[2]], pair)
    with pytest.raises(CorruptDataError):
        server.add_sum(devices[2:4], pair[:-1])
    server.add_sum(devices[2:4], pair)
    with pytest.raises(ViolationError):
        server.add_sum(devices[2:4], pair)
    server.add_sum(devices[4:], summed(cohort, devices[4:]))
    assert server.open().sum.update.tobytes() == cohort.server.open().sum.update.tobytes()


def test_another_vector_than_the_device_signed_does_not_count(cohort: Cohort) -> None:
    devices = sorted(cohort.devices)
    server, wire = ServerRound(cohort.config, verify=verify), cohort.wire
    for device in devices:
        server.accept_advertise(device, wire[1, device])
    server.close_keys()
    for device in devices:
        server.accept_shares(device, wire[3, device])
    server.close_shares()
    good = held(cohort.payloads[devices[0]])
    for wrong in (Elsewhere(bytes(32), good.size_bytes), Elsewhere(good.sha256, good.size_bytes - 1)):
        with pytest.raises(CorruptDataError):
            server.accept_masked(devices[0], wire[5, devices[0]], wrong)
    assert server.elsewhere == frozenset()
