"""The graphs that come with a signed release: fetched by hash, for this device's engine alone, switched to at once.

::

    <layout hash>/<sha256>      a graph
    <layout hash>/graphs.json   what they are for; written last, so that it names only what is there
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from device_sdk.models.models import fetch_by_hash, forget_all_but
from device_sdk.runtimes import RuntimeName, resolve
from device_sdk.runtimes.manifest import SUFFIXES
from device_sdk.storage.vault import locked_folder
from mien.models import bundles
from mien.models.bundles import BundleFile, BundleManifest
from mien.protocol.canonical import MAX_JSON_BYTES
from mien.protocol.rounds import BlobId
from mien.shell.files import file_sha256, make_folder, read_limited, write_atomically

if TYPE_CHECKING:
    from device_sdk.server.client import CoordinatorClient


def fetch_graphs(client: CoordinatorClient, signed: BundleManifest | None, root: Path, runtime: RuntimeName) -> bool:
    """Fetch a signed release's graphs for the engine that `runtime` means; tell whether others are there now.

    Nothing happens for torch, and for releases without graphs: what the owner put there stays in use. Raises
    CorruptDataError for graphs that are not the signed ones or are for another model.
    """
    engine = resolve(runtime)
    if signed is None or not signed.graphs or engine == "torch":
        return False
    folder = root / signed.layout_sha256
    make_folder(folder)
    with locked_folder(folder):
        listed = next(file for file in signed.graphs if file.name == bundles.GRAPHS)
        path = _fetched(client, listed, folder)
        unverified_graphs_json = read_limited(path, MAX_JSON_BYTES, what="the list of graphs")
        graphs_json = bundles.check_graphs(signed, unverified_graphs_json)
        wanted = [file for file in signed.graphs if file.name.endswith(SUFFIXES[engine])]
        for file in wanted:
            _fetched(client, file, folder)
        current = folder / bundles.GRAPHS
        if current.is_file() and file_sha256(current) == listed.sha256:
            return False
        write_atomically(current, graphs_json)
        forget_all_but({file.sha256 for file in signed.graphs}, folder)
    return True


def list_in_force(root: Path, layout_sha256: str) -> str:
    """Return the SHA-256 of the list of graphs that lies in `root` for a layout; empty where there is none."""
    path = root / layout_sha256 / bundles.GRAPHS
    return file_sha256(path) if path.is_file() else ""


def _fetched(client: CoordinatorClient, file: BundleFile, folder: Path) -> Path:
    path = folder / file.sha256
    fetch_by_hash(client, BlobId(file.sha256, file.size_bytes), path, f"graph {file.name}")
    return path
