"""Signed bundles: what a phone downloads of a release, and how it knows that the operator's release key vouches for it.

::

    manifest.json    canonical JSON of `BundleManifest`
    manifest.sig     64 bytes: Ed25519 over "mien/bundle/1\\n" and the manifest's bytes
    model.json       description and layout; theta.f32 and whatever else the manifest lists
    graphs.json      what the graphs are for (device_sdk.runtimes.manifest); embed.onnx, train_*.pte ...: the graphs
    variants.json    the model in smaller numbers (mien.models.variants); int8.variant ...: the variants

The signature covers the manifest's very bytes, and the manifest every other file by its hash: nothing is parsed before
it was verified, and no file counts that is not listed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from mien.errors import ConfigError, CorruptDataError, VersionError
from mien.protocol.canonical import model_from_json, parse_json, to_canonical_json
from mien.records import check_limits, from_mapping, to_mapping, within
from mien.specs import FaceInputSpec, Threshold

# Signatures are checked where a release comes in; most commands of a phone only want names and limits of here.
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.sig"
MODEL: Final = "model.json"
THETA: Final = "theta.f32"
SHARD: Final = "public_shard.safetensors"
OLDEST_SDK: Final = "0.1.0"
MAX_SEQUENCE: Final = 2**53
GRAPHS: Final = "graphs.json"
GRAPH_SUFFIXES: Final = (".onnx", ".pte")
VARIANTS: Final = "variants.json"
VARIANT_SUFFIX: Final = ".variant"
MAX_FILES: Final = 1000
MAX_GRAPH_BYTES: Final = 2**26

_CONTEXT: Final = b"mien/bundle/1\n"
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){0,3}")


@dataclass(frozen=True)
class BundleFile:
    """One file of a bundle: a plain name, the SHA-256 of its bytes in lower-case hex, and how many there are."""

    name: str
    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in (MANIFEST, SIGNATURE):
            raise ConfigError(f"a bundle's file is called {self.name[:80]!r}; names are plain, without folders")
        if not _HEX.fullmatch(self.sha256) or not 0 <= self.size_bytes < 2**53:
            raise ConfigError(f"bundle file {self.name} needs a SHA-256 in lower-case hex and a length")

    @classmethod
    def of(cls, name: str, data: bytes) -> BundleFile:
        """Return the listing of a file with that content."""
        return cls(name, hashlib.sha256(data).hexdigest(), len(data))


@dataclass(frozen=True)
class BundleManifest:
    """Manifest of a bundle, signed with the operator's release key.

    `sequence` grows from release to release; a phone that has seen one takes no lower one, but for the manifests that
    the newest one names by their SHA-256 (`hash_of`) as `fallbacks`: that is what a roll-back may bring back. A model's
    other signatures may not, for one may have been withdrawn. `min_sdk` is the oldest program that can use it.
    """

    sequence: Annotated[int, within(1, MAX_SEQUENCE)]
    model_id: str
    layout_sha256: str
    input: FaceInputSpec
    thresholds: tuple[Threshold, ...]
    files: tuple[BundleFile, ...]
    fallbacks: tuple[str, ...] = ()
    min_sdk: str = OLDEST_SDK
    format: int = 1

    def __post_init__(self) -> None:
        check_limits(self, "")
        for name in (self.model_id, self.layout_sha256, *self.fallbacks):
            if not _HEX.fullmatch(name):
                raise ConfigError(
                    "a bundle names a model, layout or fallback that cannot be; each is 64 lower-case hex digits"
                )
        names = [file.name for file in self.files]
        if len(set(names)) != len(names) or len(names) > MAX_FILES or not {MODEL, THETA} <= set(names):
            raise ConfigError(f"a bundle lists {MODEL} and {THETA}, and no file twice")
        if self.graphs and (GRAPHS not in names or any(file.size_bytes > MAX_GRAPH_BYTES for file in self.graphs)):
            raise ConfigError(f"a bundle with graphs lists {GRAPHS}, and no graph above {MAX_GRAPH_BYTES >> 20} MiB")
        if self.variants and (VARIANTS not in names or any(f.size_bytes > MAX_GRAPH_BYTES for f in self.variants)):
            raise ConfigError(f"a bundle with variants lists {VARIANTS}, and none above {MAX_GRAPH_BYTES >> 20} MiB")
        if not _VERSION.fullmatch(self.min_sdk):
            raise ConfigError(f"min_sdk is {self.min_sdk[:40]!r}; write a version such as 0.1.0")

    @property
    def graphs(self) -> tuple[BundleFile, ...]:
        """The graphs with their list, in order of name: what devices without torch run."""
        return tuple(file for file in self.files if is_graph(file.name))

    @property
    def variants(self) -> tuple[BundleFile, ...]:
        """The variants with their list, in order of name."""
        return tuple(file for file in self.files if is_variant(file.name))

    @property
    def extras(self) -> tuple[BundleFile, ...]:
        """Files beside the model, in order of name: graphs and variants."""
        return tuple(file for file in self.files if is_extra(file.name))

    def file(self, name: str) -> BundleFile | None:
        """Return a listed file, None if it is not listed."""
        return next((file for file in self.files if file.name == name), None)

    def to_json(self) -> bytes:
        """Return the bytes that are signed."""
        return to_canonical_json(to_mapping(self))


def manifest_of(
    spec_json: bytes,
    model_id: str,
    files: Iterable[BundleFile],
    *,
    sequence: int,
    fallbacks: Iterable[str] = (),
    min_sdk: str = OLDEST_SDK,
) -> BundleManifest:
    """Return the manifest for a model's description and files (`model.json` itself is added)."""
    spec, layout = model_from_json(spec_json)
    own = BundleFile.of(MODEL, spec_json)
    return BundleManifest(
        sequence=sequence,
        model_id=model_id,
        layout_sha256=layout.sha256,
        input=spec.input,
        thresholds=spec.thresholds,
        files=tuple(sorted((own, *files), key=lambda file: file.name)),
        fallbacks=tuple(dict.fromkeys(fallbacks)),
        min_sdk=min_sdk,
    )


def is_graph(name: str) -> bool:
    """Return whether a bundle's file of that name is a graph, or the list of them."""
    return name == GRAPHS or name.endswith(GRAPH_SUFFIXES)


def is_variant(name: str) -> bool:
    """Return whether a bundle's file of that name is a variant, or the list of them."""
    return name == VARIANTS or name.endswith(VARIANT_SUFFIX)


def is_extra(name: str) -> bool:
    """Return whether a bundle's file of that name comes beside the model: a graph, a variant, or a list of either."""
    return is_graph(name) or is_variant(name)


def hash_of(manifest_json: bytes) -> str:
    """Return a manifest's name in `fallbacks`: the SHA-256 of its bytes, as sha256sum prints it."""
    return hashlib.sha256(manifest_json).hexdigest()


def sign(key: Ed25519PrivateKey, manifest_json: bytes) -> bytes:
    """Return the signature (64 bytes) of a manifest's bytes."""
    return key.sign(_CONTEXT + manifest_json)


def verify(release_key: str, unverified_manifest_json: bytes, signature: bytes) -> BundleManifest:
    """Return the manifest once its signature holds under the release key (64 hex digits: an Ed25519 public key).

    Raises CorruptDataError for a signature that does not hold, VersionError for a manifest of a newer form.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        public_key(release_key).verify(signature, _CONTEXT + unverified_manifest_json)
    except InvalidSignature as error:
        raise CorruptDataError(
            "the release is not signed by the operator's release key, or was changed; do not use it, tell the operator"
        ) from error
    return listed_by(unverified_manifest_json)


def listed_by(manifest_json: bytes) -> BundleManifest:
    """Return the content of a manifest, whoever signed it: for whoever made or verified it. Raises VersionError
    for one of a newer form.
    """
    value = parse_json(manifest_json, what="the bundle's manifest")
    if not isinstance(value, dict) or value.get("format") != 1:
        raise VersionError("the bundle is of a newer form; upgrade mien")
    try:
        return from_mapping(BundleManifest, value)
    except ConfigError as error:
        raise VersionError(f"the bundle's manifest cannot be read ({error.message}); upgrade mien") from error


def check_description(manifest: BundleManifest, spec_json: bytes) -> None:
    """Raise CorruptDataError unless a model's description is the one that the manifest lists."""
    listed = manifest.file(MODEL)
    if listed is None or hashlib.sha256(spec_json).hexdigest() != listed.sha256:
        raise CorruptDataError("the model's description is not the signed one; do not use it, tell the operator")
    spec, layout = model_from_json(spec_json)
    if (spec.input, spec.thresholds, layout.sha256) != (manifest.input, manifest.thresholds, manifest.layout_sha256):
        raise CorruptDataError("the bundle's manifest contradicts its model.json; do not use it, tell the operator")


def check_graphs(manifest: BundleManifest, graphs_json: bytes) -> bytes:
    """Return the list of graphs once it is the signed one, for this model, and of signed graphs only.

    Raises CorruptDataError for any other.
    """
    listed = manifest.file(GRAPHS)
    if listed is None or hashlib.sha256(graphs_json).hexdigest() != listed.sha256:
        raise CorruptDataError("the list of graphs is not the signed one; do not use it, tell the operator")
    value = parse_json(graphs_json, what="the list of graphs")
    entries = value.get("graphs") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(entries, list):
        raise CorruptDataError("the list of graphs cannot be read; export the graphs and sign again")
    if value.get("layout_sha256") != manifest.layout_sha256 or value.get("input") != to_mapping(manifest.input):
        raise CorruptDataError("the graphs are for another model or other crops; export them for this one, sign again")
    for entry in entries:
        named = (entry.get("file"), entry.get("sha256"), entry.get("size_bytes")) if isinstance(entry, dict) else None
        if named not in {(file.name, file.sha256, file.size_bytes) for file in manifest.graphs}:
            raise CorruptDataError("the list of graphs names one that is not signed; export the graphs, sign again")
    return graphs_json


def check_sdk(manifest: BundleManifest, version: str) -> None:
    """Raise VersionError where a program of that version is too old for a bundle."""
    if is_older(version, manifest.min_sdk):
        raise VersionError(f"the release needs mien {manifest.min_sdk}, this is {version}; upgrade mien")


def is_older(version: str, than: str) -> bool:
    """Return whether a version comes before another."""
    return _numbers(version) < _numbers(than)


def public_key(release_key: str) -> Ed25519PublicKey:
    """Return the public key in 64 hex digits; raises ConfigError for anything else."""
    if not _HEX.fullmatch(release_key):
        raise ConfigError("a release key is 64 lower-case hex digits, as mien-coordinator release-key show prints it")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(release_key))


def name_of(key: Ed25519PrivateKey) -> str:
    """Return the public half of a release key as 64 hex digits, which is how phones and settings name it."""
    raw = key.public_key().public_bytes_raw()
    return raw.hex()


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version's three leading numbers: 0.2.0rc1 counts as 0.2.0, and 0.2 does too."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
    return (*numbers, *[0] * (3 - len(numbers)))
