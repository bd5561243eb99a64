"""Which models a device can train, said at check-in: the coordinator chooses it for no others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from device_sdk.export.manifest import MANIFEST, MAX_MANIFEST_BYTES, SUFFIXES, GraphManifest
from device_sdk.runtimes import RuntimeName, resolve
from mien.errors import IntegrityError, StorageError, VersionError
from mien.known_models import BACKBONES
from mien.shell.files import read_limited


@dataclass(frozen=True)
class Abilities:
    """Names of backbones that a device can train, and of what runs them; both empty where nothing is said."""

    backbones: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()


UNSAID: Final = Abilities()


def abilities_of(runtime: RuntimeName, graphs: Path) -> Abilities:
    """Return what a device with this engine can train: torch every backbone of this version, others those with graphs.

    Raises MissingDependencyError where the engine is not installed.
    """
    engine = resolve(runtime)
    if engine == "torch":
        return Abilities(BACKBONES, (engine,))
    found = {manifest.backbone for manifest in _manifests(graphs) if _trains(manifest, SUFFIXES[engine])}
    return Abilities(tuple(sorted(found)), (engine,))


def _trains(manifest: GraphManifest, suffix: str) -> bool:
    return any(graph.kind == "train" and graph.file.endswith(suffix) for graph in manifest.graphs)


def _manifests(root: Path) -> list[GraphManifest]:
    """Return the lists of graphs that can be read; what cannot is told of when a round needs it."""
    found = []
    for path in sorted(root.glob(f"*/{MANIFEST}")):
        try:
            found.append(GraphManifest.from_json(read_limited(path, MAX_MANIFEST_BYTES, what=path.name)))
        except (IntegrityError, VersionError, StorageError):
            continue
    return found
