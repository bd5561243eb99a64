"""A signed release on a phone that is killed while it takes it over: no older one gets in, the newer one still does."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray
from typer.testing import CliRunner

from device_sdk.device import Device
from device_sdk.models.models import Model
from device_sdk.program.cli import app
from device_sdk.server.identity import IdentityFiles
from device_sdk.storage.home import Home
from device_sdk.storage.keystore import open_key_store
from mien.errors import CorruptDataError
from mien.layout import ParameterEntry, ParameterLayout, model_id
from mien.models import bundles
from mien.models.bundles import BundleFile
from mien.protocol.canonical import model_to_json
from mien.protocol.v1 import common_pb2, models_pb2
from mien.specs import ModelSpec, Threshold
from tests.device_sdk.made_up_people import SPEC, noise_crops, project
from tests.device_sdk.scripted import Fleet, Script, scripted_coordinator

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
LAYOUT = ParameterLayout((ParameterEntry("w", (2, 3)),))

DYING = """
import os, signal, sys
from pathlib import Path
from device_sdk.people.gallery import Gallery
from device_sdk.models.models import ModelStore
from device_sdk.models.releases import ReleaseGuard
from tests.device_sdk.models.test_release_switch import opened

home, when, step = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
steps = {"fetch": ModelStore, "accept": ReleaseGuard, "reembed": Gallery, "keep_only": ModelStore}
whole = getattr(steps[step], step)

def dies(*args, **kwargs):
    if when == "after":
        whole(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(steps[step], step, dies)
opened(home).update()
"""


class Projection:
    """An engine whose embeddings the parameters choose."""

    def embed(self, theta: NDArray[np.float32], crops: NDArray[np.uint8]) -> NDArray[np.float32]:
        return project(crops, seed=int(theta[0]))


def opened(home: Path) -> Device:
    """Return the phone in a folder."""
    projection: Callable[[Model], Any] = lambda _model: Projection()  # noqa: E731  (only `embed` is called)
    return Device.open(home, options={"keystore": "file"}, runtime_loader=projection)


@dataclass(frozen=True)
class Release:
    """A signed release: its parameters, and how a coordinator offers it."""

    theta: bytes
    manifest: models_pb2.ModelManifest
    threshold: float

    @classmethod
    def of(cls, seed: int, sequence: int, threshold: float = 0.3) -> Release:
        theta = np.full(6, seed, "<f4")
        model = model_id(LAYOUT.sha256, theta.astype(np.float32))
        measured = Threshold(threshold, 0.001, "faces", 10, 30_000, model, "2026-01-01")
        spec_json = model_to_json(
            ModelSpec("tiny", LAYOUT.sha256, SPEC, "made up", "none", ("w",), (measured,)), LAYOUT
        )
        file = BundleFile(bundles.THETA, hashlib.sha256(theta.tobytes()).hexdigest(), 24)
        data = bundles.manifest_of(spec_json, model, [file], sequence=sequence).to_json()
        manifest = models_pb2.ModelManifest(
            model_id=model,
            spec_json=spec_json,
            theta=common_pb2.BlobRef(sha256=file.sha256, size_bytes=24),
            released=True,
            bundle_manifest=data,
            bundle_signature=bundles.sign(KEY, data),
        )
        return cls(theta.tobytes(), manifest, threshold)


OLDER = Release.of(1, 5)
NEWER = {"another model": Release.of(2, 6), "another threshold": Release.of(1, 6, threshold=0.4)}


@dataclass
class Offered:
    """A coordinator that offers one release at a time, and a phone that uses the older one."""

    home: Path
    release: Release = OLDER


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Offered]:
    offered = Offered(tmp_path_factory.mktemp("switch") / "phone")
    home = Home.open(offered.home)
    files = IdentityFiles(home, open_key_store(home.folder, "file", warn=lambda _message: None))
    fleet = replace(Fleet.create(), key=files.key())
    script = Script(
        manifest=lambda: offered.release.manifest,
        download=lambda offset: [common_pb2.DataChunk(offset=offset, data=offered.release.theta[offset:])],
    )
    with scripted_coordinator(fleet, script) as address:
        files.save(fleet.identity(address, release_key=bundles.name_of(KEY)))
        with opened(offered.home) as phone:
            recogniser = phone.recogniser()
            crops = noise_crops(1)
            template = recogniser.template(recogniser.embed(crops))
            phone.gallery.enroll("Owner", crops, template, now_unix_s=0, consent=False)
        yield offered


def in_use(phone: Device) -> tuple[str, float]:
    """Return the model and the threshold that a phone verifies with."""
    recogniser = phone.recogniser()
    assert phone.gallery.references(recogniser.model_id).names == ("Owner",)
    return recogniser.model_id, phone.operating_point(recogniser.model).value


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("newer", "step"),
    [
        *(("another model", step) for step in ("fetch", "accept", "reembed", "keep_only")),
        *(("another threshold", step) for step in ("fetch", "accept")),
    ],
)
def test_killed_at_any_step_no_older_release_gets_in_and_the_newer_one_does(
    offered: Offered, tmp_path: Path, newer: str, step: str, when: str
) -> None:
    home, release = tmp_path / "phone", NEWER[newer]
    shutil.copytree(offered.home, home)
    offered.release = release
    died = subprocess.run([sys.executable, "-c", DYING, str(home), when, step], check=False, timeout=240)
    assert died.returncode == -signal.SIGKILL

    old, new = ((one.manifest.model_id, one.threshold) for one in (OLDER, release))
    with opened(home) as phone:
        assert (before := in_use(phone)) in (old, new)
        offered.release = OLDER
        with contextlib.suppress(CorruptDataError):  # what is in use still may be offered again: it changes nothing
            phone.update()
        assert in_use(phone) == before
        offered.release = release
        phone.update()
        assert in_use(phone) == new
        offered.release = OLDER
        with pytest.raises(CorruptDataError, match="does not let it come back"):
            phone.update()


def test_a_release_that_cannot_be_fetched_does_not_bar_the_one_before(offered: Offered, tmp_path: Path) -> None:
    home = tmp_path / "phone"
    shutil.copytree(offered.home, home)
    offered.release = replace(NEWER["another model"], theta=bytes(24))
    with opened(home) as phone:
        with pytest.raises(CorruptDataError):
            phone.update()
        offered.release = OLDER
        assert not phone.update().changed


def test_update_says_once_that_another_model_is_in_use(
    offered: Offered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, whole = tmp_path / "phone", Device.open
    shutil.copytree(offered.home, home)
    projection: Callable[[Model], Any] = lambda _model: Projection()  # noqa: E731  (only `embed` is called)

    def projecting(home: Path, **settings: Any) -> Device:
        return whole(home, **{**settings, "options": {"keystore": "file"}, "runtime_loader": projection})

    def told() -> str:
        done = CliRunner().invoke(app, ["update", "--home", str(home)], catch_exceptions=False)
        assert done.exit_code == 0
        return " ".join(done.output.split())

    monkeypatch.setattr(Device, "open", projecting)
    offered.release = NEWER["another model"]
    assert (words := told()).count("is in use") == 1
    assert "is in use; 1 template was made again with it." in words
    assert told() == "The released model is in use."
