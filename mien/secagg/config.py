"""Configuration of a masked round, and its canonical bytes.

The canonical bytes are message 0, and their hash is in every key, signature and commitment of the attempt: two devices
that were told different things have nothing in common. Fields in order, integers big-endian, floats IEEE 754 binary32:

=========================  ==========  ================================================================================
field                      bytes       meaning
=========================  ==========  ================================================================================
version                    u8          1
suite                      u8          `keys.Suite`
profile                    u8          `graph.Profile`
task_id                    16
task_sha256                32          canonical JSON of the task
round, attempt             u64, u16
model_sha256               32          the model id: parameter layout and parameters
layout_sha256              32          the contribution's lanes: `ContributionLayout.sha256`
statement_sha256           32          all else that a phone takes in: `planner.statement_sha256`
size, num_metrics          u32, u8     elements of the update, metric lanes
ring_bits                  u8          24 or 32
frac_bits                  u8          of the update
metric_frac_bits           u8
l2_clip, coordinate_clip   f32, f32    S and c; S is also the sensitivity, which has no field of its own to differ
metric_bound               f32
max_weight                 u16         1 where noise is asked for
n_min, n_max               u16, u16    fewest survivors whose sum may be opened, most devices of the roster
k, t                       u16, u16    neighbours and threshold; 0, 0 for the profile's own (`graph.resolve`)
mechanism                  u8          `Mechanism`
noise_multiplier           f32         z: noise of the sum / S
target_epsilon, delta      f32, f32
deadlines                  5 x u32     seconds for keys, shares, upload, consistency, unmask
=========================  ==========  ================================================================================
"""

from __future__ import annotations

import enum
import math
import struct
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Final

from mien.errors import ConfigError, CorruptDataError, VersionError
from mien.protocol.ids import AttemptNumber, RoundNumber
from mien.secagg.canonical import HASH_BYTES, ID_BYTES, tagged_hash
from mien.secagg.graph import MAX_DEVICES, MAX_NEIGHBOURS, Profile
from mien.secagg.keys import Suite
from mien.secagg.masks import MAX_WORDS
from mien.secagg.quantise import NumberFormat, as_float32

VERSION: Final = 2
_LAYOUT: Final = struct.Struct(">BBB 16s32s QH 32s32s32s IB BBB fff H HH HH B fff 5I".replace(" ", ""))
CONFIG_BYTES: Final = _LAYOUT.size


class Mechanism(enum.IntEnum):
    """Mechanism of differential privacy: who adds the noise, if anyone."""

    NONE = 0
    CENTRAL_GAUSSIAN = 1
    SKELLAM = 2


@dataclass(frozen=True)
class CohortTerms:
    """Terms of a cohort: profile, fewest survivors, most devices, and the graph (0, 0: the profile's own)."""

    profile: Profile
    n_min: int
    n_max: int
    k: int = 0
    t: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.n_min <= self.n_max <= MAX_DEVICES:
            raise ConfigError(
                f"a sum over {self.n_min} to {self.n_max} devices is not possible; "
                f"2 <= n_min <= n_max <= {MAX_DEVICES} is needed"
            )
        if (self.k == 0) != (self.t == 0):
            raise ConfigError("k and t are given together, or both left at 0 for the profile's own")
        if self.k and not (self.k <= MAX_NEIGHBOURS and self.k // 2 < self.t <= self.k):
            raise ConfigError(f"threshold {self.t} of {self.k} neighbours is not possible; k/2 < t <= k <= 254")
        if self.k % 2 and self.k < self.n_max - 1:
            raise ConfigError(f"k is {self.k}; it must be even where it does not reach all of {self.n_max} devices")


@dataclass(frozen=True)
class NoiseTerms:
    """Terms of differential privacy: mechanism, z = noise of the sum / l2_clip, and its target."""

    mechanism: Mechanism = Mechanism.NONE
    noise_multiplier: float = 0.0
    target_epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "target_epsilon", "delta"):
            value = as_float32(getattr(self, name))
            needed = self.mechanism is not Mechanism.NONE
            if not math.isfinite(value) or value < 0 or (value > 0) != needed:
                raise ConfigError(f"{name} is {getattr(self, name)}; it is positive with noise and 0 without")
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class StageDeadlines:
    """Length of each stage at most, in whole seconds."""

    keys_s: int = 60
    shares_s: int = 60
    upload_s: int = 600
    consistency_s: int = 60
    unmask_s: int = 60

    def __post_init__(self) -> None:
        if any(not 0 < seconds < 1 << 32 for seconds in astuple(self)):
            raise ConfigError(f"deadlines are {astuple(self)}; each must be at least 1 second")


@dataclass(frozen=True)
class AttemptId:
    """One attempt of one round of a task; attempts of a task are ordered by round, then attempt."""

    task_id: bytes
    round: RoundNumber
    attempt: AttemptNumber

    @property
    def order(self) -> tuple[int, int]:
        """Order of attempts: grows from each to the next."""
        return self.round, self.attempt


@dataclass(frozen=True)
class RoundConfig:
    """All that the devices of one attempt agree on; validated, so that a sum under it cannot wrap."""

    task_id: bytes
    task_sha256: bytes
    round: RoundNumber
    attempt: AttemptNumber
    model_sha256: bytes
    layout_sha256: bytes
    statement_sha256: bytes
    size: int
    num_metrics: int
    numbers: NumberFormat
    cohort: CohortTerms
    suite: Suite = Suite.ECDSA_P256
    noise: NoiseTerms = field(default_factory=NoiseTerms)
    deadlines: StageDeadlines = field(default_factory=StageDeadlines)

    def __post_init__(self) -> None:
        digests = (self.task_sha256, self.model_sha256, self.layout_sha256, self.statement_sha256)
        if len(self.task_id) != ID_BYTES or any(len(digest) != HASH_BYTES for digest in digests):
            raise ConfigError("a task id has 16 bytes, a hash 32; give raw bytes")
        if not (0 <= self.round < 1 << 64 and 0 <= self.attempt < 1 << 16):
            raise ConfigError(f"round {self.round}, attempt {self.attempt} do not fit; at most 2^64 - 1 and 65535")
        if not (self.size >= 1 and 0 <= self.num_metrics < 256 and self.size + self.num_metrics + 4 <= MAX_WORDS):
            raise ConfigError(f"an update of {self.size} elements with {self.num_metrics} metrics does not fit a sum")
        if self.noise.mechanism is not Mechanism.NONE and self.numbers.max_weight != 1:
            raise ConfigError("with noise every device weighs 1, or its weight would tell; set max_weight to 1")
        self.numbers.check_no_wrap(self.cohort.n_max, self.noise_bound)

    @property
    def noise_bound(self) -> int:
        """The largest absolute value of devices' own noise in a lane of the sum, in steps; 0 unless they add any.

        16 standard deviations, were each device to add the whole noise of the sum (one honest survivor expected); and
        64 steps, where the noise is too small for a Gaussian's tail. Noise that the server adds never wraps: it is
        added outside the ring.
        """
        if self.noise.mechanism is not Mechanism.SKELLAM:
            return 0
        deviation = self.noise.noise_multiplier * self.numbers.l2_clip * 2.0**self.numbers.frac_bits
        return math.ceil(16 * deviation * math.sqrt(self.cohort.n_max)) + 64

    @property
    def attempt_id(self) -> AttemptId:
        """Id of this attempt."""
        return AttemptId(self.task_id, self.round, self.attempt)

    @cached_property
    def sha256(self) -> bytes:
        """H("cfg", canonical bytes): what keys and signatures are bound to."""
        return tagged_hash("cfg", self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: CONFIG_BYTES of them, in the layout above."""
        n, c, p = self.numbers, self.cohort, self.noise
        return _LAYOUT.pack(
            *(VERSION, self.suite, c.profile, self.task_id, self.task_sha256, self.round, self.attempt),
            *(self.model_sha256, self.layout_sha256, self.statement_sha256, self.size, self.num_metrics),
            *(n.ring_bits, n.frac_bits, n.metric_frac_bits, n.l2_clip, n.coordinate_clip, n.metric_bound),
            *(n.max_weight, c.n_min, c.n_max, c.k, c.t),
            *(p.mechanism, p.noise_multiplier, p.target_epsilon, p.delta, *astuple(self.deadlines)),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> RoundConfig:
        """Return the configuration in canonical bytes.

        Raises VersionError for another version, CorruptDataError for bytes that are not canonical, ConfigError for
        terms that are not possible, such as a sum that can wrap.
        """
        if data[:1] != bytes([VERSION]):
            raise VersionError(
                f"private sums here are version {VERSION}, the coordinator's differ; upgrade the older one"
            )
        if len(data) != CONFIG_BYTES:
            raise CorruptDataError(f"round configuration has {len(data)} bytes, needs {CONFIG_BYTES}; fetch it again")
        _, suite, profile, task_id, task_sha256, round_, attempt, *rest = _LAYOUT.unpack(data)
        model, layout, graph, size, num_metrics, ring, frac, metric_frac, l2, coordinate, bound, *rest = rest
        max_weight, n_min, n_max, k, t, mechanism, z, epsilon, delta, *deadlines = rest
        try:
            named = Suite(suite), Profile(profile), Mechanism(mechanism)
        except ValueError as error:
            raise VersionError(
                "the round asks for a suite, profile or mechanism that is unknown here; upgrade"
            ) from error
        config = cls(
            *(task_id, task_sha256, round_, attempt, model, layout, graph, size, num_metrics),
            numbers=NumberFormat(ring, frac, l2, coordinate, max_weight, bound, metric_frac),
            cohort=CohortTerms(named[1], n_min, n_max, k, t),
            suite=named[0],
            noise=NoiseTerms(named[2], z, epsilon, delta),
            deadlines=StageDeadlines(*deadlines),
        )
        if config.to_bytes() != data:
            raise CorruptDataError("round configuration is not in its canonical form; fetch it again")
        return config

    @classmethod
    def from_kept(cls, data: bytes) -> RoundConfig:
        """Return the configuration in bytes that were kept of a sum that is over, of this version or of 1.

        Version 2 changed what devices say, not what a configuration holds. Raises as `from_bytes` does.
        """
        return cls.from_bytes(bytes([VERSION]) + data[1:] if data[:1] == b"\x01" else data)
