"""A linear map behind a recogniser whose other parameters stay as they are: few numbers for a phone to train and send.

The embedding x of the frozen network becomes A x + b, with A the identity and b zero before training, so that the model
starts as the one that it extends. Its (dim + 1) dim parameters are 64 KB for SFace, where the last convolutional block
is 4 MB. Decision record 0022 has what it reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import nn

from mien.backbones._base import Backbone
from mien.specs import FaceInputSpec

STAGE: Final = "adapter"
SUFFIX: Final = "_adapter"


def build_adapted(spec: FaceInputSpec, *, base: Callable[[FaceInputSpec], Backbone]) -> Backbone:
    """Return the backbone that `base` builds with a last stage `adapter` that maps each embedding to itself.

    Phones train `adapter.*`; the stages before it are a trunk of 1 x `dim` features.
    """
    inner = base(spec)
    linear = nn.Linear(spec.dim, spec.dim)
    nn.init.eye_(linear.weight)
    nn.init.zeros_(linear.bias)
    stages = dict(inner.named_children()) | {STAGE: linear}
    return Backbone(inner.name + SUFFIX, spec, stages, (f"{STAGE}.*",))
