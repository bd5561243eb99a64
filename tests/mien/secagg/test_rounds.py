"""Whole attempts: whoever vanishes whenever, the sum is exact or nothing is released."""

from __future__ import annotations

import tracemalloc
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mien.errors import (
    CohortError,
    CorruptDataError,
    LateError,
    MienError,
    NotFoundError,
    ReplayError,
    ViolationError,
)
from mien.secagg import Addends, CohortTerms, Opening, Profile, RoundConfig, ServerRound, ServerStage, Suite
from mien.secagg.masks import WordStream
from mien.secagg.planner import plan_numbers
from tests.mien.secagg import reference
from tests.mien.secagg.cohort import Cohort, drbg, make_config, people, verify

MALICIOUS, CURIOUS = Profile.MALICIOUS_SERVER, Profile.HONEST_BUT_CURIOUS
STAGES = (1, 3, 5, 7, 9)


def integer_sum(cohort: Cohort, survivors: Collection[bytes]) -> tuple[list[int], list[int]]:
    """Return the plain integer sums of rounded updates and metrics, replaying each device's chance."""
    config, hood = cohort.config, cohort.server.topology.hood
    numbers = config.numbers
    updates, metrics = [0] * config.size, [0] * config.num_metrics
    for device in survivors:
        draw = drbg(f"{device.hex()}/{config.round}/{config.attempt}")
        for size in (32, 32, 64, 32, 32, (hood.t - 1) * 32, (hood.t - 1) * 32):
            draw(size)
        words = [int(word) for word in WordStream(draw(32)).take(config.num_metrics + config.size)]
        addends = cohort.addends[device]
        for i, metric in enumerate(addends.metrics):
            q = reference.quantise(metric, numbers.metric_bound, numbers.metric_frac_bits, words[i])
            metrics[i] += addends.weight * q
        for i, value in enumerate(addends.update):
            q = reference.quantise(
                float(value), numbers.coordinate_clip, numbers.frac_bits, words[config.num_metrics + i]
            )
            updates[i] += addends.weight * q
    return updates, metrics


def assert_exact(cohort: Cohort, opening: Opening) -> None:
    """The total is the integer sum bit for bit, and the plain sum within the rounding's bound."""
    numbers, opened = cohort.config.numbers, opening.sum
    updates, metrics = integer_sum(cohort, opening.survivors)
    assert (opened.update * 2**numbers.frac_bits).tolist() == updates
    assert [m * 2**numbers.metric_frac_bits for m in opened.metrics] == metrics
    addends = [cohort.addends[device] for device in opening.survivors]
    assert (opened.count, opened.weight) == (len(addends), sum(a.weight for a in addends))
    plain = sum(a.weight * a.update.astype(np.float64) for a in addends)
    assert np.abs(opened.update - plain).max() <= opened.weight * numbers.max_error
    assert np.abs(opened.mean - plain / opened.weight).max() <= numbers.max_error


def survivors_of(config: RoundConfig, lost: Mapping[int, Collection[int]], n: int) -> int | None:
    """Return how many vectors a sum over a complete graph holds, or None where it must not be opened.

    From the rules alone: everybody holds a share of everybody else's secrets, t of them are needed.
    """
    gone: set[int] = set()
    alive = {}
    for stage in STAGES:
        gone |= set(lost.get(stage, ()))
        alive[stage] = n - len(gone)
    n_min, malicious = config.cohort.n_min, config.cohort.profile is MALICIOUS
    if alive[1] < max(n_min, 3):
        return None
    t = -(-2 * alive[1] // 3) if malicious else (alive[1] - 1) // 2 + 1
    if min(alive[3], alive[5]) < n_min or any(count - 1 < t for count in alive.values()):
        return None
    return alive[5]


# Mostly few losses, so that about half of the attempts succeed.
drops = st.lists(st.sampled_from([0] * 24 + [1, 3, 5, 7, 9]), min_size=3, max_size=24)


@pytest.mark.parametrize("profile", Profile)
@settings(max_examples=30, deadline=None)
@given(pattern=drops, n_min=st.integers(3, 6))
def test_whoever_vanishes_the_sum_is_exact_or_nothing_is_released(
    profile: Profile, pattern: list[int], n_min: int
) -> None:
    n = len(pattern)
    lost = {stage: [i for i, at in enumerate(pattern) if at == stage] for stage in STAGES}
    if profile is CURIOUS:  # it has no stage 7
        lost = {**lost, 9: [*lost[7], *lost[9]], 7: []}
    config = make_config(n, profile=profile, n_min=min(n_min, n))
    cohort = Cohort.of(config, people(n), lost)
    expected = survivors_of(config, lost, n)
    if expected is None:
        with pytest.raises(CohortError):
            cohort.run()
        assert not cohort.server.can_open
        return
    opening = cohort.run()
    assert opening.sum.count == expected
    assert opening.suspects == ()
    assert_exact(cohort, opening)


@settings(max_examples=15, deadline=None)
@given(pattern=st.lists(st.sampled_from([0] * 9 + [1, 3, 5, 7, 9]), min_size=14, max_size=24))
def test_sparse_graphs_lose_devices_too(pattern: list[int]) -> None:
    """8 neighbours, 6 shares: a device whose neighbours vanish leaves, or makes the round abort; never a wrong sum."""
    n = len(pattern)
    lost = {stage: [i for i, at in enumerate(pattern) if at == stage] for stage in STAGES}
    config = replace(make_config(n), cohort=CohortTerms(MALICIOUS, 3, n, 8, 6))
    cohort = Cohort.of(config, people(n), lost)
    try:
        opening = cohort.run()
    except CohortError:
        assert sum(len(gone) for gone in lost.values()) >= 2
        return
    assert_exact(cohort, opening)


@pytest.mark.parametrize("n", [3, 5, 9, 16, 24, 40])
def test_without_losses_every_size_works(n: int) -> None:
    cohort = Cohort.of(make_config(n), people(n))
    opening = cohort.run()
    assert opening.sum.count == n
    assert_exact(cohort, opening)


@pytest.mark.parametrize("stage", STAGES)
def test_all_but_t_may_vanish_at_any_stage(stage: int) -> None:
    """24 devices, t = 16: 17 must stay, so that each secret has 16 holders besides its owner."""
    lost = list(range(7))
    if stage == 1:  # then the roster is smaller, and so is its t
        cohort = Cohort.of(make_config(24), people(24), {1: lost})
        assert cohort.run().sum.count == 17
        return
    cohort = Cohort.of(make_config(24), people(24), {stage: lost})
    opening = cohort.run()
    assert opening.sum.count == (24 if stage >= 7 else 17)
    assert_exact(cohort, opening)
    with pytest.raises(CohortError):
        Cohort.of(make_config(24), people(24), {stage: [*lost, 7]}).run()


def test_two_lost_neighbours_leave_no_mask_behind() -> None:
    """Their common mask is in nobody's vector."""
    cohort = Cohort.of(make_config(12), people(12), {5: [3, 4]})
    assert_exact(cohort, cohort.run())


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("ring_bits", [24, 32])
def test_both_suites_and_both_rings(suite: Suite, ring_bits: int) -> None:
    numbers = plan_numbers(9, l2_clip=100.0, max_weight=8, ring_bits=ring_bits)
    config = make_config(9, suite=suite, numbers=numbers)
    cohort = Cohort.of(config, people(9, suite), {3: [1], 5: [2]}, threads=2)
    assert_exact(cohort, cohort.run())


def test_a_large_cohort_with_merkle_paths() -> None:
    """257 devices: the roster goes out in its sparse form, the graph has 24 neighbours."""
    config = replace(make_config(257), cohort=CohortTerms(MALICIOUS, 16, 257, 24, 21))
    cohort = Cohort.of(config, people(257), {3: [5], 5: [100], 9: [200]})
    opening = cohort.run()
    assert opening.sum.count == 255
    assert_exact(cohort, opening)


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(7)))
def test_the_order_of_arrival_does_not_matter(order: list[int]) -> None:
    config = make_config(7)
    in_order, permuted = Cohort.of(config, people(7)), Cohort.of(config, people(7))
    rank = {people(7)[number].id: place for place, number in enumerate(order)}
    permuted.devices = dict(sorted(permuted.devices.items(), key=lambda item: rank[item[0]]))
    permuted.alive = lambda stage: list(permuted.devices)  # type: ignore[method-assign]
    a, b = in_order.run(), permuted.run()
    assert a.survivors == b.survivors
    assert np.array_equal(a.sum.update, b.sum.update)


def test_addends_commute_across_devices() -> None:
    """Exchanging two devices' addends changes their vectors but, rounding aside, not the sum."""
    config = make_config(5)
    config = replace(config, numbers=replace(config.numbers, frac_bits=20, max_weight=1))
    first, second = Cohort.of(config, people(5)), Cohort.of(config, people(5))
    a, b = sorted(second.addends)[:2]
    second.addends[a], second.addends[b] = second.addends[b], second.addends[a]
    one, other = first.run(), second.run()
    assert np.abs(one.sum.update - other.sum.update).max() <= 4 * 2.0**-20
    assert first.payloads[a] != second.payloads[a]


# Delivery: repeats, strangers, the wrong moment


def test_the_same_message_again_is_welcome_and_counts_once() -> None:
    config = make_config(6)
    cohort = Cohort.of(config, people(6))
    server = cohort.server
    proofs = cohort.agree(cohort.mask(cohort.share(cohort.advertise())))
    opening = cohort.unmask(proofs)
    for (kind, device), message in list(cohort.wire.items()):
        if kind == 1:
            server.accept_advertise(device, message)
        elif kind == 3:
            server.accept_shares(device, message)
        elif kind == 5:
            server.accept_masked(device, message, cohort.payloads[device])
        elif kind == 7:
            server.accept_consistency(device, message)
        elif kind == 9:
            server.accept_unmask(device, message)
    again = server.open()
    assert np.array_equal(again.sum.update, opening.sum.update)
    assert again.sum.count == 6
    assert_exact(cohort, again)


def test_other_bytes_for_the_same_step_are_a_replay() -> None:
    config = make_config(6)
    cohort = Cohort.of(config, people(6))
    device = sorted(cohort.devices)[0]
    cohort.server.accept_advertise(device, cohort.send(1, device, cohort.devices[device].advertise()))
    again = Cohort.of(config, people(6), random_bytes=drbg("other chance"))
    with pytest.raises(ReplayError):
        cohort.server.accept_advertise(device, again.devices[device].advertise())


def test_messages_out_of_turn_are_refused_and_change_nothing() -> None:
    cohort = Cohort.of(make_config(6), people(6))
    server = cohort.server
    device = sorted(cohort.devices)[0]
    for early in (server.accept_shares, server.accept_consistency, server.accept_unmask):
        with pytest.raises(ViolationError):
            early(device, b"\x01\x03")
    for close in (server.close_shares, server.close_upload, server.close_consistency, server.open):
        with pytest.raises(ViolationError):
            close()
    opening = cohort.run()
    assert opening.sum.count == 6
    assert server.stage is ServerStage.UNMASK
    stranger = people(7)[6]
    with pytest.raises(LateError):
        server.accept_advertise(stranger.id, b"\x01\x01")
    with pytest.raises(NotFoundError):
        server.accept_unmask(stranger.id, b"\x01\x09")


def test_a_full_round_takes_nobody_more() -> None:
    config = make_config(3)
    cohort = Cohort.of(config, people(4))
    with pytest.raises(LateError, match="all the devices"):
        cohort.advertise()


def test_whoever_was_left_out_of_the_sum_is_told_so() -> None:
    cohort = Cohort.of(make_config(9), people(9), {5: [0]})
    survivors = cohort.mask(cohort.share(cohort.advertise()))
    device = people(9)[0].id
    with pytest.raises(LateError, match="without this device"):
        cohort.server.accept_consistency(device, b"\x01\x07")
    assert cohort.unmask(cohort.agree(survivors)).sum.count == 8


def test_a_restarted_server_is_rebuilt_from_what_was_stored() -> None:
    cohort = Cohort.of(make_config(7), people(7), {5: [2]})
    opening = cohort.run()
    rebuilt = ServerRound(cohort.config, verify=verify)

    def replay(kind: int) -> None:
        accept = {1: rebuilt.accept_advertise, 3: rebuilt.accept_shares}
        accept |= {7: rebuilt.accept_consistency, 9: rebuilt.accept_unmask}
        for (at, device), message in cohort.wire.items():
            if at == kind == 5:
                rebuilt.accept_masked(device, message, cohort.payloads[device])
            elif at == kind:
                accept[kind](device, message)

    for kind, close in ((1, rebuilt.close_keys), (3, rebuilt.close_shares), (5, rebuilt.close_upload)):
        replay(kind)
        close()
    replay(7)
    rebuilt.close_consistency()
    replay(9)
    assert np.array_equal(rebuilt.open().sum.update, opening.sum.update)


def test_the_server_can_open_as_soon_as_every_secret_has_t_shares() -> None:
    cohort = Cohort.of(make_config(9), people(9), {5: [0]})
    proofs = cohort.agree(cohort.mask(cohort.share(cohort.advertise())))
    able = []
    for device, proof in proofs.items():
        cohort.server.accept_unmask(device, cohort.devices[device].unmask(proof))
        able.append(cohort.server.can_open)
        if not able[-1]:
            with pytest.raises(CohortError, match="nothing was opened"):
                cohort.server.open()
    # t = 6: the seventh answer gives every survivor's b six holders besides its owner.
    assert able == [False] * 6 + [True] * 2


# Uploads


def test_a_broken_upload_leaves_the_sum_as_it_was() -> None:
    config = make_config(6)
    cohort, broken = Cohort.of(config, people(6)), Cohort.of(config, people(6))
    expected = cohort.run()
    delivered = broken.share(broken.advertise())
    for device in sorted(delivered):
        masked = broken.devices[device].mask(delivered[device], broken.addends[device])
        payload = masked.payload
        spoiled = (
            payload[:-1],
            payload[:-4],
            payload + b"\0" * 4,
            b"",
            payload[:9] + bytes([payload[9] ^ 1]) + payload[10:],
        )
        for bad in spoiled:
            with pytest.raises(CorruptDataError, match="not complete"):
                broken.server.accept_masked(device, masked.message, bad)
        broken.payloads[device] = payload
        broken.server.accept_masked(device, masked.message, memoryview(payload))
    opening = broken.unmask(broken.agree(broken.server.close_upload()))
    assert np.array_equal(opening.sum.update, expected.sum.update)


def test_the_servers_memory_is_that_of_a_few_vectors() -> None:
    """20 devices of 0.4 MB each: the peak stays below five vectors, and does not grow with the cohort."""
    size = 100_000
    peaks = []
    for n in (6, 20):
        config = replace(make_config(n), size=size, num_metrics=0)
        config = replace(config, numbers=replace(config.numbers, l2_clip=1000.0))
        cohort = Cohort.of(config, people(n))
        delivered = cohort.share(cohort.advertise())
        tracemalloc.start()
        for device in sorted(delivered):
            tracemalloc.stop()
            masked = cohort.devices[device].mask(delivered[device], cohort.addends[device])
            tracemalloc.start()
            cohort.server.accept_masked(device, masked.message, masked.payload)
            cohort.payloads[device] = b""
            peaks.append(tracemalloc.get_traced_memory()[1])
        survivors = cohort.server.close_upload()
        proofs = cohort.agree(survivors)
        for device, proof in proofs.items():
            cohort.server.accept_unmask(device, cohort.devices[device].unmask(proof))
        tracemalloc.stop()
        tracemalloc.start()
        opening = cohort.server.open()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert opening.sum.count == n
    assert max(peaks) < 5 * 4 * size + 400_000  # the total's copy, and the result in float64 with its square


def test_an_update_that_is_not_finite_makes_a_drop_out() -> None:
    cohort = Cohort.of(make_config(9), people(9))
    delivered = cohort.share(cohort.advertise())
    device = sorted(cohort.devices)[0]
    bad = cohort.addends[device].update.copy()
    bad[0] = np.nan
    with pytest.raises(MienError, match="NaN"):
        cohort.devices[device].mask(delivered[device], Addends(1, bad, (0.0, 0.0)))
    assert cohort.devices[device].stage == "Left"
    opening = cohort.unmask(cohort.agree(cohort.mask(delivered)))
    assert opening.sum.count == 8
    assert_exact(cohort, opening)
