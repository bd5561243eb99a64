"""Acceptance of releases: signed by the pinned key, whole, and never older than one that the device has seen.

What was accepted last is remembered in one file, before it is used. A coordinator, whoever runs it, can therefore not
bring back a release that the operator has replaced, unless the newest signature names that very one as one to fall back
to.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_sdk.server.offers import Manifest
from mien.errors import ConfigError, CorruptDataError, VersionError
from mien.models import bundles
from mien.models.bundles import BundleFile, BundleManifest
from mien.models.variants import check_variants
from mien.protocol.canonical import MAX_JSON_BYTES, parse_json, to_canonical_json
from mien.protocol.rounds import BlobId
from mien.records import from_mapping, to_mapping
from mien.shell.files import read_limited, write_atomically
from mien.shell.lock import held
from mien.shell.version import version


@dataclass(frozen=True)
class SeenRelease:
    """A release as a device remembers it: whose it is, and the hashes of the manifests that it lets come back.

    `manifest_sha256` and `min_sdk` are empty where a program remembered it that did not keep them.
    """

    release_key: str
    sequence: int
    model_id: str
    fallbacks: tuple[str, ...] = ()
    manifest_sha256: str = ""
    min_sdk: str = ""


@dataclass(frozen=True)
class CheckedRelease:
    """A release that may come into use: as it was offered and as it was signed; None for a device without a key."""

    manifest: Manifest
    signed: BundleManifest | None = None
    seen: SeenRelease | None = None


class ReleaseGuard:
    """Accepts releases under one pinned key (empty: all, unsigned); `path` remembers the newest."""

    def __init__(self, release_key: str, path: Path) -> None:
        self._key, self._path = release_key, path

    def check(self, unverified: Manifest) -> CheckedRelease:
        """Return an offered release once it is the signed one; a device without a pinned key takes any.

        Raises CorruptDataError for a release that is not signed, was changed, or is older than one that was accepted;
        VersionError where this program is too old for it.
        """
        if not self._key:
            return CheckedRelease(unverified)
        if not unverified.unverified_bundle_json:
            raise CorruptDataError(
                "the release is not signed, and this device takes signed ones only; do not use it, tell the operator"
            )
        signed = bundles.verify(self._key, unverified.unverified_bundle_json, unverified.bundle_signature)
        bundles.check_description(signed, unverified.unverified_spec_json)
        bundles.check_sdk(signed, version())
        offered = {bundles.THETA: unverified.theta, bundles.SHARD: unverified.public_shard}
        same = all(_blob_of(signed.file(name)) == blob for name, blob in offered.items())
        if unverified.model_id != signed.model_id or not same:
            raise CorruptDataError("the release is not the signed one; do not use it, tell the operator")
        sha256 = bundles.hash_of(unverified.unverified_bundle_json)
        seen = SeenRelease(self._key, signed.sequence, signed.model_id, signed.fallbacks, sha256, signed.min_sdk)
        self._check_order(seen)
        return CheckedRelease(unverified, signed, seen)

    def accept(self, release: CheckedRelease) -> None:
        """Remember a checked release. Call it before the release comes into use: then no crash lets an older one in.

        Raises CorruptDataError where another process of this device has accepted a newer one since the check.
        """
        if release.seen is None:
            return
        with held(self._path.with_suffix(".lock")):
            self._check_order(release.seen)
            before = self._seen()
            if before is None or release.seen.sequence > before.sequence:
                write_atomically(self._path, to_canonical_json(to_mapping(release.seen)), private=True)

    def _check_order(self, offered: SeenRelease) -> None:
        seen = self._seen()
        if seen is None:
            return
        if offered.sequence > seen.sequence:
            if seen.min_sdk and bundles.is_older(offered.min_sdk, seen.min_sdk):
                raise CorruptDataError(
                    f"release {offered.sequence} is for mien {offered.min_sdk} on, the one before it was for "
                    f"{seen.min_sdk} on; the model that is here stays in use, tell the operator, who names the "
                    "oldest program that may use a release when they sign it"
                )
            return
        same = (offered.sequence, offered.model_id) == (seen.sequence, seen.model_id)
        same = same and seen.manifest_sha256 in ("", offered.manifest_sha256)
        if not same and offered.manifest_sha256 not in seen.fallbacks:
            raise CorruptDataError(
                f"release {offered.sequence} is older than {seen.sequence}, which this device has seen, and that one "
                "does not let it come back; the model that is here stays in use, tell the operator"
            )

    def _seen(self) -> SeenRelease | None:
        """Return the highest release that was accepted under this key."""
        if not self._path.exists():
            return None
        what = "what this device remembers of releases"
        # Not forgotten by itself: whoever can damage the file would have the device take an older release.
        remedy = f"restore {self._path} from a copy, or delete it: then any signed release is taken, also an older one"
        value: Any = parse_json(read_limited(self._path, MAX_JSON_BYTES, what=what), what=what, remedy=remedy)
        try:
            seen = from_mapping(SeenRelease, value if isinstance(value, dict) else {})
        except ConfigError as error:
            raise VersionError("what this device remembers of releases is of a newer form; upgrade mien") from error
        return seen if seen.release_key == self._key else None  # another key after a new invite: it counts from anew


def _blob_of(file: BundleFile | None) -> BlobId | None:
    return None if file is None else BlobId(file.sha256, file.size_bytes)


def verify_folder(folder: Path, release_key: str) -> BundleManifest:
    """Return the manifest of a bundle in a folder, every listed file checked; files that are not listed do not count.

    Raises what `ReleaseGuard.check` raises, but for the order of releases.
    """

    def read(name: str, limit: int) -> bytes:
        if not (folder / name).is_file():
            raise CorruptDataError(f"the bundle {folder} has no {name}; name its folder, or fetch it again")
        return read_limited(folder / name, limit, what=name)

    signed = bundles.verify(release_key, read(bundles.MANIFEST, MAX_JSON_BYTES), read(bundles.SIGNATURE, 1024))
    bundles.check_sdk(signed, version())
    for file in signed.files:
        data = folder / file.name
        if not data.is_file() or data.stat().st_size != file.size_bytes:
            raise CorruptDataError(f"{file.name} is missing or has another size than was signed; fetch it again")
        with data.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != file.sha256:
                raise CorruptDataError(f"{file.name} is not the signed one; do not use it, fetch it again")
    bundles.check_description(signed, read(bundles.MODEL, MAX_JSON_BYTES))
    if signed.graphs:
        bundles.check_graphs(signed, read(bundles.GRAPHS, MAX_JSON_BYTES))
    if signed.variants:
        check_variants(signed, read(bundles.VARIANTS, MAX_JSON_BYTES))
    return signed
