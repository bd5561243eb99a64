"""FedAwS: one identity a phone; class embeddings start at random and are spread out.

Source: Yu, Rawat, Menon, Kumar, "Federated Learning with Only Positive Labels" (ICML 2020), as FedFace's baseline
(Aggarwal, Zhou, Jain 2021): everything is FedFace's but the start, which knows nothing of the person. The published
form and the private ones are chosen as there, by `privacy.reveals` and `options`.
"""

from __future__ import annotations

from dataclasses import replace

from mien.methods.base import DeviceInput, DeviceOutput, Runtime
from mien.methods.fedface import W
from mien.methods.fedface_private import FEDFACE
from mien.methods.fixed_embedding import random_directions


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return FedFace's round with a class embedding that was drawn uniformly from the sphere at first participation."""
    if W not in inp.private and W not in inp.reply:
        inp = replace(inp, private={**inp.private, W: random_directions(1, inp.dim, inp.seed)[0]})
    return FEDFACE.device_round(inp, runtime)


FEDAWS = replace(
    FEDFACE,
    name="fedaws",
    source="Yu, Rawat, Menon, Kumar: Federated Learning with Only Positive Labels (2020)",
    device_round=device_round,
)
