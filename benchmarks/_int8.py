"""What inference in int8 costs and gains: ONNX Runtime's static quantisation of a recogniser, on real faces.

The network with its parameters built in is quantised with 60 synthetic faces (one a person); templates and probes are
crops of CelebA, 4 of each of 100 people, every pair once. Beside float32 and int8: float32 templates with int8 probes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process
from PIL import Image

from benchmarks import _common
from benchmarks._device import least
from device_sdk.export.steps import embedding_function
from device_sdk.recogniser import fit_crops
from mien.backbones import build_backbone, load_theta
from mien.backbones.importers import ImportedModel
from mien.specs import FaceInputSpec

NUM_CALIBRATION: Final = 60
PEOPLE: Final = 100
PER_PERSON: Final = 4
FMR: Final = 1e-3
Vectors = NDArray[np.float32]


def measure_int8(name: str, model: ImportedModel) -> dict[str, Any]:
    """Return error rates of float32, int8 and a mixture at the threshold of float32, latency and size."""
    _common.progress(f"{name}: quantising")
    root = _common.data_root()
    calibration, _ = _crops(root / "synthetic112", NUM_CALIBRATION, 1, model.spec.input)
    crops, people = _crops(root / "celeba112", PEOPLE, PER_PERSON, model.spec.input)
    with tempfile.TemporaryDirectory() as folder:
        files = _quantised(model, model.spec.input.network_input(calibration), Path(folder))
        sessions = {kind: _session(path) for kind, path in files.items()}
        sizes = {kind: round(path.stat().st_size / 1e6, 1) for kind, path in files.items()}
    x = model.spec.input.network_input(crops)
    one = {kind: round(1e3 * least(lambda s=s: s.run(None, {"x": x[:1]}), 10), 2) for kind, s in sessions.items()}  # type: ignore[misc]
    embedded = {kind: _embedded(session, x) for kind, session in sessions.items()}
    alike = (embedded["float32"] * embedded["int8"]).sum(1)
    return {
        "model": name,
        "embed_cpu_ms": one,
        "model_mb": sizes,
        "cosine_to_float32": {"mean": round(float(alike.mean()), 4), "least": round(float(alike.min()), 4)},
        **_errors(embedded, people),
    }


def _errors(embedded: Mapping[str, Vectors], people: NDArray[np.int64]) -> dict[str, Any]:
    first, second = np.triu_indices(len(people), 1)
    mated = people[first] == people[second]
    scores = {
        kind: (embedded[template] @ embedded[probe].T)[first, second]
        for kind, template, probe in (
            ("float32", "float32", "float32"),
            ("int8", "int8", "int8"),
            ("mixed", "float32", "int8"),
        )
    }
    strangers = np.sort(scores["float32"][~mated])
    threshold = strangers[int(np.ceil(len(strangers) * (1 - FMR)))]
    return {
        "threshold": round(float(threshold), 4),
        "mated": int(mated.sum()),
        "non_mated": int((~mated).sum()),
        "fmr": {kind: float(f"{(s[~mated] >= threshold).mean():.2g}") for kind, s in scores.items()},
        "fnmr": {kind: round(float((s[mated] < threshold).mean()), 4) for kind, s in scores.items()},
    }


def _quantised(model: ImportedModel, calibration: Vectors, folder: Path) -> dict[str, Path]:
    """Return the network with its parameters built in, in float32 and in int8."""
    backbone = build_backbone(model.spec.backbone, model.spec.input)
    load_theta(backbone, model.layout, model.theta)
    graph = embedding_function(backbone, 0, [entry.name for entry in model.layout.entries]).to_onnx()
    values = model.layout.unflatten(model.theta)
    for given in [each for each in graph.graph.input if each.name.startswith("parameter.")]:
        graph.graph.input.remove(given)
        tensor = np.ascontiguousarray(values[given.name.removeprefix("parameter.")])
        graph.graph.initializer.append(numpy_helper.from_array(tensor, given.name))
    plain, prepared, small = (folder / name for name in ("float32.onnx", "prepared.onnx", "int8.onnx"))
    onnx.save(graph, plain)
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    quantization.quantize_static(
        prepared,
        small,
        _Reader(calibration),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )
    return {"float32": plain, "int8": small}


class _Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Hands out one image after the other."""

    def __init__(self, images: Vectors) -> None:
        self._images: Iterator[dict[str, Vectors]] = ({"x": image[None]} for image in images)

    def get_next(self) -> dict[str, Vectors] | None:
        """Return the next image, None after the last one."""
        return next(self._images, None)


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def _embedded(session: onnxruntime.InferenceSession, x: Vectors) -> Vectors:
    pieces = [session.run(None, {"x": x[start : start + 4]})[0] for start in range(0, len(x), 4)]
    raw = np.concatenate(pieces)
    unit: Vectors = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    return unit


def _crops(
    folder: Path, people: int, per_person: int, spec: FaceInputSpec
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    chosen = [sorted(person.iterdir())[:per_person] for person in sorted(folder.iterdir()) if person.is_dir()]
    full = [files for files in chosen if len(files) == per_person][:people]
    crops = np.stack([np.asarray(Image.open(file).convert("RGB")) for files in full for file in files])
    return fit_crops(crops, spec), np.repeat(np.arange(len(full)), per_person)
