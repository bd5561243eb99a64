"""Fixed random class embeddings: FedAvg's phones draw their images to points that are drawn once and never move.

Source: Aggarwal, Zhou, Jain, "FedFace" (2021), Table 1, row "random fixed embeddings". Random directions in many
dimensions lie far apart, so nothing collapses, but they know nothing of who looks alike.
"""

from __future__ import annotations

import numpy as np

from mien.layout import Vector
from mien.methods.averaging import HingeOptions, contribution_layout, server_start, server_step
from mien.methods.base import DeviceInput, DeviceOutput, Method, Property, Requirements, Runtime
from mien.methods.fedavg import OWN, train_positive
from mien.methods.proxies import carry_over, normalised, own_labels
from mien.specs import from_mapping


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return the update of a device that draws each image to its identity's point, which stays where it was drawn."""
    margin = from_mapping(HingeOptions, inp.task.options, where="options.").margin
    labels = own_labels(inp)
    kept = inp.private.get(OWN)
    drawn = random_directions(int(labels.max()) + 1, inp.dim, inp.seed)
    points_LD = drawn if kept is None else carry_over(np.atleast_2d(kept), drawn)
    return train_positive(inp, runtime, labels, points_LD, margin, fixed=True)


def random_directions(num: int, dim: int, seed: int) -> Vector:
    """Return `num` points (num, dim) drawn uniformly from the unit sphere."""
    return normalised(np.random.default_rng(seed).normal(size=(num, dim)))


FIXED_EMBEDDING = Method(
    name="fixed_embedding",
    source="FedFace (2021) Table 1",
    options=HingeOptions,
    contribution_layout=contribution_layout,
    device_round=device_round,
    server_start=server_start,
    server_step=server_step,
    requirements=lambda _task: Requirements(objective="positive_hinge", why_synchronous=""),
    properties=frozenset({Property.SUM_ONLY, Property.SEVERAL_PEOPLE}),
    per_identity=(OWN,),
)
