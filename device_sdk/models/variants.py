"""The variants that a device holds of the model in use: fetched by hash with a signed release, run by ONNX Runtime.

::

    models/variants/<sha256>        a variant, or a release's list of them
    models/variants/<sha256>.json   what a variant is (`mien.models.variants.Variant`); written last, so it means
    "complete"

What the release key signed decides what is fetched; what is read later is checked against the hash in its own name,
and a form's id (`mien.models.variants`) holds that hash. Nothing here falls back to anything: what is not right is an
error.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from device_sdk.models.models import fetch_by_hash, forget_all_but
from device_sdk.server.offers import Progress
from device_sdk.storage.vault import locked_folder
from mien.errors import ConfigError, CorruptDataError, MissingDependencyError, NotFoundError, VersionError
from mien.methods.base import Crops, Embeddings
from mien.models import bundles
from mien.models.bundles import MAX_GRAPH_BYTES, BundleManifest
from mien.models.variants import Variant, check_variants, variant_of
from mien.protocol.canonical import MAX_JSON_BYTES, parse_json, to_canonical_json
from mien.protocol.rounds import BlobId
from mien.records import from_mapping, to_mapping
from mien.shell.files import make_folder, read_limited, storage_errors, write_atomically
from mien.shell.version import version

if TYPE_CHECKING:
    from device_sdk.runtimes.variant_session import VariantSession
    from device_sdk.server.client import CoordinatorClient


class VariantStore:
    """The variants in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fetched_here: set[str] = set()

    def offered(self, client: CoordinatorClient, signed: BundleManifest | None) -> tuple[Variant, ...]:
        """Return the variants of a signed release that this program can run; none for unsigned ones.

        Raises CorruptDataError for a list that is not the signed one or of another model, VersionError for a newer
        form of it.
        """
        listed = None if signed is None else signed.file(bundles.VARIANTS)
        if signed is None or listed is None:
            return ()
        with self._locked():
            path = self._fetched(client, BlobId(listed.sha256, listed.size_bytes), "the list of variants")
            unverified_variants_json = read_limited(path, MAX_JSON_BYTES, what="the list of variants")
            return check_variants(signed, unverified_variants_json, software=version()).variants

    def fetch(self, client: CoordinatorClient, variant: Variant, *, progress: Progress | None = None) -> None:
        """Fetch an offered variant's file; it can be loaded once it is kept."""
        with self._locked():
            blob = BlobId(variant.sha256, variant.size_bytes)
            self._fetched(client, blob, f"variant {variant.tier} of the model", progress)

    def keep(self, variant: Variant) -> None:
        """Store what a fetched variant is, with the thresholds that it has now."""
        write_atomically(self._described(variant.sha256), to_canonical_json(to_mapping(variant)), private=True)

    def has(self, form: str) -> bool:
        """Return whether a form's variant can be loaded without a network."""
        sha256 = variant_of(form)
        return self._described(sha256).is_file() and self._blob(sha256).is_file()

    def load(self, form: str) -> Variant:
        """Return a form's variant; raises NotFoundError where it is not here, CorruptDataError for another."""
        path = self._described(variant_of(form))
        if not path.is_file():
            raise NotFoundError("that variant of the model is not on this device; call `Device.update()`")
        data = read_limited(path, MAX_JSON_BYTES, what="the stored variant")
        try:
            value = parse_json(data, what="the stored variant", remedy="call `Device.update()` to fetch it again")
            variant = from_mapping(Variant, value if isinstance(value, dict) else {})
        except ConfigError as error:
            raise VersionError("the stored variant is of another version; call `Device.update()`") from error
        if variant.form_id != form:
            raise CorruptDataError("the stored variant is of another model; call `Device.update()` to fetch it again")
        return variant

    def read(self, variant: Variant) -> bytes:
        """Return a variant's bytes; raises CorruptDataError when they are not those that were signed."""
        path = self._blob(variant.sha256)
        if not path.is_file():
            raise NotFoundError("that variant of the model is not on this device; call `Device.update()`")
        unverified = read_limited(path, MAX_GRAPH_BYTES, what=f"variant {variant.tier}")
        if hashlib.sha256(unverified).hexdigest() != variant.sha256:
            raise CorruptDataError(
                f"variant {variant.tier} of the model is damaged or was changed; call `Device.update()` to fetch it "
                "again"
            )
        return unverified

    def keep_only(self, forms: Iterable[str]) -> None:
        """Remove everything that these forms do not need."""
        keep = {name for form in forms if (sha256 := variant_of(form)) for name in (sha256, f"{sha256}.json")}
        if not self._folder.exists():
            return
        with self._locked():
            forget_all_but(keep, self._folder)

    def forget_fetched(self, besides: Iterable[Variant] = ()) -> None:
        """Remove what this store itself fetched and nothing uses; `besides` are variants that a switch may be making.

        What is described stays, too: it is in use, or another process is switching to it.
        """
        spared = {each.sha256 for each in besides}
        if not self._fetched_here:
            return
        with self._locked():
            for sha256 in self._fetched_here - spared:
                if not self._described(sha256).is_file():
                    self._blob(sha256).unlink(missing_ok=True)
        self._fetched_here.clear()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """A block that one process at a time may be in: two must not write to one partial file."""
        with storage_errors("the folder of variants"):
            make_folder(self._folder)
        with locked_folder(self._folder):
            yield

    def _fetched(self, client: CoordinatorClient, blob: BlobId, what: str, progress: Progress | None = None) -> Path:
        path = self._blob(blob.sha256)
        if fetch_by_hash(client, blob, path, what, progress):
            self._fetched_here.add(blob.sha256)
        return path

    def _described(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.json"

    def _blob(self, sha256: str) -> Path:
        return self._folder / sha256


@dataclass(frozen=True)
class LoadedVariant:
    """A variant made ready to embed."""

    variant: Variant
    session: VariantSession = field(repr=False)

    def embed(self, crops: Crops) -> Embeddings:
        """Return embeddings (N, dim) of crops (N, H, W, 3) of the model's size; their length is not 1."""
        return self.session.run(self.variant.input.network_input(crops))


def load_variant(variant: Variant, data: bytes, *, threads: int = 1) -> LoadedVariant:
    """Return a variant on ONNX Runtime; raises MissingDependencyError without it, CorruptDataError for no graph."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingDependencyError(
            f"variant {variant.tier} runs on ONNX Runtime: pip install onnxruntime, or use float32"
        )
    from device_sdk.runtimes.variant_session import VariantSession

    return LoadedVariant(variant, VariantSession(data, tier=variant.tier, dim=variant.input.dim, threads=threads))
