"""FedAwS: one identity a phone; class embeddings start at random and are spread out.

Source: Yu, Rawat, Menon, Kumar, "Federated Learning with Only Positive Labels" (ICML 2020), as FedFace's baseline
(Aggarwal, Zhou, Jain 2021): everything is FedFace's but the start, which knows nothing of the person. The exact form
and the private ones are chosen as there, by `privacy.reveals` and `options`.
"""

from __future__ import annotations

from dataclasses import replace

from mien.methods import fedface
from mien.methods.base import DeviceInput, DeviceOutput, Method, Runtime, counted_together
from mien.methods.fixed_embedding import random_directions


def device_round(inp: DeviceInput, runtime: Runtime) -> DeviceOutput:
    """Return FedFace's round with a class embedding that was drawn uniformly from the sphere at first participation."""
    if fedface.W not in inp.private and fedface.W not in inp.reply:
        start = random_directions(1, inp.dim, inp.seed)[0]
        inp = replace(inp, private={**inp.private, fedface.W: start})
    return fedface.device_round(inp, runtime)


FEDAWS = Method(
    name="fedaws",
    source="Yu, Rawat, Menon, Kumar: Federated Learning with Only Positive Labels (2020)",
    options=fedface.FedFaceOptions,
    contribution_layout=fedface.contribution_layout,
    device_round=device_round,
    server_start=fedface.server_start,
    server_step=fedface.server_step,
    objective=fedface.objective_of,
    reply=fedface.reply,
    needs_public_faces=fedface.needs_public_faces,
    shared_reply=fedface.FEDFACE.shared_reply,
    why_synchronous=fedface.why_synchronous,
    why_apart=counted_together,
)
