"""What is drawn by chance for a synthetic person and for each of their pictures, as plain numbers.

Nothing here needs the face model: the same (seed, identity, image, attempt) gives the same numbers everywhere.
Each draw has its own generator, seeded by exactly those integers, so one picture can be made without the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from mien.errors import ConfigError
from mien.records import parse_toml

# Names of the face model's three ancestry sliders. They are domains for experiments, not claims about people.
DOMAINS: Final = ("african", "asian", "caucasian")

# Spread of a shape group, in the model's slider units (-1..1). Mouth and neck move the five landmarks and the
# silhouette most, so they are kept quieter than the rest. These values, the narrow ranges of painted features and the
# wide range of light make identities visible but hard: see faces/README.md for the measured error of a recogniser.
SHAPE_SPREAD: Final = 0.16
QUIET_SPREAD: Final = 0.08
QUIET_REGIONS: Final = ("mouth", "neck")

_SLIDERS: Final = parse_toml((Path(__file__).parent / "sliders.toml").read_text(encoding="utf-8"), "sliders.toml")
SHAPE_REGIONS: Final[Mapping[str, tuple[str, ...]]] = {
    region: tuple(groups) for region, groups in _SLIDERS["regions"].items()
}
PAIRED_REGIONS: Final = ("cheek", "eyes", "ears")

FACIAL_ACTIONS: Final[tuple[str, ...]] = tuple(_SLIDERS["actions"])
ACTIONS_PER_IMAGE: Final = 6
ACTION_SPREAD: Final = 0.18
ACTION_LIMIT: Final = 0.6

# Standard deviation of yaw, pitch and roll in radians.
POSE_SPREAD_RAD: Final = (0.35, 0.15, 0.08)

Colour = tuple[float, float, float]

# sRGB (0..255) ends of the ranges from which a skin tone, and the lists from which hair and eyes, are drawn.
_SKIN: Final[Mapping[str, tuple[Colour, Colour]]] = {
    "african": ((86.0, 55.0, 39.0), (138.0, 93.0, 67.0)),
    "asian": ((196.0, 150.0, 114.0), (228.0, 188.0, 154.0)),
    "caucasian": ((212.0, 166.0, 139.0), (240.0, 204.0, 183.0)),
}
_BLACK: Final = (24.0, 20.0, 19.0)
_DARK_BROWN: Final = (48.0, 33.0, 25.0)
_GREY: Final = (150.0, 147.0, 143.0)
_HAIR: Final[Mapping[str, tuple[Colour, ...]]] = {
    "african": (_BLACK, _BLACK, _DARK_BROWN),
    "asian": (_BLACK, _BLACK, _DARK_BROWN),
    "caucasian": (_DARK_BROWN, (92.0, 62.0, 40.0), (168.0, 128.0, 78.0), (132.0, 66.0, 36.0), _BLACK),
}
_IRIS: Final[Mapping[str, tuple[Colour, ...]]] = {
    "african": ((52.0, 33.0, 22.0), (74.0, 46.0, 28.0)),
    "asian": ((48.0, 31.0, 22.0), (78.0, 50.0, 30.0)),
    "caucasian": ((84.0, 112.0, 140.0), (88.0, 104.0, 74.0), (86.0, 58.0, 36.0), (110.0, 120.0, 122.0)),
}
_GREY_FROM_AGE: Final = 0.82  # slider; 1 is the model's oldest face


@dataclass(frozen=True)
class Look:
    """Colours (sRGB, 0..255) and painted features of one identity; lengths in centimetres on the template face."""

    skin: Colour
    lips: Colour
    hair: Colour
    iris: Colour
    shirt: Colour
    hairline_cm: float  # height of the hairline above the pupils
    hair_depth_cm: float  # how far hair stands out from the scalp; 0 is a shaved head
    hair_cover: float  # 0 bald, 1 full
    brow_height_cm: float
    brow_thickness_cm: float
    brow_arch_cm: float
    brow_cover: float
    beard_cover: float
    blotch: float  # contrast of the skin's low-frequency pattern
    texture_phase: tuple[float, ...]  # three phases of that pattern, radians


@dataclass(frozen=True)
class IdentityParameters:
    """One person who does not exist: sliders of the face model and what is painted on it."""

    identity: int
    domain: str
    phenotype: Mapping[str, float]  # slider name -> 0..1
    shape: Mapping[str, float]  # slider name -> -1..1, left and right sliders equal
    look: Look


@dataclass(frozen=True)
class ImageParameters:
    """One picture of a person: expression, pose, camera, light and what the camera does to the picture."""

    actions: Mapping[str, float]  # facial action -> 0..0.6
    yaw_rad: float
    pitch_rad: float
    roll_rad: float
    head_height: float  # as a fraction of the picture's height
    centre: tuple[float, float]  # of the head, as fractions of width and height
    light: tuple[float, float, float]  # direction towards the light: left, forward, up; unit length
    ambient: float  # share of the light that comes from everywhere
    exposure: float
    white_balance: Colour  # factors on red, green, blue
    background: tuple[Colour, Colour]  # sRGB at the top and at the bottom
    blur_px: float  # standard deviation; 0 for none
    noise: float  # standard deviation in grey levels
    noise_seed: int
    jpeg_quality: int


def slider_names(region: str, group: str) -> tuple[str, ...]:
    """The model's slider names that one group moves together: one, or a left and a right one."""
    return (f"l-{group}", f"r-{group}") if region in PAIRED_REGIONS else (group,)


def shape_slider_names() -> list[str]:
    """All slider names that identities use, left and right ones apart."""
    return [n for region, groups in SHAPE_REGIONS.items() for group in groups for n in slider_names(region, group)]


def _rng(seed: int, identity: int, picture: int, attempt: int) -> np.random.Generator:
    key = (seed, identity, picture, attempt)
    if not all(0 <= n < 2**32 for n in key):
        raise ConfigError(f"seed, identity, image and attempt are {key}; use integers from 0 to 2**32 - 2")
    # Always four words: numpy pads shorter keys with zeros, which would make two different keys equal.
    return np.random.default_rng(np.random.SeedSequence(key))


def _mix(first: Colour, second: Colour, share: float) -> Colour:
    return tuple(float(a + (b - a) * share) for a, b in zip(first, second, strict=True))  # type: ignore[return-value]


def _draw_shape(rng: np.random.Generator) -> dict[str, float]:
    shape: dict[str, float] = {}
    for region, groups in SHAPE_REGIONS.items():
        spread = QUIET_SPREAD if region in QUIET_REGIONS else SHAPE_SPREAD
        for group in groups:
            value = float(np.clip(rng.normal(0.0, spread), -1.0, 1.0))
            shape.update(dict.fromkeys(slider_names(region, group), value))
    return shape


def _draw_phenotype(rng: np.random.Generator, domain: str) -> dict[str, float]:
    other = {name: float(rng.uniform(0.0, 0.12)) for name in DOMAINS}
    return {
        "gender": float(rng.uniform(0.25, 0.75)),  # 0 is the model's male end, 1 its female end
        "age": float(rng.uniform(0.62, 0.88)),  # 2/3 is a young adult, 1 old
        "weight": float(np.clip(rng.normal(0.5, 0.15), 0.15, 0.9)),
        "muscle": float(np.clip(rng.normal(0.5, 0.1), 0.2, 0.8)),
        **other,
        domain: 1.0,
    }


def _draw_look(rng: np.random.Generator, domain: str, phenotype: Mapping[str, float]) -> Look:
    skin = _mix(*_SKIN[domain], float(rng.uniform()))
    hair = _HAIR[domain][rng.integers(len(_HAIR[domain]))]
    if phenotype["age"] > _GREY_FROM_AGE:
        hair = _mix(hair, _GREY, float(rng.uniform(0.2, 1.0)))
    masculine = phenotype["gender"] < 0.5
    bald = masculine and rng.uniform() < 0.15
    bearded = masculine and rng.uniform() < 0.4
    return Look(
        skin=skin,
        lips=_mix(skin, (0.92 * skin[0], 0.5 * skin[1], 0.52 * skin[2]), float(rng.uniform(0.2, 0.65))),
        hair=hair,
        iris=_IRIS[domain][rng.integers(len(_IRIS[domain]))],
        shirt=(float(rng.uniform(20, 230)), float(rng.uniform(20, 230)), float(rng.uniform(20, 230))),
        hairline_cm=float(rng.uniform(5.8, 6.8)),
        hair_depth_cm=0.0 if bald else float(rng.uniform(0.2, 2.0)),
        hair_cover=float(rng.uniform(0.0, 0.35)) if bald else 1.0,
        brow_height_cm=float(rng.uniform(1.48, 1.74)),
        brow_thickness_cm=float(rng.uniform(0.3, 0.42)),
        brow_arch_cm=float(rng.uniform(0.15, 0.37)),
        brow_cover=float(rng.uniform(0.6, 0.8)),
        beard_cover=float(rng.uniform(0.05, 0.25)) if bearded else 0.0,
        blotch=float(rng.uniform(0.02, 0.07)),
        texture_phase=tuple(float(p) for p in rng.uniform(0, 2 * np.pi, 3)),
    )


def draw_identity(seed: int, identity: int, domain: str) -> IdentityParameters:
    """Parameters of identity number `identity`; equal for equal arguments.

    Shape groups are independent N(0, SHAPE_SPREAD), or N(0, QUIET_SPREAD) for mouth and neck, cut at 1; a left and a
    right slider of one group share their value. Raises ConfigError for an unknown domain or a negative number.
    """
    if domain not in DOMAINS:
        raise ConfigError(f"domain {domain!r} is unknown; use one of {', '.join(DOMAINS)}")
    rng = _rng(seed, identity, 0, 0)
    phenotype = _draw_phenotype(rng, domain)
    shape = _draw_shape(rng)
    return IdentityParameters(identity, domain, phenotype, shape, _draw_look(rng, domain, phenotype))


def _draw_light(rng: np.random.Generator) -> tuple[float, float, float]:
    direction = np.array([rng.normal(0.0, 1.2), 1.0, rng.normal(0.4, 0.7)])
    x, y, z = direction / np.linalg.norm(direction)
    return float(x), float(y), float(z)


def _draw_colour(rng: np.random.Generator) -> Colour:
    red, green, blue = rng.uniform(40.0, 225.0, 3)
    return float(red), float(green), float(blue)


def draw_image(seed: int, identity: int, image: int, attempt: int = 0) -> ImageParameters:
    """Parameters of picture number `image` of an identity; equal for equal arguments.

    `attempt` counts the draws that were refused before, for instance because a detector did not find the face.
    """
    rng = _rng(seed, identity, image + 1, attempt)
    chosen = rng.choice(len(FACIAL_ACTIONS), ACTIONS_PER_IMAGE, replace=False)
    strength = np.minimum(np.abs(rng.normal(0.0, ACTION_SPREAD, ACTIONS_PER_IMAGE)), ACTION_LIMIT)
    yaw, pitch, roll = rng.normal(0.0, POSE_SPREAD_RAD)
    red, green, blue = rng.uniform(0.96, 1.04, 3)
    backdrop = _draw_colour(rng)
    return ImageParameters(
        actions={FACIAL_ACTIONS[i]: float(s) for i, s in zip(chosen, strength, strict=True)},
        yaw_rad=float(yaw),
        pitch_rad=float(pitch),
        roll_rad=float(roll),
        head_height=float(rng.uniform(0.58, 0.82)),
        centre=(float(rng.normal(0.5, 0.035)), float(rng.normal(0.47, 0.025))),
        light=_draw_light(rng),
        ambient=float(rng.uniform(0.35, 0.6)),
        exposure=float(rng.uniform(0.8, 1.2)),
        white_balance=(float(red), float(green), float(blue)),
        background=(backdrop, _mix(backdrop, _draw_colour(rng), 0.5)),
        blur_px=float(max(0.0, rng.normal(0.4, 0.4))),
        noise=float(rng.uniform(0.5, 2.5)),
        noise_seed=int(rng.integers(2**31)),
        jpeg_quality=int(rng.integers(75, 96)),
    )
