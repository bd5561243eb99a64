"""A phone without torch: it joins, enrols, trains a masked round through ONNX Runtime, and verifies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from device_sdk.export.build import export_graphs
from device_sdk.export.forms import standard_forms
from device_sdk.home import Home
from device_sdk.participate import Counted
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.device_sdk.synthetic import images_of
from tests.integration.real_fleet import IDENTITIES, real_fleet, small_model

# Python imports a module of this name from PYTHONPATH before anything else.
SITE_WITHOUT_TORCH = """
import sys
class NotInstalled:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in ("torch", "onnx")
        return None if hidden else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [NotInstalled(finder) for finder in sys.meta_path]
"""


class Program:
    """`mien-device` in one home, in an environment without torch."""

    def __init__(self, home: Path, site: Path) -> None:
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE_WITHOUT_TORCH)
        self._home = home
        self._environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command and return what it printed."""
        code = "from device_sdk.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments), "--home", str(self._home), "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=120,
            check=False,
        )


TASK = TaskSpec(
    "without-torch",
    method="fedavg",
    population="without-torch",
    cohort=CohortSpec(size=2, min_reports=2),
    deadlines=DeadlineSpec(selecting_s=60.0, training_s=60.0, upload_s=60.0),
    local=LocalSpec(lr=0.05, flip=False),
    # Embeddings of random weights are all alike: only the largest margin leaves something to train.
    options={"margin": 1.0},
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
)


def test_a_phone_without_torch_takes_part(tmp_path: Path) -> None:
    model = small_model()
    home = tmp_path / "phone"
    phone = Program(home, tmp_path / "site")
    with real_fleet(tmp_path / "fleet") as fleet, ThreadPoolExecutor(1) as beside:
        fleet.release(model)
        joined = phone("join", fleet.invite("without-torch"), "--keystore", "file")
        assert joined.returncode == 0, joined.stderr
        pictures = images_of(IDENTITIES[0])[:5]
        refused = phone("enroll", "Ada", *pictures, "--consent")
        assert (refused.returncode, json.loads(refused.stderr)["error"]) == (17, "not_found")
        assert "device_sdk.export" in json.loads(refused.stderr)["message"]

        hinge = standard_forms("positive_hinge")
        export_graphs(model.spec, model.layout, Home.at(home).graphs, forms=hinge[:1])
        enrolled = phone("enroll", "Ada", *pictures, "--consent")
        assert enrolled.returncode == 0, enrolled.stderr

        fleet.submit(TASK)

        def companion() -> list[object]:
            with fleet.phone("companion", "without-torch", IDENTITIES[1], runtime="torch") as device:
                return list(device.participate(rounds=1))

        other = beside.submit(companion)
        agreed = ("--min-cohort", "2", "--allow-plain-sums")
        took_part = phone("participate", "--rounds", "1", *agreed)
        assert took_part.returncode == 0, took_part.stdout + took_part.stderr
        assert all(isinstance(outcome, Counted) for outcome in other.result(90))

        verified = phone("verify", "Ada", pictures[0], "--threshold", "0.9")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        found = phone("doctor")
        engines = [row for row in json.loads(found.stdout)["findings"] if row["what"] == "engine"]
        assert engines == [{"what": "engine", "ok": True, "detail": "onnxruntime"}]


@pytest.mark.parametrize("name", ["tensorflow", ""])
def test_an_unknown_runtime_is_named(tmp_path: Path, name: str) -> None:
    phone = Program(tmp_path / "phone", tmp_path / "site")
    done = phone("update", "--runtime", name)
    assert done.returncode == 2
    assert "allowed: 'auto', 'torch', 'onnxruntime'" in json.loads(done.stderr)["message"]
