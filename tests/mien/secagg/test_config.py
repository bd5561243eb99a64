"""The configuration has one sequence of bytes, and no impossible terms."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from mien.errors import ConfigError, CorruptDataError, MienError, VersionError
from mien.secagg import CohortTerms, Mechanism, NoiseTerms, NumberFormat, Profile, RoundConfig, StageDeadlines, Suite
from mien.secagg.config import CONFIG_BYTES
from tests.mien.secagg import reference
from tests.mien.secagg.cohort import make_config

CONFIG = make_config(40)


def test_the_layout_written_out() -> None:
    config = replace(
        CONFIG,
        suite=Suite.ED25519,
        numbers=NumberFormat(24, 11, 0.5, 0.25, 1, 16.0, 6),
        cohort=CohortTerms(Profile.HONEST_BUT_CURIOUS, 16, 40, 20, 14),
        noise=NoiseTerms(Mechanism.SKELLAM, 1.5, 8.0, 2.0**-20),
        deadlines=StageDeadlines(1, 2, 3, 4, 5),
    )
    expected = b"\x02\x02\x02" + config.task_id + config.task_sha256
    expected += (7).to_bytes(8, "big") + (1).to_bytes(2, "big")
    expected += config.model_sha256 + config.layout_sha256 + config.statement_sha256
    expected += (7).to_bytes(4, "big") + b"\x02" + bytes([24, 11, 6])
    expected += b"".join(struct.pack(">f", value) for value in (0.5, 0.25, 16.0))
    expected += b"".join(value.to_bytes(2, "big") for value in (1, 16, 40, 20, 14))
    expected += b"\x02" + b"".join(struct.pack(">f", value) for value in (1.5, 8.0, 2.0**-20))
    expected += b"".join(value.to_bytes(4, "big") for value in (1, 2, 3, 4, 5))
    assert config.to_bytes() == expected
    assert len(expected) == CONFIG_BYTES
    assert config.sha256 == reference.tagged_hash("cfg", expected)
    assert RoundConfig.from_bytes(expected) == config


def test_every_byte_matters() -> None:
    """A changed byte is another configuration or none, and never this one's hash."""
    data, refused = CONFIG.to_bytes(), 0
    for position in range(len(data)):
        changed = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        try:
            assert RoundConfig.from_bytes(changed).sha256 != CONFIG.sha256
        except MienError:
            refused += 1
    assert refused > 5


@pytest.mark.parametrize("data", [b"", b"\x02", CONFIG.to_bytes()[:-1], CONFIG.to_bytes() + b"\0"])
def test_another_length_is_refused(data: bytes) -> None:
    with pytest.raises((CorruptDataError, VersionError)):
        RoundConfig.from_bytes(data)


@pytest.mark.parametrize(("position", "value"), [(0, 1), (1, 3), (2, 0)])
def test_unknown_versions_suites_and_profiles_ask_for_an_upgrade(position: int, value: int) -> None:
    data = bytearray(CONFIG.to_bytes())
    data[position] = value
    with pytest.raises(VersionError):
        RoundConfig.from_bytes(bytes(data))


def test_floats_that_are_not_canonical_are_refused() -> None:
    """-0.0 equals 0.0 but has other bytes."""
    data = CONFIG.to_bytes()
    position = len(data) - 5 * 4 - 3 * 4
    assert data[position : position + 4] == bytes(4)
    with pytest.raises(CorruptDataError, match="canonical"):
        RoundConfig.from_bytes(data[:position] + b"\x80\0\0\0" + data[position + 4 :])  # fixed data


@pytest.mark.parametrize(
    "changes",
    [
        {"task_id": b"short"},
        {"model_sha256": b"short"},
        {"round": -1},
        {"attempt": 65536},
        {"size": 0},
        {"size": 1 << 30},
        {"num_metrics": 256},
        {"noise": NoiseTerms(Mechanism.CENTRAL_GAUSSIAN, 1.0, 8.0, 1e-5)},  # weights above 1 with noise
        {"numbers": replace(CONFIG.numbers, frac_bits=24)},  # 40 devices of weight 64 wrap
        {"cohort": CohortTerms(Profile.MALICIOUS_SERVER, 3, 5000)},  # so do 5000
    ],
)
def test_impossible_terms_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(CONFIG, **changes)


@pytest.mark.parametrize(
    "terms",
    [
        (1, 9),
        (10, 9),
        (3, 5001),
        (3, 9, 4, 0),
        (3, 9, 0, 3),
        (3, 9, 4, 2),
        (3, 9, 4, 5),
        (3, 99, 41, 30),
        (3, 9, 256, 200),
    ],
)
def test_impossible_cohorts_are_refused(terms: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        CohortTerms(Profile.MALICIOUS_SERVER, *terms)


@pytest.mark.parametrize(
    "terms",
    [
        (Mechanism.NONE, 1.0, 0.0, 0.0),
        (Mechanism.SKELLAM, 0.0, 1.0, 1e-5),
        (Mechanism.SKELLAM, 1.0, 1.0, 0.0),
        (Mechanism.SKELLAM, -1.0, 1.0, 1e-5),
        (Mechanism.SKELLAM, float("nan"), 1.0, 1e-5),
        (Mechanism.SKELLAM, float("inf"), 1.0, 1e-5),
    ],
)
def test_noise_is_named_whole_or_not_at_all(terms: tuple[Mechanism, float, float, float]) -> None:
    with pytest.raises(ConfigError):
        NoiseTerms(*terms)


def test_devices_noise_takes_room_in_the_ring() -> None:
    numbers = NumberFormat(32, 16, 1.0, 1.0, 1)
    loud = NoiseTerms(Mechanism.SKELLAM, 4.0, 8.0, 1e-5)
    config = replace(CONFIG, numbers=numbers, noise=loud)
    # 16 * 4 * 2^16 * sqrt(40), rounded up, and 64.
    assert config.noise_bound == 26527108 + 64
    assert (
        CONFIG.noise_bound
        == replace(config, noise=replace(loud, mechanism=Mechanism.CENTRAL_GAUSSIAN)).noise_bound
        == 0
    )
    with pytest.raises(ConfigError, match="ring of 32 bits"):
        replace(config, noise=replace(loud, noise_multiplier=400.0))


def test_deadlines_are_positive() -> None:
    with pytest.raises(ConfigError):
        StageDeadlines(upload_s=0)


def test_terms_that_an_earlier_version_kept_are_read() -> None:
    """A phone's log of sums outlives the protocol; an invite of that version is refused all the same."""
    earlier = b"\x01" + CONFIG.to_bytes()[1:]
    assert RoundConfig.from_kept(earlier) == RoundConfig.from_kept(CONFIG.to_bytes()) == CONFIG
    for read in (RoundConfig.from_bytes, lambda data: RoundConfig.from_kept(b"\x00" + data[1:])):
        with pytest.raises(VersionError):
            read(earlier)
