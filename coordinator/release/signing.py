"""The operator's release key and what it signs: files only, so that it runs on a machine without a network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mien.errors import CorruptDataError, KeyStoreError, NotFoundError
from mien.layout import model_id
from mien.models import bundles
from mien.models.bundles import BundleFile, BundleManifest
from mien.models.variants import check_variants
from mien.protocol.canonical import MAX_JSON_BYTES, model_from_json
from mien.shell.files import create_private, read_limited, read_private, write_atomically
from mien.shell.keys import ed25519_key

FALLBACKS: Final = "fallbacks.txt"
_MAX_THETA_BYTES: Final = 2 << 30


def create_key(path: Path) -> Ed25519PrivateKey:
    """Return a new release key, kept in a new file that only its owner can read."""
    key = ed25519_key()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    create_private(path, pem)
    return key


def read_key(path: Path) -> Ed25519PrivateKey:
    """Return the release key in a file; raises KeyStoreError for anything else."""
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}; release-key init makes a release key")
    try:
        key = serialization.load_pem_private_key(read_private(path, what="the release key"), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyStoreError(f"{path} holds no release key; name the file that release-key init wrote")
    return key


def sign_folder(
    folder: Path,
    key: Ed25519PrivateKey,
    *,
    sequence: int,
    fallbacks: Sequence[str] | None = None,
    min_sdk: str = bundles.OLDEST_SDK,
) -> BundleManifest:
    """Return the manifest of an exported model, written and signed beside its files, graphs and variants among them.

    Without `fallbacks` those that the export wrote down are taken. Raises CorruptDataError where the folder's files do
    not belong together, NotFoundError where one is missing.
    """
    spec_json = _read(folder / bundles.MODEL, MAX_JSON_BYTES)
    _, layout = model_from_json(spec_json)
    theta = _read(folder / bundles.THETA, _MAX_THETA_BYTES)
    if len(theta) != 4 * layout.size:
        raise CorruptDataError(f"{bundles.THETA} does not fit {bundles.MODEL}; export the model again")
    model = model_id(layout.sha256, layout.check(np.frombuffer(theta, "<f4").astype(np.float32)))
    files = [listed(folder / bundles.THETA)]
    files += [listed(folder / bundles.SHARD)] if (folder / bundles.SHARD).is_file() else []
    files += [listed(path) for path in sorted(folder.iterdir()) if bundles.is_extra(path.name)]
    chosen = _fallbacks(folder) if fallbacks is None else fallbacks
    manifest = bundles.manifest_of(spec_json, model, files, sequence=sequence, fallbacks=chosen, min_sdk=min_sdk)
    if manifest.graphs:
        bundles.check_graphs(manifest, _read(folder / bundles.GRAPHS, MAX_JSON_BYTES))
    if manifest.variants:
        check_variants(manifest, _read(folder / bundles.VARIANTS, MAX_JSON_BYTES))
    data = manifest.to_json()
    write_atomically(folder / bundles.MANIFEST, data)
    write_atomically(folder / bundles.SIGNATURE, bundles.sign(key, data))
    return manifest


def listed(path: Path) -> BundleFile:
    """Return a file as a manifest lists it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return BundleFile(path.name, digest, path.stat().st_size)


def _read(path: Path, limit: int) -> bytes:
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}; name a folder that model export wrote")
    return read_limited(path, limit, what=path.name)


def _fallbacks(folder: Path) -> list[str]:
    path = folder / FALLBACKS
    return read_limited(path, 64 * 1024, what=path.name).decode(errors="replace").split() if path.is_file() else []
