"""What inference in int8 costs and gains: the variant that `device_sdk.export.variants` makes, on real faces.

CelebA's people with four pictures or more, four of each: a quarter of them, at most 60, calibrate with a picture each,
every pair of the others' pictures is compared. Time is the processor's for one face, on one thread.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import _common
from benchmarks._device import least
from device_sdk.export.variants import Faces, baked, faces_in, make_int8
from device_sdk.runtimes.variant_session import VariantSession
from mien.backbones.importers import ImportedModel
from mien.evaluation.scores import rows_of_each

PER_PERSON: Final = 4


def measure_int8(name: str, model: ImportedModel) -> dict[str, Any]:
    """Return error rates of float32 and int8 at thresholds of their own, of int8 at float32's, latency and size."""
    _common.progress(f"{name}: quantising and measuring")
    spec = model.spec.input
    faces = _some(faces_in(_common.data_root() / "celeba112", spec, aligned=True))
    with tempfile.TemporaryDirectory() as folder:
        made = make_int8(model.spec, model.layout, model.theta, faces, Path(folder), datetime.now(UTC))
        data = (Path(folder) / made.file).read_bytes()
    plain = baked(model.spec, model.layout, model.theta).SerializeToString()
    sessions = {
        kind: VariantSession(graph, tier=kind, dim=spec.dim) for kind, graph in (("float32", plain), ("int8", data))
    }
    x = spec.network_input(faces.crops[:1])
    cost = made.cost
    return {
        "model": name,
        "embed_cpu_ms": {kind: round(1e3 * least(lambda s=s: s.run(x), 10), 2) for kind, s in sessions.items()},  # type: ignore[misc]
        "model_mb": {"float32": round(len(plain) / 1e6, 1), "int8": round(len(data) / 1e6, 1)},
        "cosine_to_float32": {"mean": round(cost.cosine_mean, 4), "least": round(cost.cosine_least, 4)},
        "people": cost.num_people,
        "mated": cost.num_mated,
        "non_mated": cost.num_non_mated,
        "fmr": cost.fmr,
        "fnmr": {"float32": round(cost.fnmr_float32, 4), "int8": round(cost.fnmr, 4)},
        "int8_at_the_threshold_of_float32": {
            "fnmr": round(cost.fnmr_crossed, 4),
            "fmr": float(f"{cost.fmr_crossed:.2g}"),
        },
    }


def _some(faces: Faces) -> Faces:
    """Return the first pictures of everybody who has enough."""
    rows = [of_one[:PER_PERSON] for of_one in rows_of_each(faces.labels)]
    kept = np.concatenate([own for own in rows if len(own) == PER_PERSON])
    return Faces(faces.crops[kept], faces.labels[kept], faces.name, faces.sha256)
