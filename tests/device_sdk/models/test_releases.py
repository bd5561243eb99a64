"""Which releases a device accepts: signed by the pinned key, whole, and never older than what it has seen."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from device_sdk.models.releases import ReleaseGuard, verify_folder
from device_sdk.program.cli import app
from device_sdk.server.offers import Manifest
from mien.errors import ConfigError, CorruptDataError, MienError, VersionError
from mien.layout import ParameterEntry, ParameterLayout
from mien.models import bundles
from mien.models.bundles import BundleFile
from mien.protocol.canonical import model_to_json
from mien.protocol.rounds import BlobId
from mien.specs import FaceInputSpec, ModelSpec, Threshold

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NAME = bundles.name_of(KEY)
LAYOUT = ParameterLayout((ParameterEntry("w", (2, 3)),))
THETA, SHARD = BlobId("b" * 64, 24), BlobId("c" * 64, 5)


def offered(
    letter: str,
    sequence: int,
    *,
    fallbacks: tuple[Manifest, ...] = (),
    key: Any = KEY,
    threshold: float = 0.3,
    **changes: Any,
) -> Manifest:
    """Return a release as a coordinator offers it; `changes` are made behind the signer's back."""
    model = letter * 64
    measured = Threshold(threshold, 0.001, "faces", 10, 30_000, model, "2026-01-01")
    spec = ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(dim=4), "made up", "none", ("w",), (measured,))
    files = [BundleFile(name, b.sha256, b.size_bytes) for name, b in ((bundles.THETA, THETA), (bundles.SHARD, SHARD))]
    spec_json = model_to_json(spec, LAYOUT)
    back = [bundles.hash_of(fallback.unverified_bundle_json) for fallback in fallbacks]
    data = bundles.manifest_of(spec_json, model, files, sequence=sequence, fallbacks=back).to_json()
    manifest = Manifest(model, spec_json, THETA, SHARD, True, None, data, bundles.sign(key, data))
    return dataclasses.replace(manifest, **changes)


@pytest.fixture
def guard(tmp_path: Path) -> ReleaseGuard:
    return ReleaseGuard(NAME, tmp_path / "release.json")


def take(guard: ReleaseGuard, manifest: Manifest) -> None:
    guard.accept(guard.check(manifest))


def test_newer_releases_are_accepted_and_older_ones_refused(guard: ReleaseGuard) -> None:
    take(guard, offered("a", 5))
    take(guard, offered("b", 6))
    take(guard, offered("b", 6))
    for older in (offered("a", 5), offered("d", 4), offered("d", 6)):
        with pytest.raises(CorruptDataError, match="does not let it come back"):
            guard.check(older)
    take(guard, offered("a", 7))  # the operator signed the old model anew


def test_a_release_that_another_process_overtook_is_not_accepted(guard: ReleaseGuard, tmp_path: Path) -> None:
    """Two processes of one phone fetch releases; the slower one must not bring the older into use afterwards."""
    checked = guard.check(offered("a", 5))
    take(ReleaseGuard(NAME, tmp_path / "release.json"), offered("b", 6))
    with pytest.raises(CorruptDataError, match="does not let it come back"):
        guard.accept(checked)
    with pytest.raises(CorruptDataError):
        guard.check(offered("a", 5))


@pytest.mark.parametrize("damage", ["", "{", '{"sequence": NaN}'])
def test_what_was_remembered_and_is_damaged_is_forgotten_by_nobody_but_its_owner(
    guard: ReleaseGuard, tmp_path: Path, damage: str
) -> None:
    take(guard, offered("b", 6))
    path = tmp_path / "release.json"
    path.write_text(damage)
    for release in (offered("a", 5), offered("c", 7)):
        with pytest.raises(CorruptDataError, match=re.escape(f"restore {path} from a copy, or delete it: then any")):
            guard.check(release)
    path.unlink()
    take(guard, offered("c", 7))


def test_many_processes_at_once_remember_the_newest(tmp_path: Path) -> None:
    """Threads here: a lock file knows open files, not processes, so that each open one is a process of its own."""
    path, start = tmp_path / "release.json", threading.Barrier(8)

    def accept(sequence: int) -> None:
        guard = ReleaseGuard(NAME, path)
        start.wait(30)
        with contextlib.suppress(CorruptDataError):
            take(guard, offered("a", sequence))

    threads = [threading.Thread(target=accept, args=(sequence,)) for sequence in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(CorruptDataError):
        ReleaseGuard(NAME, path).check(offered("a", 7))
    take(ReleaseGuard(NAME, path), offered("a", 8))


def test_the_newest_release_says_what_may_come_back(guard: ReleaseGuard) -> None:
    a = offered("a", 5)
    b = offered("b", 6, fallbacks=(a,))
    for manifest in (a, b, a, b, a):
        take(guard, manifest)
    with pytest.raises(CorruptDataError):
        guard.check(offered("d", 4))
    take(guard, offered("e", 7))
    with pytest.raises(CorruptDataError):
        guard.check(a)


def test_what_comes_back_is_the_named_signature_and_no_other_of_its_model(guard: ReleaseGuard) -> None:
    wrong, right = offered("a", 1, threshold=-0.9), offered("a", 2)  # a slip that accepts everybody, signed anew
    newest = offered("b", 3, fallbacks=(right,))
    for manifest in (wrong, right, newest, right):
        take(guard, manifest)
    same_numbers = (offered("a", 2, threshold=-0.9), offered("b", 3, threshold=-0.9, fallbacks=(right,)))
    for withdrawn in (wrong, *same_numbers):
        with pytest.raises(CorruptDataError, match="does not let it come back"):
            guard.check(withdrawn)


def test_fallbacks_that_name_a_model_let_nothing_come_back(guard: ReleaseGuard) -> None:
    a, b = offered("a", 5), offered("b", 6)
    data = b.unverified_bundle_json.replace(b'"fallbacks":[]', b'"fallbacks":["' + b"a" * 64 + b'"]')
    take(guard, dataclasses.replace(b, unverified_bundle_json=data, bundle_signature=bundles.sign(KEY, data)))
    with pytest.raises(CorruptDataError, match="does not let it come back"):
        guard.check(a)


def test_what_an_earlier_program_remembered_still_counts(guard: ReleaseGuard, tmp_path: Path) -> None:
    remembered = {"release_key": NAME, "sequence": 6, "model_id": "b" * 64, "fallbacks": ["a" * 64]}
    (tmp_path / "release.json").write_text(json.dumps(remembered))
    take(guard, offered("b", 6))
    for older in (offered("a", 5), offered("d", 6)):
        with pytest.raises(CorruptDataError, match="does not let it come back"):
            guard.check(older)
    take(guard, offered("a", 7))


@pytest.mark.parametrize(
    "changes",
    [
        {"unverified_bundle_json": b"", "bundle_signature": b""},
        {"bundle_signature": bytes(64)},
        {"model_id": "d" * 64},
        {"theta": BlobId("d" * 64, 24)},
        {"theta": BlobId("b" * 64, 28)},
        {"public_shard": BlobId("d" * 64, 5)},
        {"public_shard": None},
        {"unverified_spec_json": offered("a", 5).unverified_spec_json.replace(b'"value":0.3', b'"value":0.1')},
    ],
)
def test_whatever_is_not_signed_is_refused(guard: ReleaseGuard, changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptDataError, match="signed"):
        guard.check(offered("a", 5, **changes))


def test_another_key_is_refused_and_a_newer_program_asked_for(guard: ReleaseGuard) -> None:
    with pytest.raises(CorruptDataError):
        guard.check(offered("a", 5, key=Ed25519PrivateKey.from_private_bytes(bytes(32))))
    manifest = offered("a", 5)
    data = manifest.unverified_bundle_json.replace(b'"min_sdk":"0.1.0"', b'"min_sdk":"99.0"')
    newer = dataclasses.replace(manifest, unverified_bundle_json=data, bundle_signature=bundles.sign(KEY, data))
    with pytest.raises(VersionError, match=r"needs mien 99\.0"):
        guard.check(newer)


def test_what_was_checked_but_not_used_is_not_remembered(guard: ReleaseGuard) -> None:
    guard.check(offered("b", 6))
    guard.check(offered("a", 5))


def test_a_device_without_a_key_takes_what_there_is(tmp_path: Path) -> None:
    guard = ReleaseGuard("", tmp_path / "release.json")
    take(guard, offered("a", 5, unverified_bundle_json=b"", bundle_signature=b""))
    assert not (tmp_path / "release.json").exists()


def test_another_key_after_a_new_invite_counts_from_anew(guard: ReleaseGuard, tmp_path: Path) -> None:
    take(guard, offered("a", 500))
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    take(ReleaseGuard(bundles.name_of(other), tmp_path / "release.json"), offered("a", 5, key=other))


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        from coordinator.release.signing import sign_folder

        folder = tmp_path / "model"
        folder.mkdir()
        spec = ModelSpec("tiny", LAYOUT.sha256, FaceInputSpec(dim=4), "made up", "none", ("w",))
        (folder / "model.json").write_bytes(model_to_json(spec, LAYOUT))
        (folder / "theta.f32").write_bytes(np.arange(6, dtype="<f4").tobytes())
        (folder / "fallbacks.txt").write_text("d" * 64 + "\n")
        sign_folder(folder, KEY, sequence=9)
        return folder

    def test_a_signed_folder_is_verified(self, folder: Path, tmp_path: Path) -> None:
        signed = verify_folder(folder, NAME)
        assert (signed.sequence, signed.fallbacks) == (9, ("d" * 64,))
        arguments = ["bundle", "verify", str(folder), "--key", NAME, "--json", "--home", str(tmp_path / "home")]
        done = CliRunner().invoke(app, arguments)
        assert json.loads(done.stdout)["model_id"] == signed.model_id

    @pytest.mark.parametrize("name", ["model.json", "theta.f32", "manifest.json", "manifest.sig"])
    def test_any_changed_or_missing_file_is_noticed(self, folder: Path, name: str) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)
        with pytest.raises(MienError):
            verify_folder(folder, NAME)
        (folder / name).unlink()
        with pytest.raises(CorruptDataError):
            verify_folder(folder, NAME)

    def test_without_a_key_nothing_is_claimed(self, folder: Path, tmp_path: Path) -> None:
        done = CliRunner().invoke(app, ["bundle", "verify", str(folder), "--key", "x", "--home", str(tmp_path / "h")])
        assert isinstance(done.exception, ConfigError)
