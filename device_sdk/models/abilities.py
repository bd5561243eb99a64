"""Models that a device can run, and what it can train of them, sent at check-in: the coordinator chooses no others."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from device_sdk.runtimes import RuntimeName, resolve
from device_sdk.runtimes.forms import exportable
from device_sdk.runtimes.manifest import MANIFEST, MAX_MANIFEST_BYTES, SUFFIXES, Graph, GraphManifest
from mien.errors import IntegrityError, StorageError, VersionError
from mien.models.known_models import FACE_INPUTS
from mien.protocol.rounds import Wait
from mien.shell.clock import Clock
from mien.shell.files import read_limited

LOOK_EVERY_S: Final = 6 * 3600.0
_MAX_PARTS: Final = 64
"""Most parts of models in a check-in: the coordinator takes no more."""


@dataclass(frozen=True)
class Abilities:
    """Names of backbones that a device can embed with, and of what runs them; both empty where it sends none.

    `parts` has, by the hash of each part of a model (`ParameterPart.sha256`) that graphs train, the names of their
    objectives and of these objectives' forms; empty where nothing limits them. Where graphs only embed it names the
    part without a tensor, which no task trains.
    """

    backbones: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


UNSAID: Final = Abilities()


def abilities_of(runtime: RuntimeName, graphs: Path) -> Abilities:
    """Return the abilities with this engine: with torch all backbones of this version, else those with graphs.

    Graphs count whose files are there. Raises MissingDependencyError where the engine is not installed.
    """
    engine = resolve(runtime)
    if engine == "torch":
        return Abilities(tuple(FACE_INPUTS), (engine,))
    backbones: set[str] = set()
    parts: dict[str, set[str]] = {}
    for folder, manifest in _manifests(graphs):
        graphs_there = _usable(folder, manifest, SUFFIXES[engine])
        if graphs_there:
            backbones.add(manifest.backbone)
        for graph in graphs_there:
            part = _part_sha256(manifest.layout_sha256, graph.part)
            if graph.kind != "train" or (part not in parts and len(parts) == _MAX_PARTS):
                continue
            parts.setdefault(part, set()).update({graph.form, _objective_of(graph.form)})
    if backbones and not parts:
        parts[_NO_PART] = set()
    said = {part: tuple(sorted(names)) for part, names in sorted(parts.items())}
    return Abilities(tuple(sorted(backbones)), (engine,), said)


@dataclass
class GraphLook:
    """Look for graphs in a newer release where tasks pass a device over: else only a round would bring it to look."""

    clock: Clock
    abilities: Callable[[], Abilities]
    update: Callable[[], None]
    _after_s: float = field(default=-math.inf, init=False)

    def on_wait(self, wait: Wait) -> bool:
        """Return whether an update has brought graphs, after a wait; it is tried at once, then every few hours."""
        before, now_s = self.abilities(), self.clock.monotonic_s()
        lacks_graphs = before.engines not in ((), ("torch",)) and (wait.cannot_train or not before.backbones)
        if not lacks_graphs or now_s < self._after_s:
            return False
        self._after_s = now_s + LOOK_EVERY_S
        self.update()
        return self.abilities() != before


def _usable(folder: Path, manifest: GraphManifest, suffix: str) -> list[Graph]:
    """Return an engine's graphs that are there; none where one is missing that everything needs."""
    own = [graph for graph in manifest.graphs if graph.file.endswith(suffix)]
    needed = [graph for graph in own if graph.kind in ("embed", "trunk", "tail")]
    if folder.name != manifest.layout_sha256 or not all(_is_there(folder, graph) for graph in needed):
        return []
    return [graph for graph in own if _is_there(folder, graph)]


def _is_there(folder: Path, graph: Graph) -> bool:
    return (folder / graph.sha256).is_file() or (folder / graph.file).is_file()


def _part_sha256(layout_sha256: str, names: tuple[str, ...]) -> str:
    """Return `ParameterPart.sha256` of a part whose layout is known by its hash alone."""
    return hashlib.sha256(json.dumps([layout_sha256, list(names)], separators=(",", ":")).encode()).hexdigest()


_NO_PART: Final = _part_sha256("", ())


def _objective_of(form: str) -> str:
    """Return the objective that a form is of; the form itself where it is arcface's, which has its margin built in."""
    found = max((name for name in exportable() if f"{form}_".startswith(f"{name}_")), key=len, default="")
    return form if found in ("", "arcface") else found


def _manifests(root: Path) -> list[tuple[Path, GraphManifest]]:
    """Return the lists of graphs that can be read, newest first; others are reported when a round needs them."""
    found = []
    for path in sorted(root.glob(f"*/{MANIFEST}"), key=lambda path: (-path.stat().st_mtime_ns, path)):
        try:
            manifest = GraphManifest.from_json(read_limited(path, MAX_MANIFEST_BYTES, what=path.name))
        except (IntegrityError, VersionError, StorageError):
            continue
        found.append((path.parent, manifest))
    return found
