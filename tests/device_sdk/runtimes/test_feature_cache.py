"""What a frozen trunk made of crops is remembered by their bytes, which are hashed once where they cannot change."""

from __future__ import annotations

import gc
import hashlib

import numpy as np
import pytest

from device_sdk.runtimes.feature_cache import FeatureCache

pytestmark = pytest.mark.numerics


def crops_of(seed: int, count: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), np.uint8)


def test_an_array_that_may_change_is_hashed_anew() -> None:
    cache, crops = FeatureCache(), crops_of(0)
    before = cache.digests(crops)
    crops[1] += 1
    after = cache.digests(crops)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]


def test_an_array_that_nobody_can_write_to_is_hashed_once_and_forgotten_with_it() -> None:
    cache, crops = FeatureCache(), crops_of(0)
    expected = [hashlib.sha256(crop.tobytes()).digest() for crop in crops]
    crops.flags.writeable = False
    first = cache.digests(crops)
    assert first == expected
    assert cache.digests(crops) is first
    del crops
    gc.collect()
    assert not cache._digests  # a new array at the same address must not be taken for the old one


def test_two_read_only_arrays_are_not_mixed_up() -> None:
    cache = FeatureCache()
    for seed in range(50):  # freed memory is handed out again: addresses repeat
        crops = crops_of(seed)
        crops.flags.writeable = False
        assert cache.digests(crops) == [hashlib.sha256(crop.tobytes()).digest() for crop in crops]


def test_features_of_a_known_crop_are_not_computed_again() -> None:
    cache, computed = FeatureCache(), []

    def compute(crops: np.ndarray) -> np.ndarray:
        computed.append(len(crops))
        return crops.reshape(len(crops), -1).astype(np.float32)

    crops = crops_of(1)
    plain = np.zeros(3, np.bool_)
    first = cache.features(b"trunk", crops, plain, compute)
    again = cache.features(b"trunk", crops[1:], plain[1:], compute)
    assert computed == [3]
    assert all(np.array_equal(a, b) for a, b in zip(first[1:], again, strict=True))
    mirrored = cache.features(b"trunk", crops[:1], np.ones(1, np.bool_), compute)
    assert computed == [3, 1]
    assert np.array_equal(mirrored[0], crops[0, :, ::-1].reshape(-1))
    cache.features(b"another trunk", crops, plain, compute)
    assert computed == [3, 1, 3]
