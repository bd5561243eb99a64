"""The benchmark of secure aggregation: Flower's round adds up, and its absence is said, not raised."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import _flower, secagg
from mien.secagg import CohortTerms, Profile

SHAPE = _flower.Shape(n=10, t=7, lost=2, size=1000)
NAMES = """mask_s add_s mod_s quantise_s agree_s key_pair_s share_key_s share_seed_s combine_key_s combine_seed_s
encrypt_s decrypt_s pack_s unpack_s"""
ONE_EACH = dict.fromkeys(NAMES.split(), 1.0)


def test_a_round_is_composed_with_flowers_own_counts() -> None:
    """8 survivors, 2 lost with 9 pair masks each: 16 + 10 + 18 + 2 (18 + 8); a device: 2 + 18 + 2 + 18 + 1 + 22."""
    composed = _flower.composed(ONE_EACH, SHAPE)
    assert composed["flower_counts"] == {
        "uploads": 8,
        "keys_combined": 2,
        "seeds_combined": 8,
        "agreements": 18,
        "masks": 26,
        "device_masks": 10,
        "device_agreements": 18,
    }
    assert composed["flower_server_s"] == 16 + 10 + 18 + 52
    assert composed["flower_device_s"] == 20 + 20 + 1 + 22


def test_where_flower_cannot_be_installed_the_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mien").write_text("a file where the cache should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = _flower.measure(SHAPE, SHAPE, repetitions=1)
    assert isinstance(found, _flower.Unavailable)
    assert "ended with" in found.reason or "Error" in found.reason


def test_a_round_is_measured_and_its_sum_checked() -> None:
    config = secagg._config(5, CohortTerms(Profile.MALICIOUS_SERVER, 3, 5), size=500, ring_bits=24)
    found = secagg.measure(config, lost=0, repetitions=1)
    assert found.num_masks == 5
    assert found.payload_bytes == 3 * (500 + 2 + 4)
    assert found.all_parties_s > 0
