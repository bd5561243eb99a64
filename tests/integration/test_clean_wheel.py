"""The built wheel on a phone: installed with what `[device]` locks and no torch, it joins, enrols, trains and verifies.

What it runs came in the signed release: it has neither torch nor the package `onnx` to make a graph with.
"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from device_sdk.export.build import export_graphs
from device_sdk.rounds.participate import Counted
from device_sdk.runtimes.forms import standard_forms
from device_sdk.storage.home import Home
from mien.errors import CorruptDataError
from mien.protocol.canonical import model_to_json
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from tests import wheel
from tests.device_sdk.synthetic import images_of
from tests.helpers import ROOT
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet, small_model
from tests.integration.test_operating import program

COORDINATOR = "coordinator.commands.cli"
TASK = TaskSpec(
    "without-torch",
    method="fedavg",
    population="without-torch",
    cohort=CohortSpec(size=2, min_reports=2),
    deadlines=DeadlineSpec(selecting_s=120.0, training_s=120.0, upload_s=120.0),
    local=LocalSpec(lr=0.05, flip=False),
    # Embeddings of random weights are all alike: only the largest margin leaves something to train.
    options={"margin": 1.0},
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution: what that leaves out is missing here."""
    return wheel.distributions(tmp_path_factory.mktemp("built"))[1]


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel and exactly what `deploy/requirements-device.lock` lists."""
    return wheel.environment(tmp_path_factory.mktemp("wheel") / "environment", built)


class Program:
    """`mien-device` of an environment, in one home."""

    def __init__(self, python: Path, home: Path) -> None:
        self._program = python.with_name("mien-device")
        self._home = home
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._environment.pop("PYTHONPATH", None)

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command, elsewhere than in the repository, and return what it printed."""
        return subprocess.run(
            [str(self._program), *map(str, arguments), "--home", str(self._home), "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self._program.parent,
            env=self._environment,
            timeout=600,
            check=False,
        )


def test_the_wheel_holds_every_file_of_the_packages(built: Path) -> None:
    packages = ("mien", "coordinator", "device_sdk", "simulation")
    here = {
        path.relative_to(ROOT).as_posix()
        for package in packages
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)
    }
    with zipfile.ZipFile(built) as archive:
        held = {name for name in archive.namelist() if name.startswith(tuple(f"{package}/" for package in packages))}
    assert held == here


def test_the_program_starts(installed: Path) -> None:
    command = [installed.with_name("mien-device"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")


def test_two_pictures_are_compared_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    one, other = images_of(IDENTITIES[0])[:2]
    paired = Program(installed, tmp_path / "phone")("verify-pair", one, other, "--threshold", "0.2")
    assert (paired.returncode, json.loads(paired.stdout)["decision"]) == (0, "match"), paired.stderr


def test_the_environment_has_no_torch(installed: Path) -> None:
    code = "import importlib.util as u; print(*(n for n in ('torch', 'onnx', 'executorch') if u.find_spec(n)))"
    command = [str(installed), "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip() == ""


def release_with_graphs(fleet: RealFleet, key: Path) -> None:
    """Import, export, sign with the graphs of the hinge, and release."""
    model, folder = small_model(), fleet.folder / "bundle"
    theta = fleet.folder / "theta.f32"
    theta.write_bytes(np.ascontiguousarray(model.theta, "<f4").tobytes())

    async def story() -> None:
        async with fleet.coordinator.operator() as operator:
            await operator.import_model(model_to_json(model.spec, model.layout), theta, None)

    fleet.loop.run(story())
    home = ("--home", str(fleet.coordinator.home.folder))
    program(COORDINATOR, "model", "export", model.model_id, str(folder), *home)
    export_graphs(model.spec, model.layout, folder, forms=standard_forms("positive_hinge")[:1])
    program(COORDINATOR, "model", "sign", str(folder), "--key", str(key))
    program(COORDINATOR, "model", "release", model.model_id, "--bundle", str(folder), "--without-thresholds", *home)


def test_a_phone_without_torch_takes_part(installed: Path, tmp_path: Path) -> None:
    key = tmp_path / "release.key"
    release_key = json.loads(program(COORDINATOR, "release-key", "init", str(key), "--json").stdout)["release_key"]
    home = tmp_path / "phone"
    phone = Program(installed, home)
    with real_fleet(tmp_path / "fleet", release_key=release_key) as fleet, ThreadPoolExecutor(1) as beside:
        release_with_graphs(fleet, key)
        joined = phone("join", fleet.invite("without-torch"), "--keystore", "file")
        assert joined.returncode == 0, joined.stderr
        pictures = images_of(IDENTITIES[0])[:5]
        enrolled = phone("enroll", "Ada", *pictures, "--consent")
        assert enrolled.returncode == 0, enrolled.stderr
        graphs = Home.at(home).graphs / small_model().layout.sha256
        assert len(list(graphs.iterdir())) == 7  # whole, in two pieces, step, loss, and their list by name and hash

        fleet.submit(TASK)

        def companion() -> list[object]:
            with fleet.phone("companion", "without-torch", IDENTITIES[1], runtime="torch") as device:
                return list(device.participate(rounds=1))

        other = beside.submit(companion)
        agreed = ("--min-cohort", "2", "--allow-plain-sums")
        took_part = phone("participate", "--rounds", "1", *agreed)
        assert took_part.returncode == 0, took_part.stdout + took_part.stderr
        assert all(isinstance(outcome, Counted) for outcome in other.result(240))

        verified = phone("verify", "Ada", pictures[0], "--threshold", "0.9")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        found = phone("doctor")
        engines = [row for row in json.loads(found.stdout)["findings"] if row["what"] == "engine"]
        assert engines == [{"what": "engine", "ok": True, "detail": "onnxruntime embeds and trains"}]

        benched = phone("bench", "--save")
        assert benched.returncode == 0, benched.stderr
        told = json.loads(benched.stdout)
        assert (told["fastest"], (home / "device.toml").read_text()) == ("onnxruntime", 'runtime = "auto"\n')
        lacking = {row["engine"] for row in told["engines"] if "pip install" in row["lacks"]}
        assert lacking == {"torch", "executorch"}

        for name, words in (
            ("torch", "pip install '.[train]' in Mien's folder"),
            ("executorch", "pip install '.[executorch]' in Mien's folder"),
        ):
            refused = phone("verify", "Ada", pictures[0], "--runtime", name)
            assert words in json.loads(refused.stderr)["message"]


def test_a_graph_that_was_changed_on_the_way_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "release.key"
    release_key = json.loads(program(COORDINATOR, "release-key", "init", str(key), "--json").stdout)["release_key"]
    with real_fleet(tmp_path / "fleet", release_key=release_key) as fleet:
        release_with_graphs(fleet, key)
        manifest = json.loads((fleet.folder / "bundle" / "manifest.json").read_bytes())
        sha256 = next(file["sha256"] for file in manifest["files"] if file["name"].startswith("train_"))
        (blob,) = fleet.coordinator.home.folder.rglob(sha256)
        blob.chmod(0o600)
        data = blob.read_bytes()
        blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with fleet.open("phone", runtime="onnxruntime") as device:
            device.join(fleet.invite("without-torch"))
            with pytest.raises(CorruptDataError, match="damaged"):
                device.update()
            assert device.gallery.model_id is None


@pytest.mark.parametrize("name", ["tensorflow", ""])
def test_an_unknown_runtime_is_named(installed: Path, tmp_path: Path, name: str) -> None:
    done = Program(installed, tmp_path / "phone")("update", "--runtime", name)
    assert done.returncode == 2
    assert "allowed: 'auto', 'torch', 'onnxruntime', 'executorch'" in json.loads(done.stderr)["message"]
