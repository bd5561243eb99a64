"""Signed releases from the operator's stick to the phone: joined, released, rolled back, and what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.release.signing import read_key, sign_folder
from device_sdk.models.models import Model
from device_sdk.program.cli import app
from mien.errors import ConfigError, CorruptDataError, KeyStoreError, NotFoundError
from mien.protocol.canonical import model_to_json
from mien.specs import Threshold
from tests.integration.real_fleet import RealFleet, real_fleet, small_model, with_model
from tests.integration.test_operating import program

pytestmark = pytest.mark.slow

CLI = "coordinator.commands.cli"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A release key's file, and its name."""
    path = tmp_path_factory.mktemp("stick") / "release.key"
    made = json.loads(program(CLI, "release-key", "init", str(path), "--json").stdout)
    assert made == json.loads(program(CLI, "release-key", "show", str(path), "--json").stdout)
    assert path.stat().st_mode & 0o077 == 0
    assert program(CLI, "release-key", "init", str(path), check=False).returncode == 16
    return path, made["release_key"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, key: tuple[Path, str]) -> Iterator[RealFleet]:
    with real_fleet(tmp_path_factory.mktemp("signed"), release_key=key[1]) as running:
        yield running


def imported(fleet: RealFleet, model: Model) -> None:
    """Bring a model in without releasing it."""
    theta = fleet.folder / f"{model.model_id}.f32"
    theta.write_bytes(np.ascontiguousarray(model.theta, "<f4").tobytes())

    async def story() -> None:
        async with fleet.coordinator.operator() as operator:
            await operator.import_model(model_to_json(model.spec, model.layout), theta, None)

    fleet.loop.run(story())


def signed(fleet: RealFleet, model: Model, key: Path, sequence: int, *options: str) -> Path:
    """Return the folder of an exported and signed model."""
    folder = fleet.folder / f"bundle-{sequence}"
    home = ("--home", str(fleet.coordinator.home.folder))
    program(CLI, "model", "export", model.model_id, str(folder), *home)
    program(CLI, "model", "sign", str(folder), "--key", str(key), "--sequence", str(sequence), *options)
    return folder


def released(fleet: RealFleet, model: Model, *options: str, **kwargs: Any) -> Any:
    home = ("--home", str(fleet.coordinator.home.folder), "--json")
    return program(CLI, "model", "release", model.model_id, "--without-thresholds", *options, *home, **kwargs)


def told(fleet: RealFleet, verb: str) -> str:
    """Return what mien-device tells the phone's owner."""
    shown = CliRunner().invoke(app, [verb, "--home", str(fleet.folder / "phone")])
    assert shown.exit_code == 0
    return " ".join(shown.stdout.split())


def test_from_the_stick_to_the_phone_and_back(fleet: RealFleet, key: tuple[Path, str]) -> None:
    first, second = small_model(), with_model(small_model(), small_model().theta * np.float32(1.01))
    imported(fleet, first)
    refused = released(fleet, first, check=False)
    told_by = " ".join(refused.stderr.split())
    assert (refused.returncode, "--bundle with what model sign signed" in told_by) == (2, True)
    one = signed(fleet, first, key[0], 1)
    released(fleet, first, "--bundle", str(one))

    with fleet.phone("phone", "default", "asian_0007") as phone:
        assert phone.identity.release_key == key[1]
        assert phone.gallery.model_id == first.model_id
        verified = CliRunner().invoke(app, ["bundle", "verify", str(one), "--home", str(fleet.folder / "phone")])
        assert (verified.exit_code, "is signed and whole" in " ".join(verified.stdout.split())) == (0, True)

        anew = signed(fleet, first, key[0], 2)  # another signature of the same model; the first one is withdrawn
        released(fleet, first, "--bundle", str(anew))
        assert phone.update().model_id == first.model_id

        imported(fleet, second)
        three = signed(fleet, second, key[0], 3)
        named = json.loads((three / "manifest.json").read_bytes())["fallbacks"]
        assert named == [hashlib.sha256((anew / "manifest.json").read_bytes()).hexdigest()]
        released(fleet, second, "--bundle", str(three))
        assert phone.update().model_id == second.model_id

        home = ("--home", str(fleet.coordinator.home.folder))
        program(CLI, "model", "rollback", *home)
        assert phone.update().model_id == first.model_id  # the newest bundle names it as one to fall back to
        _tamper(fleet, "UPDATE bundles SET model_id = ? WHERE sequence = 2", second.model_id)
        with pytest.raises(CorruptDataError, match=r"release 1 is older than 3.* does not let it come back"):
            phone.update()
        _tamper(fleet, "UPDATE bundles SET model_id = ? WHERE sequence = 2", first.model_id)

        again = released(fleet, second, "--bundle", str(one), check=False)
        assert (again.returncode, "of another model" in again.stderr) == (22, True)

        third = with_model(first, first.theta * np.float32(0.9))
        imported(fleet, third)
        released(fleet, third, "--bundle", str(signed(fleet, third, key[0], 4, "--fallback", "f" * 64)))
        assert phone.update().model_id == third.model_id

        # It carries no threshold, and one that is measured now comes with another signature only.
        assert "nobody is recognised with it" in told(fleet, "update")
        fleet.add_threshold(Threshold(0.5, 1e-3, "pairs", 10, 30_000, third.model_id, "2026-01-01"))
        for words in (told(fleet, "update"), told(fleet, "status")):
            assert "sign this model anew" in words
        released(fleet, third, "--bundle", str(signed(fleet, third, key[0], 5, "--fallback", "f" * 64)))
        assert "nobody is recognised" not in told(fleet, "update")
        assert "sign this model anew" not in told(fleet, "status")
        stuck = program(CLI, "model", "rollback", *home, check=False)
        assert (stuck.returncode, "sign that one again" in " ".join(stuck.stderr.split())) == (2, True)

        # A coordinator that lies: somebody with its database puts another model in the signed one's place.
        fourth = with_model(first, first.theta * np.float32(0.5))
        imported(fleet, fourth)
        _tamper(fleet, "UPDATE releases SET model_id = ?", fourth.model_id)
        with pytest.raises(CorruptDataError, match="not signed"):
            phone.update()
        _tamper(fleet, "UPDATE bundles SET model_id = ? WHERE sequence = 5", fourth.model_id)
        with pytest.raises(CorruptDataError, match="not the signed one"):
            phone.update()
        _tamper(fleet, "UPDATE releases SET model_id = ?", first.model_id)  # signed, but replaced
        with pytest.raises(CorruptDataError, match="does not let it come back"):
            phone.update()
        assert phone.gallery.model_id == third.model_id


def _tamper(fleet: RealFleet, statement: str, value: str) -> None:
    with contextlib.closing(sqlite3.connect(fleet.coordinator.home.folder / "coordinator.db", timeout=30)) as db, db:
        db.execute(statement, (value,))


def test_a_key_is_needed_to_sign_and_a_model_to_be_signed(key: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="release-key init"):
        read_key(tmp_path / "none")
    (tmp_path / "junk").write_bytes(b"junk")
    (tmp_path / "junk").chmod(0o600)
    with pytest.raises(KeyStoreError, match="no release key"):
        read_key(tmp_path / "junk")
    with pytest.raises(NotFoundError, match="model export"):
        sign_folder(tmp_path, read_key(key[0]), sequence=1)
    model = small_model()
    (tmp_path / "model.json").write_bytes(model_to_json(model.spec, model.layout))
    (tmp_path / "theta.f32").write_bytes(b"1234")
    with pytest.raises(CorruptDataError, match="does not fit"):
        sign_folder(tmp_path, read_key(key[0]), sequence=1)
    (tmp_path / "theta.f32").write_bytes(model.theta.astype("<f4").tobytes())
    with pytest.raises(ConfigError, match="sequence is 0"):
        sign_folder(tmp_path, read_key(key[0]), sequence=0)
