"""The colour of a point of the face before any light falls on it, laid out on the template face in centimetres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from simulation.synthetic.bust import Part
from simulation.synthetic.geometry import Floats
from simulation.synthetic.parameters import Colour, Look

PUPIL_DISTANCE_CM: Final = 5.886  # of the template face
_IRIS_CM: Final = 0.62
_PUPIL_CM: Final = 0.26
_NECK_AXIS_CM: Final = -9.0  # depth of the neck's middle
_COLLAR_CM: Final = 7.8  # radius of the shirt's collar round it
_COLLAR_DROP_CM: Final = (-13.0, -18.5)  # height where the collar starts to close, and its lowest point

# The lower edge of the hair as (depth y, height z): nape, behind the ear, before the ear, temple; then the hairline.
_HAIR_EDGE: Final = ((-18.0, -7.5), (-12.5, -6.0), (-10.0, -2.5), (-8.2, -3.0), (-7.4, 0.5), (-5.5, 3.6), (-3.6, 5.0))


@dataclass(frozen=True, eq=False)
class Surface:
    """N visible points: the mesh's `part` (N,), `template` (N, 3), `lips`, `ears` and `eyelids` (N,) at each."""

    part: NDArray[np.uint8]
    template: Floats
    lips: Floats
    ears: Floats
    eyelids: Floats


def linear(colour: Colour) -> Floats:
    """Linear light (3,), 0..1, of an sRGB colour 0..255 (gamma 2.2)."""
    result: Floats = (np.asarray(colour, np.float64) / 255.0) ** 2.2
    return result


def _step(x: Floats, edge: float | Floats, width: float) -> Floats:
    """0 below the edge, 1 above it, smooth over `width`."""
    t = np.clip((x - edge) / width + 0.5, 0.0, 1.0)
    result: Floats = t * t * (3 - 2 * t)
    return result


def hair_share(template_N3: Floats, ears_N: Floats, hairline_cm: float, fade_cm: float = 0.9) -> Floats:
    """Share (0..1) of a full head of hair at points of the head, fading at its edge; ears are never covered."""
    y, z = template_N3[:, 1], template_N3[:, 2]
    depth, height = np.array(_HAIR_EDGE).T
    front = np.array([(-2.2, hairline_cm), (3.0, hairline_cm + 0.3)])
    edge = np.interp(y, np.append(depth, front[:, 0]), np.append(height, front[:, 1]))
    result: Floats = _step(z, edge, fade_cm) * (1 - _step(ears_N, 0.25, 0.3))
    return result


def _brow_share(template_N3: Floats, look: Look) -> Floats:
    x, y, z = np.abs(template_N3[:, 0]), template_N3[:, 1], template_N3[:, 2]
    along = np.clip((x - 0.9) / 4.2, 0.0, 1.0)  # 0 at the nose, 1 at the temple
    centre = look.brow_height_cm + look.brow_arch_cm * np.sin(np.pi * along**1.3) - 0.45 * along**3
    half = look.brow_thickness_cm * (1.0 - 0.65 * along**2)
    inside = _step(half - np.abs(z - centre), 0.0, 0.25)
    result: Floats = inside * _step(x, 0.9, 0.4) * (1 - _step(x, 5.1, 0.5)) * _step(y, -4.0, 1.0)
    return result * look.brow_cover


def _beard_share(template_N3: Floats, lips_N: Floats, look: Look) -> Floats:
    x, y, z = np.abs(template_N3[:, 0]), template_N3[:, 1], template_N3[:, 2]
    upper_edge = np.interp(x, (0.0, 2.6, 3.6, 6.5), (-4.9, -5.2, -7.0, -3.5))
    below = 1 - _step(z, upper_edge, 0.9)
    above_throat = _step(z, -12.5 + 0.2 * np.maximum(0.0, -y), 1.5)
    result: Floats = below * above_throat * _step(y, -8.5, 2.0) * (1 - _step(lips_N, 0.3, 0.4))
    return result * look.beard_cover


def _pattern(template_N3: Floats, phases: tuple[float, ...], waves_per_cm: float) -> Floats:
    """A smooth pattern in -1..1, the same for an identity in all its pictures."""
    total = np.zeros(len(template_N3))
    directions = ((0.9, 0.3, 0.4), (-0.4, 0.5, 0.8), (0.2, -0.8, 0.6), (0.7, 0.6, -0.4), (-0.8, 0.1, 0.6))
    for i, direction in enumerate(directions):
        phase = phases[i % len(phases)] * (i + 1)
        total += np.sin(template_N3 @ np.array(direction) * waves_per_cm * 2 * np.pi * (1 + 0.37 * i) + phase)
    return total / len(directions)


def _skin(surface: Surface, look: Look) -> Floats:
    x, y, z = np.abs(surface.template[:, 0]), surface.template[:, 1], surface.template[:, 2]
    base = linear(look.skin)
    pattern = _pattern(surface.template, look.texture_phase, 0.22)
    rgb = base[None, :] * (1 + look.blotch * pattern[:, None])
    cheeks = np.exp(-(((x - 4.0) / 1.7) ** 2) - ((z + 3.6) / 1.6) ** 2) * _step(y, -5.0, 2.0)
    nose = np.exp(-((x / 1.3) ** 2) - ((z + 3.8) / 1.1) ** 2)
    flush = 0.16 * cheeks + 0.12 * nose + 0.10 * surface.ears
    rgb = rgb * (1 + flush[:, None] * np.array([0.5, -0.45, -0.4]))
    shadow = np.exp(-(((x - 2.9) / 1.9) ** 2) - ((z + 0.1) / 1.0) ** 2) * _step(y, -2.5, 1.0)
    rgb = rgb * (1 - 0.18 * shadow[:, None]) * (1 - 0.55 * _step(surface.eyelids, 0.75, 0.4)[:, None])
    return _over(rgb, linear(look.lips), _step(surface.lips, 0.5, 0.8))


def _eye(template_N3: Floats, look: Look) -> Floats:
    from_pole = np.hypot(np.abs(template_N3[:, 0]) - PUPIL_DISTANCE_CM / 2, template_N3[:, 2])
    white = np.tile(linear((214.0, 208.0, 204.0)), (len(template_N3), 1))
    iris = linear(look.iris) * (0.55 + 0.75 * np.clip(from_pole / _IRIS_CM, 0, 0.8))[:, None]
    rgb = _over(white, iris, 1 - _step(from_pole, _IRIS_CM, 0.12))
    return _over(rgb, linear((10.0, 8.0, 8.0)), 1 - _step(from_pole, _PUPIL_CM, 0.08))


def _over(below_N3: Floats, colour: Floats, share_N: Floats) -> Floats:
    result: Floats = below_N3 + (colour - below_N3) * share_N[:, None]
    return result


def _head(surface: Surface, look: Look) -> Floats:
    hair = linear(look.hair) * (1 + 0.25 * _pattern(surface.template, look.texture_phase, 1.1))[:, None]
    rgb = _skin(surface, look)
    rgb = _over(rgb, hair, _beard_share(surface.template, surface.lips, look))
    rgb = _over(rgb, hair, _brow_share(surface.template, look))
    cover = hair_share(surface.template, surface.ears, look.hairline_cm) * look.hair_cover
    return _over(rgb, hair, cover)


def _body(surface: Surface, look: Look) -> Floats:
    from_neck = np.hypot(surface.template[:, 0], surface.template[:, 1] - _NECK_AXIS_CM)
    start, lowest = _COLLAR_DROP_CM
    below = np.maximum(start - surface.template[:, 2], 0.0) / (start - lowest)
    shirt = _step(np.hypot((from_neck / _COLLAR_CM) ** 3, below**2), 1.0, 0.08)
    return _over(_skin(surface, look), linear(look.shirt), shirt)


def albedo(surface: Surface, look: Look) -> Floats:
    """Colour (N, 3) in linear light, 0..1, of each visible point under white light."""
    rgb = np.tile(linear((58.0, 24.0, 22.0)), (len(surface.part), 1))  # inside of mouth and eye sockets
    painters = {Part.BODY: _body, Part.HEAD: _head}
    for part, painter in painters.items():
        chosen = surface.part == part
        rgb[chosen] = painter(_select(surface, chosen), look)
    eye = surface.part == Part.EYE
    rgb[eye] = _eye(surface.template[eye], look)
    rgb[surface.part == Part.TONGUE] = linear((150.0, 80.0, 80.0))
    return np.clip(rgb, 0.0, 1.0)


def _select(surface: Surface, chosen: NDArray[np.bool_]) -> Surface:
    return Surface(
        surface.part[chosen],
        surface.template[chosen],
        surface.lips[chosen],
        surface.ears[chosen],
        surface.eyelids[chosen],
    )
