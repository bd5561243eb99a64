"""Making the graphs of a model: inference whole and in two pieces, training steps, losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import onnx

from device_sdk.export.forms import ObjectiveForm, standard_forms
from device_sdk.export.manifest import (
    MANIFEST,
    Graph,
    GraphFolder,
    GraphKind,
    GraphManifest,
    cut_for,
    folder_for,
    write_graph,
)
from device_sdk.export.steps import embedding_function, loss_function, step_function, trunk_function
from mien.backbones import Backbone, build_backbone, layout_of
from mien.errors import ConfigError, IntegrityError, LayoutMismatchError, NotFoundError, VersionError
from mien.layout import ParameterLayout, ParameterPart
from mien.shell.files import make_folder, write_atomically
from mien.specs import ModelSpec

DEFAULT_OBJECTIVES: Final = ("positive_hinge", "cosface", "softmax")


def export_graphs(
    spec: ModelSpec,
    layout: ParameterLayout,
    root: Path,
    *,
    forms: Sequence[ObjectiveForm] | None = None,
    parts: Sequence[ParameterPart] | None = None,
    backbone: Backbone | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> GraphManifest:
    """Return the list of what lies in `root` for the model's layout, with what was added or replaced there now.

    `forms` defaults to those of `DEFAULT_OBJECTIVES`, `parts` to what the model says phones train. Raises ConfigError
    for what a graph cannot hold, LayoutMismatchError where this program's backbone is not the model's.
    """
    backbone = build_backbone(spec.backbone, spec.input) if backbone is None else backbone
    if layout_of(backbone).sha256 != layout.sha256:
        raise LayoutMismatchError(f"the model is not {spec.backbone} as this program builds it; upgrade the older one")
    if next(backbone.buffers(), None) is not None:
        raise ConfigError(f"{spec.backbone} has BatchNorm, which phones do not run; fold it into the convolutions")
    forms = _default_forms() if forms is None else forms
    parts = (layout.part(spec.trainable or ("*",)),) if parts is None else parts
    folder = folder_for(root, layout)
    make_folder(folder)
    exporter = _Exporter(backbone, folder, _known(root, spec, layout), tell)
    exporter.inference(layout)
    for form in forms:
        exporter.loss(form)
    for part in parts:
        exporter.training(part, forms)
    manifest = GraphManifest(spec.backbone, layout.sha256, spec.input, tuple(exporter.graphs.values()))
    write_atomically(folder / MANIFEST, manifest.to_json())
    return manifest


def _known(root: Path, spec: ModelSpec, layout: ParameterLayout) -> tuple[Graph, ...]:
    """Return the graphs that are there already; those for other crops are forgotten."""
    try:
        return GraphFolder.open(root, spec, layout).manifest.graphs
    except (NotFoundError, IntegrityError, VersionError):
        return ()


def _default_forms() -> tuple[ObjectiveForm, ...]:
    return tuple(form for name in DEFAULT_OBJECTIVES for form in standard_forms(name))


class _Exporter:
    """Writes graphs one by one; `graphs` by file name."""

    def __init__(self, backbone: Backbone, folder: Path, known: Sequence[Graph], tell: Callable[[str], None]) -> None:
        self.graphs = {graph.file: graph for graph in known}
        self._backbone = backbone
        self._folder = folder
        self._tell = tell

    def inference(self, layout: ParameterLayout) -> None:
        """Write the whole network."""
        names = [entry.name for entry in layout.entries]
        self._write("embed.onnx", "embed", embedding_function(self._backbone, 0, names).to_onnx())

    def loss(self, form: ObjectiveForm) -> None:
        """Write an objective's loss."""
        model = loss_function(form, self._backbone.input_spec.dim).to_onnx()
        self._write(f"loss_{form.name}.onnx", "loss", model, form=form.name)

    def training(self, part: ParameterPart, forms: Sequence[ObjectiveForm]) -> None:
        """Write the steps that train a part, and the two pieces of inference that go with it."""
        cut = cut_for(part)
        split = self._backbone.split_for(part.names)
        if cut.trunk is not None:
            trunk = trunk_function(self._backbone, split, cut.trunk.names).to_onnx()
            self._write(f"trunk_{cut.stage}.onnx", "trunk", trunk, stage=cut.stage)
            tail = embedding_function(self._backbone, split, cut.tail.names).to_onnx()
            self._write(f"tail_{cut.stage}.onnx", "tail", tail, stage=cut.stage)
        for form in forms:
            model = step_function(self._backbone, part, form).to_onnx()
            # Files of two parts that begin at one place are told apart by the second one's hash.
            file = f"train_{form.name}_{cut.word}.onnx"
            if file in self.graphs and self.graphs[file].part != part.names:
                file = f"train_{form.name}_{cut.word}_{part.sha256[:8]}.onnx"
            self._write(file, "train", model, stage=cut.stage, part=part.names, form=form.name)

    def _write(
        self,
        file: str,
        kind: GraphKind,
        model: onnx.ModelProto,
        *,
        stage: str = "",
        part: tuple[str, ...] = (),
        form: str = "",
    ) -> None:
        data = model.SerializeToString()
        self.graphs[file] = write_graph(self._folder, Graph(file, kind, "", 0, stage, part, form), data)
        self._tell(f"{file}: {len(data) / 1e3:.0f} KB")
