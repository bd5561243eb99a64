"""Settings of a device's owner: defaults, then device.toml in the home folder, then options of a command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from device_sdk.faces import QualityPolicy
from device_sdk.people.stored_personal import Form
from device_sdk.rounds.conditions import ConditionSource
from device_sdk.rounds.disclosure import Agreement
from device_sdk.runtimes import RuntimeName
from mien.errors import ConfigError
from mien.models.variants import FLOAT32, check_tier
from mien.shell.settings import Resolved, read_toml, resolve

MAX_CONFIG_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class ParticipationConfig(Agreement):
    """Settings of participation: what the owner agrees to (`Agreement`), and what training may take of this machine.

    `conditions`: whether the machine is asked if it charges, is idle and on an unmetered network. `max_training_s` and
    `max_memory_mb`: what one round's training may take, None without limit. `nice`: the priority that `mien-device
    participate` gives itself, 0 (as it was started) to 19 (after everything else).
    """

    conditions: ConditionSource = "stated"
    max_training_s: float | None = None
    max_memory_mb: float | None = None
    nice: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_training_s", "max_memory_mb"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ConfigError(f"participation.{name} is {limit}; it must be positive, or left out for no limit")
        if not 0 <= self.nice <= 19:
            raise ConfigError(f"participation.nice is {self.nice}; it must lie between 0 and 19 (the lowest priority)")


@dataclass(frozen=True)
class VerificationConfig:
    """`max_fmr`: the false match rate to stay under; `threshold` overrides the model's, at the owner's own risk.

    `max_fpir`: how often a stranger may be named by `identify`, however many people are enrolled.
    """

    max_fmr: float = 1e-3
    threshold: float | None = None
    max_fpir: float = 1e-2

    def __post_init__(self) -> None:
        if not 0.0 < self.max_fmr < 1.0:
            raise ConfigError(f"verification.max_fmr is {self.max_fmr}; it must lie between 0 and 1")
        if not 0.0 < self.max_fpir < 1.0:
            raise ConfigError(f"verification.max_fpir is {self.max_fpir}; it must lie between 0 and 1")
        if self.threshold is not None and not math.isfinite(self.threshold):
            raise ConfigError(f"verification.threshold is {self.threshold}; give a cosine, such as 0.4")


@dataclass(frozen=True)
class InferenceConfig:
    """Settings of embedding for verification. `tier`: which form of the model, `float32` or a variant that comes with
    it; `mien-device bench --save` chooses. `max_ms` and `max_mb`: what float32 may take before a variant is chosen in
    its place, milliseconds of the processor a face and memory, None without limit.
    """

    tier: str = FLOAT32
    max_ms: float = 250.0
    max_mb: float | None = None

    def __post_init__(self) -> None:
        check_tier(self.tier)
        for name in ("max_ms", "max_mb"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ConfigError(f"inference.{name} is {limit}; it must be positive")


@dataclass(frozen=True)
class EnrollmentConfig:
    """`min_images`: how many usable pictures a template needs."""

    min_images: int = 3

    def __post_init__(self) -> None:
        if self.min_images < 1:
            raise ConfigError(f"enrollment.min_images is {self.min_images}; it must be at least 1")


@dataclass(frozen=True)
class DeviceConfig:
    """All settings of a device. `runtime` is the engine that embeds and trains, `threads` how many cores it may use.

    `personal_backbone`: what a personal model is made on, the released backbone or the one that FedFR left here.
    """

    keystore: Literal["auto", "platform", "file"] = "auto"
    runtime: RuntimeName = "auto"
    threads: int = 1
    personal_backbone: Form = "released"
    participation: ParticipationConfig = field(default_factory=ParticipationConfig)
    verification: VerificationConfig = field(default_factory=VerificationConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    enrollment: EnrollmentConfig = field(default_factory=EnrollmentConfig)
    quality: QualityPolicy = field(default_factory=QualityPolicy)

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= 64:
            raise ConfigError(f"threads is {self.threads}; it must lie between 1 and 64")


def load_config(path: Path, options: Mapping[str, Any] | None = None) -> Resolved[DeviceConfig]:
    """Return the settings of a home, each from "default", "device.toml" or "option".

    `options` are values by dotted name ("participation.min_cohort") that come last; one that is None is not given.
    Raises ConfigError naming the field, its value and the nearest known field.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file; move it away, or write the settings there")
    stated = read_toml(path, MAX_CONFIG_BYTES, what=str(path)) if path.exists() else {}
    given = {name: (value, "option") for name, value in (options or {}).items() if value is not None}
    return resolve(DeviceConfig, stated, path, given)
