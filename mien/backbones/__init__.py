"""Face recognition backbones in torch, all of one shape: see `Backbone`.

`build_backbone(name)` makes any of `BACKBONES`; `layout_of`, `theta_of` and `load_theta` go between a backbone and its
flat vector. Phones use `mobilefacenet_folded`, `mobilefacenet192`, `sface` and the latter two with an adapter or a
gate; the others are for servers and simulation. `mien.backbones.importers` reads public model files.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from mien.backbones._base import Backbone, initialised_from
from mien.backbones.adapter import build_adapted
from mien.backbones.flat import fold_batch_norm, layout_of, load_tensors, load_theta, theta_of
from mien.backbones.gate import build_gated
from mien.backbones.iresnet import build_iresnet
from mien.backbones.mobilefacenet import build_mobilefacenet, build_mobilefacenet192
from mien.backbones.resnet34 import build_resnet34
from mien.backbones.sface import build_sface
from mien.backbones.sphereface import build_sphereface
from mien.errors import ConfigError
from mien.models.known_models import FACE_INPUTS
from mien.specs import FaceInputSpec

__all__ = [
    "BACKBONES",
    "Backbone",
    "BackboneEntry",
    "build_backbone",
    "fold_batch_norm",
    "initialised_from",
    "layout_of",
    "load_tensors",
    "load_theta",
    "theta_of",
]


@dataclass(frozen=True)
class BackboneEntry:
    """A backbone's constructor, its default face input, and whether phones run it."""

    build: Callable[[FaceInputSpec], Backbone]
    input_spec: FaceInputSpec
    for_phones: bool = False


_BUILDERS: Final[Mapping[str, Callable[[FaceInputSpec], Backbone]]] = {
    "mobilefacenet": build_mobilefacenet,
    "mobilefacenet_folded": partial(build_mobilefacenet, folded=True),
    "mobilefacenet192": build_mobilefacenet192,
    "mobilefacenet192_adapter": partial(build_adapted, base=build_mobilefacenet192),
    "mobilefacenet192_gate": partial(build_gated, base=build_mobilefacenet192),
    "sface": build_sface,
    "sface_adapter": partial(build_adapted, base=build_sface),
    "sface_gate": partial(build_gated, base=build_sface),
    "sphereface20": partial(build_sphereface, depth=20),
    "sphereface64": partial(build_sphereface, depth=64),
    **{f"iresnet{depth}": partial(build_iresnet, depth=depth) for depth in (18, 34, 50, 100)},
    "resnet34": build_resnet34,
    "resnet34_folded": partial(build_resnet34, folded=True),
}
_FOR_PHONES: Final = (
    "mobilefacenet_folded",
    "mobilefacenet192",
    "mobilefacenet192_adapter",
    "mobilefacenet192_gate",
    "sface",
    "sface_adapter",
    "sface_gate",
)

BACKBONES: Final[Mapping[str, BackboneEntry]] = MappingProxyType(
    {name: BackboneEntry(build, FACE_INPUTS[name], name in _FOR_PHONES) for name, build in _BUILDERS.items()}
)


def build_backbone(name: str, spec: FaceInputSpec | None = None, *, dim: int | None = None, seed: int = 0) -> Backbone:
    """Return a new backbone in eval mode, its weights drawn from `seed`.

    `spec` is the face input (default: the family's own), `dim` overrides its embedding length. Raises ConfigError for
    a name that is not in `BACKBONES`, naming the nearest, and for sizes that the family does not have.
    """
    entry = BACKBONES.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, BACKBONES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(BACKBONES)}"
        raise ConfigError(f"unknown backbone {name!r}; {hint}")
    spec = entry.input_spec if spec is None else spec
    if dim is not None:
        spec = dataclasses.replace(spec, dim=dim)
    with initialised_from(seed):
        return entry.build(spec).eval()
