"""Making a model's variant in int8: quantised on some people's faces, measured on others'. Needs onnx and ONNX Runtime.

Static quantisation of convolutions and linear layers, weights by channel, activations clipped at the 99.99th
percentile. The first convolution and all depthwise ones stay in float32: they are a few per cent of the work and cost
most of the accuracy (`docs/decisions/0038-variants-for-inference.md`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from device_sdk.export.steps import embedding_function
from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.faces.crops import MASTER, fit_crops
from device_sdk.faces.source import read_source
from device_sdk.runtimes.variant_session import INPUT, VariantSession
from mien.backbones import Backbone, build_backbone, layout_of, load_theta
from mien.errors import ConfigError, LayoutMismatchError
from mien.evaluation.gates import is_measurable
from mien.evaluation.scores import all_pairs, pair_scores
from mien.evaluation.verification import det_curve, point_at_fmr, rates_at
from mien.layout import ParameterLayout, Vector, model_id
from mien.methods.base import Crops, Embeddings
from mien.models.bundles import VARIANT_SUFFIX, VARIANTS, BundleFile
from mien.models.variants import FLOAT32, ONNXRUNTIME, Variant, VariantCost, VariantList, form_id
from mien.shell.files import write_atomically
from mien.specs import FaceInputSpec, ModelSpec, Threshold

INT8: Final = "int8"
PERCENTILE: Final = 99.99
MAX_CALIBRATION: Final = 60
MIN_PEOPLE: Final = 20
TARGETS: Final = (1e-2, 1e-3, 1e-4)
MADE_FOR: Final = "0.1.0"
"""The first version of mien whose devices run such a variant."""
_QUANTISED: Final = ("Conv", "MatMul", "Gemm")
_PARAMETER: Final = "parameter."


@dataclass(frozen=True)
class Faces:
    """Aligned crops (N, H, W, 3) of the model's size with `labels` (N,), what they are called, and their digest."""

    crops: Crops = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    name: str
    sha256: str


def faces_in(folder: Path, spec: FaceInputSpec, *, aligned: bool) -> Faces:
    """Return the faces of a folder name/*.jpg, pictures or (`aligned`) crops; errors as `device_sdk.faces.source`."""
    found = read_source(folder, FacePipeline(MASTER, None, ChoiceRule.CENTRE, aligned=aligned))
    digest = hashlib.sha256(found.crops.tobytes() + found.labels.astype("<i8").tobytes()).hexdigest()
    return Faces(fit_crops(found.crops, spec), found.labels, folder.resolve().name, digest)


def make_int8(
    spec: ModelSpec,
    layout: ParameterLayout,
    theta: Vector,
    faces: Faces,
    folder: Path,
    now: datetime,
    *,
    backbone: Backbone | None = None,
) -> Variant:
    """Return the int8 variant of a model, written into the model's folder beside the list of variants.

    A quarter of the people, at most 60, calibrate with a picture each; the others measure. Raises ConfigError where
    there are too few people for either or no threshold can be measured, LayoutMismatchError for a model of another
    program.
    """
    calibrating, measuring = _split(faces)
    plain = baked(spec, layout, theta, backbone)
    data = _quantised(plain, spec.input.network_input(faces.crops[calibrating]))
    file = BundleFile.of(f"{INT8}{VARIANT_SUFFIX}", data)
    model = model_id(layout.sha256, theta)
    x_N3HW = spec.input.network_input(faces.crops[measuring])
    before_ND, after_ND = (
        VariantSession(graph, tier=tier, dim=spec.input.dim).run(x_N3HW)
        for graph, tier in ((plain.SerializeToString(), FLOAT32), (data, INT8))
    )
    form = form_id(model, file.sha256)
    thresholds, cost = _measured(before_ND, after_ND, faces, measuring, form, f"{now:%Y-%m-%d}")
    variant = Variant(
        tier=INT8,
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        model_id=model,
        input=spec.input,
        engine=ONNXRUNTIME,
        made=(
            f"onnxruntime {version('onnxruntime')} static QDQ, int8 weights by channel, uint8 activations up to "
            f"percentile {PERCENTILE}; first and depthwise convolutions in float32"
        ),
        calibration=f"{len(calibrating)} people of {faces.name} ({faces.sha256[:16]}), a picture each",
        thresholds=thresholds,
        cost=cost,
        min_sdk=MADE_FOR,
    )
    write_atomically(folder / variant.file, data)
    write_atomically(folder / VARIANTS, VariantList((variant,)).to_json())
    return variant


def _split(faces: Faces) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that calibrate, a picture of each of some people, and those that measure, of all others."""
    people = np.unique(faces.labels)
    if len(people) < MIN_PEOPLE:
        raise ConfigError(
            f"{faces.name} shows {len(people)} people; a variant needs faces of at least {MIN_PEOPLE}, better 200"
        )
    chosen = np.random.default_rng(0).permutation(people)[: min(MAX_CALIBRATION, len(people) // 4)]
    calibrating = np.array([int(np.flatnonzero(faces.labels == person)[0]) for person in chosen])
    return calibrating, np.flatnonzero(~np.isin(faces.labels, chosen))


def _measured(
    before_ND: Embeddings, after_ND: Embeddings, faces: Faces, rows: NDArray[np.int64], form: str, date: str
) -> tuple[tuple[Threshold, ...], VariantCost]:
    """Return thresholds of a variant and what it costs, from all pairs of faces that it was not calibrated on."""
    labels = faces.labels[rows]
    before, after = all_pairs(before_ND, labels), all_pairs(after_ND, labels)
    measurable = [target for target in TARGETS if is_measurable(target, after.num_non_mated)]
    if not measurable or after.num_mated == 0:
        raise ConfigError(
            f"{faces.name} gives {after.num_non_mated} non-mated and {after.num_mated} mated comparisons, which is too "
            "few for a threshold: give several pictures each of more people"
        )
    points = [point_at_fmr(det_curve(after), target) for target in measurable]
    fmr = min(target for target in measurable if target >= 1e-3)
    own, reference = (point_at_fmr(det_curve(comparisons), fmr) for comparisons in (after, before))
    crossed, cosines = rates_at(after, reference.threshold), pair_scores(before_ND, after_ND)
    cost = VariantCost(
        dataset=faces.name,
        dataset_sha256=faces.sha256,
        num_people=len(np.unique(labels)),
        num_mated=after.num_mated,
        num_non_mated=after.num_non_mated,
        fmr=fmr,
        fnmr=own.fnmr,
        fnmr_float32=reference.fnmr,
        fnmr_crossed=crossed.fnmr,
        fmr_crossed=crossed.fmr,
        cosine_mean=float(cosines.mean()),
        cosine_least=float(cosines.min()),
    )
    return tuple(point.as_threshold(dataset=faces.name, model_id=form, date=date) for point in points), cost


def baked(spec: ModelSpec, layout: ParameterLayout, theta: Vector, backbone: Backbone | None = None) -> onnx.ModelProto:
    """Return the network in float32 with its parameters built in."""
    backbone = build_backbone(spec.backbone, spec.input) if backbone is None else backbone
    if layout_of(backbone).sha256 != layout.sha256:
        raise LayoutMismatchError(f"the model is not {spec.backbone} as this program builds it; upgrade the older one")
    load_theta(backbone, layout, theta)
    graph = embedding_function(backbone, 0, [entry.name for entry in layout.entries]).to_onnx()
    values = layout.unflatten(theta)
    for given in [each for each in graph.graph.input if each.name.startswith(_PARAMETER)]:
        graph.graph.input.remove(given)
        tensor = np.ascontiguousarray(values[given.name.removeprefix(_PARAMETER)])
        graph.graph.initializer.append(numpy_helper.from_array(tensor, given.name))
    return graph


def _quantised(plain: onnx.ModelProto, input_N3HW: NDArray[np.float32]) -> bytes:
    """Return the network in int8, calibrated on these faces."""
    with tempfile.TemporaryDirectory(prefix="mien-variant-") as temporary:
        folder = Path(temporary)
        source, prepared, small = (folder / name for name in ("float32.onnx", "prepared.onnx", "int8.onnx"))
        onnx.save(plain, source)
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        graph = onnx.load(prepared)
        for number, node in enumerate(graph.graph.node):
            node.name = f"{node.op_type}_{number}"  # what is left out is told by its name
        onnx.save(graph, prepared)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
            quantization.quantize_static(
                prepared,
                small,
                _Reader(input_N3HW),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=list(_QUANTISED),
                nodes_to_exclude=list(_left_out(graph)),
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                calibrate_method=quantization.CalibrationMethod.Percentile,
                extra_options={"CalibPercentile": PERCENTILE},
            )
        return small.read_bytes()


def _left_out(graph: onnx.ModelProto) -> Iterator[str]:
    """Yield the names of the first convolution and of all that work on each channel alone."""
    convolutions = [node for node in graph.graph.node if node.op_type == "Conv"]
    for number, node in enumerate(convolutions):
        if number == 0 or any(each.name == "group" and each.i > 1 for each in node.attribute):
            yield node.name


class _Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Hands out one image after the other."""

    def __init__(self, input_N3HW: NDArray[np.float32]) -> None:
        self._images: Iterator[dict[str, NDArray[np.float32]]] = ({INPUT: image[None]} for image in input_N3HW)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        """Return the next image, None after the last one."""
        return next(self._images, None)
