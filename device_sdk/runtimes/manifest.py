"""Manifest of a folder of exported graphs, and the search for the right one. Imports no torch.

::

    <layout hash>/graphs.json       what each file is, with its hash
    <layout hash>/embed.onnx        parameters and crops -> embeddings
    <layout hash>/trunk_<stage>.onnx, tail_<stage>.onnx
                                    the same in two pieces, cut before the first trained stage
    <layout hash>/train_<form>_<full|tail>.onnx
                                    one step of SGD
    <layout hash>/loss_<form>.onnx  an objective's loss as a function of embeddings

and the same for ExecuTorch as .pte.
Graphs hold no parameters: they belong to an architecture, not to a model, and outlive releases.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mien.errors import ConfigError, CorruptDataError, LayoutMismatchError, NotFoundError, VersionError
from mien.layout import ParameterLayout, ParameterPart
from mien.models.bundles import GRAPHS, MAX_GRAPH_BYTES
from mien.records import from_mapping
from mien.shell.files import read_limited, write_atomically
from mien.specs import FaceInputSpec, ModelSpec

VERSION: Final = 1
PACKAGED: Final = Path(__file__).with_name("graphs")
"""Graphs that come with this program: they embed with the recognisers that phones use, and train nothing."""
MANIFEST: Final = GRAPHS
MAX_MANIFEST_BYTES: Final = 2**22

GraphKind = Literal["embed", "trunk", "tail", "train", "loss"]
GraphEngine = Literal["onnxruntime", "executorch"]
SUFFIXES: Final[dict[GraphEngine, str]] = {"onnxruntime": ".onnx", "executorch": ".pte"}
"""File name suffix of each engine."""


@dataclass(frozen=True)
class Graph:
    """One graph file. `stage` is where the network is cut, `part` names what is trained, `form` the objective.

    `inputs` and `outputs` are the names in order, where the file itself does not tell.
    """

    file: str
    kind: GraphKind
    sha256: str
    size_bytes: int
    stage: str = ""
    part: tuple[str, ...] = ()
    form: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if Path(self.file).name != self.file or not self.file.endswith(tuple(SUFFIXES.values())):
            raise CorruptDataError("a list of graphs names a file outside its folder; export the graphs again")


@dataclass(frozen=True)
class GraphManifest:
    """All graphs of one architecture with its face input."""

    backbone: str
    layout_sha256: str
    input: FaceInputSpec
    graphs: tuple[Graph, ...]
    version: int = VERSION

    def to_json(self) -> bytes:
        """Return the manifest as bytes for a file."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> GraphManifest:
        """Return the manifest that `to_json` wrote; raises CorruptDataError, VersionError for that of a newer mien."""
        try:
            value: Any = json.loads(data)
        except ValueError as error:
            raise CorruptDataError("the list of graphs is not JSON; export the graphs again") from error
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise VersionError("the list of graphs is of another version of mien; export the graphs again")
        try:
            return from_mapping(cls, value)
        except ConfigError as error:
            raise CorruptDataError(f"the list of graphs is damaged ({error.message}); export them again") from error


@dataclass(frozen=True)
class GraphFolder:
    """The graphs of one architecture on disk for one engine, each checked against its hash when it is read."""

    folder: Path
    manifest: GraphManifest
    engine: GraphEngine = "onnxruntime"

    @classmethod
    def open(
        cls, root: Path, spec: ModelSpec, layout: ParameterLayout, engine: GraphEngine = "onnxruntime"
    ) -> GraphFolder:
        """Return the graphs for a model that lie in `root`, in the folder named after its layout, or come with Mien.

        Raises NotFoundError where there are none, LayoutMismatchError where they are for other crops.
        """
        folder = folder_for(root, layout)
        if engine == "onnxruntime" and not (folder / MANIFEST).is_file():
            packaged = folder_for(PACKAGED, layout)
            if (packaged / MANIFEST).is_file():
                return cls.at(packaged, spec, layout, engine)
        return cls.at(folder, spec, layout, engine)

    @classmethod
    def at(
        cls, folder: Path, spec: ModelSpec, layout: ParameterLayout, engine: GraphEngine = "onnxruntime"
    ) -> GraphFolder:
        """Return the graphs for a model in this very folder; raises what `open` raises."""
        if not (folder / MANIFEST).is_file():
            raise NotFoundError(
                f"there are no graphs for {spec.backbone} in {folder}: `Device.update()` with "
                f'`runtime="{engine}"` fetches those of a signed release, `device_sdk.export` writes some'
            )
        manifest = GraphManifest.from_json(
            read_limited(folder / MANIFEST, MAX_MANIFEST_BYTES, what="the list of graphs")
        )
        if manifest.layout_sha256 != layout.sha256 or manifest.input != spec.input:
            raise LayoutMismatchError("the graphs are for another model or other crops; export them for this one")
        return cls(folder, manifest, engine)

    def find(self, kind: GraphKind, *, stage: str = "", part: tuple[str, ...] = (), form: str = "") -> Graph:
        """Return the graph of that description; raises NotFoundError saying what to export."""
        for graph in self._own():
            if (graph.kind, graph.stage, graph.part, graph.form) == (kind, stage, part, form):
                return graph
        command = f'`device_sdk.export` with `engine="{self.engine}"`'
        if kind not in ("train", "loss"):
            raise NotFoundError(f"the graphs lack {kind} {stage} for {self.engine}; export them ({command})")
        trained = ", ".join(part[:3]) + (" ..." if len(part) > 3 else "")
        raise NotFoundError(
            f"no graph trains {trained or 'this model'} with objective {form} on {self.engine}; export it "
            f"({command}), or use torch"
        )

    def holds(self, kind: GraphKind, *, stage: str) -> bool:
        """Return whether there is a graph of inference of that kind."""
        return any((graph.kind, graph.stage) == (kind, stage) for graph in self._own())

    def _own(self) -> Iterator[Graph]:
        """Yield the graphs of this folder's engine."""
        return (graph for graph in self.manifest.graphs if graph.file.endswith(SUFFIXES[self.engine]))

    def read(self, graph: Graph) -> bytes:
        """Return a graph's bytes; raises CorruptDataError when they are not those that were exported."""
        path = self.folder / graph.sha256  # one that came with a release
        path = path if path.is_file() else self.folder / graph.file
        if not path.is_file():
            raise CorruptDataError(
                f"graph {graph.file} is missing: call `Device.update()` where releases bring graphs, else export them"
            )
        unverified = read_limited(path, MAX_GRAPH_BYTES, what=f"graph {graph.file}")
        if hashlib.sha256(unverified).hexdigest() != graph.sha256:
            raise CorruptDataError(f"graph {graph.file} is damaged or was changed; export the graphs again")
        return unverified


def folder_for(root: Path, layout: ParameterLayout) -> Path:
    """Return the folder in `root` of an architecture's graphs."""
    return root / layout.sha256


def write_graph(folder: Path, graph: Graph, data: bytes) -> Graph:
    """Write a graph's file and return its entry with hash and size."""
    write_atomically(folder / graph.file, data)
    return dataclasses.replace(graph, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


# --- how a model is cut ---


def stage_of(name: str) -> str:
    """Return the stage that a tensor belongs to."""
    return name.split(".", 1)[0]


@dataclass(frozen=True)
class Cut:
    """A model cut before the first trained stage; `trunk` is None where that is the first stage of all."""

    stage: str
    trunk: ParameterPart | None
    tail: ParameterPart

    @property
    def word(self) -> str:
        """Name in files of what is trained: the full network, or its tail."""
        return "full" if self.trunk is None else "tail"


def cut_for(part: ParameterPart) -> Cut:
    """Return the model's cut for training `part`: before the first stage that holds some of it."""
    layout = part.layout
    stages = list(dict.fromkeys(stage_of(entry.name) for entry in layout.entries))
    first = min(stages.index(stage_of(name)) for name in part.names)
    before = [e.name for e in layout.entries if stages.index(stage_of(e.name)) < first]
    tail = [e.name for e in layout.entries if stages.index(stage_of(e.name)) >= first]
    trunk = ParameterPart(layout, tuple(before)) if before else None
    return Cut(stages[first], trunk, ParameterPart(layout, tuple(tail)))
