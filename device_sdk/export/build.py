"""Making the graphs of a model: inference whole and in two pieces, training steps, losses."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from device_sdk.export.steps import Function, embedding_function, loss_function, step_function, trunk_function
from device_sdk.runtimes.forms import ObjectiveForm, standard_forms
from device_sdk.runtimes.manifest import (
    MANIFEST,
    SUFFIXES,
    Graph,
    GraphEngine,
    GraphFolder,
    GraphKind,
    GraphManifest,
    cut_for,
    write_graph,
)
from mien.backbones import Backbone, build_backbone, layout_of
from mien.errors import (
    ConfigError,
    IntegrityError,
    LayoutMismatchError,
    MissingDependencyError,
    NotFoundError,
    VersionError,
)
from mien.layout import ParameterLayout, ParameterPart
from mien.shell.files import make_folder, write_atomically
from mien.specs import ModelSpec

DEFAULT_OBJECTIVES: Final = ("positive_hinge", "cosface", "softmax")


def export_graphs(
    spec: ModelSpec,
    layout: ParameterLayout,
    folder: Path,
    *,
    forms: Sequence[ObjectiveForm] | None = None,
    parts: Sequence[ParameterPart] | None = None,
    backbone: Backbone | None = None,
    engines: Sequence[GraphEngine] = ("onnxruntime",),
    limits: Mapping[str, int] | None = None,
    keep: bool = False,
    tell: Callable[[str], None] = lambda _text: None,
) -> GraphManifest:
    """Return the list of the graphs in a folder, with what was added or replaced there now.

    The list is written after each graph, so that with `keep`, which leaves those that are there as they are, an export
    that was stopped goes on.

    `forms` defaults to those of `DEFAULT_OBJECTIVES`, `parts` to what the model says phones train. `limits` bounds the
    sizes for ExecuTorch (`pte_graph.DEFAULT_LIMITS`). Raises ConfigError for what a graph cannot hold,
    LayoutMismatchError where this program's backbone is not the model's, MissingDependencyError without ExecuTorch.
    """
    backbone = build_backbone(spec.backbone, spec.input) if backbone is None else backbone
    if layout_of(backbone).sha256 != layout.sha256:
        raise LayoutMismatchError(f"the model is not {spec.backbone} as this program builds it; upgrade the older one")
    if next(backbone.buffers(), None) is not None:
        raise ConfigError(f"{spec.backbone} has BatchNorm, which phones do not run; fold it into the convolutions")
    forms = [form for name in DEFAULT_OBJECTIVES for form in standard_forms(name)] if forms is None else forms
    parts = (layout.part(spec.trainable or ("*",)),) if parts is None else parts
    make_folder(folder)
    known = GraphManifest(spec.backbone, layout.sha256, spec.input, _known(folder, spec, layout))
    exporter = _Exporter(backbone, folder, known, _serialisers(engines, limits), keep, tell)
    exporter.inference(layout)
    for form in forms:
        exporter.loss(form)
    for part in parts:
        exporter.training(part, forms)
    return exporter.manifest


def _known(folder: Path, spec: ModelSpec, layout: ParameterLayout) -> tuple[Graph, ...]:
    """Return the graphs that are there already; those for other crops are forgotten."""
    try:
        return GraphFolder.at(folder, spec, layout).manifest.graphs
    except (NotFoundError, IntegrityError, VersionError):
        return ()


Serialised = tuple[bytes, tuple[str, ...], tuple[str, ...]]
"""A file's bytes, and the names of its inputs and outputs where they do not say them."""
Serialiser = Callable[[Function], Serialised]


def _serialisers(engines: Sequence[GraphEngine], limits: Mapping[str, int] | None) -> dict[GraphEngine, Serialiser]:
    """Return the serialisers by engine."""
    made: dict[GraphEngine, Serialiser] = {}
    for engine in engines:
        if engine == "onnxruntime":
            made[engine] = lambda function: (function.to_onnx().SerializeToString(), (), ())
            continue
        if importlib.util.find_spec("executorch") is None:
            raise MissingDependencyError(
                "making programs for ExecuTorch needs its exporter: pip install '.[executorch]' in Mien's folder, or "
                "export for onnxruntime alone"
            )
        from device_sdk.export.pte_graph import DEFAULT_LIMITS, to_pte

        bounds = {**DEFAULT_LIMITS, **(limits or {})}
        made[engine] = partial(to_pte, limits=bounds)
    return made


class _Exporter:
    """Writes graphs one by one, for each engine, and after each the list of all; `graphs` by file name."""

    def __init__(
        self,
        backbone: Backbone,
        folder: Path,
        known: GraphManifest,
        serialisers: Mapping[GraphEngine, Serialiser],
        keep: bool,
        tell: Callable[[str], None],
    ) -> None:
        self.graphs = {graph.file: graph for graph in known.graphs}
        self._about = known
        self._backbone = backbone
        self._folder = folder
        self._serialisers = serialisers
        self._keep = keep
        self._tell = tell

    @property
    def manifest(self) -> GraphManifest:
        """The list of all graphs that are there now."""
        return replace(self._about, graphs=tuple(self.graphs.values()))

    def inference(self, layout: ParameterLayout) -> None:
        """Write the whole network."""
        names = [entry.name for entry in layout.entries]
        self._write("embed", "embed", embedding_function(self._backbone, 0, names))

    def loss(self, form: ObjectiveForm) -> None:
        """Write an objective's loss."""
        self._write(f"loss_{form.name}", "loss", loss_function(form, self._backbone.input_spec.dim), form=form.name)

    def training(self, part: ParameterPart, forms: Sequence[ObjectiveForm]) -> None:
        """Write the steps that train a part, and the two pieces of inference that go with it."""
        cut = cut_for(part)
        split = self._backbone.split_for(part.names)
        if cut.trunk is not None:
            trunk = trunk_function(self._backbone, split, cut.trunk.names)
            self._write(f"trunk_{cut.stage}", "trunk", trunk, stage=cut.stage)
            tail = embedding_function(self._backbone, split, cut.tail.names)
            self._write(f"tail_{cut.stage}", "tail", tail, stage=cut.stage)
        for form in forms:
            function = step_function(self._backbone, part, form)
            name = f"train_{form.name}_{cut.word}"
            self._write(name, "train", function, stage=cut.stage, part=part, form=form.name)

    def _write(
        self,
        name: str,
        kind: GraphKind,
        function: Function,
        *,
        stage: str = "",
        part: ParameterPart | None = None,
        form: str = "",
    ) -> None:
        names = () if part is None else part.names
        for engine, serialised in self._serialisers.items():
            file = name + SUFFIXES[engine]
            # Files of two parts that begin at one place are told apart by the second one's hash.
            if part is not None and file in self.graphs and self.graphs[file].part != names:
                file = f"{name}_{part.sha256[:8]}{SUFFIXES[engine]}"
            if self._keep and file in self.graphs and (self._folder / file).is_file():
                continue
            data, inputs, outputs = serialised(function)
            graph = Graph(file, kind, "", 0, stage, names, form, inputs, outputs)
            self.graphs[file] = write_graph(self._folder, graph, data)
            write_atomically(self._folder / MANIFEST, self.manifest.to_json())
            self._tell(f"{file}: {len(data) / 1e3:.0f} KB")
