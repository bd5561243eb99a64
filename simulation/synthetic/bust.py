"""The mesh that is painted: head, neck and shoulders, with what the painter must know of each vertex and triangle."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from mien.errors import ConfigError
from simulation.synthetic.geometry import Floats, Indices


class Part(IntEnum):
    """The part that a triangle belongs to."""

    BODY = 0
    HEAD = 1
    EYE = 2
    EYE_SOCKET = 3
    MOUTH = 4
    TONGUE = 5


@dataclass(frozen=True, eq=False)
class Bust:
    """Topology and paint coordinates of the mesh, the same for all identities.

    `triangles` (T, 3) are counter-clockwise as seen from outside; `part` (T,) says what each belongs to.
    `template` (V, 3) is the mean face in centimetres from the point midway between the pupils: x to the person's left,
    y forward, z up. All paint is laid out in these coordinates, so a brow stays a brow on every face.
    `lips`, `ears` and `eyelids` (V,) say how far, 0..1, a vertex belongs to them; `follow` (V,) how far it follows a
    turn of the head.
    """

    triangles: Indices
    part: NDArray[np.uint8]
    template: Floats
    follow: Floats
    lips: Floats
    ears: Floats
    eyelids: Floats

    def __post_init__(self) -> None:
        count = len(self.template)
        if self.triangles.size and not 0 <= self.triangles.min() <= self.triangles.max() < count:
            raise ConfigError(f"triangles name vertices outside 0..{count - 1}; pass the mesh's own triangles")
        for name in ("follow", "lips", "ears", "eyelids"):
            if getattr(self, name).shape != (count,):
                raise ConfigError(f"{name} must hold one number for each of the {count} vertices")
        if len(self.part) != len(self.triangles):
            raise ConfigError(f"part must hold one part for each of the {len(self.triangles)} triangles")
