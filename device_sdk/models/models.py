"""The models that a device holds: fetched once by hash, checked, usable without a network afterwards.

::

    models/<model id>.json     the manifest: spec, layout and the hashes of the blobs
    models/<sha256>            a blob: theta, or a shard of public faces

The name of a blob is its hash and the id of a model is the hash of its parameters, so a file here is right or it is
fetched again. `model_id` of the gallery says which model verifies; nothing here does.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from device_sdk.server.offers import Manifest, Progress
from device_sdk.storage.vault import locked_folder
from mien.errors import (
    ConfigError,
    CorruptDataError,
    IntegrityError,
    ModelMismatchError,
    NotFoundError,
    VersionError,
)
from mien.layout import ParameterLayout, Vector, model_id
from mien.models.known_models import FACE_INPUTS
from mien.protocol.canonical import MAX_JSON_BYTES, model_from_json, model_to_json, parse_json, to_canonical_json
from mien.protocol.ids import ModelId
from mien.protocol.rounds import BlobId
from mien.protocol.tensors import PublicShard, unpack_tensors
from mien.shell.files import file_sha256, map_limited, read_limited, storage_errors, write_atomically
from mien.shell.lock import held, is_taken, lock_file
from mien.shell.memory import forget_pages
from mien.specs import ModelSpec

if TYPE_CHECKING:
    from device_sdk.server.client import CoordinatorClient

MAX_THETA_BYTES: Final = 2**30
MAX_SHARD_BYTES: Final = 2**28
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_REMEDY: Final = "call `Device.update()` to fetch it again"


@dataclass(frozen=True)
class KnownModel:
    """Facts about a model besides its parameters."""

    model_id: ModelId
    spec: ModelSpec


@dataclass(frozen=True)
class Model(KnownModel):
    """A model with its parameters, checked against its id."""

    layout: ParameterLayout
    theta: Vector = field(repr=False)
    public_shard: BlobId | None


def fetch_by_hash(
    client: CoordinatorClient, blob: BlobId, path: Path, what: str, progress: Progress | None = None
) -> bool:
    """Fetch a blob into a file unless it is there already; tell whether it had to be fetched."""
    if path.is_file() and file_sha256(path) == blob.sha256:
        return False
    client.download(blob, path, what=what, progress=progress)
    return True


def forget_all_but(keep: Collection[str], folder: Path) -> None:
    """Remove what a folder holds by hash, descriptions and parts of that too, but for the files to keep."""
    for path in folder.iterdir():
        if path.name not in keep and _HEX.match(path.name):
            path.unlink()


class ModelStore:
    """The models in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, model: str) -> bool:
        """Return whether a model can be loaded without a network."""
        try:
            stored = self._manifest(model)
        except (NotFoundError, CorruptDataError, VersionError):
            return False
        return self._blob(stored.theta.sha256).exists()

    def holds(self, manifest: Manifest) -> bool:
        """Return whether a model is stored as this manifest describes it; thresholds are added to a model later."""
        if not self.has(manifest.model_id):
            return False
        stored = self._manifest(manifest.model_id)
        same_spec = stored.unverified_spec_json == manifest.unverified_spec_json
        return same_spec and stored.public_shard == manifest.public_shard

    def known(self, model: str) -> KnownModel:
        """Return the facts about a stored model besides its parameters; raises NotFoundError."""
        return KnownModel(ModelId(model), _described(self._manifest(model))[0])

    def load(self, model: str) -> Model:
        """Return a stored model, whose parameters stay in their file.

        Raises NotFoundError when it was never fetched, CorruptDataError when damaged.
        """
        stored = self._manifest(model)
        spec, layout = _described(stored)
        data = map_limited(self._blob(stored.theta.sha256), MAX_THETA_BYTES, what="the model's parameters")
        if len(data) != 4 * layout.size:
            raise CorruptDataError("the stored model is damaged; call `Device.update()` to fetch it again")
        unverified = layout.check(np.frombuffer(data, "<f4").astype(np.float32, copy=False), what="the stored model")
        if model_id(layout.sha256, unverified) != model:
            raise CorruptDataError("the stored model is damaged; call `Device.update()` to fetch it again")
        forget_pages(unverified)
        return Model(ModelId(model), spec, layout, theta=unverified, public_shard=stored.public_shard)

    def load_shard(self, model: Model) -> PublicShard | None:
        """Return the public faces that came with a model, None where it has none."""
        if model.public_shard is None:
            return None
        data = read_limited(self._blob(model.public_shard.sha256), MAX_SHARD_BYTES, what="the public faces")
        return PublicShard.from_bytes(data, model.spec.input)

    def fetch(self, client: CoordinatorClient, unverified: Manifest, *, progress: Progress | None = None) -> Model:
        """Return a model, fetching what is not stored yet; the manifest is stored last, so it means "complete"."""
        manifest = self._checked(unverified)
        with storage_errors("the model folder"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Two processes of one home must not write to the same partial file.
        with locked_folder(self._folder):
            self._forget_unfinished(manifest)
            if not self._put_over_stored(client, manifest, progress):
                self._fetch_blob(client, manifest.theta, "the model", progress)
            if manifest.public_shard:
                self._fetch_blob(client, manifest.public_shard, "the public faces", progress)
            write_atomically(self._manifest_path(manifest.model_id), _to_json(manifest), private=True)
        try:
            return self.load(manifest.model_id)
        except IntegrityError:
            # The blob is what its hash says, so the operator's manifest and parameters do not belong together.
            self._manifest_path(manifest.model_id).unlink()
            raise

    def _forget_unfinished(self, wanted: Manifest) -> None:
        """Remove what no stored model needs, nor the `wanted` one: of fetches that did not end, or a killed program.

        A coordinator could fill the disk else, with models that never come whole or are not what it says.
        """
        blobs = [wanted.theta, wanted.public_shard, wanted.changes]
        keep = {f"{blob.sha256}.part" for blob in blobs if blob}
        for path in self._folder.glob("*.json"):
            keep.add(path.name)
            with contextlib.suppress(CorruptDataError):
                stored = _from_json(read_limited(path, 2 * MAX_JSON_BYTES, what="the stored manifest"))
                blobs += [stored.theta, stored.public_shard]
        forget_all_but(keep | {blob.sha256 for blob in blobs if blob}, self._folder)
        for path in self._folder.glob(".*"):  # `write_atomically` of a program that was killed
            if _HEX.match(path.name[1:]):
                path.unlink()

    def put(self, model: Model) -> None:
        """Store a model that came with this program, as if it had been fetched: parameters first, then what it is."""
        parameters = np.ascontiguousarray(model.theta, "<f4").tobytes()
        theta = BlobId(hashlib.sha256(parameters).hexdigest(), len(parameters))
        manifest = Manifest(model.model_id, model_to_json(model.spec, model.layout), theta, None, released=False)
        with storage_errors("the model folder"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked_folder(self._folder):
            path = self._blob(theta.sha256)
            if not path.is_file() or file_sha256(path) != theta.sha256:
                write_atomically(path, parameters, private=True)
            write_atomically(self._manifest_path(model.model_id), _to_json(manifest), private=True)

    @contextlib.contextmanager
    def switching(self) -> Iterator[None]:
        """A block in which the gallery goes over to another model: no process removes what is fetched for it."""
        with storage_errors("the model folder"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with held(self._switch_lock):
            yield

    def keep_only(self, models: Iterable[str]) -> None:
        """Remove every model but these, and the blobs that only removed models used.

        `models` is read once the gallery cannot go over to another model. While it does so nothing is removed: that is
        left to the next time.
        """
        if not self._folder.exists():
            return
        with lock_file(self._switch_lock) as lock:
            if is_taken(lock):
                self._remove_all_but(tuple(models))

    @property
    def _switch_lock(self) -> Path:
        return self._folder / ".switch"

    def _remove_all_but(self, models: Sequence[str]) -> None:
        keep = {f"{model}.json" for model in models}
        for model in models:
            if self.has(model):
                stored = self._manifest(model)
                keep.add(stored.theta.sha256)
                keep.update([stored.public_shard.sha256] if stored.public_shard else [])
        with locked_folder(self._folder):
            forget_all_but(keep, self._folder)

    def size_to_fetch(self, unverified: Manifest) -> int:
        """Return about how many bytes `fetch` will load for the parameters."""
        if self._blob(unverified.theta.sha256).exists():
            return 0
        changes = unverified.changes
        return changes.size_bytes if changes and self._bases(unverified) else unverified.theta.size_bytes

    def _put_over_stored(self, client: CoordinatorClient, manifest: Manifest, progress: Progress | None) -> bool:
        """Make the parameters of a stored model and the tensors that training changed; tell whether that gave them."""
        changes, bases, path = manifest.changes, self._bases(manifest), self._blob(manifest.theta.sha256)
        if path.exists() or changes is None or changes.size_bytes >= manifest.theta.size_bytes:
            return False
        if not bases:
            return False
        what = "what changed in the model"
        self._fetch_blob(client, changes, what, progress)
        try:
            unverified_changes = unpack_tensors(self._blob(changes.sha256).read_bytes(), what=what)
            for base in bases:
                stored = self.load(base)
                tensors = {**stored.layout.unflatten(stored.theta), **unverified_changes}
                unverified_theta = np.ascontiguousarray(stored.layout.flatten(tensors), "<f4").tobytes()
                if hashlib.sha256(unverified_theta).hexdigest() == manifest.theta.sha256:
                    write_atomically(path, unverified_theta, private=True)
                    return True
        except IntegrityError:
            return False  # the whole model, which has a hash of its own, is fetched instead
        return False

    def _bases(self, manifest: Manifest) -> list[str]:
        """Return the stored models of the same layout."""
        layout_sha256 = _described(manifest)[0].layout_sha256
        names = [path.stem for path in self._folder.glob("*.json")] if self._folder.exists() else []
        known = [self.known(name) for name in sorted(names) if self.has(name)]
        return [model.model_id for model in known if model.spec.layout_sha256 == layout_sha256]

    def _checked(self, unverified: Manifest) -> Manifest:
        """Return a manifest; raises CorruptDataError for one whose sizes or names cannot be."""
        if not _HEX.fullmatch(unverified.model_id):
            raise CorruptDataError("the coordinator named a model that cannot be; tell the operator")
        _, layout = _described(unverified)
        sizes_fit = unverified.theta.size_bytes == 4 * layout.size <= MAX_THETA_BYTES
        shard_fits = unverified.public_shard is None or unverified.public_shard.size_bytes <= MAX_SHARD_BYTES
        if not sizes_fit or not shard_fits:
            raise CorruptDataError("the model's files have other sizes than its manifest says; tell the operator")
        return unverified

    def _fetch_blob(self, client: CoordinatorClient, blob: BlobId, what: str, progress: Progress | None) -> None:
        fetch_by_hash(client, blob, self._blob(blob.sha256), what, progress)

    def _manifest(self, model: str) -> Manifest:
        path = self._manifest_path(model)
        if not path.exists():
            raise NotFoundError("that model is not on this device; call `Device.update()` while online")
        return _from_json(read_limited(path, 2 * MAX_JSON_BYTES, what="the stored manifest"))

    def _manifest_path(self, model: str) -> Path:
        if not _HEX.fullmatch(model):
            raise NotFoundError(f"{model[:80]!r} is not the id of a model")
        return self._folder / f"{model}.json"

    def _blob(self, sha256: str) -> Path:
        if not _HEX.fullmatch(sha256):
            raise CorruptDataError("a manifest names a file that cannot be; tell the operator")
        return self._folder / sha256


def check_face_input(offered: ModelSpec, in_use: ModelSpec | None) -> None:
    """Raise ModelMismatchError unless a round's model takes faces as its family does, or as the model in use.

    Another scaling could turn phones' updates into nothing, or into what tells more of their faces.
    """
    known = [FACE_INPUTS.get(offered.backbone), None if in_use is None else in_use.input]
    if offered.input not in [replace(each, dim=offered.input.dim) for each in known if each is not None]:
        raise ModelMismatchError(
            f"the round's model takes faces otherwise than {offered.backbone} and the model in use do; the phone stays "
            "out of the round: tell the operator, who releases a model with another face input before rounds train it"
        )


def _described(manifest: Manifest) -> tuple[ModelSpec, ParameterLayout]:
    """Return a manifest's spec and layout; a field that this program does not know is of a newer one."""
    try:
        return model_from_json(manifest.unverified_spec_json)
    except ConfigError as error:
        raise VersionError(f"the model's manifest cannot be read ({error.message}); upgrade mien") from error


def _to_json(manifest: Manifest) -> bytes:
    shard = manifest.public_shard
    return to_canonical_json(
        {
            "model_id": manifest.model_id,
            "spec_json": manifest.unverified_spec_json.decode(),
            "theta": [manifest.theta.sha256, manifest.theta.size_bytes],
            "public_shard": [shard.sha256, shard.size_bytes] if shard else None,
        }
    )


def _from_json(data: bytes) -> Manifest:
    stored: Mapping[str, Any] = parse_json(data, what="the stored manifest", remedy=_REMEDY)
    try:
        theta, shard = BlobId(*stored["theta"]), stored["public_shard"]
        spec_json = stored["spec_json"].encode()
        return Manifest(stored["model_id"], spec_json, theta, BlobId(*shard) if shard else None, released=False)
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"the stored manifest is damaged; {_REMEDY}") from error
